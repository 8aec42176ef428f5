"""Makes Arrow arrays from what the decoders have, has the slow reader complete them, and applies the mode to what is malformed.

`json_column` and `avro_column` call it. Planes that compiled code filled become arrays with as few copies as their types allow;
rows of Python values are for the few records that went the slow way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as sql

from shardherd.source.values import compiled_values
from shardherd.source.values import value_layout as layout
from shardherd.source.values.decoded_values import DROP_MALFORMED, FAIL_FAST, Decoded, MalformedValueError, Row
from shardherd.source.values.value_layout import Layout, Planes
from shardherd.source.values.value_schema import arrow_type

Column: TypeAlias = "pa.Array[Any]"
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
_WIDE = Context(prec=60)
_SHOWN = 200
"""Bytes of a bad value that an error shows."""

_SPLICES = 64
"""Up to so many replaced rows are spliced in; more are gathered."""


def column(
    tables: Layout, planes: Planes, data: Bytes, node: int = 0, symbols: Mapping[int, Sequence[str]] | None = None
) -> Column:
    """A node's slots as an Arrow array. `data` is what the words of strings point into; `symbols` what those of enums count."""
    part = tables.parts[node]
    words, valid = planes.of(node)
    count = len(words)
    validity, nulls = _validity(valid)
    kind = arrow_type(part.kind)

    def made(*buffers: pa.Buffer | None, children: Sequence[Column] = ()) -> Column:
        return pa.Array.from_buffers(kind, count, [validity, *buffers], null_count=nulls, children=list(children) or None)

    match part.row[layout.KIND]:
        case layout.STRUCT:
            return made(children=[column(tables, planes, data, child, symbols) for child in part.children])
        case layout.ARRAY:
            return made(_list_offsets(words, valid), children=[column(tables, planes, data, part.children[0], symbols)])
        case layout.MAP:
            keys, values = (column(tables, planes, data, child, symbols) for child in part.children)
            assert isinstance(kind, pa.MapType)
            entries = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
            return made(_list_offsets(words, valid), children=[entries])
        case layout.STRING | layout.BINARY:
            return made(*texts(data, words, valid))
        case layout.SYMBOL:
            assert symbols is not None
            ordinals: Any = pa.array(words, mask=valid == 0)
            return pa.array(symbols[node], pa.string()).take(ordinals)
        case layout.BOOLEAN:
            return made(_buffer(np.packbits(words.astype(bool), bitorder="little")))
        case layout.INTEGER:
            return made(_buffer(words.astype(layout.integer_type(part.kind), copy=False)))
        case layout.DATE:
            return made(_buffer(words.astype(np.int32)))
        case layout.FLOAT:
            with np.errstate(all="ignore"):  # slots that are null hold anything
                return made(_buffer(words.view(np.float64).astype(np.float32)))
        case layout.DECIMAL:
            return made(_buffer(np.stack([words, words >> 63], axis=1)))
        case _:
            return made(_buffer(words))


def texts(data: Bytes, words: Words, valid: Bytes) -> tuple[pa.Buffer, pa.Buffer]:
    """The offsets and bytes of the strings that the words point to."""
    ends = np.zeros(len(words) + 1, np.int32)
    out = np.empty(compiled_values.text_bound(words, valid, len(words)) + 8, np.uint8)
    size = compiled_values.gather_text(data, words, valid, len(words), ends, out)
    return _buffer(ends), _buffer(out[:size])


def _validity(valid: Bytes) -> tuple[pa.Buffer | None, int]:
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls


def _list_offsets(words: Words, valid: Bytes) -> pa.Buffer:
    offsets = np.zeros(len(words) + 1, np.int32)
    np.cumsum(np.where(valid, words, 0), out=offsets[1:])
    return _buffer(offsets)


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values).data)


def from_values(kind: sql.DataType, values: Sequence[Any]) -> Column:
    """Python values as an Arrow array. See `decoded_values.Row` for how values look."""
    wanted = arrow_type(kind)
    match kind:
        case sql.StructType():
            children = [
                from_values(field.dataType, [None if each is None else each[at] for each in values])
                for at, field in enumerate(kind.fields)
            ]
            return pa.Array.from_buffers(wanted, len(values), [_present(values)], children=children)
        case sql.ArrayType():
            flat = from_values(kind.elementType, [item for each in values if each is not None for item in each])
            return pa.Array.from_buffers(wanted, len(values), [_present(values), _ends(values)], children=[flat])
        case sql.MapType():
            pairs = [pair for each in values if each is not None for pair in each]
            assert isinstance(wanted, pa.MapType)
            entries = pa.StructArray.from_arrays(
                [
                    from_values(kind.keyType, [key for key, _ in pairs]),
                    from_values(kind.valueType, [each for _, each in pairs]),
                ],
                fields=[wanted.key_field, wanted.item_field],
            )
            return pa.Array.from_buffers(wanted, len(values), [_present(values), _ends(values)], children=[entries])
        case sql.StringType():
            return pa.array(values, pa.binary()).view(pa.string())
        case sql.DecimalType():
            scaled = [None if each is None else Decimal(each).scaleb(-kind.scale, _WIDE) for each in values]
            return pa.array(scaled, wanted)
        case sql.DateType():
            return pa.array(values, pa.int32()).view(wanted)
        case sql.TimestampType() | sql.TimestampNTZType():
            return pa.array(values, pa.int64()).view(wanted)
        case _:
            return pa.array(values, wanted)


def completed(
    array: Column, kind: sql.DataType, status: Bytes, data: Bytes, offsets: Ints, mode: str, read: Callable[[bytes, int], Row]
) -> tuple[Decoded, Words]:
    """The array with what `read` makes of the bytes of each row of status SLOW, and which rows are malformed.

    In mode FAILFAST one that is raises MalformedValueError.
    """
    slow = np.flatnonzero(status == layout.SLOW)
    found: list[Any] = []
    bad: list[int] = []
    for row in slow.tolist():
        raw = data[offsets[row] : offsets[row + 1]].tobytes()
        one = read(raw, row)
        found.append(one.values)
        if one.trouble is not None:
            bad.append(row)
            if mode == FAIL_FAST:
                raise MalformedValueError(
                    row,
                    f"a value is malformed and option mode is FAILFAST: {one.trouble}; it is {raw[:_SHOWN]!r}"
                    f"{' ...' if len(raw) > _SHOWN else ''}; use mode PERMISSIVE or DROPMALFORMED to go on",
                )
    malformed = np.array(bad, np.int64)
    keep = None
    if bad and mode == DROP_MALFORMED:
        keep = np.ones(len(array), bool)
        keep[malformed] = False
    return Decoded(replaced(array, slow, from_values(kind, found)), keep, len(slow), len(bad)), malformed


def _present(values: Sequence[Any]) -> pa.Buffer | None:
    valid = np.array([each is not None for each in values], np.uint8)
    return _validity(valid)[0]


def _ends(values: Sequence[Any]) -> pa.Buffer:
    sizes = [0, *(0 if each is None else len(each) for each in values)]
    return _buffer(np.cumsum(sizes).astype(np.int32))


def replaced(array: Column, rows: Words, others: Column) -> Column:
    """The array with others[i] in place of its row rows[i]; rows rise."""
    if not len(rows):
        return array
    if len(rows) <= _SPLICES:
        pieces: list[Column] = []
        begin = 0
        for at, row in enumerate(rows.tolist()):
            pieces += [array.slice(begin, row - begin), others.slice(at, 1)]
            begin = row + 1
        return pa.concat_arrays([*pieces, array.slice(begin)])
    indices = np.arange(len(array), dtype=np.int64)
    indices[rows] = len(array) + np.arange(len(rows))
    chosen: Any = pa.array(indices)
    return pa.concat_arrays([array, others]).take(chosen)
