"""The real HTTP API of an operator, served without sockets: its routes, guard, authentication, codec and errors.

Only aiohttp's parser and its connections are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from shardherd.coordinator.api import MAX_BODY, make_api
from shardherd.coordinator.auth import Authenticator
from shardherd.coordinator.runtime import Runtime
from shardherd.core.model.nouns import GroupSpec
from shardherd.ports import Caller
from tests.simulation.calls import HttpAnswer, HttpRequest


class _Transport(asyncio.Transport):
    """Remembers that the connection was closed unanswered."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


class _Connection(BaseProtocol):
    """As much of a connection as a request looks at."""

    ssl_context = None
    peername = ("10.0.0.7", 40000)
    sockname = ("10.0.0.1", 8080)


class PodTokens:
    """TokenReviewer for tokens that say `<pod>.<uid>`: all of them are good, for pods of this group."""

    def __init__(self, spec: Callable[[], GroupSpec]) -> None:
        self._spec = spec

    async def review(self, token: str) -> Caller | None:
        pod, _, uid = token.partition(".")
        spec = self._spec()
        group = spec.identity
        return Caller(group.namespace, spec.service_account, pod, uid, group.name, group_uid=group.uid)

    async def may(self, caller: Caller, verb: str, namespace: str, name: str) -> bool:
        raise AssertionError(f"no consumer needs a right: {caller}")


class HttpServer:
    """The API of one operator."""

    def __init__(self, runtime: Runtime, spec: Callable[[], GroupSpec]) -> None:
        ports = runtime.ports
        self._answer = make_api(runtime, Authenticator(PodTokens(spec), ports.clock, ports.metrics))

    async def answer(self, request: HttpRequest) -> HttpAnswer | None:
        """The answer; None if the connection was closed instead. Cancelling is what a closed connection does."""
        loop = asyncio.get_running_loop()
        connection = _Connection(loop)
        transport = connection.transport = _Transport()
        body = StreamReader(connection, MAX_BODY, loop=loop)
        body.feed_data(request.body)
        body.feed_eof()
        headers = CIMultiDictProxy(CIMultiDict(request.headers))
        raw = tuple((name.encode(), value.encode()) for name, value in headers.items())
        message = RawRequestMessage(
            request.method, request.target, HttpVersion11, headers, raw, False, None, False, False, URL(request.target)
        )
        task = cast("asyncio.Task[None]", asyncio.current_task())
        served = web.BaseRequest(
            message, body, cast("Any", connection), cast("Any", None), task, loop, client_max_size=MAX_BODY
        )
        response = await self._answer(served)
        if transport.aborted:
            return None
        assert isinstance(response, web.Response)
        assert isinstance(response.body, bytes | None)
        return HttpAnswer(response.status, response.body or b"")
