"""Writes the rows of one task to PostgreSQL, with the positions of their shards, in one transaction. In the executors' workers.

`postgresql_table` calls it, with all rows of a shard in one task. Rows go by COPY, as CSV that Arrow makes.
Whether the positions still are what they were, the server says at the end: if one is not, nothing of the task is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks.positions import Pending
from shardherd.spark.sinks.rows import OFFSET, SEQUENCE_NUMBER, SHARD, Rows
from shardherd.transactions.outcomes import SinkError

NUL = "\0"
"""The one character that PostgreSQL keeps in no text."""

IDLE_LIMIT = "60s"
"""How long the server waits for a client that is paused between two statements: it holds the locks of its positions."""

KEEPALIVES = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""After a minute a server is taken for gone that has vanished without a word, as by a failover; by itself Linux waits for two
hours for what it said that it has."""

MOVE = (
    "UPDATE {positions} SET position = %(stop)s, epoch = %(epoch)s, written_at = now()"
    " WHERE sink = %(sink)s AND group_uid = %(group)s AND shard = %(shard)s AND position = %(before)s AND epoch <= %(epoch)s"
)
"""Moves one position, if it still is where it was and no newer grant has written."""

BEGIN = (
    "INSERT INTO {positions} (sink, group_uid, shard, position, epoch)"
    " VALUES (%(sink)s, %(group)s, %(shard)s, %(stop)s, %(epoch)s) ON CONFLICT DO NOTHING"
)
"""The first position of a shard, if there still is none."""


class TextRefusedError(SinkError):
    """A text has a character that PostgreSQL cannot keep. Names the column and the record."""


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What every task of a micro-batch is told. `sink` and `group` say whose positions they are, `keys` which of a shard."""

    conninfo: str = field(repr=False)
    table: str
    positions: str
    sink: str
    group: str
    keys: Mapping[str, str]
    columns: tuple[str, ...]
    ranges: Mapping[str, BatchRange]
    wanted: Mapping[str, Pending]
    by_record: bool = True


def connected(conninfo: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection that the server ends if we stand still within a transaction."""
    connection = psycopg.connect(settings(conninfo))
    connection.execute(sql.SQL("SET idle_in_transaction_session_timeout = {}").format(IDLE_LIMIT))
    connection.commit()
    return connection


def settings(conninfo: str) -> str:
    """The same, with our name, and with how a server that has vanished is noticed, unless it says that itself."""
    said = conninfo_to_dict(conninfo)
    return make_conninfo(conninfo, application_name="shardherd", **{k: v for k, v in KEEPALIVES.items() if k not in said})


def name_of(table: str) -> sql.Identifier:
    """A table's name, with its schema if it has one, as SQL has it."""
    return sql.Identifier(*table.split("."))


def parameters(job: CopyJob, shards: Iterable[str]) -> list[dict[str, str | int | None]]:
    """What the statements ask for; in order, so that two who move the same positions do not wait for each other."""
    return [
        {
            "sink": job.sink,
            "group": job.group,
            "shard": job.keys[shard],
            "before": job.wanted[shard].before,
            "stop": job.wanted[shard].stop,
            "epoch": job.wanted[shard].epoch,
        }
        for shard in sorted(shards)
    ]


def move(cursor: psycopg.Cursor[Any], job: CopyJob, shards: Iterable[str]) -> bool:
    """Move the positions of these shards to the ends of their ranges. Whether each one was what it was thought to be."""
    asked = parameters(job, shards)
    for statement, these in (
        (BEGIN, [each for each in asked if each["before"] is None]),
        (MOVE, [each for each in asked if each["before"] is not None]),
    ):
        if not these:
            continue
        cursor.executemany(sql.SQL(statement).format(positions=name_of(job.positions)), these)
        if cursor.rowcount != len(these):
            return False
    return True


def copy_rows(batches: Iterable[pa.RecordBatch], job: CopyJob) -> Iterator[pa.RecordBatch]:
    """Write the rows that the table does not have yet. Gives one row for each shard of which there were some."""
    rows = Rows(job.ranges, job.wanted, by_record=job.by_record)
    fresh = (batch for batch in map(rows.of_batch, batches) if batch.num_rows)
    first = next(fresh, None)
    if first is None:
        return
    conflict = ""
    with connected(job.conninfo) as connection, connection.cursor() as cursor:
        copy = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT csv, ENCODING 'UTF8')").format(
            name_of(job.table), sql.SQL(", ").join(map(sql.Identifier, job.columns))
        )
        with cursor.copy(copy) as into:
            into.write(csv_of(first, job.columns))
            for batch in fresh:
                into.write(csv_of(batch, job.columns))
        if not move(cursor, job, rows.seen):
            connection.rollback()
            conflict = f"the positions of {', '.join(sorted(rows.seen))} were moved by another writer"
        else:
            try:
                connection.commit()
            except psycopg.OperationalError as error:
                conflict = f"whether the rows are there is not known: {error}"
    yield rows.answer(conflict)


def csv_of(batch: pa.RecordBatch, columns: tuple[str, ...]) -> bytes:
    """These columns as PostgreSQL reads CSV: texts in quotes, null as nothing. Raises TextRefusedError."""
    found = pa.RecordBatch.from_arrays([_readable(batch.column(name)) for name in columns], names=list(columns))
    into = BytesIO()
    pacsv.write_csv(found, into, pacsv.WriteOptions(include_header=False, quoting_style="needed"))
    written = into.getvalue()
    if NUL.encode() in written:
        raise TextRefusedError(_with_nul(batch, columns))
    return written


def _with_nul(batch: pa.RecordBatch, columns: tuple[str, ...]) -> str:
    """Which column has a text with U+0000, and in the row of which record."""
    for name in columns:
        found = batch.column(name)
        if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
            row = pc.index(pc.match_substring(found, NUL), True).as_py()
            if row >= 0:
                known = [each for each in (SHARD, OFFSET, SEQUENCE_NUMBER) if each in batch.schema.names]
                record = ", ".join(f"{each} {batch.column(each)[row].as_py()!r}" for each in known)
                where = f" ({record})" if record else ""
                return (
                    f"the column {name!r} has a text with the character U+0000{where}, which no text of PostgreSQL may have: "
                    f"take it out (replace({name}, char(0), '')), or write the column as binary into a bytea"
                )
    raise AssertionError("only texts are written with their bytes")


def _readable(values: pa.Array[Any]) -> pa.Array[Any]:
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [None if each is None else "\\x" + each.hex() for each in values.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_decimal(kind):
        return pc.cast(values, pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        values = values.cast(pa.timestamp(kind.unit, "UTC"))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _with_eras(values)
    return values


def _with_eras(times: pa.Array[Any]) -> pa.Array[Any]:
    """Times and days as PostgreSQL reads them: for Arrow the year before 1 is 0, and for it that is 1 BC.

    East of Greenwich the first second of the year 1, which some programs have for none, is before it in UTC.
    """
    least = pc.min(times)
    if not least.is_valid or pc.year(least).as_py() > 0:
        return times
    return pa.array([None if each is None else _with_era(each) for each in times.cast(pa.string()).to_pylist()], pa.string())


def _with_era(text: str) -> str:
    year, minus, rest = text.lstrip("-").partition("-")
    before = int(year) if text.startswith("-") else -int(year)
    return f"{before + 1:04}{minus}{rest} BC" if before >= 0 else text
