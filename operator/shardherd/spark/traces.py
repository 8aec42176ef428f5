"""A span for each sampled micro-batch: from the question for records until what it read is durable, with Spark's phases in it.

`driver_runtime` makes one where traces are on, beside the metrics. A span is the parent of what it covers only: the phases, and
the checkpoint that makes it durable. The heartbeats that tell of it go on when it is over; they are linked to it. Of a query
the numbers of records are shown, never a record. All of it belongs to the agent's event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Status, StatusCode, Tracer

from shardherd.clock import boot_time
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import CheckpointReply, CheckpointRequest, CheckpointResult, Offset, ShardId
from shardherd.spark.agent_ports import Observer
from shardherd.spark.counting import records_in

PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitBatch", "commitOffsets")
"""In the order in which Spark takes them; it tells only how long each one took."""

MILLISECOND = 1_000_000

NEWS = 16
"""Micro-batches, begun or finished since the last heartbeat, that the next one is linked to."""

KEPT = 2
"""Micro-batches of which something is awaited; an older one ends with what is known of it."""

DURABLE, FINISHED, ABANDONED = "durable", "finished", "abandoned"


@dataclass(eq=False, slots=True)
class _Batch:
    """One that has begun. `left` is what is not durable yet; `until` when the last thing happened that is known."""

    span: trace.Span
    began: int
    until: int
    ranges: Mapping[ShardId, ReadRange]
    left: dict[ShardId, Offset]
    finished: bool = False
    reported: bool = False
    fenced: bool = False

    @property
    def complete(self) -> bool:
        return self.reported and self.known == DURABLE

    @property
    def known(self) -> str:
        """What is known of it. Spark tells of a trigger when it likes, also after all is durable, or never."""
        if not self.finished:
            return ABANDONED
        return FINISHED if self.left else DURABLE


class BatchTraces:
    """The micro-batches of one consumer. `wall` is nanoseconds since 1970, `now` monotonic seconds."""

    def __init__(
        self,
        tracer: Tracer,
        group: str,
        consumer: str,
        wall: Callable[[], int] = time.time_ns,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._tracer = tracer
        self._about = {"shardherd.group": group, "shardherd.consumer": consumer}
        self._wall = wall
        self._now = now
        self._batches: list[_Batch] = []
        self._news: deque[trace.SpanContext] = deque(maxlen=NEWS)

    # What the runtime and the agent tell.

    def began(self, ranges: Mapping[ShardId, ReadRange], asked_at: float) -> None:
        """A micro-batch of these ranges is handed out; it was asked for at `asked_at` (monotonic)."""
        if self._batches and not self._batches[-1].finished:
            # What was not finished by now never will be.
            self._end(self._batches[-1], ABANDONED)
        for old in self._batches[: 1 - KEPT]:
            self._end(old, old.known)
        at = self._wall()
        began = at - round((self._now() - asked_at) * 1e9)
        records = records_in(ranges)
        about: dict[str, str | int] = {**self._about, "shardherd.shards": len(ranges), "shardherd.records": records}
        span = self._tracer.start_span("micro-batch", Context(), attributes=about, start_time=began)
        if span.is_recording():
            ends = {shard: each.stop for shard, each in ranges.items()}
            self._news.append(span.get_span_context())
            self._batches.append(_Batch(span, began, at, dict(ranges), ends))

    def finished(self, ranges: Mapping[ShardId, ReadRange]) -> None:
        """These ranges are finished, as Spark says."""
        for batch in self._of(ranges):
            batch.finished, batch.until = True, self._wall()
            self._news.append(batch.span.get_span_context())
            self._look(batch)

    def trigger(
        self, ranges: Mapping[ShardId, ReadRange], began: str, number: int, rows: int, phases: Mapping[str, int]
    ) -> None:
        """Spark's progress event of a trigger: when it began (ISO 8601), its batch's number, and milliseconds of each phase."""
        for batch in self._of(ranges):
            batch.span.set_attributes({"spark.batch": number, "spark.rows": rows})
            # Spark asks us a moment after the trigger began.
            at = max(batch.began, _nanoseconds(began))
            inside = trace.set_span_in_context(batch.span, Context())
            for name in sorted(phases.keys() - {"triggerExecution"}, key=_order):
                span = self._tracer.start_span(name, inside, attributes=self._about, start_time=at)
                at += phases[name] * MILLISECOND
                span.end(at)
            batch.reported, batch.until = True, max(batch.until, at)
            self._look(batch)

    def close(self) -> None:
        """The consumer goes: nothing more will be known."""
        for batch in list(self._batches):
            self._end(batch, batch.known)

    # What is carried (`client.traced.Carried`).

    def by_heartbeat(self) -> Sequence[Link]:
        """A heartbeat tells which micro-batch runs, and that some have begun or ended since the last one."""
        running = [batch.span.get_span_context() for batch in self._batches if not batch.finished]
        spans = {each.span_id: each for each in (*self._news, *running)}
        self._news.clear()
        return [Link(each) for each in spans.values()]

    def by_checkpoint(self, request: CheckpointRequest) -> tuple[Context | None, Sequence[Link]]:
        """A checkpoint is part of the newest micro-batch that it makes durable, and is linked to older ones."""
        batches = [batch for batch in self._batches if self._saved_by(batch, request)]
        if not batches:
            return None, ()
        parent = trace.set_span_in_context(batches[-1].span, Context())
        return parent, [Link(batch.span.get_span_context()) for batch in batches[:-1]]

    def answered(self, request: CheckpointRequest, reply: CheckpointReply) -> None:
        """What is durable by now, and what never will be."""
        at = self._wall()
        over = {
            outcome.shard: outcome.result
            for outcome in reply.outcomes
            if outcome.result in (CheckpointResult.OK, CheckpointResult.UNCHANGED, CheckpointResult.FENCED)
        }
        for batch in [each for each in self._batches if self._saved_by(each, request)]:
            for shard in self._saved_by(batch, request) & over.keys():
                del batch.left[shard]
                batch.fenced |= over[shard] is CheckpointResult.FENCED
            batch.until = max(batch.until, at)
            self._look(batch)

    # How.

    def _saved_by(self, batch: _Batch, request: CheckpointRequest) -> set[ShardId]:
        """The shards of a finished micro-batch whose ends are made durable by this."""
        if not batch.finished:
            return set()
        return {each.shard for each in request.checkpoints if batch.left.get(each.shard, each.offset + 1) <= each.offset}

    def _of(self, ranges: Mapping[ShardId, ReadRange]) -> list[_Batch]:
        """The micro-batch of these ranges, if it is traced. Spark's offsets name shards without news, too."""
        return [
            batch
            for batch in self._batches
            if all(shard in ranges and ranges[shard].stop == each.stop for shard, each in batch.ranges.items())
        ]

    def _look(self, batch: _Batch) -> None:
        if batch.complete:
            self._end(batch, DURABLE)

    def _end(self, batch: _Batch, outcome: str) -> None:
        self._batches.remove(batch)
        found = "fenced" if batch.fenced else outcome
        batch.span.set_attribute("shardherd.outcome", found)
        if found != DURABLE:
            batch.span.set_status(Status(StatusCode.ERROR if found in ("fenced", ABANDONED) else StatusCode.UNSET))
        batch.span.end(batch.until)


def _order(phase: str) -> tuple[int, str]:
    return (PHASES.index(phase) if phase in PHASES else len(PHASES), phase)


def _nanoseconds(text: str) -> int:
    """A time of Spark's progress events."""
    return round(datetime.fromisoformat(text).timestamp() * 1000) * MILLISECOND


class Beside:
    """An agent's Observer that tells two: what counts, and what traces."""

    def __init__(self, metrics: Observer, traces: BatchTraces) -> None:
        self._metrics = metrics
        self._traces = traces
        self.heartbeat = metrics.heartbeat
        self.checkpoint = metrics.checkpoint

    def began(self, ranges: Mapping[ShardId, ReadRange], asked_at: float) -> None:
        self._metrics.began(ranges, asked_at)
        self._traces.began(ranges, asked_at)

    def batch(self, ranges: Mapping[ShardId, ReadRange], seconds: float) -> None:
        self._metrics.batch(ranges, seconds)
        self._traces.finished(ranges)
