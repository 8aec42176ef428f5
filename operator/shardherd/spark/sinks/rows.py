"""Which rows of an Arrow record batch are still to be written, by the columns `shard` and `offset`. In the executors' workers.

The writers of `delta` and `postgresql` call `of_batch` with every record batch. A row that is not of the micro-batch is an
error: it would be counted as written by a position that says nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks.positions import Pending, SinkError

SHARD, OFFSET = "shard", "offset"
"""The columns that tell which record a row was made of."""


class StrangeRowsError(SinkError):
    """There are rows whose records are not of this micro-batch. Says which."""


class Rows:
    """Chooses the rows of one task, and remembers of which shards it chose some."""

    def __init__(self, ranges: Mapping[str, BatchRange], wanted: Mapping[str, Pending]) -> None:
        self._ranges = ranges
        # Of a shard that is there as a whole, nothing is at or above its end.
        self._start = {shard: wanted[shard].start if shard in wanted else each.stop for shard, each in ranges.items()}
        self.seen: set[str] = set()

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are still to be written, with all their columns. Raises StrangeRowsError."""
        if not batch.num_rows:
            return batch
        shards = batch.column(SHARD).dictionary_encode()
        names: list[Any] = shards.dictionary.to_pylist()
        offsets = batch.column(OFFSET)
        if shards.null_count or offsets.null_count or not self._ranges.keys() >= set(names):
            raise StrangeRowsError(self._strange(batch))
        which = shards.indices.to_numpy()
        at = offsets.to_numpy()
        first = np.array([self._ranges[name].start for name in names])[which]
        stop = np.array([self._ranges[name].stop for name in names])[which]
        if (at < first).any() or (at >= stop).any():
            raise StrangeRowsError(self._strange(batch))
        new = at >= np.array([self._start[name] for name in names])[which]
        if new.all():
            self.seen.update(names)
            return batch
        chosen = batch.filter(pa.array(new))
        self.seen.update(map(str, pc.unique(chosen.column(SHARD)).to_pylist()))
        return chosen

    def _strange(self, batch: pa.RecordBatch) -> str:
        for shard, offset in zip(batch.column(SHARD).to_pylist(), batch.column(OFFSET).to_pylist(), strict=True):
            each = self._ranges.get(str(shard))
            if each is None or offset is None or not each.start <= offset < each.stop:
                break
        return (
            f"a row has shard {shard!r} and offset {offset!r}, which is no record of this micro-batch: leave the columns shard "
            "and offset as the source gives them, and write only rows that are made of this micro-batch's records"
        )
