"""A way to a server that a test can close, stop up or turn to another server, whatever is spoken on it.

It runs in a thread of its own. What was on its way when it was stopped up arrives when it is opened again, as on a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine


class TcpProxy:
    """Listens on one `host:port` and leads to another, from `start` to `close`."""

    def __init__(self, listens: str, leads_to: str) -> None:
        self._listens = listens
        self._leads_to = leads_to
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp proxy", daemon=True)
        self.connections = 0
        """How many were made through it so far."""

    def start(self) -> None:
        self._thread.start()
        self._do(self._start())

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def refuse(self) -> None:
        """Break every connection, and each that is made from now on."""
        self._do(self._refuse())

    def hang(self) -> None:
        """Let nothing through. Connections stay open, and can be made."""
        self._do(self._hang())

    def open(self) -> None:
        """Let everything through again."""
        self._do(self._open())

    def turn_to(self, to: str) -> None:
        """Break every connection, and lead to this `host:port` from now on."""
        self._do(self._turn(to))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _start(self) -> None:
        self._flowing.set()
        host, port = self._listens.rsplit(":", 1)
        self._server = await asyncio.start_server(self._accept, host, int(port))

    async def _close(self) -> None:
        self._server.close()
        await self._refuse()
        await self._server.wait_closed()

    async def _refuse(self) -> None:
        self._refusing = True
        await self._break()

    async def _turn(self, to: str) -> None:
        self._leads_to = to
        await self._break()

    async def _break(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _hang(self) -> None:
        self._flowing.clear()

    async def _open(self) -> None:
        self._refusing = False
        self._flowing.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self.connections += 1
        connection = asyncio.create_task(self._lead(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: writer.transport.abort())  # also of one that is cancelled before it has begun

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on in both directions, until one side closes."""
        host, port = self._leads_to.rsplit(":", 1)
        ways: list[asyncio.Task[None]] = []
        ends = [writer]
        try:
            await self._flowing.wait()
            there, back = await asyncio.open_connection(host, int(port))
            ends.append(back)
            ways += asyncio.create_task(self._pass(reader, back)), asyncio.create_task(self._pass(there, writer))
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in ends:
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
