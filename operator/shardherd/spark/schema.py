"""The source's columns, and which of them a query wants.

`source` checks a user's schema with it when a query starts. A column that is not wanted is not built: every column costs time
on its way into the JVM. Their values are the business of `source.decoding`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shardherd.source.values.value_format import ValueFormat

RAW_VALUES = ValueFormat()

_KAFKA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
_HEADERS = StructField("headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])))
_SHARD = StructField("shard", StringType())

SCHEMA = StructType([*_KAFKA.fields, _SHARD])
"""Every column but the headers, which are read only where they are asked for."""

MEANINGS = {
    "key": "",
    "value": "with `valueFormat` of the type that `valueSchema` says",
    "topic": "",
    "partition": "",
    "offset": "",
    "timestamp": "as the producer or the broker set it, see `timestampType`",
    "timestampType": "0: set by the producer, 1: by the broker",
    "headers": "only with `includeHeaders`; null where a record has none",
    "shard": "`topic/partition`",
}


MAY_BE_NULL = frozenset({"key", "value", "headers"})


class ColumnError(ValueError):
    """A column of the user's schema that this source cannot give. Names it, its type and the right one."""


def columns(*, headers: bool, values: ValueFormat = RAW_VALUES) -> StructType:
    """Every column of a query."""
    fields = [*_KAFKA.fields, _HEADERS, _SHARD] if headers else SCHEMA.fields
    return StructType([StructField("value", values.spark_type()) if field.name == "value" else field for field in fields])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns of a query in their order, and which of them the user declared NOT NULL: Spark needs the same schema."""

    names: tuple[str, ...]
    not_null: frozenset[str] = frozenset()
    values: ValueFormat = RAW_VALUES


def choose(wanted: StructType, *, headers: bool, values: ValueFormat = RAW_VALUES) -> Wanted:
    """The columns that a user's schema names. Raises ColumnError."""
    found = chosen(wanted, columns(headers=True, values=values), values)
    if _HEADERS.name in found.names and not headers:
        raise ColumnError("column 'headers' is read on request only: give the option includeHeaders=true, or remove the column")
    return found


def chosen(wanted: StructType, there: StructType, values: ValueFormat) -> Wanted:
    """The columns of those that are there which a user's schema names. Raises ColumnError."""
    known = {field.name: field.dataType for field in there.fields}
    names = [field.name for field in wanted.fields]
    for field in wanted.fields:
        if field.name not in known:
            near = difflib.get_close_matches(field.name, known, 1, 0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ColumnError(f"column {field.name!r} is not of this source; {hint}")
        right = known[field.name]
        if field.dataType != right:
            raise ColumnError(
                f"column {field.name!r} cannot be {field.dataType.simpleString()}: it is {right.simpleString()} here; "
                "correct its type in .schema(...) and cast it in the query"
            )
        if not field.nullable and field.name in MAY_BE_NULL:
            raise ColumnError(f"column {field.name!r} may be null: declare it without NOT NULL")
        if names.count(field.name) > 1:
            raise ColumnError(f"column {field.name!r} is in the schema twice: remove one")
    return Wanted(tuple(names), frozenset(field.name for field in wanted.fields if not field.nullable), values)
