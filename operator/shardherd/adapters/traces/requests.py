"""A span for each sampled request of a consumer, and in it one for its decision and one for each write that it waited for.

Implements the coordinator's Observer; `stores` tells it of the writes. Several requests share one write: each trace has its own
span of it, so that none must be looked for elsewhere. It belongs to the coordinator's event loop, changes nothing of what it
watches, and must put neither records nor credentials into a span.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shardherd.core.group.decisions import Decision
from shardherd.core.group.journal import SHARDS, Put
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.nouns import CheckpointRequest, GroupIdentity, Offset, ShardId
from shardherd.core.model.requests import Request
from shardherd.telemetry.spans import GIVEN_UP, OK, about

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Decide = Callable[[Request, float], Decision]

NAMES = {"heartbeat": "heartbeat", "checkpoints": "checkpoint", "leave": "leave"}
"""The spans of the calls that are traced, by how their paths end."""

UNTRACED = (401, 429)
"""Answers to callers of whom nothing is known, and to those who call too often: they must not decide what is sent away."""


@dataclass(eq=False, slots=True)
class Traced:
    """A request that is traced, while it is answered. `offsets`: the positions that it waits for."""

    span: trace.Span
    request: Request | None = None
    group: GroupIdentity | None = None
    persists: bool = False
    offsets: Mapping[ShardId, Offset] = field(default_factory=dict)


class _Confirmed(msgspec.Struct):
    """What a span says of the answer to a heartbeat."""

    revision: int
    confirmed: list[msgspec.Raw]


class _Refused(msgspec.Struct):
    code: str


class _Refusal(msgspec.Struct):
    error: _Refused


class _Outcome(msgspec.Struct):
    result: str


class _Outcomes(msgspec.Struct):
    outcomes: list[_Outcome]


class RequestTraces:
    """The spans of one coordinator. `now` is nanoseconds since 1970."""

    def __init__(self, tracer: Tracer, now: Callable[[], int] = time.time_ns) -> None:
        self._tracer = tracer
        self._now = now
        self._current: ContextVar[Traced | None] = ContextVar("shardherd-traced", default=None)
        self._asked: dict[int, Traced] = {}
        self._propagator = TraceContextTextMapPropagator()

    # What the coordinator calls.

    def answering(self, answer: Answer) -> Answer:
        """The same answers, with a span for each."""

        async def traced(request: web.BaseRequest) -> web.StreamResponse:
            name = NAMES.get(request.path.rpartition("/")[2]) if request.method == "POST" else None
            if name is None:
                return await answer(request)
            span = self._tracer.start_span(name, self._propagator.extract(request.headers), SpanKind.SERVER)
            if not span.is_recording():
                return await answer(request)
            return await self._watched(Traced(span), answer, request)

        return traced

    def asked(self, request: Request) -> None:
        """The caller of the request that is being answered is known, and this is what it asks of its group."""
        traced = self._current.get()
        if traced is None:
            return
        traced.request = request
        # Whoever has it in hand knows no more of it than that it is the same; it lives as long as it is listed here.
        self._asked[id(request)] = traced
        traced.span.set_attributes(about(request))

    def deciding(self, group: GroupIdentity, decide: Decide, /) -> Decide:
        """The same decisions, with a span for those that were asked for by a traced request."""

        def decided(request: Request, now: float) -> Decision:
            traced = self._asked.get(id(request))
            if traced is None:
                return decide(request, now)
            begun = self._now()
            try:
                decision = decide(request, now)
            except ShardherdError as error:
                self._child(traced, "decide", begun, {"shardherd.outcome": error.code})
                raise
            traced.group, traced.persists = group, decision.persist
            if isinstance(request, CheckpointRequest):
                traced.offsets = decision.positions
            changed = {entry.key for entry in decision.entries if isinstance(entry, Put) and entry.table is SHARDS}
            causes = sorted({event.cause for event in decision.events if event.cause})
            found: dict[str, Any] = {
                "shardherd.outcome": OK,
                "shardherd.shards.changed": len(changed),
                "shardherd.persists": decision.persist,
                "shardherd.positions": len(decision.positions),
            }
            self._child(traced, "decide", begun, found | ({"shardherd.rebalance": causes} if causes else {}))
            return decision

        return decided

    # What the stores call.

    def writing(self, group: GroupIdentity) -> list[Traced]:
        """Who waits for a write of this group's ownership."""
        return [each for each in self._asked.values() if each.persists and each.group == group]

    def committing(self, group: GroupIdentity, offsets: Mapping[ShardId, Offset]) -> list[Traced]:
        """Who waits for these positions to be durable."""
        return [
            each
            for each in self._asked.values()
            if each.group == group and any(offsets.get(shard, -1) >= offset for shard, offset in each.offsets.items())
        ]

    async def written(
        self,
        name: str,
        waiting: list[Traced],
        write: Awaitable[Any],
        attributes: Mapping[str, Any],
        settled: Callable[[Traced], None],
    ) -> Any:
        """Await a write, which each of those who wait for it has a span of. Those whose write succeeded are `settled`."""
        begun, outcome = self._now(), GIVEN_UP
        try:
            result = await write
            outcome = OK
            return result
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            for each in waiting:
                found = {**attributes, "shardherd.outcome": outcome, "shardherd.write.requests": len(waiting)}
                self._child(each, name, begun, found)
                if outcome == OK:
                    settled(each)

    # How.

    async def _watched(self, traced: Traced, answer: Answer, request: web.BaseRequest) -> web.StreamResponse:
        span = traced.span
        token = self._current.set(traced)
        try:
            response = await answer(request)
        except BaseException as error:
            # A consumer that has news gives up the heartbeat that it waits with.
            given_up = isinstance(error, asyncio.CancelledError)
            span.set_attribute("shardherd.outcome", GIVEN_UP if given_up else type(error).__name__)
            span.end(self._now())
            raise
        finally:
            self._current.reset(token)
            if traced.request is not None:
                del self._asked[id(traced.request)]
        if response.status not in UNTRACED:
            self._describe(span, request, response)
            span.end(self._now())
        return response

    def _describe(self, span: trace.Span, request: web.BaseRequest, response: web.StreamResponse) -> None:
        parts = request.path.split("/")
        span.set_attributes(
            {
                "http.request.method": "POST",
                "http.response.status_code": response.status,
                "shardherd.group": f"{parts[3]}/{parts[5]}" if len(parts) > 5 else "",
            }
        )
        wait = request.query.get("waitMs", "")
        if wait.isascii() and wait.isdigit():
            span.set_attribute("shardherd.wait", int(wait[:9]) / 1000)
        body = response.body if isinstance(response, web.Response) else None
        span.set_attributes(_of_answer(response.status, bytes(body) if isinstance(body, bytes) else b"", parts[-1]))
        if response.status >= 500:
            span.set_status(Status(StatusCode.ERROR))

    def _child(self, traced: Traced, name: str, begun: int, attributes: Mapping[str, Any]) -> None:
        span = self._tracer.start_span(
            name, trace.set_span_in_context(traced.span), attributes=dict(attributes), start_time=begun
        )
        if attributes["shardherd.outcome"] != OK:
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._now())


def _of_answer(status: int, body: bytes, call: str) -> dict[str, Any]:
    """What a span says of an answer."""
    try:
        if status >= 400:
            return {"shardherd.outcome": msgspec.json.decode(body, type=_Refusal).error.code}
        if call == "heartbeat":
            reply = msgspec.json.decode(body, type=_Confirmed)
            found: dict[str, Any] = {"shardherd.revision": reply.revision, "shardherd.shards.confirmed": len(reply.confirmed)}
        elif call == "checkpoints":
            results = [each.result for each in msgspec.json.decode(body, type=_Outcomes).outcomes]
            found = {f"shardherd.checkpoints.{result}": results.count(result) for result in sorted(set(results))}
        else:
            found = {}
    except msgspec.MsgspecError:
        return {"shardherd.outcome": f"HTTP {status}"}
    return {"shardherd.outcome": OK, **found}
