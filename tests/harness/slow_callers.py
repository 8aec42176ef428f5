"""Callers of an HTTP server that send their request a byte now and then, and never come to its end."""

from __future__ import annotations

import select
import socket


def outlast(port: int, number: int, begun: bytes = b"G") -> None:
    """Call with so many, and send on until the server has ended every one of them."""
    slow = [socket.create_connection(("127.0.0.1", port), timeout=10.0) for _ in range(number)]
    for each in slow:
        each.sendall(begun)
    ended = set[socket.socket]()
    while len(ended) < len(slow):
        for each in slow:
            if each not in ended:
                try:
                    each.send(b"G")
                except OSError:
                    ended.add(each)
        select.select([], [], [], 0.01)
    for each in slow:
        each.close()
