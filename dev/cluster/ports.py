"""Decides which ports of this machine a broker without an instance listens on. Used by `broker` and `kafka`. Starts nothing."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from dev.cluster.errors import ClusterError

HOST = "127.0.0.1"

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """So many ports that are free now, outside of the range from which the machine gives ports to clients.

    A process is given none twice: on some nobody listens yet, on some nobody does for a while.
    """
    with ExitStack() as stack:

        def free() -> int:
            for port in range(20000 + os.getpid() % 8000, 32000):
                if port in _given:
                    continue
                taken = stack.enter_context(socket.socket())
                try:
                    taken.bind((HOST, port))
                except OSError:
                    continue
                _given.add(port)
                return port
            raise ClusterError("no free port between 20000 and 32000")

        return [free() for _ in range(count)]
