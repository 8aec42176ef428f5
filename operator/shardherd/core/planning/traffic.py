"""The rates at which a group's shards are written and read.

Called by `sizing` with every view of the coordinator; `catchup`, `status` and `diagnosis` read it. Measured from end offsets
and checkpoints, not from what an application reports. Decides nothing and reads no clock: `now` is monotonic seconds. The age
of the lag does not follow from any rate: that is `core.group.ages`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardherd.core.model.nouns import ConsumerId, GroupView, ShardId, ShardState, ShardView

INTERVAL = 5.0
"""Seconds between two looks."""

WINDOW = 60.0
"""Seconds over which rates are taken: several micro-batches, as checkpoints come in steps."""

SPAN = 15.0
"""Seconds over which a consumer must have had more to read than it read, for its rate to be the most that it can read."""

MEMORY = 600.0
"""Seconds after which about two thirds of an old rate are forgotten."""

PRIOR = 60.0
"""Seconds of measuring that a rate from before a restart of the operator counts for."""

LEAST = 1.0
"""Seconds of measuring that a rate counts for at least, however old it is."""

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Mark:
    """Records written and read since the first look."""

    at: float
    produced: int
    consumed: int


@dataclass(frozen=True, slots=True)
class ConsumerRate:
    """What one consumer reads while it has enough to read: records in seconds, older ones weighted less."""

    records: float = 0.0
    seconds: float = 0.0

    @property
    def per_second(self) -> float | None:
        """Records a second, None before it was ever measured."""
        return self.records / self.seconds if self.seconds > 0.0 else None

    def faded(self, elapsed: float) -> ConsumerRate:
        """The same some seconds later. What counts for `LEAST` fades no further: in the end only rounding would be left."""
        kept = math.exp(-elapsed / MEMORY)
        return ConsumerRate(self.records * kept, self.seconds * kept) if self.seconds * kept >= LEAST else self


@dataclass(frozen=True, slots=True)
class Span:
    """What a consumer has read since `since`, and the least that it had left to read at any look in that time."""

    since: float
    consumed: int
    least_left: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The measurements at the last view.

    `end_offsets` and `positions` are in the order of `shards`, UNKNOWN for a shard that is new or has none. `moved_at` is
    when each shard's position last moved or had no lag, `written_at` when end offsets last grew; both as far as views show it.
    """

    shards: tuple[ShardId, ...]
    end_offsets: Sequence[int]
    positions: Sequence[int]
    moved_at: Sequence[float]
    holders: tuple[ConsumerId | None, ...]
    marks: tuple[Mark, ...]
    spans: Mapping[ConsumerId, Span] = field(default_factory=dict)
    consumer_rate: ConsumerRate = ConsumerRate()
    written_at: float = -math.inf
    lag_records: int | None = None

    @property
    def measured(self) -> bool:
        """Whether the rate of writing is known: it was measured for long enough."""
        return bool(self.shards) and self.marks[-1].at - self.marks[0].at >= SPAN

    @property
    def produced(self) -> float:
        """Records written a second, over the last window."""
        return self._rate(lambda mark: mark.produced)

    @property
    def consumed(self) -> float:
        """Records checkpointed a second, over the last window."""
        return self._rate(lambda mark: mark.consumed)

    @property
    def behind(self) -> bool:
        """Whether there is more left than was read in a SPAN: consumers read as fast as they can."""
        return (self.lag_records or 0) > self.consumed * SPAN

    def still_for(self, now: float, patience: float) -> dict[ShardId, float]:
        """The shards whose positions have not moved for so long although there was something to read, and for how long."""
        return {shard: now - at for shard, at in zip(self.shards, self.moved_at, strict=True) if now - at >= patience}

    def _rate(self, what: Callable[[Mark], int]) -> float:
        first, last = self.marks[0], self.marks[-1]
        elapsed = last.at - first.at
        return (what(last) - what(first)) / elapsed if elapsed > 0.0 else 0.0


def measure(before: Traffic | None, view: GroupView, now: float, consumer_rate: float | None = None) -> Traffic:
    """The measurements with this view. `consumer_rate` is what one consumer read before a restart of the operator."""
    if before is None:
        return _first(_counted(view), now, consumer_rate)
    if now - before.marks[-1].at < INTERVAL:
        return before
    counted = _counted(view)
    shards = tuple(shard.shard for shard in counted)
    return _next(before if shards == before.shards else _realigned(before, shards, now), counted, now)


def _counted(view: GroupView) -> list[ShardView]:
    """The shards that are measured: those that exist and are not OVER; none where records are not counted."""
    if not view.counts_records:
        return []
    return [shard for shard in view.shards if shard.present and shard.state is not ShardState.OVER and shard.end is not None]


def _end_offsets(counted: Sequence[ShardView]) -> array[int]:
    return array("q", [UNKNOWN if shard.end is None else shard.end for shard in counted])


def _positions(counted: Sequence[ShardView]) -> array[int]:
    """Checkpoints, or where the shard will be started from."""
    return array(
        "q",
        [UNKNOWN if shard.end is None or shard.lag_records is None else shard.end - shard.lag_records for shard in counted],
    )


def _first(counted: Sequence[ShardView], now: float, consumer_rate: float | None) -> Traffic:
    known = ConsumerRate() if consumer_rate is None else ConsumerRate(consumer_rate * PRIOR, PRIOR)
    made = Traffic(
        shards=tuple(shard.shard for shard in counted),
        end_offsets=_end_offsets(counted),
        positions=_positions(counted),
        moved_at=array("d", [now] * len(counted)),
        holders=tuple(shard.holder for shard in counted),
        marks=(Mark(now, 0, 0),),
        consumer_rate=known,
    )
    return _with_lag(made)


def _realigned(before: Traffic, shards: tuple[ShardId, ...], now: float) -> Traffic:
    """The same for other shards: those that went are dropped, those that came are UNKNOWN."""
    index = {shard: at for at, shard in enumerate(before.shards)}
    rows = [index.get(shard, -1) for shard in shards]

    def picked(values: Sequence[int]) -> array[int]:
        return array("q", [values[row] if row >= 0 else UNKNOWN for row in rows])

    return replace(
        before,
        shards=shards,
        end_offsets=picked(before.end_offsets),
        positions=picked(before.positions),
        moved_at=array("d", [before.moved_at[row] if row >= 0 else now for row in rows]),
        holders=tuple(before.holders[row] if row >= 0 else None for row in rows),
    )


def _next(before: Traffic, counted: Sequence[ShardView], now: float) -> Traffic:
    end_offsets, positions = _end_offsets(counted), _positions(counted)
    produced = consumed = 0
    read: dict[ConsumerId, int] = {}
    left: dict[ConsumerId, int] = {}
    moved_at = array("d", before.moved_at)
    for row, shard in enumerate(counted):
        end, position, old_end, old = end_offsets[row], positions[row], before.end_offsets[row], before.positions[row]
        # A shard that was cut back, and a position that was set back by force, say nothing of how fast anything is.
        produced += max(0, end - old_end) if old_end != UNKNOWN else 0
        known = position != UNKNOWN and old != UNKNOWN
        step = max(0, position - old) if known else 0
        consumed += step
        if position != old or position >= end or shard.state is ShardState.WAIT:
            moved_at[row] = now
        holder = shard.holder
        if holder is not None and known and before.holders[row] == holder:
            read[holder] = read.get(holder, 0) + step
            left[holder] = left.get(holder, 0) + max(0, end - position)
    last = before.marks[-1]
    marks = (*before.marks, Mark(now, last.produced + produced, last.consumed + consumed))
    spans, consumer_rate = _consumer_rates(before, read, left, now)
    made = replace(
        before,
        end_offsets=end_offsets,
        positions=positions,
        moved_at=moved_at,
        holders=tuple(shard.holder for shard in counted),
        marks=_recent(marks, now),
        spans=spans,
        consumer_rate=consumer_rate,
        written_at=now if produced else before.written_at,
    )
    return _with_lag(made)


def _consumer_rates(
    before: Traffic, read: Mapping[ConsumerId, int], left: Mapping[ConsumerId, int], now: float
) -> tuple[dict[ConsumerId, Span], ConsumerRate]:
    consumer_rate = before.consumer_rate.faded(now - before.marks[-1].at)
    spans: dict[ConsumerId, Span] = {}
    for consumer, records in read.items():
        began = before.spans.get(consumer, Span(before.marks[-1].at, 0, left[consumer]))
        span = Span(began.since, began.consumed + records, min(began.least_left, left[consumer]))
        elapsed = now - span.since
        if elapsed < SPAN:
            spans[consumer] = span
            continue
        known = consumer_rate.per_second
        # One that has nothing left now and then shows what there was to read; that counts if it is more than was thought
        # possible.
        if span.consumed and (span.least_left > span.consumed or (known is not None and span.consumed / elapsed > known)):
            consumer_rate = ConsumerRate(consumer_rate.records + span.consumed, consumer_rate.seconds + elapsed)
        spans[consumer] = Span(now, 0, left[consumer])
    return spans, consumer_rate


def _recent(marks: tuple[Mark, ...], now: float) -> tuple[Mark, ...]:
    """Those of the last window, and the last one before it."""
    old = sum(1 for mark in marks if now - mark.at >= WINDOW)
    return marks[max(0, old - 1) :]


def _with_lag(traffic: Traffic) -> Traffic:
    lags = [max(0, end - position) for end, position in zip(traffic.end_offsets, traffic.positions, strict=True)]
    return replace(traffic, lag_records=None if UNKNOWN in traffic.positions else sum(lags))
