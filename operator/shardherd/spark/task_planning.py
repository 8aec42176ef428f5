"""Which task reads what: tasks follow cores, not shards.

A pure function of the ranges and the number of slots; `source` calls it in `partitions`, where Spark may ask twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ShardId
from shardherd.source.reading.ranges import ShardRange


@dataclass(frozen=True, slots=True)
class Splitting:
    """What allows a shard's range to be read by several tasks: at least so many tasks, and at most so many records in each."""

    tasks: int | None = None
    records: int | None = None

    @property
    def wanted(self) -> bool:
        return self.tasks is not None or self.records is not None


def plan_tasks(
    ranges: Mapping[ShardId, ReadRange], slots: int | None, *, every_slot: bool = False, splitting: Splitting | None = None
) -> list[tuple[ShardRange, ...]]:
    """Share the ranges among at most `slots` tasks so that each reads about as many records; empty ranges need no task.

    A shard is read by one task, unless `splitting` wants more. Without a known number of slots there is a task for each shard.
    With `every_slot` there is a task for each slot, if need be one that reads nothing: it warms the slot up.
    """
    work = sorted(
        (ShardRange(shard, each.start, each.stop) for shard, each in ranges.items() if each.start < each.stop),
        key=lambda each: (each.start - each.stop, each.shard),
    )
    most = len(work) if slots is None else max(1, slots)
    if splitting is not None and splitting.wanted and work:
        return _cut(sorted(work, key=lambda each: shard_key(each.shard)), min(most, len(work)), splitting)
    count = max(1, most) if every_slot else min(most, len(work))
    tasks: list[list[ShardRange]] = [[] for _ in range(count)]
    loads = [0] * count
    for each in work:
        lightest = loads.index(min(loads))
        tasks[lightest].append(each)
        loads[lightest] += each.stop - each.start
    return [tuple(sorted(task, key=lambda each: each.shard)) for task in tasks]


def _cut(work: Sequence[ShardRange], least: int, splitting: Splitting) -> list[tuple[ShardRange, ...]]:
    """Lay the ranges end to end and cut the whole into equal stretches: no task has two ranges of one shard."""
    total = sum(each.stop - each.start for each in work)
    by_size = -(-total // splitting.records) if splitting.records else 1
    count = min(total, max(least, by_size, splitting.tasks or 1))
    tasks: list[list[ShardRange]] = [[] for _ in range(count)]
    passed = 0
    for each in work:
        at = each.start
        while at < each.stop:
            task = passed * count // total
            # The first record that belongs to the next task, counted from the beginning of the whole.
            border = -(-(task + 1) * total // count)
            taken = min(border - passed, each.stop - at)
            tasks[task].append(ShardRange(each.shard, at, at + taken))
            at += taken
            passed += taken
    return [tuple(task) for task in tasks]
