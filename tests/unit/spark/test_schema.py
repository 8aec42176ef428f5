from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shardherd.spark.schema import MEANINGS, SCHEMA, ColumnError, Wanted, choose, columns


def wanted(**fields: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])  # type: ignore[arg-type]


def test_the_columns_are_those_of_sparks_kafka_source_and_the_shard() -> None:
    kafka = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]

    assert SCHEMA.names == columns(headers=False).names == [*kafka, "shard"]
    assert columns(headers=True).names == [*kafka, "headers", "shard"] == list(MEANINGS)


def test_fewer_columns_are_honoured_in_any_order() -> None:
    assert choose(wanted(shard=StringType(), value=BinaryType()), headers=False) == Wanted(("shard", "value"))
    assert choose(columns(headers=True), headers=True) == Wanted(tuple(MEANINGS))


def test_a_column_that_is_never_null_may_be_declared_so() -> None:
    strict = StructType([StructField("value", BinaryType()), StructField("offset", LongType(), False)])

    assert choose(strict, headers=False) == Wanted(("value", "offset"), frozenset({"offset"}))
    value = StructType([StructField("value", BinaryType(), False)])
    with pytest.raises(ColumnError, match="column 'value' may be null: declare it without NOT NULL"):
        choose(value, headers=False)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (wanted(offset=StringType()), "column 'offset' cannot be string: it is bigint here; correct its type .* and cast it"),
        (
            wanted(headers=MapType(StringType(), BinaryType())),
            "column 'headers' cannot be map<string,binary>: it is array<struct<",
        ),
        (wanted(timestmp=TimestampType()), r"column 'timestmp' is not of this source; did you mean 'timestamp'\?"),
        (wanted(zzz=LongType()), "column 'zzz' is not of this source; it has key, value, topic, partition, offset,"),
        (StructType([StructField("key", BinaryType())] * 2), "column 'key' is in the schema twice"),
        (columns(headers=True), "column 'headers' is read on request only: give the option includeHeaders=true"),
    ],
)
def test_a_wrong_column_is_named_with_its_type_and_the_right_one(schema: StructType, reason: str) -> None:
    with pytest.raises(ColumnError, match=reason):
        choose(schema, headers="map" in reason)
