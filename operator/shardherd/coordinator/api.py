"""The coordinator over HTTP: routes that translate, check the caller, and ask the runtime. No route holds a rule.

An answer goes out only while this process surely leads: past the lease's deadline the connection is closed unanswered, since
another coordinator may have decided otherwise by now.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import web

from shardherd import protocol
from shardherd.coordinator.auth import Authenticator
from shardherd.coordinator.runner import GroupRunner
from shardherd.coordinator.runtime import Runtime
from shardherd.core.errors import (
    CoordinatorUnavailableError,
    InvalidRequestError,
    NotLeadingError,
    ShardherdError,
    UnknownShardError,
)
from shardherd.core.model import CheckpointReply, CheckpointRequest, GroupView, Heartbeat, Leave, ShardId
from shardherd.core.requests import ForceCheckpoint

log = logging.getLogger(__name__)

T = TypeVar("T", Heartbeat, CheckpointRequest, Leave)

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a request; a heartbeat that names 30,000 shards fits."""

MAX_WAIT = 30.0
"""Seconds that a heartbeat may be parked; intervals are a few seconds."""

RETRY_AFTER = "1"

_BASE = "/v1/namespaces/{namespace}/consumergroups/{name}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_application(runtime: Runtime, authenticator: Authenticator) -> web.Application:
    """The whole API as an aiohttp application."""
    api = _Api(runtime, authenticator)
    application = web.Application(client_max_size=MAX_BODY, middlewares=[api.guard])
    application.add_routes(
        [
            web.get("/healthz", api.healthz),
            web.get("/readyz", api.readyz),
            web.post(f"{_BASE}/heartbeat", api.heartbeat),
            web.post(f"{_BASE}/checkpoints", api.checkpoints),
            web.post(f"{_BASE}/leave", api.leave),
            web.get(_BASE, api.view),
            web.get(f"{_BASE}/shards", api.shards),
            web.get(f"{_BASE}/shards/{{topic}}/{{partition}}", api.shard),
            web.put(f"{_BASE}/checkpoint", api.force_checkpoint),
        ]
    )
    return application


class _Api:
    def __init__(self, runtime: Runtime, authenticator: Authenticator) -> None:
        self._runtime = runtime
        self._auth = authenticator
        self._metrics = runtime.ports.metrics

    @property
    def guard(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not request.path.startswith("/v1/"):
                return await handler(request)
            response = await self._answer(request, handler)
            if not self._runtime.leading and response.status != protocol.error_status(NotLeadingError("")):
                log.warning("closing the connection to %s unanswered: this coordinator may not lead any more", request.remote)
                if request.transport is not None:
                    request.transport.abort()
            return response

        return guard

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            protocol.check_version(request.headers.get(protocol.PROTOCOL_HEADER))
            self._runtime.check_leading()
            return await handler(request)
        except ShardherdError as error:
            return _refusal(error, protocol.error_status(error))
        except web.HTTPRequestEntityTooLarge:
            return _refusal(InvalidRequestError(f"the body is larger than {MAX_BODY} bytes; name fewer shards"), 413)
        except web.HTTPException as error:
            return _refusal(
                InvalidRequestError(f"{request.method} {request.path}: {error.reason}; see the API's reference"), error.status
            )

    # Health.

    async def healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        if self._runtime.ready:
            return web.Response(text="ok\n")
        text = "groups are being loaded\n" if self._runtime.leading else "not leading\n"
        return web.Response(status=503, text=text)

    # What consumers send.

    async def heartbeat(self, request: web.Request) -> web.Response:
        runner, heartbeat = await self._admit(request, Heartbeat)
        wait = _wait(request)
        try:
            reply = await runner.heartbeat(heartbeat, wait)
        except ShardherdError as error:
            self._metrics.heartbeat(runner.spec.identity, error.code)
            raise
        self._metrics.heartbeat(runner.spec.identity, "ok")
        return _json(reply)

    async def checkpoints(self, request: web.Request) -> web.Response:
        runner, checkpoint = await self._admit(request, CheckpointRequest)
        identity = runner.spec.identity
        try:
            reply = await runner.ask(checkpoint)
        except ShardherdError:
            self._metrics.checkpoints(identity, "error", len(checkpoint.checkpoints))
            raise
        if isinstance(reply, CheckpointReply):
            for result, count in Counter(outcome.result for outcome in reply.outcomes).items():
                self._metrics.checkpoints(identity, result.value, count)
        return _json(reply)

    async def leave(self, request: web.Request) -> web.Response:
        runner, leave = await self._admit(request, Leave)
        await runner.ask(leave)
        return web.Response(status=204)

    async def force_checkpoint(self, request: web.Request) -> web.Response:
        runner = await self._member(request)
        return _json(await runner.ask(protocol.loads(ForceCheckpoint, await request.read())))

    # What may be looked at.

    async def view(self, request: web.Request) -> web.Response:
        return _json(await self._view(request))

    async def shards(self, request: web.Request) -> web.Response:
        return _json((await self._view(request)).shards)

    async def shard(self, request: web.Request) -> web.Response:
        name = ShardId(f"{request.match_info['topic']}/{request.match_info['partition']}")
        for shard in (await self._view(request)).shards:
            if shard.shard == name:
                return _json(shard)
        group = f"{request.match_info['namespace']}/{request.match_info['name']}"
        raise UnknownShardError(f"group {group} has no shard {name}; list them at .../shards", group=group, shard=name)

    async def _admit(self, request: web.Request, kind: type[T]) -> tuple[GroupRunner, T]:
        """The group and the request's body, once its caller has shown to be the consumer that it names."""
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        caller = await self._auth.caller(request.headers.get("Authorization"))
        self._auth.check_namespace(caller, namespace, name)
        runner = self._runtime.group(namespace, name)
        body = protocol.loads(kind, await request.read())
        self._auth.check_consumer(caller, runner.spec, body.consumer, body.incarnation)
        return runner, body

    async def _member(self, request: web.Request) -> GroupRunner:
        """The group, once the caller has shown to be one of its pods."""
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        caller = await self._auth.caller(request.headers.get("Authorization"))
        self._auth.check_namespace(caller, namespace, name)
        runner = self._runtime.group(namespace, name)
        self._auth.check_member(caller, runner.spec)
        return runner

    async def _view(self, request: web.Request) -> GroupView:
        runner = await self._member(request)
        view = runner.view()
        if view is None:
            group = str(runner.spec.identity)
            raise CoordinatorUnavailableError(f"group {group} is being loaded; ask again", group=group)
        return view


def _wait(request: web.Request) -> float:
    """The query's waitMs in seconds."""
    text = request.query.get("waitMs", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidRequestError(f"query parameter waitMs is {text[:40]!r}; it must be a number of milliseconds, 0 or more")
    return min(int(text) / 1000, MAX_WAIT)


def _json(value: object) -> web.Response:
    return web.Response(body=protocol.dumps(value), content_type="application/json")


def _refusal(error: ShardherdError, status: int) -> web.Response:
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else None
    return web.Response(status=status, body=protocol.dump_error(error), content_type="application/json", headers=headers)
