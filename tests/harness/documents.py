"""Random schemas, JSON documents for them, and mutations of those: what a fuzz of `values` feeds to Spark and to ours.

Everything comes from the random generator that the caller gives, so a seed names a case.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from pyspark.sql import types as sql

MILLIONS = re.compile(rb"[eE][+-]?0*[1-9][0-9]{6}")
"""An exponent for which Spark's decimals compute millions of digits: docs/source-values.md, differences."""

LEAVES: tuple[sql.DataType, ...] = (
    sql.StringType(), sql.StringType(), sql.BooleanType(), sql.IntegerType(), sql.LongType(), sql.FloatType(),
    sql.DoubleType(), sql.DecimalType(10, 2), sql.DecimalType(38, 18), sql.DecimalType(18, 0), sql.DecimalType(5, 5),
    sql.DateType(), sql.TimestampType(), sql.TimestampType(), sql.ShortType(), sql.ByteType(),
)  # fmt: skip
NAMES = ("id", "name", "a", "b", "ts", "user_id", "x y", "é", "Total", "total", "deeply.nested", "0")
WORDS = (
    "", "a", "hello", "hello world", "naïve", "日本語", "😀 smile", 'quo"te', "back\\slash", "tab\there", "nul\x00", "\x7f",
    "/",
    "'", "NaN", "Infinity", "-INF", "true", "null", "12", "-1.5", "1,234.56", "1e3", "2021-03-04", "2021-3-4", "+2021-03-04",
    "2021-02-30", "10000-01-01", "2021", "123", "-200000", "-719200", "12345678", "2021-03-04T05:06:07Z",
    "2021-03-04 05:06:07.123456789", "2021-03-04T05:06:07+01:30", "2021-03-04T05:06:07.5 Europe/Paris",
    "2021-03-04T05:06:07GMT", "1899-12-31T23:59:59.999-00:00:01", "2021-03-28T02:30:00", "2021-10-31T02:30:00.1",
    "2021-03-04T24:00:00Z", "2021-03-04T05:06", "2021-03-04T5:6:7.1Z", " 2021-03-04 ", "2021-03-04T", "0001-01-01T00:00:00Z",
    "0000-02-29", "9999-12-31T23:59:59.999999Z", "1582-10-10", "x" * 70, "2021-03-04T05:06:07.123Z",
    "2021-03-04T05:06:07.123456+0100", "2021-03-04 05:06:07 UTC", "290000-01-01T00:00:00Z", "300000-01-01T00:00:00Z",
)  # fmt: skip
NUMBERS = (
    "0", "-0", "1", "-1", "7", "42", "127", "128", "255", "256", "32767", "32768", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "99999999999999999999999999", "123456789012345678", "1e3", "1E5", "1e-3", "1.0", "0.0", "-0.0", "1.5", "-2.25", "3.14159",
    "0.1", "0.30000000000000004", "1e400", "-1e400", "1e-400", "4.9e-324", "1.7976931348623157e308", "123456.789",
    "99999999.99", "99999999.995", "0.005", "0.000004999", "0.00001", "16777217", "16777217.0", "3.4028235e38",
    "3.4028236e38", "1.401298464324817e-45", "1.00000017881393432617187499", "9007199254740993", "1700000000",
    "1700000000123", "9223372036855", "123456789.123456789123456789", "2e0", "1.0e10", "12345678901234567890.5", "0.1e1",
    "8.41E21", "2.0E-3", "1.0E7", "9999999.999", "0.001", "0.00099",
)  # fmt: skip
ODD = (
    "NaN", "Infinity", "-Infinity", "+Infinity", "-INF", "+INF", "INF", "nul", "tru", "truex", "True", "01", "-", "+1", ".5",
    "1.", "1.e3", "1e", "1e+", "1.5e", "0.", "-.5", "--1", "'single'", "\"open", "undefined", "/*c*/1", "#", "[", "{", "]",
    "}", ",", "\"\\x\"", "\"\\u12\"", "\"\\ud83d\\ude00\"", "\"\\ud83d\"", "\"\\ude00x\"", "\"\\u0000\"", "\"a\tb\"",
    "\"\\'\"", "{'a':1}", "{a:1}", "[1,]", "{\"a\":1,}", "[1 2]", "\"\\/\\b\\f\\n\\r\\t\\\\\\\"\"", "\"\\u00e9\\u20ac\"",
    "1 ", "é", "$x", "_y", "\ufeff1", "\u00a0", "1" * 40, "0" * 3, "\x0b1",
)  # fmt: skip
SPACES = ("", "", "", "", " ", "\n", "\r\n", "\t", "  ")


def schema(rng: random.Random, depth: int = 0) -> sql.StructType:
    """A struct of up to six fields."""
    names = rng.sample(NAMES, rng.randint(1, 6))
    return sql.StructType([sql.StructField(name, kind(rng, depth + 1), True) for name in names])


def kind(rng: random.Random, depth: int) -> sql.DataType:
    """A type, nested at most three levels below the root."""
    choice = rng.random()
    if depth > 3 or choice < 0.7:
        return rng.choice(LEAVES)
    if choice < 0.8:
        return schema(rng, depth)
    if choice < 0.9:
        return sql.ArrayType(kind(rng, depth + 1))
    return sql.MapType(sql.StringType(), kind(rng, depth + 1))


def _string(rng: random.Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=rng.random() < 0.5)


def _fitting(rng: random.Random, wanted: sql.DataType) -> str:
    """JSON text that is likely of this type."""
    match wanted:
        case sql.StringType():
            return _string(rng, rng.choice(WORDS[:13]))
        case sql.BooleanType():
            return rng.choice(("true", "false"))
        case sql.ByteType() | sql.ShortType() | sql.IntegerType():
            return str(rng.randint(-100, 100))
        case sql.LongType():
            return str(rng.randint(-(10 ** rng.randint(1, 18)), 10 ** rng.randint(1, 18)))
        case sql.FloatType() | sql.DoubleType():
            return rng.choice((repr(rng.uniform(-1000, 1000)), repr(round(rng.uniform(-1000, 1000), 2)), rng.choice(NUMBERS)))
        case sql.DecimalType():
            text = f"{rng.uniform(-99, 99):.{rng.randint(0, 6)}f}"
            return _string(rng, text) if rng.random() < 0.3 else text
        case sql.DateType():
            return f'"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 31):02}"'
        case sql.TimestampType():
            if rng.random() < 0.2:
                return str(rng.randint(-(10**10), 10**10))
            fraction = "" if rng.random() < 0.5 else f".{rng.randint(0, 999999)}"
            date = f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
            clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
            return f'"{date}{rng.choice("T ")}{clock}{fraction}{rng.choice(("Z", "", "+01:00", "-11:30"))}"'
        case _:
            return "null"


def value(rng: random.Random, wanted: sql.DataType | None, oddity: float) -> str:
    """JSON text for a field of this type (None: of one that no schema knows); `oddity` is how often it is something else."""
    luck = rng.random()
    if luck < 0.05:
        return "null"
    if luck < 0.05 + oddity:
        return rng.choice(ODD) if rng.random() < 0.5 else value(rng, rng.choice((None, *LEAVES)), 0.0)
    if wanted is None or luck < 0.05 + 2 * oddity:
        choice = rng.random()
        if choice < 0.4:
            return _string(rng, rng.choice(WORDS))
        if choice < 0.7:
            return rng.choice(NUMBERS)
        return rng.choice(
            ("true", "false", "[]", "{}", '[1,"x",{"a":[]}]', '{"a":{"b":[1.50,-0]}}', '{"a":"\\u00e9\\n","a":2}')
        )
    match wanted:
        case sql.StructType():
            return document(rng, wanted, oddity)
        case sql.ArrayType():
            space = rng.choice(SPACES)
            return (
                f"[{space}" + f",{space}".join(value(rng, wanted.elementType, oddity) for _ in range(rng.randint(0, 4))) + "]"
            )
        case sql.MapType():
            keys = [rng.choice((*NAMES, *WORDS[:12])) for _ in range(rng.randint(0, 3))]
            return "{" + ",".join(f"{_string(rng, key)}:{value(rng, wanted.valueType, oddity)}" for key in keys) + "}"
    return _fitting(rng, wanted)


def document(rng: random.Random, wanted: sql.StructType, oddity: float) -> str:
    """A JSON object for this struct: its fields in some order, some left out, some twice, some that it does not have."""
    fields: list[tuple[str, sql.DataType | None]] = [(each.name, each.dataType) for each in wanted.fields]
    fields = [each for each in fields if rng.random() > 0.1]
    if rng.random() < 0.3:
        rng.shuffle(fields)
    if rng.random() < 0.4:
        fields.insert(rng.randint(0, len(fields)), (rng.choice(("other", "Id", "zz")), None))
    if fields and rng.random() < oddity:
        fields.append(rng.choice(fields))
    space = rng.choice(SPACES)
    parts = [f"{_string(rng, name)}{space}:{space}{value(rng, each, oddity)}{space}" for name, each in fields]
    return "{" + space + ",".join(parts) + "}"


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """The same bytes with one thing changed: cut, flipped, repeated, or replaced by something that means something."""
    if not raw:
        return raw
    at = rng.randrange(len(raw))
    to = min(len(raw), at + rng.randint(1, 6))
    match rng.randint(0, 6):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + raw[to:]
        case 2:
            return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        case 3:
            return raw[:to] + raw[at:]
        case 4:
            return (
                raw[:at]
                + rng.choice(
                    (b'"', b"\\", b",", b":", b"{", b"}", b"[", b"]", b"0", b"-", b".", b"e", b" ", b"\xc3", b"\xed\xa0\x80")
                )
                + raw[at:]
            )
        case 5:
            return raw + rng.choice((b"x", b"{}", b" ", b"\n", b",", b"]", b"\xff", b'{"a":1}'))
        case _:
            return rng.choice((b" ", b"\n\n", b"\xef\xbb\xbf", b"[", b"\x00")) + raw


def documents(rng: random.Random, wanted: sql.StructType, count: int) -> list[bytes | None]:
    """`count` documents: plain ones, odd ones, and mutated ones."""
    found: list[bytes | None] = []
    for _ in range(count):
        luck = rng.random()
        if luck < 0.01:
            found.append(
                rng.choice((None, b"", b" ", b"null", b"[]", b"[{}]", b"1", b'"x"', b"{}", b"\n{ }\t", b"{", b"true x"))
            )
            continue
        raw = document(rng, wanted, 0.0 if luck < 0.3 else 0.04 if luck < 0.7 else 0.2).encode("utf-8", "surrogatepass")
        if rng.random() < 0.3:
            raw = mutated(rng, raw)
        found.append(b"{}" if MILLIONS.search(raw) else raw)
    return found


def plain(values: Any) -> list[Any]:
    """An Arrow array as comparable Python values: dates and timestamps as numbers, strings as bytes, maps as lists of pairs."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_struct(kind):
        columns = [plain(values.field(at)) for at in range(kind.num_fields)]
        rows = list(zip(*columns, strict=True)) if columns else [()] * len(values)
        return [row if valid else None for row, valid in zip(rows, values.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        if pa.types.is_map(kind):
            flat: list[Any] = list(zip(plain(values.keys), plain(values.items), strict=True))
        else:
            flat = plain(values.values)
        offsets = values.offsets.to_pylist()
        valid = values.is_valid().to_pylist()
        return [flat[offsets[at] : offsets[at + 1]] if valid[at] else None for at in range(len(values))]
    if pa.types.is_timestamp(kind):
        return list(values.view(pa.int64()).to_pylist())
    if pa.types.is_date32(kind):
        return list(values.view(pa.int32()).to_pylist())
    if pa.types.is_string(kind):
        return list(values.view(pa.binary()).to_pylist())
    if pa.types.is_floating(kind):
        return [None if each is None else repr(each) for each in values.to_pylist()]
    return list(values.to_pylist())
