"""Spans as values that tests compare: what they are called, whose children they are, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shardherd.telemetry.tracing import Tracing, sampler_of, traced_by


@dataclass(frozen=True)
class Shown:
    """One span. `links` are the names of those that it is linked to, which have ended before it was shown."""

    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    children: tuple[Shown, ...] = ()
    links: tuple[str, ...] = ()


class Spans:
    """Traces that stay in the process; `settings` are OpenTelemetry's variables."""

    def __init__(self, **settings: str) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing: Tracing = traced_by(SimpleSpanProcessor(self.exporter), sampler_of(settings), "tested", {})

    @property
    def tracer(self) -> Any:
        return self.tracing.tracer

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def shown(self, keep: Callable[[ReadableSpan], bool] = lambda _: True) -> list[Shown]:
        """The spans without a parent of ours, with their children, in the order of their beginnings."""
        return trees([span for span in self.ended if keep(span)])


def trees(spans: Sequence[ReadableSpan]) -> list[Shown]:
    """The same for these spans."""
    names = {_id(span): span.name for span in spans}

    def below(parent: int | None) -> tuple[Shown, ...]:
        found = [span for span in spans if _parent(span, names) == parent]
        return tuple(
            Shown(
                span.name,
                dict(span.attributes or {}),
                below(_id(span)),
                tuple(names[link.context.span_id] for link in span.links),
            )
            for span in sorted(found, key=lambda span: span.start_time or 0)
        )

    return list(below(None))


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def _parent(span: ReadableSpan, ours: Mapping[int, str]) -> int | None:
    """The parent, if it is one of ours."""
    return int(span.parent.span_id) if span.parent is not None and span.parent.span_id in ours else None
