"""A cell's results in a Delta table; tasks are called as Spark would call them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardherd.core.model.nouns import ShardId
from shardherd.spark.cells.build import Cell
from shardherd.spark.running_batch import BatchRanges
from shardherd.spark.sinks import delta
from shardherd.spark.sinks.cell_results import shard_of
from shardherd.spark.sinks.delta_files import FileJob, write_files
from shardherd.spark.sinks.exactly_once import Writings
from shardherd.spark.sinks.frames import ColumnsError, stored_columns
from tests.contract.cell_results import FIRST, Contract, Result, Table, cell, nothing

SCHEMA = StructType([StructField("key", StringType()), StructField("offset", LongType()), StructField("count", LongType())])


def record_batch(rows: Sequence[Result]) -> pa.RecordBatch:
    keys, offsets, counts = zip(*rows, strict=True) if rows else ((), (), ())
    columns = (pa.array(keys, pa.string()), pa.array(offsets, pa.int64()), pa.array(counts, pa.int64()))
    return pa.record_batch(dict(zip(SCHEMA.names, columns, strict=True)))


class DeltaResults(Table):
    """A Delta table; each row is written by a task of its own."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def written(
        self, of: Cell, rows: list[Result], then: Callable[[], None] = nothing, *, accept_gaps: bool = False
    ) -> Callable[[Any, BatchRanges], None]:
        def tasks(job: FileJob) -> Iterable[Sequence[Any]]:
            found: list[Sequence[Any]] = []
            for each in rows:
                for answer in write_files(iter([record_batch([each])]), job):
                    found += [tuple(row.values()) for row in answer.to_pylist()]
            then()
            return found

        made = delta(self.path, cell=of, accept_gaps=accept_gaps)
        made.writings = Writings()
        return lambda _, ranges: made.write_by(tasks, SCHEMA, ranges)

    def shard(self, of: Cell) -> ShardId:
        return shard_of(of)

    def rows(self) -> Counter[Result]:
        found = DeltaTable(self.path).to_pyarrow_table(columns=SCHEMA.names).to_pylist()
        return Counter((row["key"], row["offset"], row["count"]) for row in found)


class TestDelta(Contract):
    @pytest.fixture
    def table(self, tmp_path: Path) -> Table:
        return DeltaResults(tmp_path / "table")

    def test_the_number_of_the_next_micro_batch_stands_beside_the_rows(self, tmp_path: Path) -> None:
        self.write(DeltaResults(tmp_path / "table"), 7, FIRST, of=cell(number=5, generation=2))

        assert DeltaTable(str(tmp_path / "table")).transaction_version("group-uid/cell/5@2") == 8


def test_results_without_a_cell_are_refused_with_the_remedy() -> None:
    with pytest.raises(ColumnsError, match=r"no column 'shard'.*known by their cell: give the sink cell=cell"):
        stored_columns(SCHEMA, (), ())
