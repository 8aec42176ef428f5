"""Kafka's names and numbers: a shard is `topic/partition`, and two times stand for its ends. Decides nothing."""

from __future__ import annotations

from functools import lru_cache

from shardherd.core.model.nouns import ShardId

Partition = tuple[str, int]
"""A topic and a partition number."""

REMEMBERED = 10_000
"""Shards whose partition is not worked out again: with each Fetch those of all its shards are asked for several times."""

EARLIEST, LATEST = -2, -1
"""Kafka's own numbers for the beginning and the end of a partition, in place of a time."""


def milliseconds(timestamp: float) -> int:
    """Seconds since 1970 as Kafka looks them up. No record is of before 1970, and two such times are EARLIEST and LATEST."""
    return max(0, round(timestamp * 1000))


def shard_of(topic: str, partition: int) -> ShardId:
    return ShardId(f"{topic}/{partition}")


@lru_cache(REMEMBERED)
def partition_of(shard: ShardId) -> Partition:
    """The topic and the partition of a shard. Raises ValueError for a name that is not of this form."""
    topic, slash, number = shard.rpartition("/")
    if not slash or not topic or not number.isascii() or not number.isdigit():
        raise ValueError(f"shard {shard!r} is not of the form topic/partition")
    return topic, int(number)
