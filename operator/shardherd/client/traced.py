"""The calls of a consumer, with a span for each; the coordinator's own are part of the same trace.

Imported only where traces are on. What a call is about, beside itself, is its owner's to say: `Carried`. Changes nothing of
what is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shardherd.consumer.ports import Coordinator
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.nouns import CheckpointReply, CheckpointRequest, Heartbeat, HeartbeatReply, Leave
from shardherd.telemetry.spans import GIVEN_UP, OK, about

T = TypeVar("T")


class Carried(Protocol):
    """What the calls of a consumer carry."""

    def by_heartbeat(self) -> Sequence[Link]:
        """What a heartbeat that is sent now tells of."""
        ...

    def by_checkpoint(self, request: CheckpointRequest, /) -> tuple[Context | None, Sequence[Link]]:
        """What this request is a part of, None if of nothing, and what else it makes durable."""
        ...

    def answered(self, request: CheckpointRequest, reply: CheckpointReply, /) -> None:
        """The request was answered, and its span has ended."""
        ...


class CarriesNothing:
    """Calls that are about themselves alone."""

    def by_heartbeat(self) -> Sequence[Link]:
        return ()

    def by_checkpoint(self, _request: CheckpointRequest, /) -> tuple[Context | None, Sequence[Link]]:
        return None, ()

    def answered(self, _request: CheckpointRequest, _reply: CheckpointReply, /) -> None:
        pass


class TracedCoordinator:
    """A Coordinator. Its requests say whose trace they are part of if `headers` makes a part of theirs."""

    def __init__(self, coordinator: Coordinator, tracer: Tracer, group: str, carried: Carried) -> None:
        self._coordinator = coordinator
        self._tracer = tracer
        self._group = group
        self._carried = carried

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        links = self._carried.by_heartbeat()
        call = self._coordinator.heartbeat(heartbeat, wait)
        return await self._spanned("heartbeat", {**about(heartbeat), "shardherd.wait": wait}, call, links=links)

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        parent, links = self._carried.by_checkpoint(request)
        call = self._coordinator.checkpoint(request)
        reply = await self._spanned("checkpoint", about(request), call, parent, links)
        self._carried.answered(request, reply)
        return reply

    async def leave(self, leave: Leave) -> None:
        await self._spanned("leave", about(leave), self._coordinator.leave(leave))

    async def _spanned(
        self,
        name: str,
        said: Mapping[str, Any],
        call: Awaitable[T],
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> T:
        attributes = {"shardherd.group": self._group, **said}
        span = self._tracer.start_span(
            name, Context() if parent is None else parent, SpanKind.CLIENT, attributes=attributes, links=links
        )
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                found = await call
            except asyncio.CancelledError:
                span.set_attribute("shardherd.outcome", GIVEN_UP)
                raise
            except ShardherdError as error:
                span.set_attribute("shardherd.outcome", error.code)
                span.set_status(Status(StatusCode.ERROR))
                raise
            span.set_attribute("shardherd.outcome", OK)
            return found


def headers() -> Mapping[str, str]:
    """The header that makes a request a part of the trace that it is sent in."""
    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found
