"""Names of shards in Kafka: `topic/partition`. Used by this package only."""

from __future__ import annotations

from shardherd.core.model.nouns import ShardId

Partition = tuple[str, int]
"""A topic and a partition number."""


def shard_of(topic: str, partition: int) -> ShardId:
    return ShardId(f"{topic}/{partition}")


def partition_of(shard: ShardId) -> Partition:
    """The topic and the partition of a shard. Raises ValueError for a name that is not of this form."""
    topic, slash, number = shard.rpartition("/")
    if not slash or not topic or not number.isascii() or not number.isdigit():
        raise ValueError(f"shard {shard!r} is not of the form topic/partition")
    return topic, int(number)
