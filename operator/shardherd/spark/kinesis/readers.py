"""What Spark calls of a query that reads Kinesis by itself, and nothing that decides.

`source` makes these where the options name a stream of Kinesis. Which records a micro-batch has, `planner` decides; tasks read
them with `source.kinesis`, each process with one client, and all of a machine with one account of what the shards allow.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from shardherd.source.kinesis.client import Kinesis
from shardherd.source.kinesis.deleted import Edge
from shardherd.source.kinesis.pacing import Pace, Share
from shardherd.source.kinesis.ranges import ShardRecords
from shardherd.source.values.value_format import RAW, ValueFormat
from shardherd.spark.decode_stats import Counts, CountsAddress, added, reported
from shardherd.spark.kinesis.offsets import KinesisOffsets, parse
from shardherd.spark.kinesis.options import KinesisSettings, in_executor, read_options, values_in
from shardherd.spark.kinesis.planner import KinesisPlanner
from shardherd.spark.schema import RAW_VALUES, Wanted, chosen

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

    from shardherd.source.kinesis.shard_reader import Record

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("sequenceNumber", StringType()),
        StructField("subSequenceNumber", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("shard", StringType()),
    ]
)

MEANINGS = {
    "key": "the partition key",
    "value": "the data; with `valueFormat` of the type that `valueSchema` says",
    "sequenceNumber": "up to 56 digits, more than any number of Spark has",
    "subSequenceNumber": "the place in an aggregated record, from 0 on; 0 for any other",
    "timestamp": "when it arrived, about",
    "shard": "`stream/shardId-000000000000`",
}

NO_LIMIT = 2**31 - 1


def columns(values: ValueFormat = RAW_VALUES) -> StructType:
    """Every column of a query."""
    fields = SCHEMA.fields
    return StructType([StructField("value", values.spark_type()) if each.name == "value" else each for each in fields])


def wanted_of(schema: StructType, values: ValueFormat) -> Wanted:
    """The columns that Spark wants of all that there are."""
    return chosen(schema, columns(values), values)


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of a query with these options."""
    return columns(values_in(options))


@dataclass(eq=False, repr=False)
class KinesisSlice(InputPartition):
    """One task: the ranges that it reads."""

    ranges: tuple[ShardRecords, ...]


def slices(ranges: Sequence[ShardRecords], slots: int | None) -> list[InputPartition]:
    """Share the shards among at most `slots` tasks."""
    count = len(ranges) if slots is None else min(max(1, slots), len(ranges))
    return [KinesisSlice(tuple(ranges[at::count])) for at in range(count)]


_open: dict[tuple[int, str, str, str, str, Share], tuple[Kinesis, Pace, Edge]] = {}


def _service(settings: KinesisSettings) -> tuple[Kinesis, Pace, Edge]:
    """This process's client of the stream, the account of its shards, its retention. A forked process has its own client."""
    key = (os.getpid(), settings.stream, settings.region, settings.endpoint, settings.credentials, settings.of_tasks)
    if key not in _open:
        kinesis = Kinesis(settings.access)
        _open[key] = (kinesis, settings.pace(), Edge(kinesis))
    return _open[key]


def read_slice(
    partition: InputPartition,
    settings: KinesisSettings,
    wanted: Wanted,
    counted: Accumulator[Counts] | None,
    counts_address: CountsAddress | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in an executor's worker. Decoded values are added to `counted`, or told to `counts_address`."""
    from shardherd.source.kinesis.range_reading import read_ranges
    from shardherd.spark.reader import declared

    if not isinstance(partition, KinesisSlice):  # Spark's own, for a batch without a task
        return iter(())
    kinesis, pace, edge = _service(settings)
    names = wanted.names
    decoded = wanted.values.kind != RAW and "value" in names
    typed = _typed(wanted.values) if decoded else None
    batches = read_ranges(
        kinesis,
        pace,
        partition.ranges,
        names,
        fail_on_data_loss=settings.fail_on_data_loss,
        pays=in_executor(),
        edge=edge,
        typed=typed,
    )
    if wanted.not_null:
        batches = declared(batches, wanted.not_null)
    if decoded and counts_address is not None:
        return reported(batches, counts_address)
    return added(batches, counted) if decoded and counted is not None else batches


def _typed(values: ValueFormat) -> Any:
    """Decodes the column `value`; what it decodes is counted."""
    from shardherd.source.values.decoded_values import MalformedValueError
    from shardherd.spark.decode_stats import mine
    from shardherd.spark.reader import decoder_of

    decoder = decoder_of(values)
    assert decoder is not None

    def decode(batch: pa.RecordBatch, rows: Sequence[Record]) -> pa.RecordBatch:
        import pyarrow as pa

        at = batch.schema.get_field_index("value")
        try:
            found = decoder.decode(batch.column(at))
        except MalformedValueError as error:
            row = rows[error.row]
            raise MalformedValueError(error.row, f"sequence number {row.number}, record {row.sub} of it: {error}") from error
        mine().add(batch.num_rows, found.slow, found.malformed)
        made = batch.set_column(at, batch.schema.field(at).with_type(found.values.type), found.values)
        return made if found.keep is None else made.filter(pa.array(found.keep))

    return decode


class KinesisBatchReader(DataSourceReader):
    """Reads what there is, once."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, slots: int | None, counted: Accumulator[Counts] | None
    ) -> None:
        self._settings = read_options(options, batch=True)
        self._wanted = chosen(schema, columns(self._settings.values), self._settings.values)
        self._slots = slots
        self._counted = counted

    def partitions(self) -> list[InputPartition]:
        with closing(KinesisPlanner(self._settings)) as planner:
            return slices(planner.ranges(planner.between()), self._slots)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(partition, self._settings, self._wanted, self._counted)


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader. Everything but `read` runs in one process for the life of a query."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, slots: int | None, counted: Accumulator[Counts] | None
    ) -> None:
        self._settings = read_options(options, batch=False)
        self._wanted = chosen(schema, columns(self._settings.values), self._settings.values)
        self._slots = slots
        self._counted = counted
        # Made on first use: this object is pickled for the executors as well.
        self._made: KinesisPlanner | None = None

    def _planner(self) -> KinesisPlanner:
        if self._made is None:
            # Spark ends this process by SIGTERM, and Python would die of it without calling stop().
            signal.signal(signal.SIGTERM, leave)
            self._made = KinesisPlanner(self._settings)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return KinesisOffsets().as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Never everything: that is what Trigger.Once asks for. What bounds a micro-batch is in the settings.
        return ReadMaxRows(self._settings.max_records or NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        end = self._planner().latest(parse(start), once=isinstance(limit, ReadAllAvailable))
        return start if end is None else end.as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [] if start == end else slices(self._planner().ranges(parse(end)), self._slots)

    def commit(self, end: dict[str, Any]) -> None:
        """Says nothing new: Spark's own log has it."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner().prepare()

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(partition, self._settings, self._wanted, self._counted)


def leave(_signal: int, _frame: FrameType | None) -> None:
    """The handler of SIGTERM in the process of a query."""
    # It may come twice; the second must not break the first one's cleaning up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
