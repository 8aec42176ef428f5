"""The Spark data source `format("shardherd")`: which of its readers a query has, by its options.

Spark makes it in four kinds of processes (the driver's planner, one process for the life of a query, a second planner and the
executors' workers). `kafka_readers` and `kinesis.readers` have the readers, `kinesis.group_reader` that of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from shardherd.spark.decode_stats import Counts
from shardherd.spark.kafka_readers import ShardherdBatchReader, ShardherdStreamReader
from shardherd.spark.kinesis import options as kinesis
from shardherd.spark.kinesis import readers
from shardherd.spark.options import Settings, check_names, read_options, value_format, wants_headers
from shardherd.spark.schema import Wanted, choose, columns

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

TIME_ZONE = "spark.sql.session.timeZone"
"""Spark's setting of a session's time zone."""


class ShardherdSource(DataSource):
    """`spark.readStream.format("shardherd").load()` reads the shards that this consumer holds, whichever they are.

    With the option `kafka.bootstrap.servers` or `kinesis.stream` it reads what the options say, by `readStream` or `read`, and
    needs no operator. docs/source.md and docs/kinesis.md have every option and column.
    """

    slots: ClassVar[int | None] = None
    """How many tasks can run at once, where `shardherd.spark.register` knows it."""

    counted: ClassVar[Accumulator[Counts] | None] = None
    """Where tasks add the typed values that they decoded, if `shardherd.spark.register` has made it."""

    def __init__(self, options: Mapping[str, str]) -> None:  # Spark calls it by this name
        (kinesis.check_names if kinesis.reads_kinesis(options) or kinesis.in_group(options) else check_names)(options)
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return "shardherd"

    def schema(self) -> StructType:
        if kinesis.reads_kinesis(self.options) or kinesis.in_group(self.options):
            return readers.schema_of(self.options)
        return columns(headers=wants_headers(self.options), values=value_format(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if kinesis.in_group(self.options):
            # Only there is it needed, and these processes must start fast.
            from shardherd.spark.kinesis.group_reader import KinesisGroupReader

            given = kinesis.group_options(self.options)
            return KinesisGroupReader(given, readers.wanted_of(schema, given.values), self.slots)
        if kinesis.reads_kinesis(self.options):
            return readers.KinesisStreamReader(self.options, schema, self.slots, self.counted)
        settings = read_options(self.options, batch=False)
        return ShardherdStreamReader(settings, _chosen(schema, settings), self.slots, self.counted)

    def reader(self, schema: StructType) -> DataSourceReader:
        if kinesis.reads_kinesis(self.options):
            return readers.KinesisBatchReader(self.options, schema, self.slots, self.counted)
        settings = read_options(self.options, batch=True)
        return ShardherdBatchReader(settings, _chosen(schema, settings), self.slots, self.counted)


def make_known(spark: SparkSession, source: type[ShardherdSource]) -> None:
    """Make the source known to a session, and to its tasks which time zone that has.

    Spark hands them settings, but no defaults: the one of the driver's JVM need not be that of the machines where they run.
    """
    spark.conf.set(TIME_ZONE, str(spark.conf.get(TIME_ZONE)))
    spark.dataSource.register(source)


def _chosen(schema: StructType, settings: Settings) -> Wanted:
    return choose(schema, headers=settings.include_headers, values=settings.values)
