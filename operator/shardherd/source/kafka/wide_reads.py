"""Large answers from kafka-python's connections, without most of the copying.

kafka-python reads 4 KiB at a time and copies an answer four times before it is decoded, which takes longer than decompressing
it. `brokers` uses this for its connections: fewer and larger reads, and one copy. What is on the wire, and everything about
connecting, stays kafka-python's. Should it change inside, its own way is used again, and a test says so.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any

import kafka.errors as errors
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.consumer import FetchRequest, FetchResponse

from shardherd.source.kafka.connection_manager import ClientManager

READ_BYTES = 256 * 1024
"""Most bytes of one read: what fits the processor's cache until it is copied into the answer."""

TLS_RECORD = 64 * 1024
"""More than TLS can have decrypted and not handed out when READ_BYTES are read."""

_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class FetchManager(ClientManager):
    """A ClientManager whose connections read widely."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at)
        # Plain and TLS connections both read by this method, each of its class.
        transport._sock_recv = lambda: _receive(transport)
        return transport


_mine = threading.local()
"""The memory that a thread reads into. kafka-python keeps what it has read last of every connection, and there may be many."""


def _receive(transport: Any) -> tuple[memoryview, Exception | None]:
    """What the socket has now, about READ_BYTES at most, and what is wrong with it; as kafka-python's own `_sock_recv`.

    It is there until the next call in this thread: by then kafka-python has copied it.
    """
    buffer = _mine.__dict__.setdefault("buffer", bytearray(READ_BYTES + TLS_RECORD))
    view, size = memoryview(buffer), 0
    try:
        # TLS gives one record of at most 16 KiB at a time, and keeps others where the selector does not see them.
        while size < READ_BYTES or (_pending(transport._sock) and size < len(buffer)):
            got = transport._sock.recv_into(view[size:], max(READ_BYTES - size, 0) or len(buffer) - size)
            if not got:
                return view[:size], errors.KafkaConnectionError("socket disconnected")
            size += got
    except _LATER:
        pass
    except OSError as error:
        return view[:size], errors.KafkaConnectionError(error)
    return view[:size], None


def _pending(socket: Any) -> bool:
    return isinstance(socket, ssl.SSLSocket) and socket.pending() > 0


class _Response:
    """FetchResponse of one version, decoded from where the answer was read to."""

    def __init__(self, version: int) -> None:
        self._versioned = FetchResponse[version]

    def parse_header(self, data: Any) -> Any:
        return self._versioned.parse_header(data)

    def decode(self, data: Any) -> Any:
        return self._versioned.decode(memoryview(data)[data.tell() :])


class _Header(RequestHeader, init=False):  # type: ignore[misc, call-arg]  # kafka-python has no types
    def get_response_class(self) -> _Response:
        return _Response(self.request_api_version)


class RawFetch(FetchRequest, init=False):  # type: ignore[misc, call-arg]  # kafka-python has no types
    """A FetchRequest whose answer is copied once: into the bytes of each shard."""

    def with_header(self, correlation_id: int = 0, client_id: str = "") -> None:
        self._header = _Header(
            request_api_key=self.API_KEY,
            request_api_version=self.API_VERSION,
            correlation_id=correlation_id,
            client_id=client_id,
        )
