"""A way to the real API server that a test can make slow, faulty or impassable. Used where control-plane faults are tested.

It listens without TLS on this machine and passes on what it gets, the caller's token included. Faults are of its own making:
the API server behind it does not know of them, and what a fault answers was not carried out, unless the test says so. It leads
as well to the coordinator's API, for a consumer that is to be cut off from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

_OURS = {"host", "transfer-encoding", "content-length", "connection", "content-encoding", "accept-encoding"}


@dataclass
class Fault:
    """What is answered to the next `times` requests that match; `carried_out`: after they were passed on all the same.

    `watch`: only to those that open a watch.
    """

    method: str
    path: str
    status: int
    times: int = 1
    carried_out: bool = False
    watch: bool = False
    met: int = 0

    def matches(self, request: web.Request) -> bool:
        return (
            self.met < self.times
            and re.fullmatch(self.method, request.method) is not None
            and bool(re.search(self.path, request.path))
            and (not self.watch or "watch" in request.query)
        )


@dataclass
class Faults:
    """What is wrong now. May be changed from any thread."""

    refuse: bool = False
    """Connections are closed without an answer, those under way too."""
    watches: int = 0
    """If not 0, watches are told this status; 410 means that what they would go on from is forgotten."""
    delay: float = 0.0
    """Seconds that every answer comes later."""
    answers: deque[Fault] = field(default_factory=deque)
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds that answers to requests with such a path come later."""


class ApiProxy:
    """Listens on `url` from `start` to `close`, in a thread of its own."""

    def __init__(self, target: str, certificates: Path | None = None) -> None:
        self.faults = Faults()
        self.url = ""
        self._target = target
        self._tls = ssl.create_default_context(cafile=str(certificates / "ca.crt") if certificates else None)
        self._streams: set[asyncio.Task[object]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api proxy", daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls, limit=0), auto_decompress=False)
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        await self._cut()
        await self._runner.cleanup()
        await self._session.close()

    def cut(self) -> None:
        """Break every connection that is open now, watches included; they are broken when this returns."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(60)

    async def _cut(self) -> None:
        open_now = list(self._streams)
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            self._streams.discard(task)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        faults = self.faults
        if faults.delay:
            await asyncio.sleep(faults.delay)
        if faults.refuse:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=503)
        if faults.watches and "watch" in request.query:
            # As the API server says it: in the stream, not as the status of the answer.
            event = {"type": "ERROR", "object": _body(faults.watches)}
            return web.json_response(text=json.dumps(event) + "\n")
        if late := sum(seconds for path, seconds in list(faults.slow.items()) if re.search(path, request.path)):
            await asyncio.sleep(late)
        fault = next((each for each in list(faults.answers) if each.matches(request)), None)
        if fault is not None:
            fault.met += 1
            if fault.carried_out:
                await self._pass_on(request, None)
            return web.json_response(_body(fault.status), status=fault.status)
        response = web.StreamResponse()
        await self._pass_on(request, response)
        return response

    async def _pass_on(self, request: web.Request, response: web.StreamResponse | None) -> None:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OURS}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method,
            f"{self._target}{request.raw_path}",
            headers=headers,
            data=await request.read() or None,
            timeout=timeout,
            skip_auto_headers=("Content-Type", "Accept", "User-Agent"),
        ) as upstream:
            if response is None:
                await upstream.read()
                return
            response.set_status(upstream.status)
            response.headers.update({name: value for name, value in upstream.headers.items() if name.lower() not in _OURS})
            await response.prepare(request)
            # Whoever asked may be gone: watches end so.
            with contextlib.suppress(ConnectionError):
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()


_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}


def _body(code: int) -> dict[str, object]:
    reason = _REASONS.get(code, "InternalError")
    about = {"status": "Failure", "message": f"a test says {code}", "reason": reason, "code": code}
    return {"kind": "Status", "apiVersion": "v1", **about}
