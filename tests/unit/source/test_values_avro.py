"""Avro values: what becomes of one value, schemas that changed, and a schema registry over real HTTP.

That answers are Spark's is what tests/integration/spark/test_values.py compares.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as sql

from shardherd.source.values import from_avro
from shardherd.source.values import schema_registry as registry
from shardherd.source.values.decoded_values import Decoded, MalformedValueError
from shardherd.source.values.value_format import ValueFormat, from_options
from shardherd.source.values.value_schema import SchemaError
from tests.harness import avro, documents
from tests.harness.avro import integer, sized
from tests.harness.registry import CUT_OFF, SchemaRegistry, framed


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "row", "fields": [{"name": name, "type": kind} for name, kind in fields], **more}


def decoded(schema: Any, *values: bytes | None, mode: str = "PERMISSIVE", url: str | None = None) -> Decoded:
    options = {"valueFormat": "avro", "valueSchema": json.dumps(schema), "mode": mode}
    decoder = from_options(options | ({} if url is None else {"schemaRegistryUrl": url})).decoder("UTC")
    assert decoder is not None
    return decoder.decode(pa.array(values, pa.binary()))


@pytest.fixture
def schemas(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(registry, "_known", {})
    monkeypatch.setattr(registry, "RETRY_DELAY", 0.01)
    with SchemaRegistry() as started:
        yield started


def test_every_type_is_read_without_the_slow_path() -> None:
    schema = record(
        ("b", "boolean"),
        ("i", "int"),
        ("l", "long"),
        ("f", "float"),
        ("d", "double"),
        ("s", "string"),
        ("y", "bytes"),
        ("x", {"type": "fixed", "name": "three", "size": 3}),
        ("e", {"type": "enum", "name": "colour", "symbols": ["RED", "BLUE"]}),
        ("n", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("list", {"type": "array", "items": ["null", "int"]}),
        ("m", {"type": "map", "values": record(("z", "string")) | {"name": "inner"}}),
        ("w", ["int", "long"]),
        ("u", ["null", "string", "int"]),
        ("o", ["null", "string"]),
    )
    raw = (
        b"\1" + integer(-7) + integer(2**40) + struct.pack("<fd", 1.5, -0.25) + sized("é".encode()) + sized(b"\xff") + b"abc"
        + integer(1) + sized(b"\xff\x85") + integer(19000) + integer(1_700_000_000_123) + integer(1)
        + integer(-2) + integer(5) + integer(1) + integer(4) + integer(0) + integer(0)
        + integer(1) + sized(b"k") + sized(b"v") + integer(0) + integer(1) + integer(3) + integer(2) + integer(9) + integer(0)
    )  # fmt: skip

    found = decoded(schema, raw)

    assert (found.slow, found.malformed) == (0, 0)
    assert found.values.to_pylist() == [
        {
            "b": True, "i": -7, "l": 2**40, "f": 1.5, "d": -0.25, "s": "é", "y": b"\xff", "x": b"abc", "e": "BLUE",
            "n": Decimal("-1.23"), "day": date(2022, 1, 8), "at": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
            "local": datetime(1970, 1, 1, 0, 0, 0, 1), "list": [4, None], "m": [("k", {"z": "v"})], "w": 3,
            "u": {"member0": None, "member1": 9}, "o": None,
        }
    ]  # fmt: skip


def test_a_malformed_value_is_a_row_of_nulls_or_dropped_or_fails() -> None:
    schema = record(("a", "int"), ("b", "string"))
    good = integer(1) + sized(b"x")

    assert decoded(schema, good, good[:-1], None).values.to_pylist() == [{"a": 1, "b": "x"}, {"a": None, "b": None}, None]
    keep = decoded(schema, good, b"", mode="DROPMALFORMED").keep
    assert keep is not None
    assert keep.tolist() == [True, False]
    with pytest.raises(MalformedValueError, match=r"option mode is FAILFAST: it ends too early; it is b'\\x02\\x02'") as raised:
        decoded(schema, good, good[:-1], mode="FAILFAST")
    assert raised.value.row == 1


def test_failfast_is_the_default_and_keeps_what_cannot_be_null() -> None:
    schema = json.dumps(record(("a", "int"), ("b", ["null", "int"])))

    form = from_options({"valueFormat": "avro", "valueSchema": schema})

    assert form.mode == "FAILFAST"
    assert form.spark_type() == sql.StructType(
        [sql.StructField("a", sql.IntegerType(), False), sql.StructField("b", sql.IntegerType(), True)]
    )


def test_a_value_that_is_no_record_is_a_plain_column() -> None:
    assert decoded("long", integer(5), None, b"").values.to_pylist() == [5, None, None]


def test_the_last_of_a_key_that_comes_twice_stays() -> None:
    raw = integer(2) + sized(b"k") + integer(1) + sized(b"k") + integer(2) + integer(0)

    found = decoded(record(("m", {"type": "map", "values": "int"})), raw)

    assert found.values.to_pylist() == [{"m": [("k", 2)]}]
    assert (found.slow, found.malformed) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "unfit", "fit", "value"),
    [
        pytest.param(
            {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 0},
            sized((10**30).to_bytes(13, "big")),
            sized(b"\x07"),
            Decimal(7),
            id="a decimal with too many digits",
        ),
        pytest.param(
            {"type": "long", "logicalType": "timestamp-millis"},
            integer(2**62),
            integer(5),
            datetime(1970, 1, 1, 0, 0, 0, 5000, UTC),
            id="a time beyond Spark's",
        ),
    ],
)
def test_what_does_not_fit_is_no_fault_where_a_later_entry_of_the_map_replaces_it(
    kind: Any, unfit: bytes, fit: bytes, value: object
) -> None:
    def of(*entries: bytes) -> bytes:
        return integer(len(entries)) + b"".join(sized(b"k") + each for each in entries) + integer(0)

    found = decoded(record(("m", {"type": "map", "values": kind})), of(unfit, fit), of(fit, unfit))

    assert found.values.to_pylist() == [{"m": [("k", value)]}, {"m": None}]
    assert (found.slow, found.malformed) == (2, 1)


def test_the_entries_of_a_map_are_in_the_order_of_the_value() -> None:
    raw = integer(3) + b"".join(sized(key) + integer(at) for at, key in enumerate((b"z", b"a", b"m"))) + integer(0)

    found = decoded(record(("m", {"type": "map", "values": "int"})), raw)

    assert found.values.to_pylist() == [{"m": [("z", 0), ("a", 1), ("m", 2)]}]


def test_a_count_that_claims_more_than_there_is_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    whole = from_avro._Reader.read

    def counted(reader: from_avro._Reader, step: int, into: dict[int, Any]) -> None:
        steps.append(step)
        whole(reader, step, into)

    monkeypatch.setattr(from_avro._Reader, "read", counted)
    schema = record(("a", {"type": "array", "items": "null"}), ("b", {"type": "array", "items": "int"}))
    found = decoded(
        record(("a", {"type": "array", "items": record(name="empty")}), ("b", {"type": "array", "items": "int"})),
        integer(2**60),
        integer(0) + integer(2**60),
    )

    assert (found.malformed, len(steps) < 20) == (2, True)
    with pytest.raises(SchemaError, match=r"value\.a\[\] is null"):
        decoded(schema)


def test_elements_that_take_no_byte_are_as_many_as_are_claimed() -> None:
    schema = record(("a", {"type": "array", "items": record(name="empty")}), ("b", {"type": "array", "items": "int"}))
    blocks = integer(3) + integer(-2) + integer(0) + integer(0)
    ones = integer(1) + integer(7) + integer(0)

    assert decoded(schema, blocks + ones).values.to_pylist() == [{"a": 5 * [{}], "b": [7]}]


def test_random_bytes_neither_crash_nor_hang() -> None:
    rng = random.Random(3)
    for seed in range(5):
        schema = avro.Schemas(random.Random(seed)).record()
        values = [rng.randbytes(rng.randint(0, 40)) for _ in range(500)]
        assert len(decoded(schema, *values).values) == 500


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"type": "record"', 'option valueSchema: \'{"type": "record"\' is no JSON'),
        ('{"type": "record", "name": "r"}', "is no Avro schema: KeyError('fields')"),
        ('{"type": "row", "name": "r"}', "option valueSchema: type 'row' is unknown"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]}',
            "record 'r' contains itself, which a table cannot",
        ),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "t", "type": {"type": "long", "logicalType": "time-micros"}}'
            "]}",
            "value.t is time-micros in the Avro schema, which this source does not read",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema: str, message: str) -> None:
    with pytest.raises(SchemaError) as raised:
        from_options({"valueFormat": "avro", "valueSchema": schema})

    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "x"),
        ("string", None),
        ("boolean", 1),
        (["null", "int"], 2**31),
        ({"type": "map", "values": "double"}, {"a": True}),
        ({"type": "array", "items": "long"}, [1, 2.5]),
        ({"type": "record", "name": "R", "fields": [{"name": "q", "type": "int"}]}, {}),
    ],
)
def test_a_default_that_is_not_of_its_type_is_refused(kind: Any, default: Any) -> None:
    fields = [{"name": "d", "type": kind, "default": default}]
    schema = json.dumps({"type": "record", "name": "row", "fields": fields})
    with pytest.raises(SchemaError) as raised:
        from_options({"valueFormat": "avro", "valueSchema": schema})

    assert str(raised.value) == f"option valueSchema: the default of field 'd', {json.dumps(default)}, is not of its type"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record(("key", {"type": "fixed", "name": "key", "size": -1})), "fixed 'key' has a size of -1"),
        (record(("key", {"type": "fixed", "name": "key", "size": "x"})), "is no Avro schema: ValueError"),
        ('{"type": "array", "items": ' * 5000 + '"int"' + "}" * 5000, "is nested too deep: take a schema of fewer levels"),
        (None, "None is no Avro schema: the JSON object must be str"),
    ],
    ids=["a fixed of less than nothing", "a fixed of no number", "nested too deep", "no text"],
)
def test_a_schema_of_a_registry_that_cannot_be_used_names_the_registry(
    schema: Any, message: str, schemas: SchemaRegistry
) -> None:
    written = schemas.register(schema)
    if schema is None:
        schemas.schemas[written]["schema"] = None

    with pytest.raises(registry.RegistryError) as raised:
        decoded(record(("id", "int")), framed(written, integer(1)), url=schemas.url)

    assert str(raised.value).startswith(f"schema {written} of the schema registry at {schemas.url}")
    assert message in str(raised.value)
    assert schemas.asked == [written]


# --- schemas that changed, through a registry -------------------------------------------------------------------------------


def test_values_of_several_schemas_are_read_into_one(schemas: SchemaRegistry) -> None:
    first = schemas.register(record(("id", "int"), ("gone", {"type": "array", "items": "string"})))
    second = schemas.register(record(("name", "string"), ("id", "long"), ("score", "float")))
    reader = {
        "type": "record",
        "name": "row",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "points", "aliases": ["score"], "type": "double", "default": 0.5},
            {"name": "flag", "type": "boolean", "default": True},
        ],
    }
    values = [
        framed(first, integer(7) + integer(1) + sized(b"x") + integer(0)),
        framed(second, sized(b"n") + integer(8) + struct.pack("<f", 1.5)),
        framed(first, integer(9) + integer(0)),
    ]

    found = decoded(reader, *values, url=schemas.url)

    assert found.values.to_pylist() == [
        {"id": 7, "name": None, "points": 0.5, "flag": True},
        {"id": 8, "name": "n", "points": 1.5, "flag": True},
        {"id": 9, "name": None, "points": 0.5, "flag": True},
    ]
    assert found.slow == 2, "the default of a double is left to the slow path"
    assert schemas.asked == [first, second], "each schema is asked for once"


def test_a_default_that_is_a_number_or_empty_is_read_the_fast_way(schemas: SchemaRegistry) -> None:
    written = schemas.register(record(("id", "int")))
    fields = [
        {"name": "id", "type": "int"},
        {"name": "n", "type": "long", "default": -3},
        {"name": "s", "type": "string", "default": ""},
    ]

    found = decoded({"type": "record", "name": "row", "fields": fields}, framed(written, integer(1)), url=schemas.url)

    assert found.values.to_pylist() == [{"id": 1, "n": -3, "s": ""}]
    assert found.slow == 0


E = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("kind", "default", "wanted"),
    [
        (["null", "string"], "x", "x"),
        (["string", "null"], None, None),
        (["int", "double"], 0.5, {"member0": 0, "member1": None}),
        (["int", "string"], "y", {"member0": None, "member1": "y"}),
        (["boolean", "long", "null"], 7, {"member0": None, "member1": 7}),
        (["null", E], "B", "B"),
        (["null", {"type": "array", "items": "int"}], [1], [1]),
        ({"type": "array", "items": ["null", "int"]}, [None, 1], [None, 1]),
        ({"type": "map", "values": ["null", "string"]}, {"k": "v"}, [("k", "v")]),
        (["null", {"type": "record", "name": "R", "fields": [{"name": "q", "type": "int", "default": 3}]}], {}, {"q": 3}),
        (["int", "long"], 5_000_000_000, 705_032_704),
        (["float", "double"], 0.1, 0.10000000149011612),
        ({"type": "fixed", "name": "F", "size": 2}, "a", b"a\0"),
        ([{"type": "map", "values": "int"}, "null"], None, []),
        ([{"type": "record", "name": "R", "fields": [{"name": "q", "type": "int", "default": 3}]}, "null"], None, {"q": 3}),
    ],
)
def test_a_default_is_of_the_branch_and_has_the_value_that_java_gives_it(
    schemas: SchemaRegistry, kind: Any, default: Any, wanted: Any
) -> None:
    """As Avro 1.12.1 for Java was seen to read them."""
    written = schemas.register(record(("id", "int")))
    fields = [{"name": "id", "type": "int"}, {"name": "d", "type": kind, "default": default}]

    found = decoded({"type": "record", "name": "row", "fields": fields}, framed(written, integer(1)), url=schemas.url)

    assert found.values.to_pylist() == [{"id": 1, "d": wanted}]


LIST = {"type": "array", "items": "int"}


@pytest.mark.parametrize(("kind", "default"), [(E, "Z"), ([E, "null"], None), ([LIST, "null"], None)])
def test_a_default_of_which_java_makes_no_value_makes_values_malformed_that_need_it(
    schemas: SchemaRegistry, kind: Any, default: Any
) -> None:
    written = schemas.register(record(("id", "int")))
    fields = [{"name": "id", "type": "int"}, {"name": "d", "type": kind, "default": default}]

    found = decoded({"type": "record", "name": "row", "fields": fields}, framed(written, integer(1)), url=schemas.url)

    assert (found.values.to_pylist(), found.malformed) == ([{"id": None, "d": None}], 1)


CREATED = {"type": "record", "name": "Created", "fields": [{"name": "id", "type": "int"}]}
CANCELLED = {"type": "record", "name": "Cancelled", "fields": [{"name": "why", "type": "string"}]}
RENEWED = {"type": "record", "name": "Renewed", "fields": [{"name": "id", "type": "int"}]}


def test_each_record_of_a_union_is_read_into_its_own_member() -> None:
    event = record(("event", ["null", CREATED, CANCELLED, RENEWED]))

    found = decoded(event, b"\x00", b"\x02\x0e", b"\x04\x06why", b"\x06\x10")

    nothing = {"member0": None, "member1": None, "member2": None}
    assert found.values.to_pylist() == [
        {"event": None},
        {"event": nothing | {"member0": {"id": 7}}},
        {"event": nothing | {"member1": {"why": "why"}}},
        {"event": nothing | {"member2": {"id": 8}}},
    ]
    assert found.slow == 0


def test_a_record_goes_into_the_branch_of_its_name_or_else_of_its_fields(schemas: SchemaRegistry) -> None:
    written = schemas.register(record(("event", [CREATED, RENEWED, CANCELLED])))
    stopped = {"type": "record", "name": "Stopped", "fields": [{"name": "why", "type": "string"}]}
    reader = record(("event", ["null", stopped, RENEWED, CREATED]))

    values = [framed(written, each) for each in (b"\x00\x0e", b"\x02\x10", b"\x04\x06why")]
    found = decoded(reader, *values, url=schemas.url)

    nothing = {"member0": None, "member1": None, "member2": None}
    assert found.values.to_pylist() == [
        {"event": nothing | {"member2": {"id": 7}}},
        {"event": nothing | {"member1": {"id": 8}}},
        {"event": nothing | {"member0": {"why": "why"}}},
    ]


def test_types_have_aliases_as_fields_have(schemas: SchemaRegistry) -> None:
    colour, key = {"type": "enum", "symbols": ["RED", "BLUE"]}, {"type": "fixed", "size": 2}
    written = schemas.register(record(("colour", colour | {"name": "Colour"}), ("key", key | {"name": "Key"})))
    reader = record(
        ("colour", colour | {"name": "Tone", "aliases": ["Colour"]}), ("key", key | {"name": "Id", "aliases": ["Key"]})
    )

    found = decoded(reader, framed(written, b"\x02ab"), url=schemas.url)

    assert found.values.to_pylist() == [{"colour": "BLUE", "key": b"ab"}]


THREAD = {
    "type": "record",
    "name": "Comment",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "parent", "type": ["null", "Comment"]},
        {"name": "replies", "type": {"type": "array", "items": "Comment"}},
    ],
}


def comment(text: bytes, parent: bytes | None = None, *replies: bytes) -> bytes:
    above = integer(0) if parent is None else integer(1) + parent
    return sized(text) + above + (integer(len(replies)) + b"".join(replies) if replies else b"") + integer(0)


def test_a_record_that_contains_itself_is_read_as_far_as_it_is_wanted(schemas: SchemaRegistry) -> None:
    written = schemas.register(record(("id", "int"), ("thread", THREAD), ("score", "int")))
    values = [
        framed(written, integer(1) + comment(b"a", comment(b"b", comment(b"c")), comment(b"d")) + integer(7)),
        framed(written, integer(2) + comment(b"e") + integer(8)),
        framed(written, integer(3) + comment(b"f", comment(b"g"))[:-1]),
    ]
    said = {"type": "record", "name": "Said", "aliases": ["Comment"], "fields": [{"name": "text", "type": "string"}]}
    above = {**said, "fields": [*said["fields"], {"name": "parent", "type": ["null", said | {"name": "Parent"}]}]}

    nothing = decoded(record(("id", "int"), ("score", "int")), *values, url=schemas.url)
    some = decoded(record(("id", "int"), ("thread", said)), *values[:2], url=schemas.url)
    more = decoded(record(("thread", above), ("score", "int")), *values[:2], url=schemas.url)

    assert nothing.values.to_pylist() == [{"id": 1, "score": 7}, {"id": 2, "score": 8}, {"id": None, "score": None}]
    assert some.values.to_pylist() == [{"id": 1, "thread": {"text": "a"}}, {"id": 2, "thread": {"text": "e"}}]
    assert more.values.to_pylist() == [
        {"thread": {"text": "a", "parent": {"text": "b"}}, "score": 7},
        {"thread": {"text": "e", "parent": None}, "score": 8},
    ]
    assert (nothing.slow, some.slow, more.slow) == (1, 0, 0)


def test_a_record_that_contains_itself_is_skipped_however_deep_it_is(schemas: SchemaRegistry) -> None:
    written = schemas.register(record(("thread", THREAD), ("score", "int")))
    deep = 20_000
    up = (sized(b"x") + integer(1)) * deep + sized(b"x") + integer(0) + integer(0) * (deep + 1)
    down = (sized(b"x") + integer(0) + integer(1)) * deep + sized(b"x") + integer(0) + integer(0) * (deep + 1)

    values = [framed(written, each + integer(9)) for each in (up, down, up[:-1])]
    found = decoded(record(("score", "int")), *values, url=schemas.url)

    assert found.values.to_pylist() == [{"score": 9}, {"score": 9}, {"score": None}]


def test_a_record_that_contains_itself_without_an_end_is_malformed(schemas: SchemaRegistry) -> None:
    endless = {"type": "record", "name": "Endless", "fields": [{"name": "again", "type": "Endless"}]}
    written = schemas.register(record(("id", "int"), ("endless", endless)))

    found = decoded(record(("id", "int")), framed(written, integer(1)), url=schemas.url)

    assert (found.values.to_pylist(), found.malformed) == ([{"id": None}], 1)


def test_a_schema_that_cannot_be_read_into_the_other_makes_its_values_malformed(schemas: SchemaRegistry) -> None:
    written = schemas.register(record(("id", "string")))

    found = decoded(record(("id", "int")), framed(written, sized(b"x")), url=schemas.url)

    assert found.values.to_pylist() == [{"id": None}]
    assert found.malformed == 1


def test_values_without_a_header_or_of_an_unknown_schema_are_malformed(schemas: SchemaRegistry) -> None:
    known = schemas.register(record(("id", "int")))
    proto = schemas.register("syntax", schemaType="PROTOBUF")
    good = framed(known, integer(1))

    found = decoded(
        record(("id", "int")), good, b"", b"\1" + good[1:], framed(99, b"\2"), framed(proto, b"\2"), None, url=schemas.url
    )

    assert found.values.to_pylist() == [{"id": 1}, *[{"id": None}] * 4, None]
    with pytest.raises(MalformedValueError, match=f"the schema registry at {schemas.url} has no schema 99"):
        decoded(record(("id", "int")), framed(99, b"\2"), mode="FAILFAST", url=schemas.url)


@pytest.mark.parametrize("failures", [[500, 503], [429, 408], [CUT_OFF]], ids=["it fails", "it is asked too much", "cut off"])
def test_a_registry_that_fails_for_a_while_is_asked_again(failures: list[int], schemas: SchemaRegistry) -> None:
    known = schemas.register(record(("id", "int")))
    schemas.failures = [*failures]

    assert decoded(record(("id", "int")), framed(known, integer(1)), url=schemas.url).values.to_pylist() == [{"id": 1}]
    assert schemas.asked == [known] * (1 + len(failures))


def test_answers_that_never_come_whole_name_the_registry(schemas: SchemaRegistry) -> None:
    known = schemas.register(record(("id", "int")))
    schemas.failures = [CUT_OFF] * registry.TRIES

    with pytest.raises(registry.RegistryError, match=f"schema registry {schemas.url}/schemas/ids/{known} does not answer: "):
        decoded(record(("id", "int")), framed(known, integer(1)), url=schemas.url)


def test_a_registry_that_keeps_failing_is_an_error_in_every_mode(schemas: SchemaRegistry) -> None:
    schemas.failures = [500] * registry.TRIES

    with pytest.raises(registry.RegistryError, match=f"schema registry {schemas.url}/schemas/ids/4 answered 500"):
        decoded(record(("id", "int")), framed(4, integer(1)), url=schemas.url)


def test_a_registry_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RETRY_DELAY", 0.01)

    with pytest.raises(
        registry.RegistryError, match=r"http://127\.0\.0\.1:1/schemas/ids/4 does not answer: .*option schemaRegistryUrl"
    ):
        decoded(record(("id", "int")), framed(4, integer(1)), url="http://127.0.0.1:1")


def test_a_registry_with_a_password_gets_it_and_no_error_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_known", {})
    with SchemaRegistry("me", "s3cret/") as protected:
        known = protected.register(record(("id", "int")))
        host = protected.url.removeprefix("http://")

        found = decoded(record(("id", "int")), framed(known, integer(1)), url=f"http://me:s3cret%2F@{host}")
        assert found.values.to_pylist() == [{"id": 1}]

        monkeypatch.setattr(registry, "_known", {})
        with pytest.raises(registry.RegistryError, match="answered 401 Unauthorized; check the user and password") as raised:
            decoded(record(("id", "int")), framed(known, integer(1)), url=f"http://me:wrong@{host}")
        assert "wrong" not in str(raised.value)


def test_a_format_with_a_password_does_not_show_it() -> None:
    assert "s3cret" not in repr(ValueFormat("avro", '"long"', registry_url="http://me:s3cret@registry:8081"))


@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_reader_and_the_slow_one_agree(seed: int) -> None:
    from shardherd.source.values.avro_column import AvroColumn
    from shardherd.source.values.from_avro import MalformedAvroError

    rng = random.Random(seed)
    schema = avro.Schemas(rng).record()
    values = avro.values(rng, schema, 300)
    column = AvroColumn(json.dumps(schema), mode="PERMISSIVE", registry_url=None)
    kind = ValueFormat("avro", json.dumps(schema)).spark_type()
    wanted: list[Any] = []
    for value in values:
        try:
            wanted.append(None if value is None else column._slow.value(value, column._own))
        except MalformedAvroError:
            wanted.append([None] * len(schema["fields"]))

    from shardherd.source.values.arrow_columns import from_values

    found = column.decode(pa.array(values, pa.binary())).values

    assert documents.plain(found) == documents.plain(from_values(kind, wanted))
