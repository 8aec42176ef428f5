"""Reads the schema of typed values: Spark's DDL or its JSON, without a JVM; and gives the Arrow type of each Spark type.

`value_format` and the decoders call it. pyspark's own DDL parser needs a running Spark, which the processes that plan a source
do not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import types as sql

if TYPE_CHECKING:
    import pyarrow as pa

_SIMPLE: dict[str, type[sql.DataType]] = {
    "boolean": sql.BooleanType, "tinyint": sql.ByteType, "byte": sql.ByteType, "smallint": sql.ShortType,
    "short": sql.ShortType,
    "int": sql.IntegerType, "integer": sql.IntegerType, "bigint": sql.LongType, "long": sql.LongType, "float": sql.FloatType,
    "real": sql.FloatType, "double": sql.DoubleType, "string": sql.StringType, "date": sql.DateType,
    "timestamp": sql.TimestampType, "timestamp_ltz": sql.TimestampType,
}  # fmt: skip
_JSON_TYPES = (*set(_SIMPLE.values()), sql.DecimalType, sql.ArrayType, sql.MapType, sql.StructType)
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([^\W]\w*)|([<>(),:]))")


class SchemaError(ValueError):
    """A schema that cannot be used. Says what is wrong, and what would be right."""


def struct_of(text: str) -> sql.StructType:
    """The struct that a DDL text (`id bigint, tags array<string>`) or a JSON text describes. Raises SchemaError."""
    text = text.strip()
    try:
        if text.startswith("{"):
            kind: sql.DataType = sql.StructType.fromJson(json.loads(text))
        else:
            kind = _Ddl(text).schema()
    except SchemaError as error:
        raise SchemaError(f"option valueSchema: {error}") from error
    except (KeyError, ValueError, TypeError, AttributeError, PySparkException) as error:
        raise SchemaError(
            f"option valueSchema: {text[:200]!r} is neither Spark DDL nor a Spark schema in JSON: {error}"
        ) from error
    assert isinstance(kind, sql.StructType)
    if not kind.fields:
        raise SchemaError("option valueSchema names no field")
    made: sql.StructType = nullable(kind)
    return made


def check_json(schema: sql.DataType, path: str = "value") -> None:
    """Raise SchemaError if JSON cannot be read into this type, naming the field."""
    if not isinstance(schema, _JSON_TYPES):
        raise SchemaError(
            f"option valueSchema: {path} is {schema.simpleString()}; JSON is read into boolean, byte, short, int, long, float, "
            "double, decimal, string, date, timestamp, array, struct and map"
        )
    if isinstance(schema, sql.StructType):
        names = [field.name for field in schema.fields]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise SchemaError(f"option valueSchema: {path} has the field {sorted(repeated)[0]!r} twice")
        for field in schema.fields:
            check_json(field.dataType, f"{path}.{field.name}")
    elif isinstance(schema, sql.ArrayType):
        check_json(schema.elementType, f"{path}[]")
    elif isinstance(schema, sql.MapType):
        if not isinstance(schema.keyType, sql.StringType):
            raise SchemaError(f"option valueSchema: {path} is {schema.simpleString()}; the keys of JSON are strings")
        check_json(schema.valueType, f"{path}{{}}")


def nullable(kind: Any) -> Any:
    """The same type with every part nullable: what `from_json` gives, whatever the schema says."""
    if isinstance(kind, sql.StructType):
        return sql.StructType([sql.StructField(each.name, nullable(each.dataType), True) for each in kind.fields])
    if isinstance(kind, sql.ArrayType):
        return sql.ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, sql.MapType):
        return sql.MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def arrow_type(kind: sql.DataType) -> pa.DataType:
    """The Arrow type that Spark demands of a Python data source for this type."""
    import pyarrow as pa

    match kind:
        case sql.StructType():
            return pa.struct([pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in kind.fields])
        case sql.ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
        case sql.MapType():
            key: Any = pa.field("key", arrow_type(kind.keyType), nullable=False)
            value: Any = pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull)
            made: pa.DataType = pa.map_(key, value)
            return made
        case sql.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    simple: dict[type[sql.DataType], pa.DataType] = {
        sql.BooleanType: pa.bool_(), sql.ByteType: pa.int8(), sql.ShortType: pa.int16(), sql.IntegerType: pa.int32(),
        sql.LongType: pa.int64(), sql.FloatType: pa.float32(), sql.DoubleType: pa.float64(), sql.StringType: pa.string(),
        sql.BinaryType: pa.binary(), sql.DateType: pa.date32(), sql.TimestampType: pa.timestamp("us", tz="UTC"),
        sql.TimestampNTZType: pa.timestamp("us"),
    }  # fmt: skip
    if type(kind) not in simple:
        raise SchemaError(f"type {kind.simpleString()} is not supported")
    return simple[type(kind)]


class _Ddl:
    """A recursive-descent parser of the part of Spark's DDL that describes columns."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def schema(self) -> sql.StructType:
        whole = self._word() == "struct" and self._peek(1) == "<"
        kind = self._type() if whole else sql.StructType(self._fields(None))
        if self._peek() is not None:
            raise SchemaError(f"{self._peek()!r} is left over at its end")
        assert isinstance(kind, sql.StructType)
        return kind

    def _peek(self, ahead: int = 0) -> str | None:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def _word(self) -> str:
        return (self._peek() or "").lower()

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if token is None:
            raise SchemaError(f"it ends where {' or '.join(map(repr, wanted)) or 'a name or a type'} should be")
        if wanted and token.lower() not in wanted:
            raise SchemaError(f"{token!r} stands where {' or '.join(map(repr, wanted))} should be")
        self._at += 1
        return token

    def _fields(self, closing: str | None) -> list[sql.StructField]:
        fields: list[sql.StructField] = []
        while self._peek() != closing or (closing is None and not fields):
            if fields:
                self._take(",")
            name = self._take()
            if name in "<>(),:" or name[0] in "'\"":
                raise SchemaError(f"{name!r} stands where a field's name should be")
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            if self._peek() == ":":
                self._take(":")
            fields.append(sql.StructField(name, self._type(), True))
            if self._word() == "not":
                self._take("not")
                self._take("null")
            if self._word() == "comment":
                self._take("comment")
                self._take()
        return fields

    def _type(self) -> sql.DataType:
        name = self._take()
        word = name.lower()
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word == "binary":
            return sql.BinaryType()
        if word == "array":
            self._take("<")
            element = self._type()
            self._take(">")
            return sql.ArrayType(element, True)
        if word == "map":
            self._take("<")
            key = self._type()
            self._take(",")
            value = self._type()
            self._take(">")
            return sql.MapType(key, value, True)
        if word == "struct":
            self._take("<")
            fields = self._fields(">")
            self._take(">")
            return sql.StructType(fields)
        raise SchemaError(f"type {name!r} is unknown; there are {', '.join(sorted(_SIMPLE))}, decimal, array, map and struct")

    def _decimal(self) -> sql.DecimalType:
        numbers = [10, 0]
        if self._peek() == "(":
            self._take("(")
            numbers[0] = self._number()
            if self._peek() == ",":
                self._take(",")
                numbers[1] = self._number()
            self._take(")")
        precision, scale = numbers
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise SchemaError(f"decimal({precision},{scale}) must have 1 to 38 digits and a scale of at most as many")
        return sql.DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isdigit():
            raise SchemaError(f"{token!r} stands where a number of digits should be")
        return int(token)


def _tokens(text: str) -> Iterator[str]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise SchemaError(f"{text[at : at + 20]!r} is not understood")
        yield found[found.lastindex or 0]
        at = found.end()
