"""Shards and consumers as the examples of assignors write them: `t0p1` is partition 1 of topic t0."""

from __future__ import annotations

from shardherd.core.assignors import Problem
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ConsumerId, ShardId

Assigned = dict[ConsumerId, tuple[ShardId, ...]]

C0, C1, C2 = C = [ConsumerId("c0"), ConsumerId("c1"), ConsumerId("c2")]


def partitions(**topics: int) -> list[ShardId]:
    """The shards of topics with so many partitions: `partitions(t0=3)`."""
    return [ShardId(f"{topic}/{number}") for topic, count in topics.items() for number in range(count)]


def of(text: str) -> tuple[ShardId, ...]:
    """`t0p0 t0p1` as shards."""
    return tuple(ShardId(name.replace("p", "/")) for name in text.split())


def by_name(**assigned: str) -> Assigned:
    """`by_name(c0="t0p1 t0p0")`, in the order of the shards."""
    return {ConsumerId(name): tuple(sorted(of(text), key=shard_key)) for name, text in assigned.items()}


def holders(assigned: Assigned) -> dict[ShardId, ConsumerId]:
    """Who holds each shard."""
    return {shard: consumer for consumer, held in assigned.items() for shard in held}


def unchanged(before: Assigned, after: Assigned) -> int:
    """How many shards have the same holder in both."""
    was = holders(before)
    return sum(was.get(shard) == consumer for shard, consumer in holders(after).items())


def problem(shards: list[ShardId], consumers: list[ConsumerId], before: Assigned | None = None) -> Problem:
    """All consumers read all topics."""
    return Problem.of(shards, consumers, holders(before or {}))
