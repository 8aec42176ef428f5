"""JSON values: what becomes of one document, in every mode; and the compiled reader against the slow one, document by document.

That the slow one is Spark's is what tests/integration/spark/test_values.py compares.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_schema

from shardherd.source.values.arrow_columns import from_values
from shardherd.source.values.datetimes import timestamp_of, zone
from shardherd.source.values.decoded_values import Decoded, MalformedValueError
from shardherd.source.values.from_json import FromJson
from shardherd.source.values.json_column import JsonColumn
from shardherd.source.values.value_format import ValueFormat, from_options
from shardherd.source.values.value_schema import SchemaError
from tests.harness import documents


def decoded(schema: str, *values: bytes | None, mode: str = "PERMISSIVE", time_zone: str = "UTC") -> Decoded:
    decoder = from_options({"valueFormat": "json", "valueSchema": schema, "mode": mode}).decoder(time_zone)
    assert decoder is not None
    return decoder.decode(pa.array(values, pa.binary()))


def fast(schema: str, value: bytes, time_zone: str = "UTC") -> Any:
    """The first field of one document, which the compiled reader must have read."""
    found = decoded(schema, value, time_zone=time_zone)
    assert found.slow == 0
    return next(iter(rows_of(found)[0].values()))


def rows_of(found: Decoded) -> list[Any]:
    return list(found.values.to_pylist())


def test_every_type_is_read_without_the_slow_path() -> None:
    schema = (
        "s string, b boolean, y byte, h short, i int, l bigint, f float, d double, n decimal(10,2), w decimal(30,3), day date, "
        "at timestamp, list array<int>, o struct<x: int, y: array<struct<z: string>>>, m map<string, array<double>>"
    )
    value = (
        b' {"s":"a \\"b\\" \\u00e9 \\ud83d\\ude00","b":true,"y":-128,"h":32767,"i":-2147483648,"l":123456789012345678,"f":1.5,'
        b'"d":0.30000000000000004,"n":"1.005","w":-7.1234,"day":"2024-02-29","at":"2024-02-29T12:00:01.5+01:00","list":[1,null,3],'
        b'"o":{"x":1,"y":[{"z":"p"},{},null]},"m":{"k":[1e2],"":[]},"extra":{"deep":[{}]}} '
    )

    found = decoded(schema, value)

    assert found.slow == 0
    assert found.values.to_pylist() == [
        {
            "s": 'a "b" é 😀',
            "b": True,
            "y": -128,
            "h": 32767,
            "i": -2147483648,
            "l": 123456789012345678,
            "f": 1.5,
            "d": 0.30000000000000004,
            "n": Decimal("1.01"),
            "w": Decimal("-7.123"),
            "day": date(2024, 2, 29),
            "at": datetime(2024, 2, 29, 11, 0, 1, 500000, tzinfo=UTC),
            "list": [1, None, 3],
            "o": {"x": 1, "y": [{"z": "p"}, {"z": None}, None]},
            "m": [("k", [100.0]), ("", [])],
        }
    ]


def test_absent_empty_and_null_documents_are_told_apart() -> None:
    found = decoded("a int", None, b"", b" \n", b"null", b"{}", b'{"a":null}', b'{"a":7}')

    assert found.values.to_pylist() == [None, None, None, {"a": None}, {"a": None}, {"a": None}, {"a": 7}]
    assert (found.slow, found.malformed) == (1, 1)


def test_a_bad_field_is_null_and_the_document_goes_to_the_corrupt_column() -> None:
    found = decoded("a int, _corrupt_record string, b int", b'{"a":"x","b":2}', b'{"a":1,"b":2}', b"\xff{")

    assert documents.plain(found.values) == [(None, b'{"a":"x","b":2}', 2), (1, None, 2), (None, b"\xff{", None)]
    assert found.malformed == 2


def test_without_a_corrupt_column_the_rest_of_a_bad_document_stays() -> None:
    assert decoded("a int, b int", b'{"a":[1],"b":2}').values.to_pylist() == [{"a": None, "b": 2}]


def test_malformed_documents_are_dropped() -> None:
    found = decoded("a int", b'{"a":1}', b'{"a":"x"}', None, b"{", b"", mode="dropMalformed")

    assert found.keep is not None
    assert found.keep.tolist() == [True, False, True, False, True]


def test_nothing_is_dropped_where_nothing_is_malformed() -> None:
    assert decoded("a int", b'{"a":1}', b"", mode="DROPMALFORMED").keep is None


def test_a_malformed_document_fails_and_is_named() -> None:
    with pytest.raises(
        MalformedValueError, match=r"option mode is FAILFAST: .*'a': STRING 'x'.* it is b'\{\"a\":\"x\"\}'"
    ) as raised:
        decoded("a int", b'{"a":1}', b'{"a":"x"}', mode="FAILFAST")

    assert raised.value.row == 1


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b'{"a":"2021-03-04T05:06:07"}', "2021-03-04T04:06:07"),
        (b'{"a":"2021-07-04 05:06:07.25"}', "2021-07-04T03:06:07.25"),
        (b'{"a":"2021-03-28T02:30:00"}', "2021-03-28T01:30:00"),  # skipped by the clock
        (b'{"a":"2021-10-31T02:30:00"}', "2021-10-31T00:30:00"),  # shown twice: the first
        (b'{"a":"2021-03-04T05:06:07Z"}', "2021-03-04T05:06:07"),
        (b'{"a":1614834367}', "2021-03-04T05:06:07"),
    ],
)
def test_a_timestamp_without_a_zone_is_of_the_session(value: bytes, wanted: str) -> None:
    assert fast("a timestamp", value, "Europe/Paris") == datetime.fromisoformat(wanted).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time_zone", "wanted"),
    [
        (b"10000-01-01", "Pacific/Apia", 253_402_254_000),  # its clocks were on the other side of the date line until 2011
        (b"10000-03-29", "America/New_York", 253_409_918_400),  # summer time began in April until 2006
        (b"+290000-10-14", "Pacific/Apia", 9_089_373_610_800),
    ],
)
def test_years_beyond_9999_have_the_last_rules_of_a_zone(text: bytes, time_zone: str, wanted: int) -> None:
    assert timestamp_of(text, zone(time_zone)) == wanted * 1_000_000  # as Spark's from_json has it


def test_a_time_zone_given_as_an_option_wins_over_the_session() -> None:
    form = from_options({"valueformat": "json", "VALUESCHEMA": "a timestamp", "timeZone": "+02:00"})
    decoder = form.decoder("Asia/Tokyo")
    assert decoder is not None

    values = decoder.decode(pa.array([b'{"a":"2021-03-04 05:06:07"}'], pa.binary())).values

    assert values.to_pylist() == [{"a": datetime(2021, 3, 4, 3, 6, 7, tzinfo=UTC)}]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"1e23", 1e23),
        (b"8.41E21", 8.41e21),
        (b"0.1", 0.1),
        (b"-0.0", -0.0),
        (b"-0", 0.0),
        (b"9007199254740993", 9007199254740992.0),
        (b"123456789012345678901234567890", 1.2345678901234568e29),
        (b"1e400", math.inf),
        (b"4.9e-324", 5e-324),
        (b"2.2250738585072011e-308", 2.2250738585072011e-308),
    ],
)
def test_a_double_is_the_nearest_one(text: bytes, wanted: float) -> None:
    found = fast("a double", b'{"a":' + text + b"}")

    assert (found, math.copysign(1, found)) == (wanted, math.copysign(1, wanted))


def test_a_float_is_rounded_once() -> None:
    # Through 64 bits these would land exactly between two floats, and then on the wrong one.
    assert fast("a float", b'{"a":1.00000017881393432617187499}') == 1.0000001192092896
    assert fast("a float", b'{"a":16777217}') == 16777216.0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"1.00000017881393432617187499", 1.0000001192092896),
        # So near to the middle of two floats that 28 digits of it do not tell on which side.
        (b"3.082605431869808058493300440E-27", 3.0826055281663053e-27),
        (b"340282356779733661637539395458142568447", 3.4028234663852886e38),
        (b"340282356779733661637539395458142568448", math.inf),
    ],
)
def test_the_slow_reader_rounds_a_float_once_too(text: bytes, wanted: float) -> None:
    found = decoded("a float", b"{'a':" + text + b"}", b'{"a":' + text + b"}")

    assert (found.slow, rows_of(found)) == (1, [{"a": wanted}, {"a": wanted}])


@pytest.mark.timeout(30)
def test_an_exponent_of_millions_takes_no_time() -> None:
    """Spark's own decimals have their digits computed, for minutes."""
    found = decoded(
        "a decimal(38,18), b string, _corrupt_record string", b'{"a": 1e30800000, "b": "x"}', b'{"a": -7e-999999999}'
    )

    assert rows_of(found) == [
        {"a": None, "b": "x", "_corrupt_record": '{"a": 1e30800000, "b": "x"}'},
        {"a": Decimal("0E-18"), "b": None, "_corrupt_record": None},
    ]


def test_what_is_no_strict_json_goes_the_slow_way_and_is_still_read() -> None:
    found = decoded("a string, b double", b"{'a':'x','b':NaN}", b'{"a":1,"a":2}', b'{"a":{"b": [1.50, "\\n"]}}', b'{"a":-0}')

    rows = rows_of(found)
    assert math.isnan(rows[0].pop("b"))
    assert rows == [{"a": "x"}, {"a": "2", "b": None}, {"a": '{"b":[1.5,"\\n"]}', "b": None}, {"a": "0", "b": None}]
    assert (found.slow, found.malformed) == (4, 0)


def test_bytes_after_the_object_are_not_looked_at() -> None:
    assert fast("a int", b'{"a":1} trailing \xff{') == 1


def test_a_slice_of_a_column_is_decoded_as_such() -> None:
    values = pa.array([b'{"a":1}', None, b'{"a":2}', b'{"a":[]}', b'{"a":3}'], pa.binary()).slice(1, 3)
    decoder = ValueFormat("json", "a int, _corrupt_record string").decoder("UTC")
    assert decoder is not None

    assert documents.plain(decoder.decode(values).values) == [None, (2, None), (None, b'{"a":[]}')]


def test_an_empty_column_gives_an_empty_one() -> None:
    assert decoded("a int, b array<string>").values.to_pylist() == []


def test_arrays_that_outgrow_their_room_are_complete() -> None:
    values = [b'{"a":[%s]}' % b",".join(b"%d" % n for n in range(count)) for count in (0, 1, 5000, 3, 20000, 2)]

    found = decoded("a array<int>", *values)

    assert found.slow == 0
    assert [len(row["a"]) for row in rows_of(found)] == [0, 1, 5000, 3, 20000, 2]
    assert rows_of(found)[4]["a"] == list(range(20000))


def test_many_slow_documents_keep_their_places() -> None:
    values = [b'{"a":%d}' % n if n % 3 else b"{'a':%d}" % n for n in range(1000)]

    found = decoded("a int", *values)

    assert found.slow == 334
    assert [row["a"] for row in rows_of(found)] == list(range(1000))


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_reader_and_the_slow_one_agree(seed: int) -> None:
    rng = random.Random(seed)
    for time_zone in ("UTC", "America/New_York"):
        schema = documents.schema(rng)
        values = documents.documents(rng, schema, 250)
        full = sql.StructType([*schema.fields, sql.StructField("_corrupt_record", sql.StringType())])
        decoder = JsonColumn(full, mode="PERMISSIVE", corrupt="_corrupt_record", time_zone=time_zone)
        reader = FromJson(schema, zone(time_zone))
        rows = [None if value is None else reader.row(value) for value in values]
        wanted = from_values(
            full,
            [
                None if row is None or row.values is None else [*row.values, None if row.trouble is None else value]
                for row, value in zip(rows, values, strict=True)
            ],
        )

        found = decoder.decode(pa.array(values, pa.binary())).values

        found.validate(full=False)
        assert documents.plain(found) == documents.plain(wanted), schema.simpleString()


def test_random_bytes_neither_crash_nor_hang() -> None:
    rng = random.Random(5)
    values = [rng.randbytes(rng.randint(0, 60)) for _ in range(2000)]
    values += [b'{"a":' + rng.randbytes(rng.randint(0, 20)) for _ in range(2000)]

    found = decoded("a array<map<string,double>>, b struct<c: timestamp>", *values)

    assert len(found.values) == 4000


def test_the_arrow_type_is_what_spark_demands() -> None:
    form = ValueFormat(
        "json", "id bigint, `a b` array<struct<x: decimal(10,2), y map<string,timestamp>>>, d date, f float, b boolean"
    )
    spark = sql.StructType([sql.StructField("value", form.spark_type())])

    assert pa.schema([pa.field("value", form.arrow_type())]) == to_arrow_schema(spark, timezone="UTC")


def test_ddl_and_json_give_the_same_schema() -> None:
    ddl = ValueFormat(
        "json", "struct<id: bigint not null comment 'it\\'s', `x``y` string, n DECIMAL(5), m map<string, array<int>>>"
    )
    schema = ddl.spark_type()

    assert schema.simpleString() == "struct<id:bigint,x`y:string,n:decimal(5,0),m:map<string,array<int>>>"
    assert ValueFormat("json", schema.json()).spark_type() == schema


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "xml"}, "option valueFormat is 'xml'; it may be raw, json, avro"),
        ({"valueFormat": "json"}, "option valueFormat is json, which needs option valueSchema: Spark DDL"),
        ({"valueSchema": "a int"}, "option valueSchema needs option valueFormat to be json or avro; it is raw"),
        ({"valueFormat": "json", "valueSchema": "a int", "mode": "x"}, "option mode is 'x'; it may be PERMISSIVE"),
        ({"valueFormat": "json", "valueSchema": "a itn"}, "option valueSchema: type 'itn' is unknown"),
        ({"valueFormat": "json", "valueSchema": "a int b"}, "option valueSchema: 'b' stands where ',' should be"),
        ({"valueFormat": "json", "valueSchema": "a array<int"}, "option valueSchema: it ends where '>' should be"),
        ({"valueFormat": "json", "valueSchema": "{"}, "is neither Spark DDL nor a Spark schema in JSON"),
        (
            {"valueFormat": "json", "valueSchema": "a binary"},
            "option valueSchema: value.a is binary; JSON is read into boolean",
        ),
        ({"valueFormat": "json", "valueSchema": "a map<int,int>"}, "value.a is map<int,int>; the keys of JSON are strings"),
        ({"valueFormat": "json", "valueSchema": "a int, a int"}, "value has the field 'a' twice"),
        (
            {"valueFormat": "json", "valueSchema": "a int, _corrupt_record int"},
            "takes malformed records and must be string, not int",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a int", "timeZone": "Mars/One"},
            "option timeZone: time zone 'Mars/One' is unknown",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a int", "schemaRegistryUrl": "http://r"},
            "option schemaRegistryUrl is for valueFormat avro only; valueFormat is json",
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(options: dict[str, str], message: str) -> None:
    with pytest.raises((SchemaError, ValueError)) as raised:
        from_options(options)

    assert message in str(raised.value)
