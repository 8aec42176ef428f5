"""Large answers from kafka-python's connections, without most of the copying.

kafka-python reads 4 KiB at a time and copies an answer four times before it is decoded, which takes longer than decompressing
it. `cluster_connection` uses this for its connections: fewer and larger reads; `raw_fetch` has the last of the copies. What is
on the wire, and everything about connecting, stays kafka-python's.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from typing import Any

import kafka.errors as errors

from shardherd.source.kafka.connection_manager import ClientManager
from shardherd.source.kafka_python.private import Received

READ_BYTES = 256 * 1024
"""Most bytes of one read: what fits the processor's cache until it is copied into the answer."""

TLS_RECORD = 64 * 1024
"""More than TLS can have decrypted and not handed out when READ_BYTES are read."""

_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


_mine = threading.local()
"""The memory that a thread reads into. kafka-python keeps what it has read last of every connection, and there may be many."""


def receive(sock: Any) -> tuple[memoryview, Exception | None]:
    """What a socket has now, about READ_BYTES at most, and what is wrong with it: see `kafka_python.private.Received`.

    It is there until the next call in this thread: by then kafka-python has copied it.
    """
    buffer = _mine.__dict__.setdefault("buffer", bytearray(READ_BYTES + TLS_RECORD))
    view, size = memoryview(buffer), 0
    try:
        # TLS gives one record of at most 16 KiB at a time, and keeps others where the selector does not see them.
        while size < READ_BYTES or (_pending(sock) and size < len(buffer)):
            got = sock.recv_into(view[size:], max(READ_BYTES - size, 0) or len(buffer) - size)
            if not got:
                return view[:size], errors.KafkaConnectionError("socket disconnected")
            size += got
    except _LATER:
        pass
    except OSError as error:
        return view[:size], errors.KafkaConnectionError(error)
    return view[:size], None


def _pending(sock: Any) -> bool:
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


class FetchManager(ClientManager):
    """A ClientManager whose connections, plain and TLS, read widely."""

    def receive(self, sock: Any, own: Callable[[], Received]) -> Received:  # noqa: ARG002
        return receive(sock)
