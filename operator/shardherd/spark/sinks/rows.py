"""Which rows of an Arrow record batch are still to be written, by shard and number of their records. In the executors' workers.

The number is the offset in Kafka, and in Kinesis the sequence number, which is compared with all of its digits. The writers of
the sinks call `of_batch` with every record batch. A row that is not of the micro-batch is an error: it would be counted as
written by a position that says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import ShardId
from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks.positions import Pending
from shardherd.transactions.outcomes import SinkError

SHARD, OFFSET, SEQUENCE_NUMBER = "shard", "offset", "sequenceNumber"
"""The columns that tell which record a row was made of: the shard, and one of the others."""

_FIELDS: dict[str, pa.DataType] = {"shard": pa.string(), "conflict": pa.string()}
WRITTEN, WRITTEN_DDL = pa.schema(_FIELDS), "shard string, conflict string"
"""What a task says: each shard whose rows and position are there; or, with the shard null, why some are not."""

DIGITS = 56
"""Digits of the longest sequence number: texts of so many are ordered as the numbers are."""


class StrangeRowsError(SinkError):
    """There are rows whose records are not of this micro-batch. Says which."""


def number_of(shards: Iterable[str]) -> str:
    """The column with the number by which a record is known in one of these shards."""
    return SEQUENCE_NUMBER if any(is_of_kinesis(ShardId(each)) for each in shards) else OFFSET


class Rows:
    """Chooses the rows of one task, and remembers of which shards it chose some. Those of a cell are one whole."""

    def __init__(self, ranges: Mapping[str, BatchRange], wanted: Mapping[str, Pending], *, by_record: bool = True) -> None:
        self._ranges = ranges
        self._by_record = by_record
        self._number = number_of(ranges)
        # Of a shard that is there as a whole, nothing is at or above its end.
        self._start = {shard: wanted[shard].start if shard in wanted else each.stop for shard, each in ranges.items()}
        self.seen: set[str] = set()

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are still to be written, with all their columns. Raises StrangeRowsError."""
        if not batch.num_rows:
            return batch
        if not self._by_record:
            self.seen.update(self._ranges)
            return batch
        shards = batch.column(SHARD).dictionary_encode()
        names: list[Any] = shards.dictionary.to_pylist()
        at = self._numbers(batch.column(self._number))
        if at is None or shards.null_count or not self._ranges.keys() >= set(names):
            raise StrangeRowsError(self._strange(batch))
        which = shards.indices.to_numpy()
        first = self._bounds(self._ranges[name].start for name in names)[which]
        stop = self._bounds(self._ranges[name].stop for name in names)[which]
        if (at < first).any() or (at >= stop).any():
            raise StrangeRowsError(self._strange(batch))
        new = at >= self._bounds(self._start[name] for name in names)[which]
        if new.all():
            self.seen.update(names)
            return batch
        chosen = batch.filter(pa.array(new))
        self.seen.update(map(str, pc.unique(chosen.column(SHARD)).to_pylist()))
        return chosen

    def answer(self, conflict: str) -> pa.RecordBatch:
        """What the task says, of WRITTEN: each shard of which there were rows; or why some are not there."""
        seen = [{"shard": shard, "conflict": None} for shard in sorted(self.seen)]
        return pa.RecordBatch.from_pylist([{"shard": None, "conflict": conflict}] if conflict else seen, WRITTEN)

    def _numbers(self, column: pa.Array[Any]) -> np.ndarray[Any, Any] | None:
        """The rows' numbers, which are ordered as those of `_bounds`; None if one is no number."""
        if column.null_count:
            return None
        if self._number == OFFSET:
            return column.to_numpy()
        if not pc.all(pc.match_substring_regex(column, rf"^[0-9]{{1,{DIGITS}}}$")).as_py():
            return None
        return pc.utf8_lpad(column, DIGITS, padding="0").to_numpy(zero_copy_only=False).astype(f"S{DIGITS}")

    def _bounds(self, positions: Iterable[int]) -> np.ndarray[Any, Any]:
        if self._number == OFFSET:
            return np.array(list(positions))
        return np.array([f"{each:0{DIGITS}}" for each in positions], f"S{DIGITS}")

    def _strange(self, batch: pa.RecordBatch) -> str:
        name = self._number
        for shard, number in zip(batch.column(SHARD).to_pylist(), batch.column(name).to_pylist(), strict=True):
            each = self._ranges.get(str(shard))
            known = int(str(number)) if str(number).isdecimal() else None
            if each is None or known is None or not each.start <= known < each.stop:
                break
        return (
            f"a row has shard {shard!r} and {name} {number!r}, which is no record of this micro-batch: leave the columns shard "
            f"and {name} as the source gives them, and write only rows that are made of this micro-batch's records"
        )
