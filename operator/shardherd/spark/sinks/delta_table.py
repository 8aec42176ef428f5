"""Appends micro-batches to a Delta table by deltalake, so that each record stands there once. `shardherd.spark.sinks.delta`.

On the driver: it checks DataFrame and table, has the tasks write files (`delta_files`), and commits them together with the
positions. It writes no data and keeps no position of its own; whether something is still to be written, `positions` says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from shardherd.spark.arrow_map import map_in_arrow
from shardherd.spark.running_batch import BatchRanges
from shardherd.spark.sinks.cell_results import write_batch
from shardherd.spark.sinks.delta_files import FILES_DDL, FileJob, write_files
from shardherd.spark.sinks.delta_positions import read, written
from shardherd.spark.sinks.exactly_once import WRITINGS, Writings
from shardherd.spark.sinks.frames import TYPES, ColumnsError, refused, still_wanted, stored_columns
from shardherd.spark.sinks.positions import Pending
from shardherd.transactions.outcomes import ConflictError, Stored, TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardherd.spark.cells.build import Cell

PARTITION_TYPES: tuple[type[AtomicType], ...] = (
    StringType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    DateType,
    BooleanType,
)

HARMLESS_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features of tables that ask nothing of who only adds files, or whose use `unfit` looks for."""


RULES = ("delta.generation", "delta.identity", "delta.invariants")
"""How a column's rules begin, in its metadata: this sink neither computes nor checks values."""

OF_NULLS = frozenset({"nullable", "containsNull", "valueContainsNull"})
"""What JSON calls it where a value may be null."""


class NewFile(NamedTuple):
    """A file as its task tells of it: `partition` and `stats` are JSON."""

    path: str
    size: int
    partition: str
    stats: str


Writer = Callable[[FileJob], Iterable[Sequence[Any]]]
"""Has all tasks write their files; what comes back are the values of `NewFile`, in its order."""


@dataclass(slots=True, eq=False)
class DeltaSink:
    """As `shardherd.spark.sinks.delta`, which makes it."""

    table: str
    partition_by: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    name: str = ""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    accept_gaps: bool = False
    cell: Cell | None = None
    writings: Writings = WRITINGS
    _opened: DeltaTable | None = field(default=None, repr=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """What foreachBatch calls."""
        write_batch(self.write, frame, batch_id, self.cell)

    def write(self, frame: DataFrame, ranges: BatchRanges) -> None:
        """Write a DataFrame that was made of the records of these ranges. Raises SinkError."""

        def by_tasks(job: FileJob) -> Iterable[Sequence[Any]]:
            fresh = still_wanted(frame, job.wanted, job.ranges)
            return map_in_arrow(fresh, lambda batches: write_files(batches, job), FILES_DDL).collect()

        self.write_by(by_tasks, frame.schema, ranges)

    def write_by(self, writer: Writer, schema: StructType, ranges: BatchRanges) -> None:
        """As `write`, with the rows and the types that `writer` knows."""
        stored = stored_columns(schema, self.leave_out, ranges, by_record=ranges.by_record)
        if strange := [each for each in stored.fields if not _has_type(each.dataType)]:
            raise refused(strange, "Delta has no such type: cast or drop them")
        table = self._open(stored)
        if not ranges:
            return
        about = f"the Delta table {self.table}" + (f" by the sink {self.name!r}" if self.name else "")
        store = _Store(self, table, writer, stored, ranges)
        self.writings.write(about, store, ranges, accept_gaps=self.accept_gaps, key=f"{table.table_uri} {self.name}")

    def app_id(self, ranges: BatchRanges, shard: str) -> str:
        """The application id of a shard's transactions: no other group, topic, or sink of this one has the same."""
        return f"{ranges.group}/{ranges.key(shard)}" + (f"/{self.name}" if self.name else "")

    def _open(self, stored: StructType) -> DeltaTable:
        """The table, which is made if it is not there. It is kept: to load all that its log says takes long."""
        if self._opened is None:
            options = dict(self.storage_options or {})
            try:
                self._opened = DeltaTable(self.table, storage_options=options)
            except TableNotFoundError:
                self._make(stored, options)
                self._opened = DeltaTable(self.table, storage_options=options)
        return self._opened

    def _make(self, stored: StructType, options: dict[str, str]) -> None:
        if strange := [name for name in self.partition_by if name not in stored.names]:
            raise ColumnsError(
                f"partition_by names the column {strange[0]!r}, which is not written; these are: {', '.join(stored.names)}"
            )
        if wrong := [stored[name] for name in self.partition_by if not isinstance(stored[name].dataType, PARTITION_TYPES)]:
            raise refused(wrong, "a column of partition_by must be a string, a whole number, a date or a boolean: cast it")
        if set(stored.names) <= set(self.partition_by):
            raise ColumnsError(
                "partition_by names every column that is written, and files have those alone by which they are not"
                " partitioned: leave one out of partition_by, or write one more"
            )
        try:
            schema = Schema.from_json(json.dumps(nullable(stored.jsonValue())))
        except (ValueError, DeltaError) as error:
            raise ColumnsError(
                f"Delta has no type for a column of {stored.simpleString()}: cast or drop it ({error})"
            ) from error
        # "ignore": another consumer may make it at the same moment, and then it is there.
        DeltaTable.create(self.table, schema, mode="ignore", partition_by=list(self.partition_by), storage_options=options)


class _Store:
    """The table as `exactly_once` sees it, for one micro-batch."""

    def __init__(self, sink: DeltaSink, table: DeltaTable, writer: Writer, stored: StructType, ranges: BatchRanges) -> None:
        self._sink = sink
        self._table = table
        self._writer = writer
        self._stored = stored
        self._ranges = ranges

    def positions(self) -> Mapping[str, Stored]:
        self._table.update_incremental()
        if said := unfit(self._table, self._stored):
            raise TableError(f"the Delta table {self._sink.table} {said}")
        found = {
            shard: read(self._table.transaction_version, self._sink.app_id(self._ranges, shard), shard)
            for shard in self._ranges
        }
        return {shard: Stored(position) for shard, position in found.items() if position is not None}

    def write(self, wanted: Mapping[str, Pending]) -> None:
        partitions = tuple(self._table.metadata().partition_columns)
        job = FileJob(
            self._sink.table,
            dict(self._sink.storage_options or {}),
            tuple(self._stored.names),
            partitions,
            dict(self._ranges),
            dict(wanted),
            self._ranges.by_record,
        )
        files = [NewFile(*each) for each in self._writer(job)]
        now = int(time.time() * 1000)
        adds: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.size, json.loads(each.partition), now, True, each.stats) for each in files
        ]
        moved = [
            Transaction(app, version, now)
            for shard, each in wanted.items()
            for app, version in written(self._sink.app_id(self._ranges, shard), shard, each.stop)
        ]
        try:
            self._table.create_write_transaction(
                adds,
                "append",
                self._table.schema(),
                partition_by=list(partitions),
                commit_properties=CommitProperties(app_transactions=moved),
            )
        except (DeltaError, OSError) as error:
            # Refused, or not known: the positions tell what has become of it.
            raise ConflictError(f"a commit to the Delta table {self._sink.table} failed: {error}") from error


def _has_type(kind: DataType) -> bool:
    """Whether Delta has this type."""
    match kind:
        case StructType():
            return all(_has_type(each.dataType) for each in kind.fields)
        case ArrayType():
            return _has_type(kind.elementType)
        case MapType():
            return _has_type(kind.keyType) and _has_type(kind.valueType)
    return isinstance(kind, TYPES)


def unfit(table: DeltaTable, stored: StructType) -> str:
    """Why rows of this type cannot be added to the table; empty if they can."""
    settings = table.metadata().configuration
    fields = json.loads(table.schema().to_json())["fields"]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        return "maps its columns' names (delta.columnMapping.mode), which this sink does not write: write to a table without it"
    if named := [key for key in settings if key.startswith("delta.constraints.")]:
        return f"has the constraint {named[0]}, which this sink does not check: drop it, or write to another table"
    if "delta.setTransactionRetentionDuration" in settings:
        return (
            "forgets transaction identifiers (delta.setTransactionRetentionDuration), and with them which records it has: "
            "unset that property"
        )
    for each in fields:
        if ruled := [key for key in each["metadata"] if key.startswith(RULES)]:
            return f"computes or checks its column {each['name']!r} ({ruled[0]}), which this sink does not: write elsewhere"
    if strange := set(table.protocol().writer_features or ()) - HARMLESS_FEATURES:
        return f"has the feature {min(strange)}, which this sink does not write: drop it, or write to a table without it"
    has = {each["name"]: each for each in fields}
    for column in stored.fields:
        if column.name not in has:
            return f"has no column {column.name!r}: add it to the table, drop it from the DataFrame, or name it in leave_out"
        ours, theirs = bare(column.dataType.jsonValue()), bare(has[column.name]["type"])
        if ours != theirs:
            return f"has the column {column.name!r} as {json.dumps(theirs)}, and the DataFrame as {json.dumps(ours)}: cast it"
        if column.nullable and not has[column.name]["nullable"]:
            return f"has the column {column.name!r} as NOT NULL, and in the DataFrame it may be null: drop that from the table"
    if missing := [name for name, each in has.items() if name not in stored.names and not each["nullable"]]:
        return f"has the column {missing[0]!r} as NOT NULL, and the DataFrame does not have it: add it"
    return _unfit_partitions(table.metadata().partition_columns, stored)


def _unfit_partitions(partitions: Sequence[str], stored: StructType) -> str:
    """Why rows of this type cannot be added to a table that is partitioned so; empty if they can."""
    for name in partitions:
        if name in stored.names and not isinstance(kind := stored[name].dataType, PARTITION_TYPES):
            return (
                f"is partitioned by the column {name!r} ({kind.simpleString()}), and this sink writes only strings, whole"
                " numbers, dates and booleans there: write to a table that is partitioned by another, or name it in leave_out"
            )
    if set(stored.names) <= set(partitions):
        return (
            "is partitioned by every column that is written, and files have none of these: write one more, or to a table that"
            " is partitioned by fewer"
        )
    return ""


def bare(kind: Any) -> Any:
    """A type in JSON without what is said of nulls and without comments: what must be equal."""
    if isinstance(kind, dict):
        return {key: bare(value) for key, value in kind.items() if key not in {*OF_NULLS, "metadata"}}
    return [bare(each) for each in kind] if isinstance(kind, list) else kind


def nullable(kind: Any) -> Any:
    """A type in JSON all of whose values may be null."""
    if isinstance(kind, dict):
        return {key: True if key in OF_NULLS else nullable(value) for key, value in kind.items()}
    return [nullable(each) for each in kind] if isinstance(kind, list) else kind
