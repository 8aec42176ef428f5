"""What a group may be called, the natural order of names: `clicks/10` after `clicks/2`, and the cell of a shard.

Used wherever an order must be the same for everybody, and before a name gets into a path.
"""

from __future__ import annotations

import re

from shardherd.core.model.nouns import ConsumerId, ShardId

LONGEST_NAME = 63

KINESIS = "shardId-"
"""How the names that Kinesis gives to the shards of a stream begin. A number follows, which grows from shard to shard."""

_GROUP_NAME = re.compile(rf"(?!-)[a-z0-9-]{{1,{LONGEST_NAME}}}(?<!-)")


def is_group_name(name: str) -> bool:
    """Whether a ConsumerGroup, or its namespace, can be called so: both are labels of RFC 1123.

    A group's is one because the names of its pods begin with it.
    """
    return _GROUP_NAME.fullmatch(name) is not None


def shard_key(shard: ShardId) -> tuple[str, int, str]:
    """Sort key of a shard: its topic, then its partition as a number."""
    topic, partition = split(shard)
    return (topic, partition, shard)


def split(shard: ShardId) -> tuple[str, int]:
    """Topic and partition of `topic/partition`, or stream and number of `stream/shardId-000000000003` as Kinesis has them.

    A name of another form is a topic of its own with partition -1.
    """
    topic, slash, partition = shard.rpartition("/")
    if slash and (number := partition.removeprefix(KINESIS)).isdecimal():
        return (topic, int(number))
    return (shard, -1)


def is_of_kinesis(shard: ShardId) -> bool:
    """Whether it is a shard of a stream in Kinesis, by its name: no partition of Kafka is called so."""
    return shard.rpartition("/")[2].startswith(KINESIS)


def cell(shard: ShardId, cells: int) -> int:
    """Which of so many cells this shard is in: its partition's number says, so that co-partitioned topics meet."""
    return split(shard)[1] % cells


def consumer_key(consumer: ConsumerId) -> tuple[str, int, str]:
    """Sort key of a consumer: its name without the number at its end, then that number."""
    prefix = consumer.rstrip("0123456789")
    ordinal = consumer[len(prefix) :]
    return (prefix, int(ordinal) if ordinal else -1, consumer)
