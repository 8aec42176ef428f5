"""Inserts micro-batches into a table of PostgreSQL so that each record stands there once. `shardherd.spark.sinks.postgresql`.

On the driver: it checks DataFrame and table, keeps the table of positions, and has each shard written by one task
(`postgresql_rows`), in a transaction of its own. It writes no rows; whether some are still to be written, `positions` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import Connection, errors, sql
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.types import StructType

from shardherd.spark.running_batch import BatchRanges
from shardherd.spark.sinks.cell_results import write_batch
from shardherd.spark.sinks.exactly_once import WRITINGS, Writings
from shardherd.spark.sinks.frames import TYPES, ColumnsError, known_by, refused, stored_columns
from shardherd.spark.sinks.positions import Pending
from shardherd.spark.sinks.postgresql_rows import CopyJob, connected, copy_rows, move, name_of, parameters
from shardherd.spark.sinks.rows import SEQUENCE_NUMBER
from shardherd.spark.sinks.shard_tasks import by_tasks, without_rows
from shardherd.transactions.outcomes import ConflictError, Stored, TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardherd.spark.cells.build import Cell

POSITIONS = (
    "CREATE TABLE IF NOT EXISTS {positions} (sink text NOT NULL, group_uid text NOT NULL, shard text NOT NULL,"
    " position numeric NOT NULL, epoch bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now(),"
    " PRIMARY KEY (sink, group_uid, shard))"
)

FENCE = (
    "UPDATE {positions} SET epoch = %(epoch)s"
    " WHERE sink = %(sink)s AND group_uid = %(group)s AND shard = %(shard)s AND epoch < %(epoch)s"
)
"""From now on no older grant writes this shard."""


Writer = Callable[[CopyJob], Iterable[Sequence[Any]]]
"""Has all tasks write their rows; what comes back are the values of `rows.WRITTEN`, in its order."""


@dataclass(slots=True, eq=False)
class PostgreSQLSink:
    """As `shardherd.spark.sinks.postgresql`, which makes it."""

    conninfo: str = field(repr=False)
    table: str
    leave_out: tuple[str, ...] = ()
    name: str = ""
    positions: str = "shardherd_positions"
    accept_gaps: bool = False
    cell: Cell | None = None
    writings: Writings = WRITINGS
    _looked: bool = field(default=False, repr=False)
    _whole: bool = field(default=False, repr=False)
    """Whether the table of positions takes numbers of 64 bits only, as older versions made it."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """What foreachBatch calls."""
        write_batch(self.write, frame, batch_id, self.cell)

    def write(self, frame: DataFrame, ranges: BatchRanges) -> None:
        """Write a DataFrame that was made of the records of these ranges. Raises SinkError."""
        self.write_by(by_tasks(frame, copy_rows), frame.schema, ranges)

    def write_by(self, writer: Writer, schema: StructType, ranges: BatchRanges) -> None:
        """As `write`, with the rows and the types that `writer` knows."""
        stored = stored_columns(schema, self.leave_out, ranges, by_record=ranges.by_record)
        if strange := [each for each in stored.fields if not isinstance(each.dataType, TYPES)]:
            raise refused(strange, "this sink has no way to write such a type: make a text of it (to_json), or drop it")
        if not self._looked:
            self._look(stored)
            self._looked = True
        if self._whole and known_by(schema, ranges) == SEQUENCE_NUMBER:
            raise TableError(
                f"the table of positions {self.positions} has the column position as bigint, which is too small for the "
                f"sequence numbers of Kinesis: ALTER TABLE {self.positions} ALTER COLUMN position TYPE numeric, or name "
                "another table by positions=..."
            )
        if not ranges:
            return
        about = f"the table {self.table}" + (f" by the sink {self.name!r}" if self.name else "")
        store = _Store(self, writer, tuple(stored.names), ranges)
        self.writings.write(about, store, ranges, accept_gaps=self.accept_gaps, key=f"{self.database} {self.sink}")

    @property
    def database(self) -> str:
        """Which one it is, however `conninfo` spells that."""
        said = conninfo_to_dict(self.conninfo)
        return " ".join(f"{name}={said.get(name, '')}" for name in ("host", "hostaddr", "port", "dbname", "options", "service"))

    @property
    def sink(self) -> str:
        """Whose positions they are, beside the group's."""
        return f"{self.table}/{self.name}" if self.name else self.table

    def _look(self, stored: StructType) -> None:
        """Whether the table is there with these columns; and make that of the positions."""
        with connected(self.conninfo) as connection:
            try:
                found = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(name_of(self.table))).description
            except errors.UndefinedTable as error:
                wanted = ", ".join(f"{each.name} ..." for each in stored.fields)
                raise TableError(
                    f"the table {self.table} does not exist: create it, with types of your choice: "
                    f"CREATE TABLE {self.table} ({wanted})"
                ) from error
            has = [each.name for each in found or ()]
            if missing := [name for name in stored.names if name not in has]:
                raise ColumnsError(
                    f"the table {self.table} has no column {missing[0]!r} (it has {', '.join(has)}): add it to the table, "
                    "drop it from the DataFrame, or name it in leave_out"
                )
            self._look_for_positions(connection)

    def _look_for_positions(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Whether their table is there, or else make it: only that needs the right to."""
        positions = name_of(self.positions)
        try:
            with connection.transaction():
                found = connection.execute(sql.SQL("SELECT position FROM {} LIMIT 0").format(positions)).description
                self._whole = found is not None and found[0].type_code == connection.adapters.types["int8"].oid
        except errors.UndefinedTable:
            try:
                with connection.transaction():
                    connection.execute(sql.SQL(POSITIONS).format(positions=positions))
            except (errors.UniqueViolation, errors.DuplicateTable):
                pass  # another consumer has made it at the same moment
            except errors.InsufficientPrivilege as error:
                raise TableError(
                    f"the table of positions {self.positions} does not exist, and this user may not create it: create it as"
                    " docs/sinks.md says, and give this user SELECT, INSERT, UPDATE and DELETE on it"
                ) from error


class _Store:
    """The tables as `exactly_once` sees them, for one micro-batch."""

    def __init__(self, sink: PostgreSQLSink, writer: Writer, columns: tuple[str, ...], ranges: BatchRanges) -> None:
        self._sink = sink
        self._writer = writer
        self._columns = columns
        self._ranges = ranges

    def positions(self) -> Mapping[str, Stored]:
        every = {shard: Pending(each.start, each.stop, each.epoch, None) for shard, each in self._ranges.items()}
        table = name_of(self._sink.positions)
        with connected(self._sink.conninfo) as connection, connection.cursor() as cursor:
            cursor.executemany(sql.SQL(FENCE).format(positions=table), parameters(self._job(every), every))
            connection.commit()
            found = cursor.execute(
                sql.SQL("SELECT shard, position, epoch FROM {} WHERE sink = %s AND group_uid = %s AND shard = ANY(%s)").format(
                    table
                ),
                (self._sink.sink, self._ranges.group, [self._ranges.key(shard) for shard in self._ranges]),
            )
            stored = {key: Stored(int(position), epoch) for key, position, epoch in found}
        return {shard: stored[key] for shard in self._ranges if (key := self._ranges.key(shard)) in stored}

    def write(self, wanted: Mapping[str, Pending]) -> None:
        job = self._job(wanted)
        empty = without_rows(self._writer(job), wanted, self._sink.table)
        if not empty:
            return
        # No row was made of their records, but they are done with.
        with connected(self._sink.conninfo) as connection, connection.cursor() as cursor:
            if not move(cursor, job, empty):
                connection.rollback()
                raise ConflictError(f"positions of {', '.join(empty)} were moved by another writer")

    def _job(self, wanted: Mapping[str, Pending]) -> CopyJob:
        sink = self._sink
        ranges = self._ranges
        keys = {shard: ranges.key(shard) for shard in ranges}
        return CopyJob(
            sink.conninfo,
            sink.table,
            sink.positions,
            sink.sink,
            ranges.group,
            keys,
            self._columns,
            dict(ranges),
            dict(wanted),
            ranges.by_record,
        )
