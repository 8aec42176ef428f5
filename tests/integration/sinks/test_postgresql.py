"""The PostgreSQL sink over a real server; tasks are called as Spark calls them: killed at every step, refused, too late."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dev.cluster.postgresql import PostgreSQL
from shardherd.spark.sinks import postgresql as make
from shardherd.spark.sinks.exactly_once import Writings
from shardherd.spark.sinks.frames import ColumnsError
from shardherd.spark.sinks.positions import GapError, StaleWriterError
from shardherd.spark.sinks.postgresql_rows import CopyJob, copy_rows
from shardherd.spark.sinks.postgresql_table import POSITIONS, PostgreSQLSink
from shardherd.spark.sinks.rows import StrangeRowsError
from shardherd.transactions.outcomes import SinkError, TableError
from tests.harness.long import LONG
from tests.harness.micro_batches import GROUP, A, B, K, L, N, of, records

SCHEMA = StructType([StructField("shard", StringType()), StructField("offset", LongType()), StructField("value", StringType())])
Ranges = Mapping[str, tuple[int, int, int]]
FIRST = {A: (0, 20, 1), B: (100, 115, 1)}


class KilledError(Exception):
    """Driver or task are gone."""


class Database:
    """A schema of its own on the server, with a table `clicks`."""

    def __init__(self, server: PostgreSQL, name: str) -> None:
        self.server = server
        self.name = name
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        self.run('CREATE TABLE clicks (shard text, "offset" bigint, value text)')

    @property
    def conninfo(self) -> str:
        return f"{self.server.conninfo} options='-c search_path={self.name}'"

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.conninfo, autocommit=True)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def sink(self, table: str = "clicks", **options: Any) -> PostgreSQLSink:
        """As in a process of its own."""
        made = make(self.conninfo, table, **options)
        made.writings = Writings()
        return made

    def rows(self) -> Counter[tuple[str, int]]:
        found = self.run('SELECT shard, "offset", value FROM clicks')
        assert all(value == f"{shard}:{offset}" for shard, offset, value in found)
        return Counter((shard, offset) for shard, offset, _ in found)

    def positions(self) -> dict[str, tuple[int, int]]:
        found = self.run(f"SELECT shard, position, epoch FROM shardherd_positions WHERE group_uid = '{GROUP}'")
        return {shard: (int(position), epoch) for shard, position, epoch in found}


@pytest.fixture
def database(postgresql: PostgreSQL, request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(postgresql, f"s{abs(hash(request.node.nodeid)):x}")
    yield made
    made.run(f"DROP SCHEMA {made.name} CASCADE")


def nothing() -> None:
    """Happens."""


def tasks(
    ranges: Ranges, then: Callable[[], None] = nothing, *, attempts: int = 1, within: Callable[[], None] = nothing
) -> Callable[[CopyJob], Iterable[Sequence[Any]]]:
    """What Spark would do: a task a shard, whose last attempt counts. `within` happens in each one, `then` afterwards."""

    def run(job: CopyJob) -> Iterable[Sequence[Any]]:
        found: list[Sequence[Any]] = []
        for shard, each in ranges.items():
            for attempt in range(attempts):

                def batches(shard: str = shard, each: tuple[int, int, int] = each) -> Iterator[pa.RecordBatch]:
                    yield from records({shard: each})
                    within()

                told = [tuple(row.values()) for answer in copy_rows(batches(), job) for row in answer.to_pylist()]
                if attempt == attempts - 1:
                    found += told
        then()
        return found

    return run


def once(ranges: Ranges) -> Counter[tuple[str, int]]:
    return Counter((shard, at) for shard, (start, stop, _) in ranges.items() for at in range(start, stop))


def test_rows_and_positions_are_there_together(database: Database) -> None:
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))

    assert database.rows() == once(FIRST)
    assert database.positions() == {A: (20, 1), B: (115, 1)}


def test_a_micro_batch_that_is_run_again_adds_nothing_and_asks_no_task(database: Database) -> None:
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))

    def never(_job: CopyJob) -> Iterable[Sequence[Any]]:
        raise AssertionError("there is nothing to write")

    database.sink().write_by(never, SCHEMA, of(FIRST, run="run-2"))
    assert database.rows() == once(FIRST)


def test_the_sinks_position_wins_over_where_the_micro_batch_begins(database: Database) -> None:
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))
    more = {A: (5, 30, 2), B: (100, 115, 2)}
    database.sink().write_by(tasks(more), SCHEMA, of(more))

    assert database.rows() == once({A: (0, 30, 1), B: (100, 115, 1)})


def test_records_that_would_be_missing_are_refused_unless_that_is_wanted(database: Database) -> None:
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))
    ahead = {A: (25, 30, 1)}
    with pytest.raises(GapError, match="5 offsets are missing"):
        database.sink().write_by(tasks(ahead), SCHEMA, of(ahead))
    database.sink(accept_gaps=True).write_by(tasks(ahead), SCHEMA, of(ahead))

    assert database.rows() == once(FIRST) + once(ahead)


def die() -> None:
    raise KilledError


@pytest.mark.parametrize("step", ["before the tasks", "in the first task", "between two tasks", "after the tasks"])
def test_a_driver_that_is_killed_at_any_step_leaves_each_record_once(database: Database, step: str) -> None:
    def never(_job: CopyJob) -> Iterable[Sequence[Any]]:
        raise KilledError

    writer = {
        "before the tasks": never,
        "in the first task": tasks(FIRST, within=die),
        "between two tasks": tasks({A: FIRST[A]}, die),
        "after the tasks": tasks(FIRST, die),
    }[step]
    with pytest.raises(KilledError):
        database.sink().write_by(writer, SCHEMA, of(FIRST))
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST, run="run-2"))

    assert database.rows() == once(FIRST)
    assert database.positions() == {A: (20, 1), B: (115, 1)}


def test_a_task_that_is_run_twice_writes_once(database: Database) -> None:
    database.sink().write_by(tasks(FIRST, attempts=2), SCHEMA, of(FIRST))
    assert database.rows() == once(FIRST)


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_which_nobody_knows_is_looked_up_by_the_positions(
    database: Database, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.sink().write_by(tasks({}), SCHEMA, of({}))  # makes the table of positions
    commit = psycopg.Connection.commit
    lost: list[bool] = []

    def unknown(self: psycopg.Connection[Any]) -> None:
        inserts = not lost and self.execute("SELECT count(*) FROM clicks").fetchone() != (0,)
        if inserts:
            lost.append(True)
            if happened:
                commit(self)
            else:
                self.rollback()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        commit(self)

    monkeypatch.setattr(psycopg.Connection, "commit", unknown)
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))

    assert lost
    assert database.rows() == once(FIRST)


def test_a_server_that_goes_down_in_the_middle_leaves_each_record_once(database: Database) -> None:
    def down() -> None:
        database.server.crash()
        database.server.start()

    with pytest.raises(psycopg.OperationalError):
        database.sink().write_by(tasks(FIRST, within=down), SCHEMA, of(FIRST))
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST, run="run-2"))

    assert database.rows() == once(FIRST)


def test_a_holder_that_comes_back_after_its_shards_have_moved_writes_nothing_of_them(database: Database) -> None:
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))
    old, new = {A: (20, 40, 1)}, {A: (20, 33, 2)}
    moved: list[bool] = []

    def meanwhile() -> None:
        """While the old holder stands still in the middle of its COPY, the next one writes its first micro-batch."""
        if not moved:
            moved.append(True)
            database.sink().write_by(tasks(new), SCHEMA, of(new))

    with pytest.raises(StaleWriterError, match="shard clicks/0 was written under epoch 2 already"):
        database.sink().write_by(tasks(old, within=meanwhile), SCHEMA, of(old))
    assert database.rows() == once({A: (0, 33, 1), B: FIRST[B]})

    further = {A: (33, 50, 2)}
    database.sink().write_by(tasks(further), SCHEMA, of(further))
    assert database.rows() == once({A: (0, 50, 1), B: FIRST[B]})


def test_a_new_holder_keeps_the_old_one_out_before_it_has_written_anything(database: Database) -> None:
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))
    old, new = {A: (20, 40, 1)}, {A: (20, 33, 2)}

    def asks() -> None:
        if database.positions()[A] == (20, 1):
            with pytest.raises(KilledError):
                database.sink().write_by(tasks({}, die), SCHEMA, of(new))

    with pytest.raises(StaleWriterError):
        database.sink().write_by(tasks(old, within=asks), SCHEMA, of(old))
    assert database.rows() == once(FIRST)


def test_two_that_write_a_shard_for_the_first_time_write_it_once(database: Database) -> None:
    old, new = {A: (0, 40, 1)}, {A: (0, 33, 2)}
    moved: list[bool] = []

    def meanwhile() -> None:
        if not moved:
            moved.append(True)
            database.sink().write_by(tasks(new), SCHEMA, of(new))

    with pytest.raises(StaleWriterError):
        database.sink().write_by(tasks(old, within=meanwhile), SCHEMA, of(old))
    assert database.rows() == once(new)


def test_a_topic_that_was_made_again_is_written_from_its_beginning_and_once(database: Database) -> None:
    again = {A: (0, 8, 3)}
    database.sink().write_by(tasks({A: (0, 20, 1)}), SCHEMA, of({A: (0, 20, 1)}, topic_id="id-1"))
    for run in ("run-2", "run-3"):
        database.sink().write_by(tasks(again), SCHEMA, of(again, run=run, topic_id="id-2"))
    database.sink().write_by(tasks({}), SCHEMA, of({A: (8, 9, 3)}, run="run-4", topic_id="id-2"))

    assert database.rows() == once({A: (0, 20, 1)}) + once(again)
    assert database.positions() == {f"{A}@id-1": (20, 1), f"{A}@id-2": (9, 3)}


def test_ranges_without_a_row_move_their_positions_too(database: Database) -> None:
    database.sink().write_by(tasks({A: FIRST[A]}), SCHEMA, of(FIRST))

    assert database.rows() == once({A: FIRST[A]})
    assert database.positions() == {A: (20, 1), B: (115, 1)}


@pytest.mark.parametrize("seed", range(40 if LONG else 3))
def test_moves_and_kills_in_any_order_leave_each_record_once(database: Database, seed: int) -> None:
    draw = random.Random(seed)
    durable, epochs = {A: 0, B: 0}, {A: 1, B: 1}
    for _ in range(8):
        batch = {shard: (durable[shard], durable[shard] + draw.randint(1, 20), epochs[shard]) for shard in (A, B)}
        kind = draw.choice(["", "", "killed", "killed later", "rival"])
        writer = tasks(batch)
        if kind == "killed":
            writer = tasks(batch, within=die)
        if kind == "killed later":
            writer = tasks(batch, die)
        if kind == "rival":
            part = {A: (durable[A], durable[A] + draw.randint(1, 25), epochs[A] + 1)}
            taken: list[bool] = []

            def steal(part: Ranges = part, taken: list[bool] = taken) -> None:
                if not taken:
                    taken.append(True)
                    database.sink().write_by(tasks(part), SCHEMA, of(part))

            writer = tasks(batch, within=steal)
            epochs[A] += 2
        try:
            database.sink().write_by(writer, SCHEMA, of(batch))
        except (KilledError, StaleWriterError):
            continue
        if draw.random() < 0.6:
            durable = {shard: batch[shard][1] for shard in durable}
    final = {shard: (durable[shard], durable[shard] + 30, 99) for shard in (A, B)}
    database.sink().write_by(tasks(final), SCHEMA, of(final))
    found = database.positions()
    assert database.rows() == once({shard: (0, found[shard][0], 1) for shard in (A, B)})


# --- in a group that reads Kinesis -----------------------------------------------------------------------------------------

OF_KINESIS = StructType([StructField(name, StringType()) for name in ("shard", "sequenceNumber", "value")])
EVENTS = 'CREATE TABLE events (shard text, "sequenceNumber" text, value text)'


def test_rows_of_kinesis_and_positions_of_all_their_digits_are_there_together_and_once(database: Database) -> None:
    database.run(EVENTS)
    first = {K: (N, N + 20, 1), L: (N + 100, N + 115, 1)}
    with pytest.raises(KilledError):
        database.sink("events").write_by(tasks({K: first[K]}, die), OF_KINESIS, of(first))
    assert database.positions() == {K: (N + 20, 1)}
    database.sink("events").write_by(tasks(first), OF_KINESIS, of(first, run="run-2"))
    old, new = {K: (N + 20, N + 40, 1)}, {K: (N + 10, N + 33, 2)}
    moved: list[bool] = []

    def meanwhile() -> None:
        """While the old holder stands still in the middle of its COPY, the next one writes its first micro-batch."""
        if not moved:
            moved.append(True)
            database.sink("events").write_by(tasks(new), OF_KINESIS, of(new))

    with pytest.raises(StaleWriterError, match=f"shard {K} was written under epoch 2 already"):
        database.sink("events").write_by(tasks(old, within=meanwhile), OF_KINESIS, of(old))

    found = Counter((shard, int(number)) for shard, number in database.run('SELECT shard, "sequenceNumber" FROM events'))
    assert found == once({K: (N, N + 33, 1), L: first[L]})
    assert database.positions() == {K: (N + 33, 2), L: (N + 115, 1)}


def test_a_table_of_positions_that_an_older_version_made_is_too_small_for_kinesis_and_good_for_kafka(
    database: Database,
) -> None:
    database.run(EVENTS)
    database.run(POSITIONS.format(positions="shardherd_positions").replace("position numeric", "position bigint"))
    database.sink().write_by(tasks(FIRST), SCHEMA, of(FIRST))
    assert database.positions() == {A: (20, 1), B: (115, 1)}
    remedy = "ALTER TABLE shardherd_positions ALTER COLUMN position TYPE numeric"
    for first in ({}, {K: (N, N + 20, 1)}):
        with pytest.raises(TableError, match=f"position as bigint, which is too small for the sequence numbers.*: {remedy}"):
            database.sink("events").write_by(tasks(first), OF_KINESIS, of(first))
    database.run(remedy)
    database.sink("events").write_by(tasks(first), OF_KINESIS, of(first))
    more = {A: (20, 30, 1)}
    database.sink().write_by(tasks(more), SCHEMA, of(more))
    assert database.positions() == {A: (30, 1), B: (115, 1), K: (N + 20, 1)}


def test_two_sinks_of_one_table_need_names_of_their_own(database: Database) -> None:
    shared = Writings()
    good, twice, late = database.sink(), database.sink(), database.sink(name="late")
    for each in (good, twice, late):
        each.writings = shared
    good.write_by(tasks(FIRST), SCHEMA, of(FIRST))
    with pytest.raises(SinkError, match="the table clicks was written in micro-batch 1 already"):
        twice.write_by(tasks(FIRST), SCHEMA, of(FIRST))
    late.write_by(tasks(FIRST), SCHEMA, of(FIRST))

    assert database.rows() == once(FIRST) + once(FIRST)
    assert {sink for (sink,) in database.run("SELECT sink FROM shardherd_positions")} == {"clicks", "clicks/late"}


def test_tables_of_one_name_in_two_databases_are_two_and_one_is_known_however_it_is_spelled(database: Database) -> None:
    shared = Writings()
    database.run(f"CREATE SCHEMA {database.name}_other")
    database.run(f'CREATE TABLE {database.name}_other.clicks (shard text, "offset" bigint, value text)')
    other = f"{database.server.conninfo} options='-c search_path={database.name}_other'"
    for conninfo in (database.conninfo, other):
        one = make(conninfo, "clicks")
        one.writings = shared
        one.write_by(tasks(FIRST), SCHEMA, of(FIRST))
    spelled = make(f"  {database.conninfo}  connect_timeout=9", "clicks")
    spelled.writings = shared
    with pytest.raises(SinkError, match="the table clicks was written in micro-batch 1 already"):
        spelled.write_by(tasks(FIRST), SCHEMA, of(FIRST))
    database.run(f"DROP SCHEMA {database.name}_other CASCADE")


def test_a_user_who_may_create_nothing_writes_where_the_positions_are_there_and_is_told_where_not(database: Database) -> None:
    database.run("DROP ROLE IF EXISTS writer")
    database.run("CREATE ROLE writer")
    database.run(f"GRANT USAGE ON SCHEMA {database.name} TO writer")
    database.run("GRANT SELECT, INSERT ON clicks TO writer")
    limited = f"{database.server.conninfo} options='-c search_path={database.name} -c role=writer'"
    with pytest.raises(TableError, match="shardherd_positions does not exist, and this user may not create it: create it as"):
        make(limited, "clicks").write_by(tasks(FIRST), SCHEMA, of(FIRST))
    database.sink().write_by(tasks({}), SCHEMA, of({}))  # makes it
    database.run("GRANT SELECT, INSERT, UPDATE, DELETE ON shardherd_positions TO writer")
    make(limited, "clicks").write_by(tasks(FIRST), SCHEMA, of(FIRST, run="run-w"))

    assert database.rows() == once(FIRST)
    database.run("DROP OWNED BY writer")
    database.run("DROP ROLE writer")


def test_a_row_that_is_of_no_record_of_the_micro_batch_is_refused(database: Database) -> None:
    with pytest.raises(StrangeRowsError, match="has shard 'clicks/0' and offset 20, which is no record of this"):
        database.sink().write_by(tasks({A: (0, 21, 1)}), SCHEMA, of(FIRST))
    assert database.rows() == Counter()


def test_what_cannot_be_written_is_refused_with_the_remedy(database: Database) -> None:
    for schema, table, error, says in (
        (StructType(SCHEMA.fields[1:]), "clicks", ColumnsError, "has no column 'shard', by which this sink knows"),
        (
            StructType([*SCHEMA.fields, StructField("tags", ArrayType(StringType()))]),
            "clicks",
            ColumnsError,
            r"'tags' \(array<string>\) cannot be written: .*to_json",
        ),
        (SCHEMA, "klicks", TableError, r"klicks does not exist: create it.*CREATE TABLE klicks \(shard \.\.\., offset"),
        (
            StructType([*SCHEMA.fields, StructField("day", DateType())]),
            "clicks",
            ColumnsError,
            r"clicks has no column 'day' \(it has shard, offset, value\): add it to the table, drop it",
        ),
    ):
        with pytest.raises(error, match=says):
            database.sink(table).write_by(tasks(FIRST), schema, of(FIRST))
    assert "password" not in repr(make("host=db password=password", "clicks"))


def test_values_of_all_types_are_read_back_as_they_were(database: Database) -> None:
    database.run(
        "CREATE TABLE every (shard text, key bytea, yes boolean, day date, price numeric(10, 2), real double precision,"
        ' moment timestamptz, "local" timestamp, "a text" text, body jsonb)'
    )
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    texts = ['quoted "text", with\nlines', "", None, "\\.", "NULL", "ü\t"]
    count = len(texts)
    columns: dict[str, tuple[Any, list[Any]]] = {
        "shard": (pa.string(), [A] * count),
        "offset": (pa.int64(), list(range(count))),
        "key": (pa.binary(), [b"\x00\xff", b"", None, b"\\", b'"', b"\n"]),
        "yes": (pa.bool_(), [True, False, None, True, True, False]),
        "day": (pa.date32(), [datetime.date(2026, 1, 2), None, *[datetime.date(1, 1, 1)] * 4]),
        "price": (pa.decimal128(10, 2), [Decimal("-1.20"), None, *[Decimal("12345678.99")] * 4]),
        "real": (pa.float64(), [1.5e-300, None, float("inf"), -0.1, 1e22, 3.0]),
        "moment": (pa.timestamp("us", "America/New_York"), [moment, None, *[moment] * 4]),
        "local": (pa.timestamp("us"), [moment.replace(tzinfo=None), None, *[moment.replace(tzinfo=None)] * 4]),
        "a text": (pa.string(), texts),
        "body": (pa.string(), ['{"a": [1, "b"]}', None, *["{}"] * 4]),
    }
    kinds = [
        StringType(),
        LongType(),
        BinaryType(),
        BooleanType(),
        DateType(),
        DecimalType(10, 2),
        DoubleType(),
        TimestampType(),
    ]
    kinds += [TimestampNTZType(), StringType(), StringType()]
    schema = StructType([StructField(name, kind) for name, kind in zip(columns, kinds, strict=True)])
    batch = pa.record_batch({name: pa.array(values, kind) for name, (kind, values) in columns.items()})

    def writer(job: CopyJob) -> Iterable[Sequence[Any]]:
        return [tuple(row.values()) for answer in copy_rows([batch], job) for row in answer.to_pylist()]

    database.sink("every", leave_out=["offset"]).write_by(writer, schema, of({A: (0, count, 1)}))

    wanted = [tuple(values[number] for name, (_, values) in columns.items() if name != "offset") for number in range(count)]
    wanted = [(*row[:-1], {"a": [1, "b"]} if row[-1] and len(row[-1]) > 2 else row[-1] and {}) for row in wanted]
    assert database.run("SELECT * FROM every") == wanted
