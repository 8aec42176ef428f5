"""Whether records are lost where the record before a position is gone: what is known of it, in words.

Who reads a group's shards asks it, once for each place where it begins: the worker and the tasks of Spark. The coordinator has
the same rule for the positions that it looks at. Kinesis does not tell where a shard begins now, so the record before the
position is read again as the proof that nothing between is missing. Whether a loss ends anything is the caller's decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardherd.clock import boot_time
from shardherd.source.kinesis.client import Kinesis, KinesisUnavailableError
from shardherd.source.kinesis.listing import describe
from shardherd.source.kinesis.shard_reader import BEGINNING, Answer, Record, ShardGoneError, ShardReader, at

CAUGHT = 0.9
"""How much of the stream's retention the oldest record left has to be behind, for those before it to be taken as deleted."""

MARGIN = 60.0
"""Seconds before retention deletes a record from which on it is taken to have: clocks differ."""

AHEAD = 600.0
"""Seconds before that from which on each place is proven without waiting for whether it has to be."""

GRACE = 10.0
"""Seconds after a record was seen for which what follows it is taken to be there: an answer may have room for that one only."""

DAY = 24 * 3600.0
"""Seconds: no stream keeps records for less."""

RETENTION_LASTS = 60.0
"""Seconds for which an answer about the retention is taken to hold."""


def caught_up(arrived: float, retention: float, now: float) -> bool:
    """Whether retention has all but surely deleted records before one that arrived then and is the oldest left. In seconds."""
    return now - arrived >= CAUGHT * retention


def may_be_caught_up(arrived: float, now: float) -> bool:
    """The same where nobody asks how long the stream keeps records: never False when the other is True."""
    return caught_up(arrived, DAY, now)


class Timed(NamedTuple):
    """An answer, the time of day when it came, in seconds since 1970, and the seconds that it took."""

    answer: Answer
    came: float
    took: float


@dataclass(slots=True)
class Trail:
    """What is known of the last record of a shard that is read answer by answer: when it arrived, if others followed it, and
    when it was seen, both in seconds since 1970.
    """

    last: float | None = None
    seen: float = 0.0

    def goes_on(self, answer: Answer, new: Sequence[Record], answered: float) -> None:
        """After this answer, whose `new` records were not read before."""
        if answer.records:
            self.seen = answered
        if answer.over or not answer.behind:
            self.last = None  # nothing follows, or what will is young
        elif new:
            self.last = new[-1].arrived.timestamp()


class Edge:
    """Whether retention may have deleted what comes after a record. `now` is monotonic, `clock` the time of day; in seconds.

    Whoever is so far behind must prove at each place that nothing is missing: an iterator goes on behind what is deleted, and
    does not say so. Threads may share it: both may ask for the retention then.
    """

    def __init__(self, kinesis: Kinesis, now: Callable[[], float] = boot_time, clock: Callable[[], float] = time.time) -> None:
        self._kinesis = kinesis
        self._now = now
        self._clock = clock
        self._retention = DAY
        self._asked_at = float("-inf")

    def read(self, reader: ShardReader, limit: int) -> Timed:
        """An answer may wait long until it is taken: what it proves, it proves of when it came. Raises as the reader does."""
        begun = self._now()
        answer = reader.read(limit)
        return Timed(answer, self._clock(), self._now() - begun)

    def passed(self, trail: Trail, answered: float) -> bool:
        """Whether an answer that came then may follow a gap. Raises KinesisUnavailableError, KinesisRefusedError."""
        if trail.last is None or answered - trail.seen < GRACE:
            return False
        return self._within(MARGIN, answered - trail.last)

    def ahead(self, trail: Trail) -> bool:
        """Whether the next answer must prove that it follows the last record. True where nobody can be asked."""
        try:
            return trail.last is not None and self._within(AHEAD, self._clock() - trail.last)
        except KinesisUnavailableError:
            return True

    def _within(self, margin: float, age: float) -> bool:
        age += margin
        if age < DAY:
            return False
        if self._now() - self._asked_at >= RETENTION_LASTS:
            self._retention, self._asked_at = describe(self._kinesis).retention, self._now()
        return age >= self._retention


def is_there(kinesis: Kinesis, shard: str, number: int) -> bool:
    """Whether a shard (its id) still has the record of this number, and so all that followed it.

    Raises KinesisUnavailableError, KinesisRefusedError.
    """
    try:
        found = ShardReader(kinesis, shard, (at(number), BEGINNING)).read(1).records
    except ShardGoneError:
        return False
    return bool(found) and found[0].number == number


class Gap(NamedTuple):
    """The record before a position is gone. `lost`: others after it are all but surely, too; `what` says it."""

    what: str
    lost: bool


def gap_at(kinesis: Kinesis, shard: str, position: int, first: Record | None, now: float) -> Gap | None:
    """What is missing before the `first` record that came of a shard (its whole name), None if nothing is.

    `first` is None where a closed shard has nothing more. Nothing need be lost where the shard was only quiet. It is taken as
    lost where the first that is left is nearly as old as the stream keeps records: so far behind was the group then. `now` is
    the time of day. Raises KinesisUnavailableError, KinesisRefusedError.
    """
    if first is not None and first.number <= position:
        return None
    if first is not None:
        arrived, kept = first.arrived.timestamp(), describe(kinesis).retention
        if caught_up(arrived, kept, now):
            return Gap(
                f"shard {shard}: records from {position} up to {first.number} are lost; the stream keeps records for"
                f" {kept / 3600:g} h, and the oldest that is left came {(now - arrived) / 3600:.1f} h ago",
                lost=True,
            )
    upto = "its end" if first is None else first.number
    return Gap(
        f"shard {shard}: the record before position {position} is gone, deleted by retention; if the shard was not read for as"
        f" long as the stream keeps records, those that followed are lost, up to {upto}",
        lost=False,
    )
