"""A load generator's side of HTTP: one connection, one request at a time, as little work as possible.

aiohttp's client would use more of a core than the coordinator does, and be measured in its place.
"""

from __future__ import annotations

import asyncio


class Connection(asyncio.Protocol):
    """One connection that is kept open. `ask` sends a request and gives (status, body)."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._received = bytearray()

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        """Connect."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = bytes(self._received[:end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        answer, self._answer = self._answer, None
        if not answer.done():
            answer.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the coordinator closed the connection: {exc}"))

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a whole request."""
        assert self._transport is not None
        assert self._answer is None, "one request at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def post(path: str, token: str, body: bytes, version: int) -> bytes:
    """The bytes of a POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: coordinator\r\nAuthorization: Bearer {token}\r\nShardherd-Protocol: {version}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
