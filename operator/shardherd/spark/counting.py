"""How many records ranges have, for whoever shows or measures it: the positions of Kinesis count none. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import ShardId


def records_in(ranges: Mapping[ShardId, ReadRange]) -> int:
    """The records of these ranges, of shards whose positions count them."""
    return sum(each.stop - each.start for shard, each in ranges.items() if not is_of_kinesis(shard))


def size_of(ranges: Mapping[ShardId, ReadRange]) -> int:
    """The same, with 1 for each range with records of a shard whose positions count none."""
    return records_in(ranges) + sum(is_of_kinesis(shard) and each.start < each.stop for shard, each in ranges.items())
