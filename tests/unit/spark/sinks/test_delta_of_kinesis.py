"""The Delta sink in a group that reads Kinesis: positions of 56 digits, in transaction identifiers that hold 18 of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardherd.spark.sinks.delta_positions import read, written
from shardherd.spark.sinks.frames import ColumnsError
from shardherd.spark.sinks.positions import GapError
from shardherd.spark.sinks.rows import StrangeRowsError
from shardherd.transactions.outcomes import TableError
from tests.harness.micro_batches import GROUP, K, L, N, of
from tests.unit.spark.sinks.test_delta import SEEDS, keep_a_checkpoint_only, move_and_kill, once, sink, tasks

COLUMNS = ("shard", "sequenceNumber", "value")
SCHEMA = StructType([StructField(name, StringType()) for name in COLUMNS])
FIRST = {K: (N, N + 20, 1), L: (N + 100, N + 115, 1)}


def rows(path: Path) -> Counter[tuple[str, int]]:
    found = DeltaTable(str(path / "table")).to_pyarrow_table(columns=list(COLUMNS)).to_pylist()
    assert all(row["value"] == f"{row['shard']}:{row['sequenceNumber']}" for row in found)
    return Counter((row["shard"], int(row["sequenceNumber"])) for row in found)


def position(path: Path, shard: str) -> int | None:
    return read(DeltaTable(str(path / "table")).transaction_version, f"{GROUP}/{shard}", shard)


def test_a_position_is_written_in_parts_which_together_are_all_of_its_digits() -> None:
    assert list(written("app", K, N + 20)) == [
        ("app#0", 15),
        ("app#1", 559692538361571096),
        ("app#2", 590338271490256608),
        ("app#3", 49),
    ]
    assert list(written("app", "clicks/0", 7)) == [("app", 7)]


def test_one_commit_has_the_files_and_the_position_of_each_shard_with_all_of_its_digits(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))

    assert rows(tmp_path) == once(FIRST)
    assert (position(tmp_path, K), position(tmp_path, L)) == (N + 20, N + 115)
    log = (tmp_path / "table/_delta_log/00000000000000000001.json").read_text().splitlines()
    assert Counter(next(iter(json.loads(line))) for line in log) == {"commitInfo": 1, "add": 2, "txn": 8}


def test_positions_outlive_delta_checkpoints_and_a_micro_batch_that_is_run_again_adds_nothing(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    keep_a_checkpoint_only(tmp_path)
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST, run="run-2"))

    assert rows(tmp_path) == once(FIRST)


def test_a_holder_that_comes_back_after_its_shards_have_moved_adds_nothing_twice(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    old, new = {K: (N + 20, N + 40, 1), L: (N + 115, N + 120, 1)}, {K: (N + 20, N + 33, 2)}

    def meanwhile() -> None:
        """While the old holder stands still between its files and its commit, the next one writes its first micro-batch."""
        if position(tmp_path, K) == N + 20:
            sink(tmp_path).write_by(tasks(new), SCHEMA, of(new))

    sink(tmp_path).write_by(tasks(old, meanwhile), SCHEMA, of(old))
    assert rows(tmp_path) == once({K: (N, N + 40, 1), L: (N + 100, N + 120, 1)})


@pytest.mark.parametrize("seed", range(SEEDS))
def test_moves_and_kills_in_any_order_leave_each_record_once(tmp_path: Path, seed: int) -> None:
    move_and_kill(tmp_path, SCHEMA, {K: N, L: N}, seed)
    found = rows(tmp_path)
    assert set(found.values()) == {1}
    assert found == once({shard: (N, position(tmp_path, shard) or N, 1) for shard in (K, L)})


def test_records_that_would_be_missing_are_refused_and_not_counted(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    ahead = {K: (N + 25, N + 30, 1)}
    with pytest.raises(
        GapError, match=f"up to offset {N + 20}, and this .* begins at {N + 25}: the records in between are missing"
    ):
        sink(tmp_path).write_by(tasks(ahead), SCHEMA, of(ahead))


def test_positions_of_which_a_part_is_gone_are_refused(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks({}), SCHEMA, of({}))
    table = DeltaTable(str(tmp_path / "table"))
    alone = CommitProperties(app_transactions=[Transaction(f"{GROUP}/{K}#0", 7, 0)])
    table.create_write_transaction([], "append", table.schema(), commit_properties=alone)
    with pytest.raises(TableError, match=f"only a part of the position of shard {K}"):
        sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))


def test_a_row_that_is_of_no_record_of_the_micro_batch_is_refused(tmp_path: Path) -> None:
    strange = {K: (N, N + 21, 1)}
    with pytest.raises(StrangeRowsError, match=f"has shard '{K}' and sequenceNumber '{N + 20}', which is no record of this"):
        sink(tmp_path).write_by(tasks(strange), SCHEMA, of(FIRST))
    assert rows(tmp_path) == Counter()


def test_the_columns_by_which_records_are_known_are_those_of_the_source(tmp_path: Path) -> None:
    fields = SCHEMA.fields
    of_kafka = StructType([fields[0], StructField("offset", LongType()), fields[2]])
    with pytest.raises(ColumnsError, match=r"has no column 'sequenceNumber', by which.*\.select\('shard', 'sequenceNumber', "):
        sink(tmp_path).write_by(tasks(FIRST), of_kafka, of(FIRST))
    cast = StructType([fields[0], StructField("sequenceNumber", LongType()), fields[2]])
    with pytest.raises(ColumnsError, match="'sequenceNumber' is bigint, and must be the source's, which is string: rename"):
        sink(tmp_path).write_by(tasks({}), cast, of({}))
    both = StructType([*fields, StructField("offset", StringType())])
    sink(tmp_path).write_by(tasks({}), both, of(FIRST))
    assert position(tmp_path, K) == N + 20
