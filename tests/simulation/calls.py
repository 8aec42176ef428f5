"""A consumer's calls of the coordinator: as objects, or in some schedules as HTTP by the real client.

Stands where AsyncConsumerClient does, or where that has its session. Which coordinator a call reaches, and whether, is the
world's business.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, Protocol, cast
from urllib.parse import urlsplit

import aiohttp

from shardherd import protocol
from shardherd.client.aio import AsyncConsumerClient
from shardherd.core.model.errors import CoordinatorUnavailableError, ShardherdError
from shardherd.core.model.nouns import CheckpointReply, CheckpointRequest, GroupIdentity, Heartbeat, HeartbeatReply, Leave
from tests.simulation.history_entries import Run
from tests.simulation.network import Process
from tests.simulation.plan import Plan

TIMEOUT = 10.0

Request = Heartbeat | CheckpointRequest | Leave

KINDS: Mapping[str, type[Request]] = {"heartbeat": Heartbeat, "checkpoints": CheckpointRequest, "leave": Leave}
"""What the body of a request is, by the last part of its path."""


class Around(Protocol):
    """What a call finds around it in the world."""

    rng: random.Random
    plan: Plan

    def call_coordinator(self, call: Call) -> bool: ...

    def give_up(self, call: Call) -> None: ...

    @property
    def time(self) -> float: ...


@dataclass
class Caller:
    """Who calls. Once its pod is `gone`, only those who reviewed its token before believe it, and for a minute."""

    process: Process
    run: Run
    gone: bool = False
    believed_by: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class HttpRequest:
    """A request as it goes over the wire."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class HttpAnswer:
    """The answer to it."""

    status: int
    body: bytes

    def meaning(self, request: Request) -> Any:
        """What it tells the caller: a reply, None, or an error."""
        if self.status >= 300:
            return protocol.load_error(self.status, self.body)
        if isinstance(request, Heartbeat):
            return protocol.loads(HeartbeatReply, self.body)
        return protocol.loads(CheckpointReply, self.body) if isinstance(request, CheckpointRequest) else None


@dataclass(eq=False)
class Call:
    """One request of a consumer to the coordinator, and where its answer goes. `http` is the request if it is one of HTTP."""

    caller: Caller
    request: Request
    wait: float
    answer: asyncio.Future[Any]
    sent: float
    http: HttpRequest | None = None
    coordinator: str = ""
    serving: asyncio.Task[None] | None = None

    def unanswered(self) -> None:
        """No answer has come in time."""
        self.resolve(CoordinatorUnavailableError("no answer from the coordinator"))

    def resolve(self, outcome: Any) -> None:
        """The answer arrives: a reply, an answer of HTTP, or an error."""
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
            return
        acknowledged = isinstance(outcome, HttpAnswer) and outcome.status == 200 and isinstance(self.request, Heartbeat)
        if isinstance(outcome, HeartbeatReply) or acknowledged:
            self.caller.run.acknowledged = max(self.caller.run.acknowledged, self.sent)
        self.answer.set_result(outcome)


async def exchange(caller: Caller, world: Around, request: Request, wait: float, http: HttpRequest | None = None) -> Any:
    """Send a request and wait for its answer. Raises what the coordinator raised, or CoordinatorUnavailableError."""
    process = caller.process
    if not process.await_outside():
        await _unwound(process)
    loop = process.loop
    call = Call(caller, request, wait, loop.create_future(), world.time, http)
    if not world.call_coordinator(call):
        await asyncio.sleep(
            8.0 * min(world.plan.time_scale, 15.0) if world.rng.random() < 0.7 else 0.02
        )  # unanswered, or refused
        raise CoordinatorUnavailableError("no coordinator is ready")
    timer = loop.call_later(TIMEOUT + wait, call.unanswered)
    try:
        outcome = await call.answer
    except asyncio.CancelledError:
        world.give_up(call)
        raise
    finally:
        timer.cancel()
    if not process.await_outside():
        await _unwound(process)
    return outcome


async def _unwound(process: Process) -> NoReturn:
    """What a process was at that has just died is cancelled, as all of it is."""
    await process.loop.create_future()
    raise AssertionError(f"{process.name} goes on although it is dead")


class Direct:
    """Stands where AsyncConsumerClient does: the same calls and errors, as objects."""

    def __init__(self, caller: Caller, world: Around) -> None:
        self._caller, self._world = caller, world

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        reply: HeartbeatReply = await exchange(self._caller, self._world, heartbeat, wait)
        return reply

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        reply: CheckpointReply = await exchange(self._caller, self._world, request, 0.0)
        return reply

    async def leave(self, leave: Leave) -> None:
        await exchange(self._caller, self._world, leave, 0.0)


def over_http(caller: Caller, world: Around, group: GroupIdentity) -> AsyncConsumerClient:
    """The real client, whose session is joined to the simulated network."""
    token = f"{caller.run.consumer}.{caller.run.incarnation.pod_uid}"
    client = AsyncConsumerClient("http://coordinator:8080", group.namespace, group.name, lambda: token, timeout=TIMEOUT)
    client._session = cast("aiohttp.ClientSession", Session(caller, world))
    return client


class Session:
    """Stands where aiohttp's ClientSession does."""

    def __init__(self, caller: Caller, world: Around) -> None:
        self._caller, self._world = caller, world

    def request(
        self, method: str, url: str, *, data: bytes, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout, **_: Any
    ) -> Exchange:
        parts = urlsplit(url)
        http = HttpRequest(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, headers, data)
        return Exchange(self._caller, self._world, http, (timeout.total or TIMEOUT) - TIMEOUT)


class Exchange:
    """One request of a Session, and its response."""

    def __init__(self, caller: Caller, world: Around, http: HttpRequest, wait: float) -> None:
        self.status = 0
        self._body = b""
        self._caller, self._world, self._http, self._wait = caller, world, http, wait

    async def __aenter__(self) -> Exchange:
        http = self._http
        request = protocol.loads(KINDS[urlsplit(http.target).path.rpartition("/")[2]], http.body)
        try:
            answer: HttpAnswer = await exchange(self._caller, self._world, request, self._wait, http)
        except CoordinatorUnavailableError as error:
            raise aiohttp.ServerDisconnectedError(error.message) from error
        except ShardherdError as error:
            answer = HttpAnswer(protocol.error_status(error), protocol.dump_error(error))
        self.status, self._body = answer.status, answer.body
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    async def read(self) -> bytes:
        return self._body
