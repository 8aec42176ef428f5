"""The coordinator over HTTP: handlers that translate, check the caller, and ask the runtime. No handler holds a rule.

Which calls there are is the table of `openapi`; each has a handler of its name here.

An answer goes out only while this process surely leads: past the lease's deadline the connection is closed unanswered, since
another coordinator may have decided otherwise by now.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from aiohttp import HttpVersion11, web

from shardherd import protocol
from shardherd.coordinator import limits, openapi
from shardherd.coordinator.auth import Authenticator, Bearer
from shardherd.coordinator.limits import LARGE, LargeBodies, RateLimit, broken_as, in_time
from shardherd.coordinator.routes import Handler, Routes
from shardherd.coordinator.runner import GroupRunner
from shardherd.coordinator.runtime import Runtime
from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    InvalidRequestError,
    NotLeadingError,
    ProtocolVersionError,
    ShardherdError,
    TooManyRequestsError,
    UnknownShardError,
)
from shardherd.core.model.naming import LONGEST_NAME, is_group_name
from shardherd.core.model.nouns import CheckpointReply, CheckpointRequest, GroupSpec, GroupView, Heartbeat, Leave, ShardId
from shardherd.core.model.requests import ForceCheckpoint
from shardherd.ports import Caller

log = logging.getLogger(__name__)

T = TypeVar("T", Heartbeat, CheckpointRequest, Leave)

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a request; a heartbeat that names 100,000 shards fits."""

RETRY_AFTER = "1"

_WAIT = web.RequestKey("wait", float)
"""In a request that came too soon: after how many seconds the next may."""

_NAMED = web.RequestKey("named", dict[str, str])
"""In a request: what its path names."""


def make_api(
    runtime: Runtime,
    authenticator: Authenticator,
    max_body: int = MAX_BODY,
    *,
    requests_per_second: float = 0.0,
    accept_plain: bool = True,
    certified: Callable[[], bool] = lambda: True,
) -> Handler:
    """The whole API: it answers a request. A body of more than `max_body` bytes, which the request is to be made with, is
    refused, and so are the calls of one caller, and tokens from one address that are not known, above `requests_per_second`
    (0: no limit).

    Without `accept_plain` only calls over TLS are answered, but for those about health. `certified` tells whether there is a
    certificate to serve with.
    """
    limit = RateLimit(requests_per_second, runtime.ports.clock)
    return _Api(runtime, authenticator, max_body, limit, accept_plain, certified).answer


class _TooSlowError(Exception):
    """A request's body did not arrive in time."""


class _EncodedError(Exception):
    """A request's body is compressed, or encoded in another way."""


class _Api:
    def __init__(
        self,
        runtime: Runtime,
        authenticator: Authenticator,
        max_body: int,
        limit: RateLimit,
        accept_plain: bool,
        certified: Callable[[], bool],
    ) -> None:
        self._runtime = runtime
        self._auth = authenticator
        self._max_body = max_body
        self._limit = limit
        self._large = LargeBodies()
        self._accept_plain = accept_plain
        self._certified = certified
        self._metrics = runtime.ports.metrics
        self._document = json.dumps(openapi.document()).encode()
        looks = [("/healthz", self.healthz), ("/readyz", self.readyz), ("/openapi.json", self.openapi)]
        self._routes = Routes(
            [
                *((method, path, handler) for path, handler in looks for method in ("GET", "HEAD")),
                *((each.method, each.path, getattr(self, each.name)) for each in openapi.OPERATIONS),
            ]
        )

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to any request. Raises HTTPNotFound or HTTPMethodNotAllowed for one that is not of the protocol."""
        path = request.rel_url.path_safe
        if not path.startswith("/v1/"):
            handler, _ = self._routes.find(request.method, path)
            return await handler(request)
        response = await self._answer(request, path)
        if not self._runtime.leading and response.status != protocol.error_status(NotLeadingError("")):
            log.warning("closing the connection to %s unanswered: this coordinator may not lead any more", request.remote)
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _answer(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        named: dict[str, str] = {}
        missing: web.HTTPException | None = None
        try:
            handler, named = self._routes.find(request.method, path)
        except web.HTTPException as error:
            missing = error
        try:
            protocol.check_version(request.headers.get(protocol.PROTOCOL_HEADER))
            self._runtime.check_leading()
            if named:
                request[_NAMED] = named
                _check_names(named)
            if not self._accept_plain:
                self._auth.check_private(secure=request.secure)
            if missing is not None:
                raise missing
            return await handler(request)
        except ShardherdError as error:
            refusal, status = error, protocol.error_status(error)
        except _TooSlowError:
            # It may have arrived while this process did not run: who sent it may send it again.
            refusal = CoordinatorUnavailableError(f"the body did not arrive within {limits.BODY_WITHIN:g} s; send it again")
            status = 408
        except _EncodedError as error:
            refusal, status = InvalidRequestError(str(error)), 415
        except web.RequestPayloadError as error:
            message = (
                f"the body is not sent as HTTP has it: {broken_as(error)}; send it whole, or in chunks of the lengths told"
            )
            refusal, status = InvalidRequestError(message), 400
        except web.HTTPRequestEntityTooLarge:
            message = (
                f"the body is larger than {self._max_body} bytes, which api.maxBodyBytes of the chart allows; name fewer shards"
            )
            refusal, status = InvalidRequestError(message), 413
        except web.HTTPException as error:
            message = f"{request.method} {request.path}: {error.reason}; the calls are listed at /openapi.json"
            refusal, status = InvalidRequestError(message), error.status
        if refusal.group is None and named and not _wrong_names(named):
            refusal.group = "{namespace}/{name}".format(**named)
        return _refusal(refusal, status, request.get(_WAIT, 0.0))

    # Health.

    async def healthz(self, _request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.BaseRequest) -> web.Response:
        if not self._certified():
            return web.Response(status=503, text="there is no certificate to serve with yet; the log says why\n")
        if self._runtime.ready:
            return web.Response(text="ok\n")
        if self._runtime.standing_by:
            # Ready to lead; the API's Service selects the one that does.
            return web.Response(text="standing by\n")
        text = "groups are being loaded\n" if self._runtime.leading else "not leading\n"
        return web.Response(status=503, text=text)

    async def openapi(self, _request: web.BaseRequest) -> web.Response:
        return web.Response(body=self._document, content_type="application/json")

    # What consumers send.

    async def heartbeat(self, request: web.BaseRequest) -> web.Response:
        runner, heartbeat = await self._admit(request, Heartbeat)
        if runner.spec.source.ending_timestamp is not None:
            protocol.check_knows_ends(request.headers.get(protocol.PROTOCOL_HEADER), str(runner.spec.identity))
        wait = _wait(request)
        try:
            reply = await runner.heartbeat(heartbeat, wait)
        except ShardherdError as error:
            self._metrics.heartbeat(runner.spec.identity, error.code)
            raise
        self._metrics.heartbeat(runner.spec.identity, "ok")
        return _json(reply)

    async def checkpoints(self, request: web.BaseRequest) -> web.Response:
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

    async def leave(self, request: web.BaseRequest) -> web.Response:
        runner, leave = await self._admit(request, Leave)
        await runner.ask(leave)
        return web.Response(status=204)

    # What may be looked at.

    async def view(self, request: web.BaseRequest) -> web.Response:
        return _json(await self._view(request))

    async def shards(self, request: web.BaseRequest) -> web.Response:
        return _json((await self._view(request)).shards)

    async def shard(self, request: web.BaseRequest) -> web.Response:
        name, runner = _shard(request), await self._member(request)
        if (shard := runner.shard(name)) is not None:
            return _json(shard)
        self._known(runner)
        group = f"{request[_NAMED]['namespace']}/{request[_NAMED]['name']}"
        raise UnknownShardError(f"group {group} has no shard {name}; list them at .../shards", group=group, shard=name)

    async def reset(self, request: web.BaseRequest) -> web.Response:
        return _json((await self._member(request)).reset())

    # What only a Role allows.

    async def force(self, request: web.BaseRequest) -> web.Response:
        namespace, name = request[_NAMED]["namespace"], request[_NAMED]["name"]
        caller = await self._caller(request, _bearer(request))
        await self._auth.check_forces(caller, namespace, name)
        runner = await self._runtime.announced(namespace, name)
        body = protocol.loads(protocol.ForcedCheckpoint, await self._body(request, caller))
        log.warning(
            "group %s: %s sets the checkpoint of %s to %d", runner.spec.identity, caller.user, _shard(request), body.offset
        )
        return _json(await runner.ask(ForceCheckpoint(_shard(request), body.offset)))

    async def _caller(self, request: web.BaseRequest, bearer: Bearer | None) -> Caller:
        """Who calls. Raises UnauthenticatedError, TooManyRequestsError, CoordinatorUnavailableError."""
        if self._auth.needs_review(bearer):
            # Each asks the API server something, and of who sends many of them nothing is known but the address.
            self._bound(request, request.remote, f"{request.remote} shows tokens that are not known more often than")
        caller = await self._auth.caller(bearer)
        name = caller.pod or caller.user or caller.service_account
        self._bound(request, _key(caller), f"{name!r} calls more often than")
        return caller

    def _bound(self, request: web.BaseRequest, key: Hashable, limit: str) -> None:
        """Count this call. Raises TooManyRequestsError if it is one too many under this key."""
        wait = self._limit.take(key)
        if wait > 0:
            self._metrics.refused(TooManyRequestsError.code)
            request[_WAIT] = wait
            raise TooManyRequestsError(f"{limit} api.requestsPerSecond of the chart allows; call again after {wait:.2f} s")

    async def _admit(self, request: web.BaseRequest, kind: type[T]) -> tuple[GroupRunner, T]:
        """The group and the request's body, once its caller has shown to be the consumer that it names."""
        namespace, name = request[_NAMED]["namespace"], request[_NAMED]["name"]
        bearer = _bearer(request)
        caller = await self._caller(request, bearer)
        self._auth.check_namespace(caller, namespace, name)
        runner = await self._runtime.announced(namespace, name)
        body = protocol.read_request(kind, await self._body(request, caller))
        # A body may take long to arrive: what the caller may do is what it may do now.
        caller = await self._auth.caller(bearer)
        self._auth.check_consumer(caller, runner.spec, body.consumer, body.incarnation, body.group_uid)
        return runner, body

    async def _body(self, request: web.BaseRequest, caller: Caller) -> bytes:
        """The request's body. Raises _EncodedError, and _TooSlowError if it does not arrive in time."""
        _check_encoding(request.headers.getall("Content-Encoding", []))
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
            # Who waits for this sends its body only now.
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        small = request.content_length is not None and request.content_length <= LARGE
        if small and request.content.is_eof():
            # It has arrived with the headers, as nearly all do: there is nothing to wait for.
            return await request.read()
        try:
            async with in_time() if small else self._large.turn(_key(caller)):
                return await request.read()
        except TimeoutError as error:
            raise _TooSlowError from error

    async def _member(self, request: web.BaseRequest) -> GroupRunner:
        """The group, once the caller has shown to be one of its pods."""
        namespace, name = request[_NAMED]["namespace"], request[_NAMED]["name"]
        caller = await self._caller(request, _bearer(request))

        async def spec() -> GroupSpec:
            return (await self._runtime.announced(namespace, name)).spec

        await self._auth.check_looks(caller, namespace, name, spec)
        return await self._runtime.announced(namespace, name)

    async def _view(self, request: web.BaseRequest) -> GroupView:
        return self._known(await self._member(request))

    def _known(self, runner: GroupRunner) -> GroupView:
        view = runner.view()
        if view is None:
            group = str(runner.spec.identity)
            raise CoordinatorUnavailableError(f"group {group} is being loaded; ask again", group=group)
        return view


def _bearer(request: web.BaseRequest) -> Bearer | None:
    return Bearer.of(request.headers.get("Authorization"))


def _check_encoding(named: Sequence[str]) -> None:
    """Raises _EncodedError unless the body is sent as it is: all bounds of memory are on the bytes that arrive."""
    wrong = [each for each in named if each.strip().lower() not in ("", "identity")]
    if wrong:
        raise _EncodedError(f"header Content-Encoding is {wrong[0][:80]!a}; leave it out, and send the body as plain JSON")


def _key(caller: Caller) -> Hashable:
    """By what a caller is known among others."""
    return (caller.user, caller.namespace, caller.service_account, caller.pod_uid)


def _check_names(named: Mapping[str, str]) -> None:
    """Raises InvalidRequestError unless namespace and name of the path can be those of a resource.

    They are asked about at the API server: nothing else may get into its paths, or into our metrics and messages.
    """
    for what, value in _wrong_names(named):
        raise InvalidRequestError(
            f"the {what} in the path is {value[:80]!r}; it must be that of a ConsumerGroup: lower-case letters, digits and '-',"
            f" at most {LONGEST_NAME}"
        )


def _wrong_names(named: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(what, named[what]) for what in ("namespace", "name") if not is_group_name(named[what])]


def _shard(request: web.BaseRequest) -> ShardId:
    """The shard that the path names."""
    return ShardId(f"{request[_NAMED]['topic']}/{request[_NAMED]['partition']}")


def _wait(request: web.BaseRequest) -> float:
    """The query's waitMs in seconds."""
    name, _, text = request.rel_url.raw_query_string.partition("=")
    if name != "waitMs" or not text.isdigit():
        # Consumers send that and nothing else: to parse a query takes longer than to read a heartbeat.
        text = request.query.get("waitMs", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidRequestError(f"query parameter waitMs is {text[:40]!r}; it must be a number of milliseconds, 0 or more")
    return min(int(text) / 1000, openapi.MAX_WAIT)


def _json(value: object) -> web.Response:
    return web.Response(body=protocol.dumps(value), content_type="application/json")


def _refusal(error: ShardherdError, status: int, wait: float) -> web.Response:
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else {}
    if wait > 0:
        headers["Retry-After"] = str(math.ceil(wait))
    if isinstance(error, ProtocolVersionError):
        headers["Upgrade"] = f"shardherd/{protocol.PROTOCOL_VERSION}"
    response = web.Response(status=status, body=protocol.dump_error(error), content_type="application/json", headers=headers)
    if isinstance(error, NotLeadingError):
        # A connection through the Service stays with the pod that it was made to: only another one leads to who leads by now.
        response.force_close()
    return response
