"""Whether a log still is the one of which a range was planned, as leader epochs tell it.

A log that an unclean election cut off, and that has grown past our position since, looks like one that was never cut. But each
leader's reign has a number, its epoch, and the present leader knows where the log of every earlier epoch ended. The sides that
plan note under which epoch they saw a log reach an offset (`Ends`, `leaders_of`); a task asks again (`Lineage`) when the
shard is led under another one. Pure; `brokers` asks, and `losses` decides what becomes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import split
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.offsets import Offsets

UNKNOWN = -1
"""In place of an epoch, from brokers that are too old to say."""


class Mark(NamedTuple):
    """The log had records up to this offset when it was led under this epoch."""

    offset: Offset
    epoch: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """The log is not what a mark says: led under `now`, the records of epochs up to `epoch` end at `at`.

    `at` is None if the leader's epoch is below the mark's: a topic that was made anew has that, or a broker that is behind.
    """

    epoch: int
    now: int
    at: Offset | None = None


class Ends(dict[ShardId, Offset]):
    """Where shards end, and under which epoch each one's leader said so, as far as it is known."""

    def __init__(self, ends: Mapping[ShardId, Offset] | None = None, leaders: Mapping[ShardId, int] | None = None) -> None:
        super().__init__(ends or {})
        self.leaders: dict[ShardId, int] = dict(leaders or {})


def epochs_in(ends: Mapping[ShardId, Offset]) -> Mapping[ShardId, int]:
    """The leader epochs that came with these ends; none with ends that are only numbers."""
    return ends.leaders if isinstance(ends, Ends) else {}


def leaders_of(before: Offsets, ranges: Mapping[ShardId, ReadRange], ends: Mapping[ShardId, Offset]) -> dict[ShardId, int]:
    """The epochs to note with these ranges: under each the log was seen to reach the end of its range.

    A range without records goes on with what was noted `before`: nobody asks whether that is still so until it is read from.
    """
    found: dict[ShardId, int] = {}
    for shard, each in ranges.items():
        epoch = _noted(before, shard, each) if each.start == each.stop else UNKNOWN
        if epoch < 0 and ends.get(shard, -1) >= each.stop:
            epoch = epochs_in(ends).get(shard, UNKNOWN)
        if epoch >= 0:
            found[shard] = epoch
    return found


def marks_of(before: Offsets, now: Offsets) -> dict[ShardId, tuple[Mark, ...]]:
    """What must hold of the log of each range of a micro-batch that follows `before`."""
    found: dict[ShardId, tuple[Mark, ...]] = {}
    for shard, each in now.shards.items():
        if each.start >= each.stop:
            continue
        first, last = Mark(each.start, _noted(before, shard, each)), Mark(each.stop, now.leaders.get(shard, UNKNOWN))
        if _id_of(before, shard) != _id_of(now, shard):
            first = Mark(each.start, UNKNOWN)
        # Where both are of one epoch the later offset says it all, and before offset 0 there is nothing to lose.
        marks = (last,) if first.epoch == last.epoch or not first.offset else (first, last)
        if kept := tuple(mark for mark in marks if mark.epoch >= 0):
            found[shard] = kept
    return found


def _noted(before: Offsets, shard: ShardId, now: ReadRange) -> int:
    """The epoch that was noted with the position at which this range begins, if it is of the same grant."""
    each = before.shards.get(shard)
    if each is None or (each.stop, each.epoch) != (now.start, now.epoch):
        return UNKNOWN
    return before.leaders.get(shard, UNKNOWN)


def _id_of(offsets: Offsets, shard: ShardId) -> str | None:
    """The id of the shard's topic, where there is no coordinator to look after it."""
    return None if offsets.topics is None else offsets.topics.get(split(shard)[0])


class Lineage:
    """What must hold of the logs that one task reads, and what was asked already."""

    def __init__(self, marks: Mapping[ShardId, Collection[Mark]] | None = None) -> None:
        self._marks = {shard: tuple(each) for shard, each in (marks or {}).items()}
        self._verified: dict[ShardId, int] = {}

    def ahead(self, shard: ShardId, epoch: int) -> Mark | None:
        """A mark of a later epoch than the one under which the shard is led, as far as we know."""
        later = (mark for mark in self._marks.get(shard, ()) if mark.epoch > epoch >= 0)
        return max(later, key=lambda mark: mark.epoch, default=None)

    def doubtful(self, shard: ShardId, epoch: int) -> tuple[Mark, ...]:
        """What to ask the shard's leader, which leads under this epoch. Nothing is asked twice."""
        if epoch < 0 or self._verified.get(shard) == epoch:
            return ()
        return tuple(mark for mark in self._marks.get(shard, ()) if mark.epoch < epoch)

    def verified(self, shard: ShardId, epoch: int) -> None:
        """The leader of this epoch has answered, whatever it was."""
        self._verified[shard] = epoch

    def forget(self, shards: Iterable[ShardId]) -> None:
        """These logs are read on as they are."""
        for shard in shards:
            self._marks.pop(shard, None)
