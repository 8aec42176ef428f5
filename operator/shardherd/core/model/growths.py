"""Which shard had the keys of which before a topic grew by a multiple of its shards.

A producer writes a key to hash(key) mod n. With n a multiple of the number before, shard j gets the keys of shard j mod that
number, and the shards that were there get none of another. Called by `core.group` and by `core.planning`. Knows no positions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from shardherd.core.model.naming import split
from shardherd.core.model.nouns import Growth, Offset, ShardId


def parents(growths: Iterable[Growth], shard: ShardId) -> Iterator[tuple[Growth, ShardId]]:
    """Each growth that keeps order and that this shard comes from, the last first, with the shard that had its keys before."""
    topic, number = split(shard)
    mine = (each for each in growths if each.keeps and each.topic == topic)
    for growth in sorted(mine, key=lambda each: each.before, reverse=True):
        if growth.before <= number < growth.after:
            number %= growth.before
            yield growth, ShardId(f"{topic}/{number}")


def children(growths: Iterable[Growth], shard: ShardId) -> list[ShardId]:
    """All shards to which keys of this one have moved by growths that keep order, also from one to the next."""
    topic, number = split(shard)
    numbers = [number] if number >= 0 else []
    for growth in sorted((each for each in growths if each.keeps and each.topic == topic), key=lambda each: each.before):
        for parent in tuple(each for each in numbers if each < growth.before):
            numbers += range(parent + growth.before, growth.after, growth.before)
    return [ShardId(f"{topic}/{each}") for each in sorted(set(numbers[1:]))]


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
