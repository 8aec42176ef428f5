"""Micro-batches of three shards: their ranges, and their records as a source would give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from shardherd.core.model.nouns import ShardId
from shardherd.spark.running_batch import BatchRange, BatchRanges

GROUP = "group-uid"
A, B, C = "clicks/0", "clicks/1", "clicks/2"


def of(ranges: Mapping[str, tuple[int, int, int]], *, batch_id: int = 1, run: str = "run-1") -> BatchRanges:
    """A micro-batch with these ranges: first offset, the one after the last, epoch."""
    found = {ShardId(shard): BatchRange(*each) for shard, each in ranges.items()}
    return BatchRanges(found, group=GROUP, batch_id=batch_id, run=run)


def records(ranges: Mapping[str, tuple[int, int, int]], *, rows: int = 7) -> Iterator[pa.RecordBatch]:
    """All records of these ranges, shard after shard, in record batches of so many rows at most."""
    found = [(shard, at) for shard, (start, stop, _) in ranges.items() for at in range(start, stop)]
    for first in range(0, len(found), rows):
        part = found[first : first + rows]
        yield pa.record_batch(
            {
                "shard": pa.array([shard for shard, _ in part], pa.string()),
                "offset": pa.array([at for _, at in part], pa.int64()),
                "value": pa.array([f"{shard}:{at}" for shard, at in part], pa.string()),
            }
        )
