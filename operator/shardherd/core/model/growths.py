"""Which shard had the keys of which before a topic grew by a multiple of its shards.

A producer writes a key to hash(key) mod n. With n a multiple of the number before, shard j gets the keys of shard j mod that
number, and the shards that were there get none of another. Called by `core.group` and by `core.planning`. Knows no positions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from shardherd.core.model.naming import split
from shardherd.core.model.nouns import Growth, Offset, ShardId


def steps(before: int, after: int) -> list[int]:
    """The numbers of shards that a topic may have had from the one to the other, `before` first.

    It may have grown several times between two looks, and a producer may have noticed only some of that. Where `after` is no
    multiple, which multiples were among them nobody knows.
    """
    return [number for number in range(before, after, before) if after % number == 0 or after % before]


def parents(growths: Iterable[Growth], shard: ShardId) -> list[tuple[Growth, ShardId]]:
    """The growths that keep order and that this shard comes from, each with a shard that may have had its keys before.

    All of them, also of those that come before those; the last growth first.
    """
    topic, number = split(shard)
    mine = sorted((each for each in growths if each.keeps and each.topic == topic), key=lambda each: -each.before)
    found, numbers = [], {number}
    for growth in mine:
        # Those of a smaller number are below it: nothing that is found later comes from this growth.
        for parent in sorted({each % growth.before for each in numbers if growth.before <= each < growth.after}):
            numbers.add(parent)
            found.append((growth, ShardId(f"{topic}/{parent}")))
    return found


def children(growths: Iterable[Growth], shard: ShardId) -> list[ShardId]:
    """All shards to which keys of this one may have moved by growths that keep order, also from one to the next."""
    topic, number = split(shard)
    numbers = {number}
    for growth in sorted((each for each in growths if each.keeps and each.topic == topic), key=lambda each: each.before):
        for parent in [each for each in numbers if 0 <= each < growth.before]:
            numbers.update(range(parent + growth.before, growth.after, growth.before))
    return [ShardId(f"{topic}/{each}") for each in sorted(numbers - {number})]


def cutover(growth: Growth, shard: ShardId) -> Offset | None:
    """The cutover offset of a shard that was there before; None while it is not taken."""
    number = split(shard)[1]
    at = bisect_left(growth.ends, number, key=lambda each: split(each[0])[1])
    return growth.ends[at][1] if at < len(growth.ends) and growth.ends[at][0] == shard else None


def uncut(growth: Growth) -> list[ShardId]:
    """The shards that were there before and of which no cutover offset is taken yet."""
    if not growth.keeps or len(growth.ends) == growth.before:
        return []
    taken = {shard for shard, _ in growth.ends}
    there = (ShardId(f"{growth.topic}/{number}") for number in range(growth.before))
    return [shard for shard in there if shard not in taken]
