"""The natural order of names: `clicks/10` comes after `clicks/2`, and consumer `g-10` after `g-2`.

Used wherever an order must be the same for everybody.
"""

from __future__ import annotations

from shardherd.core.model.nouns import ConsumerId, ShardId


def shard_key(shard: ShardId) -> tuple[str, int, str]:
    """Sort key of a shard: its topic, then its partition as a number."""
    topic, partition = split(shard)
    return (topic, partition, shard)


def split(shard: ShardId) -> tuple[str, int]:
    """Topic and partition of `topic/partition`; a name of another form is a topic of its own with partition -1."""
    topic, slash, partition = shard.rpartition("/")
    if slash and partition.isdecimal():
        return (topic, int(partition))
    return (shard, -1)


def consumer_key(consumer: ConsumerId) -> tuple[str, int, str]:
    """Sort key of a consumer: its name without the number at its end, then that number."""
    prefix = consumer.rstrip("0123456789")
    ordinal = consumer[len(prefix) :]
    return (prefix, int(ordinal) if ordinal else -1, consumer)
