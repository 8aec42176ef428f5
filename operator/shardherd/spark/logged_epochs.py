"""Leader epochs in the offsets that Spark logs: which are noted with a micro-batch, and what must hold of the logs it reads.

The agent and `standalone` note them, `source` hands what must hold to the tasks; `source.kafka.leader_epochs` says what they
are for. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import split
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.leader_epochs import UNKNOWN, Mark, epochs_in
from shardherd.spark.offsets import Offsets


def leaders_of(
    before: Offsets, ranges: Mapping[ShardId, ReadRange], end_offsets: Mapping[ShardId, Offset]
) -> dict[ShardId, int]:
    """The epochs to note with these ranges: under each the log was seen to reach the end of its range.

    A range without records goes on with what was noted `before`: nobody asks whether that is still so until it is read from.
    """
    found: dict[ShardId, int] = {}
    for shard, each in ranges.items():
        epoch = _noted(before, shard, each) if each.start == each.stop else UNKNOWN
        if epoch < 0 and end_offsets.get(shard, -1) >= each.stop:
            epoch = epochs_in(end_offsets).get(shard, UNKNOWN)
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
