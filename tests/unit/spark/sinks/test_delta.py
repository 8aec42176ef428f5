"""The Delta sink over real tables; tasks are called as Spark would call them: killed at every step, refused, too late."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shardherd.spark.running_batch import BatchRanges
from shardherd.spark.sinks import delta
from shardherd.spark.sinks.delta_files import FileJob, statistics, write_files
from shardherd.spark.sinks.delta_table import DeltaSink
from shardherd.spark.sinks.exactly_once import Writings
from shardherd.spark.sinks.frames import ColumnsError
from shardherd.spark.sinks.positions import GapError
from shardherd.spark.sinks.rows import StrangeRowsError
from shardherd.transactions.outcomes import ConflictError, SinkError, TableError
from tests.harness.long import LONG
from tests.harness.micro_batches import GROUP, A, B, of, records

SCHEMA = StructType([StructField("shard", StringType()), StructField("offset", LongType()), StructField("value", StringType())])
Ranges = Mapping[str, tuple[int, int, int]]
Happens = Callable[[], None]


class KilledError(Exception):
    """The driver is gone."""


def nothing() -> None:
    """Happens."""


def tasks(
    ranges: Ranges, then: Happens = nothing, *, number: int = 2, attempts: int = 1
) -> Callable[[FileJob], Iterable[Sequence[Any]]]:
    """What Spark would do: each task has its record batches, and the last attempt's answer goes to the driver.

    Afterwards `then` happens.
    """

    def run(job: FileJob) -> Iterable[Sequence[Any]]:
        found: list[Sequence[Any]] = []
        batches = list(records(ranges))
        for task in range(number):
            for attempt in range(attempts):
                answers = list(write_files(iter(batches[task::number]), job))
                if attempt == attempts - 1:
                    found += [tuple(row.values()) for answer in answers for row in answer.to_pylist()]
        then()
        return found

    return run


def sink(path: Path, **options: Any) -> DeltaSink:
    """As in a process of its own."""
    made = delta(str(path / "table"), **options)
    made.writings = Writings()
    return made


def rows(path: Path) -> Counter[tuple[str, int]]:
    found = DeltaTable(str(path / "table")).to_pyarrow_table(columns=["shard", "offset", "value"]).to_pylist()
    assert all(row["value"] == f"{row['shard']}:{row['offset']}" for row in found)
    return Counter((row["shard"], row["offset"]) for row in found)


def once(ranges: Ranges) -> Counter[tuple[str, int]]:
    return Counter((shard, at) for shard, (start, stop, _) in ranges.items() for at in range(start, stop))


def position(path: Path, shard: str, name: str = "") -> int | None:
    return DeltaTable(str(path / "table")).transaction_version(f"{GROUP}/{shard}" + (f"/{name}" if name else ""))


def move_and_kill(path: Path, schema: StructType, begins: Mapping[str, int], seed: int) -> None:
    """Write micro-batches of these shards, whose drivers are killed, or are late when the first shard has moved."""
    draw, moving = random.Random(seed), next(iter(begins))
    durable, epochs = dict(begins), dict.fromkeys(begins, 1)
    for _ in range(8):
        batch = {shard: (durable[shard], durable[shard] + draw.randint(1, 20), epochs[shard]) for shard in begins}
        killed = draw.choice(["", "", "before", "rival"])
        writer = tasks(batch)
        if killed == "before":
            writer = tasks(batch, lambda: (_ for _ in ()).throw(KilledError))
        if killed == "rival":
            part = {moving: (durable[moving], durable[moving] + draw.randint(1, 25), epochs[moving] + 1)}

            def steal(part: Ranges = part) -> None:
                sink(path).write_by(tasks(part), schema, of(part))

            writer = tasks(batch, steal)
            epochs[moving] += 2
        try:
            sink(path).write_by(writer, schema, of(batch))
        except KilledError:
            continue
        if draw.random() < 0.6:
            durable = {shard: batch[shard][1] for shard in durable}


def keep_a_checkpoint_only(path: Path) -> None:
    """Delta makes a checkpoint of the table, and its first commits are gone from the log."""
    table = DeltaTable(str(path / "table"))
    table.create_checkpoint()
    table.optimize.compact()
    for log in (path / "table/_delta_log").glob("0000000000000000000[01].json"):
        log.unlink()


SEEDS = 60 if LONG else 4
FIRST = {A: (0, 20, 1), B: (100, 115, 1)}


def test_one_commit_has_the_files_of_all_tasks_and_the_position_of_each_shard(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))

    assert rows(tmp_path) == once(FIRST)
    assert (position(tmp_path, A), position(tmp_path, B)) == (20, 115)
    log = (tmp_path / "table/_delta_log/00000000000000000001.json").read_text().splitlines()
    assert Counter(next(iter(json.loads(line))) for line in log) == {"commitInfo": 1, "add": 2, "txn": 2}


def test_a_micro_batch_that_is_run_again_adds_nothing(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST, run="run-2"))

    assert rows(tmp_path) == once(FIRST)
    assert DeltaTable(str(tmp_path / "table")).version() == 1, "there was nothing to commit"


def test_a_task_that_is_run_twice_writes_once(tmp_path: Path) -> None:
    """After it was lost, or speculatively: the files of the attempt that nobody waits for are no part of the table."""
    sink(tmp_path).write_by(tasks(FIRST, attempts=2), SCHEMA, of(FIRST))

    assert rows(tmp_path) == once(FIRST)
    assert len(DeltaTable(str(tmp_path / "table")).file_uris()) == 2
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 4


def test_the_tables_position_wins_over_where_the_micro_batch_begins(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    more = {A: (5, 30, 2), B: (100, 115, 2)}
    sink(tmp_path).write_by(tasks(more), SCHEMA, of(more))

    assert rows(tmp_path) == once({A: (0, 30, 1), B: (100, 115, 1)})


def test_records_that_would_be_missing_are_refused_unless_that_is_wanted(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    ahead = {A: (25, 30, 1)}
    with pytest.raises(GapError, match="up to offset 20, and this micro-batch begins at 25: 5 offsets are missing"):
        sink(tmp_path).write_by(tasks(ahead), SCHEMA, of(ahead))
    sink(tmp_path, accept_gaps=True).write_by(tasks(ahead), SCHEMA, of(ahead))

    assert rows(tmp_path) == once(FIRST) + once(ahead)


@pytest.mark.parametrize("step", ["before the files", "in a task", "between files and commit", "after the commit"])
def test_a_driver_that_is_killed_at_any_step_leaves_each_record_once(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise KilledError

    def never(_job: FileJob) -> Iterable[Sequence[Any]]:
        raise KilledError

    def half(job: FileJob) -> Iterable[Sequence[Any]]:
        list(write_files(records({A: FIRST[A]}), job))
        raise KilledError

    writer = {"before the files": never, "in a task": half, "between files and commit": tasks(FIRST, die)}.get(step)
    with monkeypatch.context() as patch:
        if writer is None:
            commit = DeltaTable.create_write_transaction

            def last(self: DeltaTable, *args: Any, **more: Any) -> None:
                commit(self, *args, **more)
                raise KilledError

            patch.setattr(DeltaTable, "create_write_transaction", last)
        with pytest.raises(KilledError):
            sink(tmp_path).write_by(writer or tasks(FIRST), SCHEMA, of(FIRST))
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST, run="run-2"))

    assert rows(tmp_path) == once(FIRST)


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_which_nobody_knows_is_looked_up_by_the_positions(
    tmp_path: Path, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = DeltaTable.create_write_transaction
    lost = [happened]

    def unknown(self: DeltaTable, *args: Any, **more: Any) -> None:
        if not lost or lost.pop():
            commit(self, *args, **more)
        if not lost and not seen:
            seen.append(True)
            raise OSError("connection reset by peer")

    seen: list[bool] = []
    monkeypatch.setattr(DeltaTable, "create_write_transaction", unknown)
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))

    assert rows(tmp_path) == once(FIRST)


def test_a_holder_that_comes_back_after_its_shards_have_moved_adds_nothing_twice(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    old, new = {A: (20, 40, 1), B: (115, 120, 1)}, {A: (20, 33, 2)}

    def meanwhile() -> None:
        """While the old holder stands still between its files and its commit, the next one writes its first micro-batch."""
        if position(tmp_path, A) == 20:
            sink(tmp_path).write_by(tasks(new), SCHEMA, of(new))

    sink(tmp_path).write_by(tasks(old, meanwhile), SCHEMA, of(old))
    assert rows(tmp_path) == once({A: (0, 40, 1), B: (100, 120, 1)})

    further = {A: (33, 50, 2)}
    sink(tmp_path).write_by(tasks(further), SCHEMA, of(further))
    assert rows(tmp_path) == once({A: (0, 50, 1), B: (100, 120, 1)})


def test_writers_of_different_shards_commit_beside_each_other_in_one_try(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks({A: (0, 1, 1)}), SCHEMA, of({A: (0, 1, 1)}))
    other, ours = {B: (100, 110, 1)}, {A: (1, 9, 1)}
    begun = []

    def meanwhile() -> None:
        begun.append(True)
        sink(tmp_path).write_by(tasks(other), SCHEMA, of(other))

    sink(tmp_path).write_by(tasks(ours, meanwhile), SCHEMA, of(ours))
    assert rows(tmp_path) == once({A: (0, 9, 1), B: (100, 110, 1)})
    assert begun == [True]


def test_it_gives_up_with_the_reason_when_no_commit_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: DeltaTable, *args: Any, **more: Any) -> None:
        raise OSError("permission denied")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails)
    with pytest.raises(ConflictError, match=r"a commit to the Delta table .*table failed: permission denied"):
        sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    assert rows(tmp_path) == Counter()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_moves_and_kills_in_any_order_leave_each_record_once(tmp_path: Path, seed: int) -> None:
    move_and_kill(tmp_path, SCHEMA, {A: 0, B: 0}, seed)
    found = rows(tmp_path)
    assert set(found.values()) == {1}
    assert found == once({shard: (0, position(tmp_path, shard) or 0, 1) for shard in (A, B)})


def test_positions_outlive_delta_checkpoints(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))
    keep_a_checkpoint_only(tmp_path)
    sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST, run="run-2"))

    assert rows(tmp_path) == once(FIRST)


def test_a_topic_that_was_made_again_is_written_from_its_beginning_and_once(tmp_path: Path) -> None:
    again = {A: (0, 8, 3)}
    sink(tmp_path).write_by(tasks({A: (0, 20, 1)}), SCHEMA, of({A: (0, 20, 1)}, topic_id="id-1"))
    for run in ("run-2", "run-3"):
        sink(tmp_path).write_by(tasks(again), SCHEMA, of(again, run=run, topic_id="id-2"))

    assert rows(tmp_path) == once({A: (0, 20, 1)}) + once(again)
    assert (position(tmp_path, f"{A}@id-1"), position(tmp_path, f"{A}@id-2")) == (20, 8)


def test_a_range_without_a_visible_record_moves_its_position(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks({}), SCHEMA, of(FIRST))

    assert rows(tmp_path) == Counter()
    assert (position(tmp_path, A), position(tmp_path, B)) == (20, 115)


def test_a_micro_batch_without_ranges_makes_the_table_and_no_commit(tmp_path: Path) -> None:
    sink(tmp_path).write_by(tasks({}), SCHEMA, of({}))
    assert DeltaTable(str(tmp_path / "table")).version() == 0


def test_two_sinks_of_one_table_need_names_of_their_own(tmp_path: Path) -> None:
    shared = Writings()
    good, twice, late = sink(tmp_path), sink(tmp_path), sink(tmp_path, name="late")
    for each in (good, twice, late):
        each.writings = shared
    good.write_by(tasks(FIRST), SCHEMA, of(FIRST))
    with pytest.raises(SinkError, match="was written in micro-batch 1 already"):
        twice.write_by(tasks(FIRST), SCHEMA, of(FIRST))
    late.write_by(tasks(FIRST), SCHEMA, of(FIRST))

    assert rows(tmp_path) == once(FIRST) + once(FIRST)
    assert position(tmp_path, A, "late") == 20


def test_a_second_sink_of_one_table_is_known_however_its_address_is_spelled(tmp_path: Path) -> None:
    shared = Writings()
    sink(tmp_path).write_by(tasks({}), SCHEMA, of({}))  # makes the table
    for number, table in enumerate((f"{tmp_path}/table", f"{tmp_path}/./table/", f"file://{tmp_path}/table")):
        again = delta(table)
        again.writings = shared
        if not number:
            again.write_by(tasks(FIRST), SCHEMA, of(FIRST))
            continue
        with pytest.raises(SinkError, match="was written in micro-batch 1 already"):
            again.write_by(tasks(FIRST), SCHEMA, of(FIRST))


def test_a_row_that_is_of_no_record_of_the_micro_batch_is_refused(tmp_path: Path) -> None:
    strange = {A: (0, 21, 1)}
    with pytest.raises(StrangeRowsError, match="a row has shard 'clicks/0' and offset 20, which is no record of this"):
        sink(tmp_path).write_by(tasks(strange), SCHEMA, of(FIRST))
    with pytest.raises(StrangeRowsError, match="a row has shard 'clicks/2' and offset 0"):
        sink(tmp_path).write_by(tasks({"clicks/2": (0, 1, 1)}), SCHEMA, of(FIRST))
    assert rows(tmp_path) == Counter()


# --- what a DataFrame and a table must have --------------------------------------------------------------------------------


def field(name: str, kind: Any, **more: Any) -> StructType:
    return StructType([*(each for each in SCHEMA.fields if each.name != name), StructField(name, kind, **more)])


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        (
            StructType(SCHEMA.fields[1:]),
            {},
            "has no column 'shard', by which this sink knows which rows it has already: keep the",
        ),
        (StructType([SCHEMA.fields[0]]), {}, r"has no column 'offset'.*leave_out=\[...\].*groupBy, .* give the sink cell=cell"),
        (field("offset", IntegerType()), {}, "the column 'offset' is int, and must be the source's, which is bigint: rename"),
        (StructType([*SCHEMA.fields, SCHEMA.fields[2]]), {}, "has the column 'value' twice: remove one, or rename it"),
        (SCHEMA, {"leave_out": ["ofset"]}, "leave_out names the column 'ofset'.*did you mean 'offset'?"),
        (SCHEMA, {"leave_out": ["shard", "offset", "value"]}, "leave_out names every column"),
        (SCHEMA, {"partition_by": ["day"]}, "partition_by names the column 'day', which is not written"),
        (
            SCHEMA,
            {"partition_by": ["shard"], "leave_out": ["offset", "value"]},
            "partition_by names every column that is written.*leave one out of partition_by",
        ),
        (field("value", DoubleType()), {"partition_by": ["value"]}, r"'value' \(double\) cannot be written.*cast it"),
        (
            field("value", DayTimeIntervalType()),
            {},
            r"'value' \(interval day to second\) cannot be written: Delta has no such type",
        ),
    ],
)
def test_a_data_frame_that_cannot_be_written_is_refused_before_anything_is(
    tmp_path: Path, schema: StructType, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ColumnsError, match=says):
        sink(tmp_path, **options).write_by(tasks(FIRST), schema, of(FIRST))
    assert not (tmp_path / "table").exists()


def with_settings(path: Path, schema: StructType = SCHEMA, **settings: str) -> None:
    text = schema.json()
    DeltaTable.create(str(path / "table"), Schema.from_json(text), configuration=settings or None)


@pytest.mark.parametrize(
    ("settings", "schema", "says"),
    [
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, SCHEMA, "forgets transaction identifiers .*unset"),
        (
            {},
            StructType(SCHEMA.fields[:2]),
            "has no column 'value': add it to the table, drop it from the DataFrame, or name it in",
        ),
        ({}, field("value", IntegerType()), 'has the column \'value\' as "integer", and the DataFrame as "string": cast it'),
        ({}, field("value", StringType(), nullable=False), "has the column 'value' as NOT NULL, and in the DataFrame it may"),
        ({}, StructType([*SCHEMA.fields, StructField("day", DateType(), nullable=False)]), "has the column 'day' as NOT NULL"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_with_the_remedy(
    tmp_path: Path, settings: dict[str, str], schema: StructType, says: str
) -> None:
    with_settings(tmp_path, schema, **settings)
    with pytest.raises(TableError, match=says):
        sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))


def test_a_table_with_constraints_is_refused(tmp_path: Path) -> None:
    with_settings(tmp_path)
    DeltaTable(str(tmp_path / "table")).alter.add_constraint({"good": "offset >= 0"})
    with pytest.raises(TableError, match=r"has the constraint delta.constraints.good, which this sink does not check: drop it"):
        sink(tmp_path).write_by(tasks(FIRST), SCHEMA, of(FIRST))


def test_columns_that_only_the_table_has_are_null_and_those_left_out_are_not_written(tmp_path: Path) -> None:
    with_settings(tmp_path, StructType([*SCHEMA.fields[:1], StructField("more", LongType())]))
    sink(tmp_path, leave_out=["offset", "value"]).write_by(tasks({A: (0, 2, 1)}), SCHEMA, of({A: (0, 2, 1)}))

    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert found == [{"shard": A, "more": None}] * 2


# --- files ---------------------------------------------------------------------------------------------------------------

DAY = StructType([*SCHEMA.fields, StructField("day", DateType()), StructField("kind", StringType())])


def test_a_partitioned_table_has_files_for_each_combination_of_values(tmp_path: Path) -> None:
    days: list[datetime.date | None] = [datetime.date(2026, 1, 2), datetime.date(2026, 1, 3), None]
    kinds = ["a b/c=ü", "", None]

    def writer(job: FileJob) -> Iterable[Sequence[Any]]:
        (batch,) = records({A: (0, 18, 1)}, rows=18)
        full = batch.append_column("day", pa.array([days[at // 6] for at in range(18)], pa.date32()))
        full = full.append_column("kind", pa.array([kinds[at % 3] for at in range(18)], pa.string()))
        (answer,) = write_files([full], job)
        return [tuple(row.values()) for row in answer.to_pylist()]

    ranges: BatchRanges = of({A: (0, 18, 1)})
    sink(tmp_path, partition_by=["day", "kind"], leave_out=["shard"]).write_by(writer, DAY, ranges)

    table = DeltaTable(str(tmp_path / "table"))
    assert table.metadata().partition_columns == ["day", "kind"]
    assert len(table.file_uris()) == 6, "of an empty text and of none there is one"
    found = {row["offset"]: (row["day"], row["kind"]) for row in table.to_pyarrow_table().to_pylist()}
    assert found == {at: (days[at // 6], kinds[at % 3] or None) for at in range(18)}
    chosen = table.to_pyarrow_table(filters=[("kind", "=", "a b/c=ü"), ("day", "=", datetime.date(2026, 1, 3))])
    assert set(chosen.column("offset").to_pylist()) == {6, 9}


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (DateType(), pa.array([0, None, 2_932_897], pa.int32()).cast(pa.date32()), "the day 10000-01-01"),
        (DateType(), pa.array([0, None, -719_163], pa.int32()).cast(pa.date32()), "the day 0000-12-31"),
        (StringType(), pa.array([b"a", None, b"\xff\xfe"]).cast(pa.string(), safe=False), "a text that is not UTF-8"),
    ],
)
def test_what_no_value_of_a_partition_can_be_is_named_with_its_column(
    tmp_path: Path, kind: Any, values: pa.Array[Any], said: str
) -> None:
    schema, ranges = StructType([*SCHEMA.fields, StructField("day", kind)]), {A: (0, 3, 1)}

    def writer(job: FileJob) -> Iterable[Sequence[Any]]:
        (batch,) = records(ranges)
        (answer,) = write_files([batch.append_column("day", values)], job)
        return [tuple(row.values()) for row in answer.to_pylist()]

    with pytest.raises(SinkError, match=f"a row has {said} in the column 'day', by which the Delta table is partitioned: its"):
        sink(tmp_path, partition_by=["day"]).write_by(writer, schema, of(ranges))
    assert rows(tmp_path) == Counter()


@pytest.mark.parametrize(
    ("kind", "day"),
    [
        (DateType(), datetime.date(2026, 1, 2)),
        (TimestampType(), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
        (BinaryType(), b"a"),
    ],
)
def test_a_column_by_which_only_the_table_is_partitioned_is_null(tmp_path: Path, kind: Any, day: Any) -> None:
    make = StructType([*SCHEMA.fields, StructField("day", kind)])
    DeltaTable.create(str(tmp_path / "table"), Schema.from_json(make.json()), partition_by=["day"])
    first, second = {A: (0, 2, 1)}, {A: (2, 4, 1)}

    sink(tmp_path).write_by(tasks(first), SCHEMA, of(first))
    sink(tmp_path, leave_out=["day"]).write_by(with_days(second, day), make, of(second))

    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert sorted(found, key=lambda row: row["offset"]) == [
        {"shard": A, "offset": at, "value": f"{A}:{at}", "day": None} for at in range(4)
    ]


def with_days(ranges: Ranges, day: Any) -> Callable[[FileJob], Iterable[Sequence[Any]]]:
    def run(job: FileJob) -> Iterable[Sequence[Any]]:
        (batch,) = records(ranges)
        (answer,) = write_files([batch.append_column("day", pa.array([day] * batch.num_rows))], job)
        return [tuple(row.values()) for row in answer.to_pylist()]

    return run


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (BinaryType(), {}, r"is partitioned by the column 'day' \(binary\), and this sink writes only strings"),
        (DateType(), {"leave_out": ["shard", "offset", "value"]}, "is partitioned by every column that is written.*one more"),
    ],
)
def test_a_table_whose_partitions_cannot_be_written_is_refused(
    tmp_path: Path, kind: Any, options: dict[str, Any], says: str
) -> None:
    schema = StructType([*SCHEMA.fields, StructField("day", kind)])
    DeltaTable.create(str(tmp_path / "table"), Schema.from_json(schema.json()), partition_by=["day"])

    with pytest.raises(TableError, match=says):
        sink(tmp_path, **options).write_by(tasks(FIRST), schema, of(FIRST))


def test_statistics_bound_what_they_can_bound_exactly(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    table = pa.table(
        {
            "number": pa.array([3, None, -7], pa.int64()),
            "text": ["b", "a", "ü"],
            "long": ["x" * 40, "a", "b"],
            "moment": pa.array([moment, moment, None], pa.timestamp("us", "Europe/Berlin")),
            "day": [datetime.date(2026, 1, 2), None, datetime.date(2025, 1, 2)],
            "real": [1.0, float("nan"), 2.0],
            "none": pa.array([None, None, None], pa.int32()),
            "list": [[1], [], None],
        }
    )
    about: list[Any] = []
    pq.write_table(table, tmp_path / "file", metadata_collector=about, row_group_size=2)

    assert statistics(about[0]) == {
        "numRecords": 3,
        "minValues": {"number": -7, "text": "a", "moment": "2026-01-02T03:04:05.678Z", "day": "2025-01-02"},
        "maxValues": {"number": 3, "text": "ü", "moment": "2026-01-02T03:04:05.679Z", "day": "2026-01-02"},
        "nullCount": {"number": 1, "text": 0, "long": 0, "moment": 1, "day": 1, "real": 0, "none": 3},
    }


def test_times_after_the_year_9999_have_no_bounds_and_are_written(tmp_path: Path) -> None:
    late = pa.array([300_000_000_000_000_000, 0], pa.timestamp("us", "UTC"))
    last = pa.array([253_402_300_799_999_999, 0], pa.timestamp("us", "UTC"))
    days = pa.array([4_000_000, 0], pa.int32()).cast(pa.date32())
    import pyarrow.parquet as pq

    about: list[Any] = []
    pq.write_table(
        pa.table({"late": late, "last": last, "day": days, "number": [1, 2]}), tmp_path / "file", metadata_collector=about
    )

    assert statistics(about[0]) == {
        "numRecords": 2,
        "minValues": {"number": 1},
        "maxValues": {"number": 2},
        "nullCount": {"late": 0, "last": 0, "day": 0, "number": 0},
    }


def test_all_types_of_the_source_are_read_back_as_they_were(tmp_path: Path) -> None:
    schema = StructType(
        [
            *SCHEMA.fields[:2],
            StructField("key", BinaryType()),
            StructField("timestamp", TimestampType()),
            StructField(
                "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
            ),
        ]
    )
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    headers = [{"key": "h", "value": b"\x00"}]
    batch = pa.record_batch(
        {
            "shard": [A],
            "offset": pa.array([0], pa.int64()),
            "key": [b"\xff\x00"],
            "timestamp": pa.array([moment], pa.timestamp("us", "America/New_York")),
            "headers": pa.array([headers], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
    )

    def writer(job: FileJob) -> Iterable[Sequence[Any]]:
        return [tuple(row.values()) for answer in write_files([batch], job) for row in answer.to_pylist()]

    sink(tmp_path).write_by(writer, schema, of({A: (0, 1, 1)}))
    (row,) = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert row == {"shard": A, "offset": 0, "key": b"\xff\x00", "timestamp": moment, "headers": headers}


def test_large_batches_become_several_row_groups_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr("shardherd.spark.sinks.delta_files.BUFFERED", 1000)
    large = {A: (0, 300, 1)}
    sink(tmp_path).write_by(tasks(large, number=1), SCHEMA, of(large))

    (file,) = DeltaTable(str(tmp_path / "table")).file_uris()
    assert pq.ParquetFile(file.removeprefix("file://")).num_row_groups > 5
    assert rows(tmp_path) == once(large)


def test_a_sink_does_not_show_its_secrets(tmp_path: Path) -> None:
    assert "s3cret" not in repr(sink(tmp_path, storage_options={"AWS_SECRET_ACCESS_KEY": "s3cret"}))
