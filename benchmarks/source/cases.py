"""What is compared: each case is one small dataclass, so that another one is a few lines. Measures nothing.

A case says what is on the broker, and how each side's query reads it; both must come to the same sums.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from shardherd.source.values.value_format import ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8

Options = dict[str, str]


@dataclass(frozen=True, slots=True)
class Data:
    """Records on a topic: `rows`, or `share` of the rows that were asked for, with a key of 16 bytes and a value of `size`.

    A value has seven fields, in the `form` json or avro.
    """

    size: int
    codec: str
    share: float = 1.0
    form: str = "json"
    rows: int | None = None

    @property
    def name(self) -> str:
        """Data of the same name are produced once."""
        return f"{self.size}-{self.codec}-{self.share:g}-{self.form}-{self.rows}"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. `ours` and `peer` make the streaming frame from Kafka's options; `sums` are taken of both."""

    name: str
    data: Data
    goal: float
    ours: Callable[[SparkSession, Options], DataFrame]
    peer: Callable[[SparkSession, Options], DataFrame]
    sums: tuple[str, ...]


def ours(spark: SparkSession, options: Options, schema: str | None = None) -> DataFrame:
    """format("shardherd"), with all columns or only these."""
    reader = spark.readStream.format("shardherd").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def peer(spark: SparkSession, options: Options) -> DataFrame:
    """Spark's own Kafka source."""
    return spark.readStream.format("kafka").options(**options).load()


KAFKA_COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
ALL_SUMS = (
    "count(*)",
    "sum(length(key))",
    "sum(length(value))",
    "sum(length(topic))",
    "sum(partition)",
    "sum(offset)",
    "max(timestamp)",
    "sum(timestampType)",
)
VALUE_SUMS = ("count(*)", "sum(length(value))", "sum(offset)")

VALUE_DDL = "id bigint, page string, ms int, price double"
VALUE_FIELDS = ("id", "long"), ("user", "string"), ("page", "string"), ("ms", "int"), ("price", "double"), ("new", "boolean")
VALUE_AVRO = json.dumps(
    {
        "type": "record",
        "name": "event",
        "fields": [{"name": name, "type": kind} for name, kind in (*VALUE_FIELDS, ("note", "string"))],
    }
)
TYPED_SUMS = (
    "count(*)",
    "sum(value.id)",
    "sum(length(value.page))",
    "sum(value.ms)",
    "sum(cast(round(value.price * 100) as bigint))",
)


def typed(spark: SparkSession, options: Options, kind: str, schema: str) -> DataFrame:
    """format("shardherd") with typed values and nothing else."""
    reader = spark.readStream.format("shardherd").options(**options, valueFormat=kind, valueSchema=schema)
    return reader.schema(StructType([StructField("value", ValueFormat(kind, schema, mode="PERMISSIVE").spark_type())])).load()


def from_avro(frame: DataFrame) -> DataFrame:
    """The column value by Spark's from_avro."""
    from pyspark.sql.avro.functions import from_avro

    return frame.select(from_avro("value", VALUE_AVRO, {"mode": "PERMISSIVE"}).alias("value"))


CASES = {
    "small": Case(
        "160 B, lz4, all seven columns",
        Data(160, "lz4"),
        2.0,
        lambda spark, options: ours(spark, options, KAFKA_COLUMNS),
        peer,
        ALL_SUMS,
    ),
    "narrow": Case(
        "160 B, lz4, value and offset",
        Data(160, "lz4"),
        2.3,
        lambda spark, options: ours(spark, options, "value binary, offset bigint"),
        lambda spark, options: peer(spark, options).select("value", "offset"),
        VALUE_SUMS,
    ),
    "json": Case(
        "160 B, lz4, typed JSON, 4 of 7 fields",
        Data(160, "lz4"),
        2.5,
        lambda spark, options: typed(spark, options, "json", VALUE_DDL),
        lambda spark, options: peer(spark, options).selectExpr(f"from_json(cast(value as string), '{VALUE_DDL}') as value"),
        TYPED_SUMS,
    ),
    "avro": Case(
        "160 B, lz4, typed Avro",
        Data(160, "lz4", form="avro"),
        1.0,
        lambda spark, options: typed(spark, {**options, "mode": "PERMISSIVE"}, "avro", VALUE_AVRO),
        lambda spark, options: from_avro(peer(spark, options)),
        TYPED_SUMS,
    ),
    "large": Case(
        "1 KB, zstd, all seven columns",
        Data(1024, "zstd", share=0.25),
        1.5,
        lambda spark, options: ours(spark, options, KAFKA_COLUMNS),
        peer,
        ALL_SUMS,
    ),
}
"""Cases of throughput, by the names that `--only` takes."""

ALONE = Case("fetch and decode alone / ConsumerPerformance", Data(160, "lz4"), 1.5, ours, peer, ())
TRIGGER = Case("trigger of 2,000 rows, p50", Data(160, "lz4"), 0.909, CASES["small"].ours, peer, ALL_SUMS)
COLD = Case("cold start to the first rows", Data(160, "lz4"), 0.833, CASES["small"].ours, peer, ALL_SUMS)
