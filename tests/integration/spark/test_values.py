"""Typed values against Spark's own functions, value by value, in one local session without a broker.

`SHARDHERD_LONG=1` compares 1,000,000 JSON documents and 100,000 Avro values in place of some thousands. Spark's Avro functions
are of version 4.0.1, the newest that the registries have; the session is of Spark 4.3.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as sql
from pyspark.sql.avro.functions import from_avro

from shardherd.source.values.avro_column import AvroColumn
from shardherd.source.values.decoded_values import MalformedValueError
from shardherd.source.values.json_column import JsonColumn
from shardherd.source.values.value_format import ValueFormat
from tests.harness import avro, documents
from tests.harness.long import LONG
from tests.harness.registry import SchemaRegistry, framed
from tests.harness.spark import make_session

SCHEMAS, DOCUMENTS = (500, 2000) if LONG else (9, 400)
AVRO_SCHEMAS, AVRO_VALUES = (200, 500) if LONG else (6, 200)
ZONES = ("UTC", "Europe/Paris", "America/New_York")
CORRUPT = "_corrupt_record"
REFUSED = (PySparkException, Py4JJavaError)
"""As what Spark's refusal arrives: a table that is fetched as Arrow brings it unconverted."""
FRACTION = re.compile(rb"-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = {"spark.master": "local[1]"}
    if LONG:
        conf["spark.driver.memory"] = "2g"  # Spark keeps what it has compiled for hundreds of schemas
    session = make_session(tmp_path_factory.mktemp("spark"), conf)
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
        if number % 25 == 24 or number == SCHEMAS - 1:
            print(
                f"{total} documents, {slow} slow, {malformed} malformed, {texts} with a number in a text that Java writes in "
                f"another way, {time.monotonic() - begun:.0f} s",
                flush=True,
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

    def fails(read: Callable[[], object], error: type[Exception] | tuple[type[Exception], ...]) -> bool:
        try:
            read()
        except error:
            return True
        return False

    ours = [fails(partial(decoder.decode, pa.array([value], pa.binary())), MalformedValueError) for value in values]
    theirs = [fails(partial(of_spark, spark, [value], schema, {"mode": "FAILFAST"}), REFUSED) for value in values]

    assert ours == theirs
    assert 0 < sum(ours) < len(values)


def test_a_number_in_a_text_field_is_written_as_java_19_writes_it(spark: SparkSession) -> None:
    schema = sql.StructType([sql.StructField("a", sql.StringType())])
    decoder = JsonColumn(schema, mode="PERMISSIVE", corrupt=CORRUPT, time_zone="UTC")
    value = b'{"a":8.41E21}'
    version = spark.sparkContext._jvm.java.lang.Runtime.version().feature()  # type: ignore[union-attr]

    assert documents.plain(decoder.decode(pa.array([value], pa.binary())).values) == [(b"8.41E21",)]
    assert of_spark(spark, [value], schema, {}) == [(b"8.41E21" if version >= 19 else b"8.409999999999999E21",)]


# --- Avro --------------------------------------------------------------------------------------------------------------------


def avro_of_spark(spark: SparkSession, values: list[bytes | None], writer: Any, reader: Any, mode: str = "PERMISSIVE") -> Any:
    """What from_avro makes of values that `writer` wrote, read into `reader`."""
    frame = spark.createDataFrame(pa.table({"value": pa.array(values, pa.binary())}))
    options = {"mode": mode, "avroSchema": json.dumps(reader)}
    return frame.select(from_avro("value", json.dumps(writer), options).alias("value"))


def unordered(value: Any, kind: sql.DataType) -> Any:
    """The value with every map's entries in the order of their keys: Java's have none of their own."""
    if value is None:
        return None
    if isinstance(kind, sql.StructType):
        return tuple(unordered(each, field.dataType) for each, field in zip(value, kind.fields, strict=True))
    if isinstance(kind, sql.ArrayType):
        return [unordered(each, kind.elementType) for each in value]
    if isinstance(kind, sql.MapType):
        return sorted((key, unordered(each, kind.valueType)) for key, each in value)
    return value


@pytest.mark.timeout(3600 if LONG else 600)
def test_avro_is_what_from_avro_gives(spark: SparkSession) -> None:
    slow = malformed = total = 0
    for number in range(AVRO_SCHEMAS):
        rng = random.Random(number)
        schema = avro.Schemas(rng).record()
        values = avro.values(rng, schema, AVRO_VALUES)
        form = ValueFormat("avro", json.dumps(schema))
        kind = form.spark_type()
        theirs = avro_of_spark(spark, values, schema, schema)
        assert theirs.schema["value"].dataType == kind

        decoder = form.decoder("UTC")
        assert decoder is not None
        found = decoder.decode(pa.array(values, pa.binary()))

        wanted = documents.plain(theirs.toArrow().column("value").combine_chunks())
        for value, mine, their in zip(values, documents.plain(found.values), wanted, strict=True):
            assert unordered(mine, kind) == unordered(their, kind), f"schema {number}: {json.dumps(schema)}: {value!r}"
        slow, malformed, total = slow + found.slow, malformed + found.malformed, total + len(values)
    print(f"{total} values, {slow} slow, {malformed} malformed")
    assert 0 < malformed < slow < total


def test_a_strict_avro_schema_is_what_from_avro_gives(spark: SparkSession) -> None:
    for number in range(20):
        schema = avro.Schemas(random.Random(number)).record()
        theirs = avro_of_spark(spark, [], schema, schema, "FAILFAST").schema["value"].dataType

        assert ValueFormat("avro", json.dumps(schema), mode="FAILFAST").spark_type() == theirs


def _record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "row", "fields": list(fields)}


def _field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def _enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "colour", "symbols": list(symbols), **more}


CREATED, CANCELLED, RENEWED = (
    {"type": "record", "name": name, "fields": [_field(*field)]}
    for name, field in (("created", ("id", "int")), ("cancelled", ("why", "string")), ("renewed", ("id", "int")))
)

EVOLUTIONS = {
    "a union of records": (
        _record(_field("a", ["null", CREATED, CANCELLED, RENEWED])),
        _record(_field("a", ["null", CREATED, CANCELLED, RENEWED])),
    ),
    "a union of records in another order, one renamed": (
        _record(_field("a", [CREATED, RENEWED, CANCELLED])),
        _record(_field("a", ["null", CANCELLED | {"name": "stopped"}, RENEWED, CREATED])),
    ),
    "a union of records of another name space": (
        _record(_field("a", ["null", CREATED, RENEWED])) | {"namespace": "shop"},
        _record(_field("a", ["null", RENEWED, CREATED])),
    ),
    "an enum of another name space": (
        _record(_field("a", ["null", _enum("RED", "BLUE")]), _field("b", _enum("RED") | {"name": "shade"}))
        | {"namespace": "shop"},
        _record(_field("a", ["null", _enum("RED", "BLUE", "PINK")]), _field("b", _enum("RED", "PINK") | {"name": "shade"})),
    ),
    "types of another name": (
        _record(_field("a", _enum("RED", "BLUE")), _field("b", {"type": "fixed", "name": "old", "size": 2})),
        _record(
            _field("a", _enum("RED", "BLUE") | {"name": "tone", "aliases": ["colour"]}),
            _field("b", {"type": "fixed", "name": "new", "size": 2, "aliases": ["old"]}),
        ),
    ),
    "another name in a record of another one": (
        _record(_field("old", "int")) | {"name": "line"},
        _record(_field("new", "int", aliases=["old"], default=5)),
    ),
    "fields in another order, one left out": (
        _record(_field("a", "int"), _field("b", "string"), _field("c", "long")),
        _record(_field("c", "long"), _field("a", "int")),
    ),
    "wider numbers": (
        _record(_field("a", "int"), _field("b", "int"), _field("c", "long"), _field("d", "float"), _field("e", "int")),
        _record(_field("a", "long"), _field("b", "double"), _field("c", "float"), _field("d", "double"), _field("e", "float")),
    ),
    "text and bytes": (
        _record(_field("a", "string"), _field("b", "bytes")),
        _record(_field("a", "bytes"), _field("b", "string")),
    ),
    "a new field with a default": (
        _record(_field("a", "int")),
        _record(
            _field("a", "int"),
            _field("s", "string", default="new"),
            _field("d", "double", default=1.5),
            _field("n", ["null", "int"], default=None),
            _field("m", ["int", "null"], default=7),
            _field("l", {"type": "array", "items": "int"}, default=[1, 2]),
            _field("r", _record(_field("x", "int", default=4)) | {"name": "inner"}, default={}),
            _field("e", _enum("RED", "BLUE"), default="BLUE"),
        ),
    ),
    "a new field without one": (_record(_field("a", "int")), _record(_field("a", "int"), _field("b", "int"))),
    "into a union": (
        _record(_field("a", "int"), _field("b", "string"), _field("c", "int")),
        _record(_field("a", ["null", "long"]), _field("b", ["null", "string"]), _field("c", ["null", "string", "int"])),
    ),
    "out of a union": (
        _record(_field("a", ["null", "int"]), _field("b", ["int", "long"])),
        _record(_field("a", "int"), _field("b", "long")),
    ),
    "between unions": (
        _record(_field("a", ["null", "int", "string"]), _field("b", ["int", "null"])),
        _record(_field("a", ["string", "null", "long"]), _field("b", ["null", "double", "float"])),
    ),
    "an enum that lost a symbol": (
        _record(_field("a", _enum("RED", "GREEN", "BLUE"))),
        _record(_field("a", _enum("BLUE", "RED"))),
    ),
    "an enum with a default": (
        _record(_field("a", _enum("RED", "GREEN", "BLUE"))),
        _record(_field("a", _enum("BLUE", "RED", default="RED"))),
    ),
    "a type that does not fit": (
        _record(_field("a", "string"), _field("b", "int")),
        _record(_field("a", "int"), _field("b", "int")),
    ),
    "another name": (
        _record(_field("old", "int"), _field("b", {"type": "map", "values": "int"})),
        _record(_field("new", "int", aliases=["old"]), _field("b", {"type": "map", "values": "double"})),
    ),
}


@pytest.mark.parametrize("name", EVOLUTIONS)
def test_a_schema_that_changed_is_read_as_spark_reads_it(spark: SparkSession, name: str) -> None:
    writer, reader = EVOLUTIONS[name]
    rng = random.Random(name)
    values = [avro.encoded(rng, writer) for _ in range(60)]
    kind = ValueFormat("avro", json.dumps(reader)).spark_type()
    with SchemaRegistry() as schemas:
        written = schemas.register(writer)
        decoder = AvroColumn(json.dumps(reader), mode="PERMISSIVE", registry_url=schemas.url)
        found = decoder.decode(pa.array([framed(written, value) for value in values], pa.binary()))

    theirs = avro_of_spark(spark, [*values], writer, reader).toArrow().column("value").combine_chunks()

    assert [unordered(each, kind) for each in documents.plain(found.values)] == [
        unordered(each, kind) for each in documents.plain(theirs)
    ]
