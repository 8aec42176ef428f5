"""Micro-batches of three partitions of Kafka, or of two shards of Kinesis: their ranges, and their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import ShardId
from shardherd.spark.running_batch import BatchRange, BatchRanges

GROUP = "group-uid"
A, B, C = "clicks/0", "clicks/1", "clicks/2"
K, L = "orders/shardId-000000000000", "orders/shardId-000000000001"
N = 49590338271490256608559692538361571095999999999999999995
"""A sequence number of Kinesis. The last 18 digits of those that follow soon are a smaller number."""


def of(ranges: Mapping[str, tuple[int, int, int]], *, batch_id: int = 1, run: str = "run-1", topic_id: str = "") -> BatchRanges:
    """A micro-batch with these ranges: first offset, the one after the last, epoch."""
    found = {ShardId(shard): BatchRange(*each) for shard, each in ranges.items()}
    ids = dict.fromkeys(found, topic_id) if topic_id else {}
    return BatchRanges(found, group=GROUP, batch_id=batch_id, run=run, topic_ids=ids)


def records(ranges: Mapping[str, tuple[int, int, int]], *, rows: int = 7) -> Iterator[pa.RecordBatch]:
    """All records of these ranges, shard after shard, in record batches of so many rows at most."""
    found = [(shard, at) for shard, (start, stop, _) in ranges.items() for at in range(start, stop)]
    for first in range(0, len(found), rows):
        part = found[first : first + rows]
        of_kinesis = is_of_kinesis(ShardId(part[0][0]))
        numbers = pa.array([str(at) for _, at in part], pa.string()) if of_kinesis else pa.array([at for _, at in part])
        yield pa.record_batch(
            {
                "shard": pa.array([shard for shard, _ in part], pa.string()),
                "sequenceNumber" if of_kinesis else "offset": numbers,
                "value": pa.array([f"{shard}:{at}" for shard, at in part], pa.string()),
            }
        )
