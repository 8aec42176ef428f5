"""Which task reads what: tasks follow cores, not shards.

A pure function of the ranges and the number of slots; the source calls it in `partitions`, where Spark may ask twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardherd.core.model import Offset, ShardId
from shardherd.core.tracker import ReadRange


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The records of one shard with start <= offset < stop."""

    shard: ShardId
    start: Offset
    stop: Offset


def plan_tasks(ranges: Mapping[ShardId, ReadRange], slots: int, *, every_slot: bool = False) -> list[tuple[ShardRange, ...]]:
    """Share the ranges among at most `slots` tasks so that each reads about as many records; empty ranges need no task.

    A shard is read by one task. With `every_slot` there is a task for each slot, if need be one that reads nothing: it warms
    the slot up.
    """
    work = sorted(
        (ShardRange(shard, each.start, each.stop) for shard, each in ranges.items() if each.start < each.stop),
        key=lambda each: (each.start - each.stop, each.shard),
    )
    count = max(1, slots) if every_slot else min(max(1, slots), len(work))
    tasks: list[list[ShardRange]] = [[] for _ in range(count)]
    loads = [0] * count
    for each in work:
        lightest = loads.index(min(loads))
        tasks[lightest].append(each)
        loads[lightest] += each.stop - each.start
    return [tuple(sorted(task, key=lambda each: each.shard)) for task in tasks]
