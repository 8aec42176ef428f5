"""Writes micro-batches to a topic so that each record stands there once. `shardherd.spark.sinks.kafka`.

On the driver: it checks DataFrame and topic, keeps older holders out, reads the positions, and has each shard written by one
task (`kafka_rows`), in a transaction of its own. It writes no rows; whether some are still to be written, `positions` says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.spark.running_batch import BatchRanges
from shardherd.spark.sinks.cell_results import write_batch
from shardherd.spark.sinks.exactly_once import TRIES, WRITINGS, Writings
from shardherd.spark.sinks.frames import ColumnsError, known_by, stored_columns
from shardherd.spark.sinks.kafka_rows import WriteJob, all_of, opened, write_records
from shardherd.spark.sinks.positions import Pending
from shardherd.spark.sinks.rows import OFFSET, SEQUENCE_NUMBER, SHARD
from shardherd.spark.sinks.shard_tasks import by_tasks, without_rows
from shardherd.transactions.kafka_transactions import Output, Transactions
from shardherd.transactions.outcomes import ConflictError, SinkError, Stored
from shardherd.transactions.topics import check_topic, connection, partitions_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardherd.spark.cells.build import Cell

log = logging.getLogger(__name__)

_TEXT: tuple[type[DataType], ...] = (StringType, BinaryType)
_WHOLE: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)

COLUMNS: Mapping[str, tuple[type[DataType], ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "partition": _WHOLE,
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
}
"""What a record of Kafka is made of, and the types that it may have."""

OF_KINESIS = (
    "the sink kafka keeps the position of a shard as an offset of the source's partition, and a shard of Kinesis has neither "
    'one nor the other: write with Spark\'s own format("kafka"), which is at least once, or to a table by '
    "shardherd.spark.sinks.delta or postgresql"
)

Writer = Callable[[WriteJob], Iterable[Sequence[Any]]]
"""Has all tasks write their rows; what comes back are the values of `rows.WRITTEN`, in its order."""


@dataclass(slots=True, eq=False)
class KafkaSink:
    """As `shardherd.spark.sinks.kafka`, which makes it. `access`: the brokers and how they are reached, once they are known."""

    topic: str
    access: Callable[[], tuple[str, Security]] = field(repr=False)
    name: str = ""
    group_id: str = ""
    compression: str = "none"
    transaction_timeout: float = 300.0
    accept_gaps: bool = False
    cell: Cell | None = None
    writings: Writings = WRITINGS
    _looked: bool = field(default=False, repr=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """What foreachBatch calls."""
        write_batch(self.write, frame, batch_id, self.cell, ShardId(f"{self.topic}/0"))

    def write(self, frame: DataFrame, ranges: BatchRanges) -> None:
        """Write a DataFrame that was made of the records of these ranges. Raises SinkError."""
        self.write_by(by_tasks(frame, write_records), frame.schema, ranges)

    def write_by(self, writer: Writer, schema: StructType, ranges: BatchRanges) -> None:
        """As `write`, with the rows and the types that `writer` knows."""
        if known_by(schema, ranges) == SEQUENCE_NUMBER:
            raise SinkError(OF_KINESIS)
        columns = record_columns(schema, by_record=ranges.by_record)
        if not ranges:
            return
        servers, security = self.access()
        kafka = connection(servers, security)
        partitions = self._look(kafka, ranges)
        output = Output(self.topic, self.output_group(ranges), self.transaction_timeout, ranges.topic_ids)
        job = WriteJob(servers, security, output, partitions, self.compression, columns, dict(ranges), {}, ranges.by_record)
        about = f"the topic {self.topic}" + (f" by the sink {self.name!r}" if self.name else "")
        # Whose positions are the same is the same sink, though the topics differ: `a.b` is also `a` with the name b.
        key = f"{','.join(sorted(servers.split(',')))} {output.group}"
        self.writings.write(about, _Store(kafka, job, writer, ranges), ranges, accept_gaps=self.accept_gaps, key=key)

    def output_group(self, ranges: BatchRanges) -> str:
        """The Kafka group whose offsets are this sink's positions; of a cell's results one for each cell's state."""
        found = self.group_id or ".".join(filter(None, ("shardherd", ranges.group, self.topic, self.name)))
        if self.cell is None:
            return found
        generation, number = self.cell.id.rsplit("/", 2)[1:]
        return f"{found}.cell-{number}.{generation}"

    def _look(self, kafka: Transactions, ranges: BatchRanges) -> int:
        """How many partitions the topic has; and, the first time, what is wrong with it and with those of the source."""
        if self._looked:
            return partitions_of(kafka, self.topic)
        partitions = check_topic(kafka, self.topic, map(ShardId, ranges))
        self._looked = True
        return partitions


class _Store:
    """The topic as `exactly_once` sees it, for one micro-batch."""

    def __init__(self, kafka: Transactions, job: WriteJob, writer: Writer, ranges: BatchRanges) -> None:
        self._kafka = kafka
        self._job = job
        self._writer = writer
        self._ranges = {ShardId(shard): each for shard, each in ranges.items()}

    def positions(self) -> Mapping[str, Stored]:
        for left in reversed(range(TRIES)):
            try:
                return self._positions()
            except ConflictError as error:
                if not left:
                    raise
                log.warning("reading the sink's positions again: %s", error)
        raise AssertionError("unreachable")

    def _positions(self) -> dict[str, Stored]:
        """Where the output stands; and for whom a grant is new, no older one writes from now on."""
        output = self._job.output
        found, _ = self._kafka.look(output, self._ranges)
        # Under the same grant the topic is the same; a newer one has the last word, whatever topic there is now.
        ours = {shard for shard, each in self._ranges.items() if shard in found and found[shard].epoch >= each.epoch}
        opening = {shard: self._kafka.begin_open(output, shard) for shard in self._ranges if shard not in ours}
        commits = []
        for shard, wait in opening.items():
            transaction, each = wait(), self._ranges[shard]
            found[shard] = output.granted(shard, transaction.stood, each.start, each.epoch)
            if found[shard] != transaction.stood:
                commits.append(self._kafka.begin_commit(output, transaction, found[shard]))
        all_of(commits)
        return {str(shard): each for shard, each in found.items()}

    def write(self, wanted: Mapping[str, Pending]) -> None:
        job = replace(self._job, wanted=dict(wanted))
        # No row was made of their records, but they are done with.
        empty = without_rows(self._writer(job), wanted, job.output.topic)
        opening = {shard: self._kafka.begin_open(job.output, ShardId(shard)) for shard in empty}
        commits = []
        for shard, wait in opening.items():
            transaction = opened(wait, wanted[shard], job.output)
            stored = job.output.stored(shard, wanted[shard].stop, wanted[shard].epoch)
            commits.append(self._kafka.begin_commit(job.output, transaction, stored))
        all_of(commits)


def record_columns(schema: StructType, *, by_record: bool = True) -> tuple[str, ...]:
    """The columns that make a record. Raises ColumnsError."""
    stored_columns(schema, (), (), by_record=by_record)
    names = [name for name in schema.names if not by_record or name not in (SHARD, OFFSET)]
    if "value" not in names:
        raise ColumnsError(
            "the DataFrame has no column 'value', which a record of Kafka is made of: make one, for example by "
            "to_json(struct(...)).alias('value')"
        )
    for name in names:
        if name not in COLUMNS:
            raise ColumnsError(
                f"the column {name!r} has no place in a record of Kafka, which has {', '.join(COLUMNS)}: put it into the "
                "value, for example by to_json(struct(...)), or drop it"
            )
        kind = schema[name].dataType
        if not isinstance(kind, COLUMNS[name]) or (isinstance(kind, ArrayType) and not _headers(kind)):
            wanted = "array<struct<key:string,value:binary>>" if name == "headers" else _types(COLUMNS[name])
            raise ColumnsError(f"the column {name!r} is {kind.simpleString()}, and must be {wanted}: cast it")
    return tuple(names)


def _headers(kind: ArrayType) -> bool:
    each = kind.elementType
    return isinstance(each, StructType) and [(field.name, type(field.dataType)) for field in each.fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


def _types(kinds: Iterable[type[DataType]]) -> str:
    return " or ".join(kind().simpleString() for kind in kinds)
