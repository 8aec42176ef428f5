"""Typed values on their way from a shard's bytes to Spark's batches, and the options that ask for them."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_schema

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.reading import typed_values
from shardherd.source.values.decoded_values import MalformedValueError
from shardherd.source.values.value_format import ValueFormat
from shardherd.spark import reader
from shardherd.spark.options import OptionError, read_options
from shardherd.spark.schema import columns
from shardherd.spark.source import ShardherdSource
from tests.unit.source.kafka_bytes import Record, batch_of

SHARD = ShardId("clicks/3")
FORM = ValueFormat("json", "a int, b string")


def read(form: ValueFormat, *values: bytes | None, columns: Sequence[str] = ("offset", "value"), start: int = 10) -> list[Any]:
    data = batch_of([Record(10 + at, value=value) for at, value in enumerate(values)])
    scanned = record_batches.scan(SHARD, data, start)
    return list(reader.decoding(form, columns)(SHARD, scanned, start, 1 << 40, columns))


def test_the_value_is_a_typed_column_in_its_place() -> None:
    batches = read(FORM, b'{"a":1,"b":"x"}', None, b'{"a":2}')

    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"offset": 10, "value": {"a": 1, "b": "x"}},
        {"offset": 11, "value": None},
        {"offset": 12, "value": {"a": 2, "b": None}},
    ]


def test_batches_have_the_schema_that_spark_demands() -> None:
    spark = sql.StructType([field for field in columns(headers=False, values=FORM).fields if field.name in ("value", "offset")])
    wanted = [field.name for field in spark.fields]

    assert read(FORM, b'{"a":1}', columns=wanted)[0].schema == to_arrow_schema(spark, timezone="UTC")


def test_a_dropped_record_is_missing_from_every_column() -> None:
    batches = read(ValueFormat("json", "a int", mode="DROPMALFORMED"), b'{"a":1}', b"{", b'{"a":3}')

    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"offset": 10, "value": {"a": 1}},
        {"offset": 12, "value": {"a": 3}},
    ]


def test_an_error_names_the_shard_and_the_offset() -> None:
    form = ValueFormat("json", "a int", mode="FAILFAST")

    with pytest.raises(
        MalformedValueError, match=r"^shard clicks/3, offset 12: a value is malformed and option mode is FAILFAST"
    ):
        read(form, b'{"a":"skipped, as the range starts after it"}', b'{"a":1}', b'{"a":[]}', start=11)


def test_values_that_nobody_wants_are_not_decoded() -> None:
    batches = read(ValueFormat("json", "a int", mode="FAILFAST"), b"{", columns=("offset",))

    assert batches[0].to_pylist() == [{"offset": 10}]


def test_raw_values_stay_as_they_are() -> None:
    assert reader.decoding(ValueFormat(), ("value",)) is record_batches.decode


def test_the_share_of_the_slow_path_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=typed_values.__name__):
        read(FORM, b"{'a':1}", b'{"a":1}', b'{"a":"x"}')

    assert caplog.messages == ["shard clicks/3: 2 of 3 values took the slow path, 1 of them are malformed"]


def test_the_time_zone_is_the_machines_where_no_session_says_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    assert reader.session_time_zone() == "Asia/Tokyo"


def test_the_options_give_the_column_its_type() -> None:
    options = {
        "kafka.bootstrap.servers": "broker:9092",
        "subscribe": "clicks",
        "valueFormat": "json",
        "valueSchema": "a int, b string",
    }
    source = ShardherdSource(options)

    assert source.schema()["value"].dataType.simpleString() == "struct<a:int,b:string>"
    assert read_options(options, batch=True).values == FORM
    assert pickle.loads(pickle.dumps(source.reader(source.schema())))._wanted.values == FORM


def test_avro_options_give_the_column_its_type() -> None:
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]})
    source = ShardherdSource({"valueFormat": "avro", "valueSchema": schema, "schemaRegistryUrl": "http://registry:8081"})

    assert source.schema()["value"].dataType == sql.StructType([sql.StructField("a", sql.IntegerType(), False)])


def test_an_option_of_from_json_that_is_not_here_is_refused() -> None:
    with pytest.raises(OptionError, match="unknown option 'allowComments'"):
        ShardherdSource({"valueFormat": "json", "valueSchema": "a int", "allowComments": "true"})


def test_a_wrong_value_option_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="option valueFormat is 'xml'; it may be raw, json, avro"):
        ShardherdSource({"valueFormat": "xml"}).schema()


def test_a_narrower_schema_must_take_the_typed_value_whole() -> None:
    source = ShardherdSource(
        {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "valueFormat": "json", "valueSchema": "a int, b string"}
    )

    with pytest.raises(ValueError, match=r"column 'value' cannot be binary: it is struct<a:int,b:string> here"):
        source.streamReader(sql.StructType([sql.StructField("value", sql.BinaryType())]))


def test_a_batch_of_no_rows_has_the_typed_schema() -> None:
    decoder = FORM.decoder("UTC")
    assert decoder is not None

    assert decoder.decode(pa.array([], pa.binary())).values.type == FORM.arrow_type()
