"""Typed values against Spark's own functions, document by document, in one local session without a broker.

`SHARDHERD_LONG=1` compares 1,000,000 JSON documents in place of some thousands.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as sql

from shardherd.spark.values.json_column import JsonColumn
from tests.harness import documents

LONG = bool(os.environ.get("SHARDHERD_LONG"))
SCHEMAS, DOCUMENTS = (500, 2000) if LONG else (9, 400)
ZONES = ("UTC", "Europe/Paris", "America/New_York")
CORRUPT = "_corrupt_record"
FRACTION = re.compile(rb"-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    builder = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    )
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def of_spark(spark: SparkSession, values: list[bytes | None], schema: sql.StructType, options: dict[str, str]) -> list[Any]:
    """What from_json makes of the values."""
    frame = spark.createDataFrame(pa.table({"value": pa.array(values, pa.binary())}))
    found = frame.select(F.from_json(F.col("value").cast("string"), schema, options).alias("value")).toArrow()
    return documents.plain(found.column("value").combine_chunks())


def same_numbers(value: Any) -> Any:
    """The value with every fraction inside of a text as Python writes it: docs/source-values.md, numbers in string fields."""
    if isinstance(value, bytes):
        return FRACTION.sub(lambda found: repr(float(found[0])).encode(), value)
    if isinstance(value, list | tuple):
        return [same_numbers(each) for each in value]
    return value


def with_corrupt(schema: sql.StructType) -> sql.StructType:
    return sql.StructType([*schema.fields, sql.StructField(CORRUPT, sql.StringType())])


@pytest.mark.timeout(7200 if LONG else 600)
def test_json_is_what_from_json_gives(spark: SparkSession) -> None:
    slow = malformed = texts = total = 0
    begun = time.monotonic()
    for number in range(SCHEMAS):
        rng = random.Random(number)
        time_zone = ZONES[number % len(ZONES)]
        schema = documents.schema(rng)
        values = documents.documents(rng, schema, DOCUMENTS)
        full = with_corrupt(schema)
        theirs = of_spark(spark, values, full, {"columnNameOfCorruptRecord": CORRUPT, "timeZone": time_zone})

        decoder = JsonColumn(full, mode="PERMISSIVE", corrupt=CORRUPT, time_zone=time_zone)
        found = decoder.decode(pa.array(values, pa.binary()))

        for value, mine, their in zip(values, documents.plain(found.values), theirs, strict=True):
            if mine != their:
                texts += 1
                assert same_numbers(mine) == same_numbers(their), f"schema {number}: {schema.simpleString()}: {value!r}"
        slow, malformed, total = slow + found.slow, malformed + found.malformed, total + len(values)
    print(
        f"{total} documents, {slow} slow, {malformed} malformed, {texts} with a number in a text that Java writes differently, "
        f"{time.monotonic() - begun:.0f} s"
    )
    assert 0 < malformed < slow < total


def test_without_a_corrupt_column_bad_documents_give_what_from_json_gives(spark: SparkSession) -> None:
    rng = random.Random(77)
    schema = documents.schema(rng)
    values = documents.documents(rng, schema, 300)

    found = JsonColumn(schema, mode="PERMISSIVE", corrupt=CORRUPT, time_zone="UTC").decode(pa.array(values, pa.binary()))

    assert same_numbers(documents.plain(found.values)) == same_numbers(of_spark(spark, values, schema, {"timeZone": "UTC"}))


def test_failfast_fails_for_the_documents_for_which_spark_fails(spark: SparkSession) -> None:
    schema = sql.StructType([sql.StructField("a", sql.IntegerType()), sql.StructField("b", sql.StringType())])
    values: list[bytes | None] = [
        b'{"a":1}',
        b"",
        None,
        b'{"a":"x"}',
        b"[]",
        b"null",
        b'{"a":1',
        b'{"a":1}}',
        b"{'a':1}",
        b'{"b":[1}',
    ]
    decoder = JsonColumn(schema, mode="FAILFAST", corrupt=CORRUPT, time_zone="UTC")

    def fails(read: Any) -> bool:
        try:
            read()
        except Exception as error:  # noqa: BLE001
            assert "malformed" in str(error).lower() or "cannot parse" in str(error).lower(), error
            return True
        return False

    ours = [fails(lambda value=value: decoder.decode(pa.array([value], pa.binary()))) for value in values]
    theirs = [fails(lambda value=value: of_spark(spark, [value], schema, {"mode": "FAILFAST"})) for value in values]

    assert ours == theirs
    assert 0 < sum(ours) < len(values)


def test_a_number_in_a_text_field_is_written_as_java_19_writes_it(spark: SparkSession) -> None:
    schema = sql.StructType([sql.StructField("a", sql.StringType())])
    decoder = JsonColumn(schema, mode="PERMISSIVE", corrupt=CORRUPT, time_zone="UTC")
    value = b'{"a":8.41E21}'
    version = spark.sparkContext._jvm.java.lang.Runtime.version().feature()  # type: ignore[union-attr]

    assert documents.plain(decoder.decode(pa.array([value], pa.binary())).values) == [(b"8.41E21",)]
    assert of_spark(spark, [value], schema, {}) == [(b"8.41E21" if version >= 19 else b"8.409999999999999E21",)]
