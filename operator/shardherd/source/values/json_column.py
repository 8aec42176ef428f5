"""Decodes a column of JSON documents into a struct column, equal to Spark's `from_json` in every row.

`value_format` makes it; `typed_values` calls `decode` in Spark's Python workers. The compiled reader takes what it can prove,
and `from_json` the rest, one by one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as sql

from shardherd.source.values import arrow_columns, compiled_values, datetimes
from shardherd.source.values import value_layout as layout
from shardherd.source.values.decoded_values import Decoded
from shardherd.source.values.from_json import FromJson
from shardherd.source.values.value_layout import Layout, Planes
from shardherd.source.values.value_schema import arrow_type

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EVER = 2**60


class JsonColumn:
    """Decodes documents into `schema`, a struct. A column of it named `corrupt` gets the documents that are malformed."""

    def __init__(self, schema: sql.StructType, *, mode: str, corrupt: str, time_zone: str) -> None:
        self._mode = mode
        self._type = arrow_type(schema)
        self._corrupt = schema.names.index(corrupt) if corrupt in schema.names else None
        self._fields = sql.StructType([field for field in schema.fields if field.name != corrupt])
        zone = datetimes.zone(time_zone)
        self._slow = FromJson(self._fields, zone)
        self._layout = Layout(self._fields)
        self._zone = local_offsets(zone)

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """A binary array as the typed column of the same length. Raises MalformedValueError in mode FAILFAST."""
        data, offsets, present = buffers_of(values)
        status, planes = self._read(data, offsets, present)
        column = arrow_columns.column(self._layout, planes, data)
        found, malformed = arrow_columns.completed(
            column, self._fields, status, data, offsets, self._mode, lambda document, _row: self._slow.row(document)
        )
        return found if self._corrupt is None else replace(found, values=self._with_corrupt(found.values, values, malformed))

    def _read(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32], present: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.uint8], Planes]:
        rows = len(offsets) - 1
        tables = self._layout
        planes = Planes(tables, rows)
        if tables.domains > 1 and rows:
            planes.reserve(max(4 * rows, int((offsets[1:] - offsets[:-1]).max()) // 2 + 1))
        status = np.empty(rows, np.uint8)
        stack = np.zeros((layout.MAX_DEPTH + 4, 4), np.int64)
        seen = np.zeros(len(tables.parts), np.int64)
        cursor = np.zeros(2, np.int64)
        before = np.zeros(tables.domains, np.int64)
        longest = int((offsets[1:] - offsets[:-1]).max()) if rows else 0
        deferred = np.empty((max(4096, longest // 2 + 1), 3), np.int64)
        row = 0
        while True:
            row = compiled_values.documents(
                data, offsets, present, row, tables.nodes, tables.names, tables.hashes, planes.bases, planes.values,
                planes.valid, planes.counts, planes.capacities, *self._zone, stack, seen, deferred, cursor, status, before,
            )  # fmt: skip
            self._numbers(data, planes, deferred[: cursor[0]])
            cursor[0] = 0
            if row >= rows:
                return status, planes
            if tables.domains > 1:
                planes.reserve(int(offsets[row + 1] - offsets[row]) // 2 + 1)

    def _numbers(self, data: npt.NDArray[np.uint8], planes: Planes, deferred: npt.NDArray[np.int64]) -> None:
        """Read the numbers that need more than one operation of the machine: Arrow's reader rounds as Java does."""
        if not len(deferred):
            return
        words = np.ascontiguousarray(deferred[:, 2])
        buffers = arrow_columns.texts(data, words, np.ones(len(words), np.uint8))
        texts = pa.Array.from_buffers(pa.string(), len(words), [None, *buffers], null_count=0)
        places = planes.bases[deferred[:, 0]] + deferred[:, 1]
        single = self._layout.nodes[deferred[:, 0], layout.KIND] == layout.FLOAT
        for kind, which in ((pa.float64(), ~single), (pa.float32(), single)):
            if which.any():
                planes.doubles[places[which]] = texts.filter(pa.array(which)).cast(kind).to_numpy()

    def _with_corrupt(self, column: pa.Array[Any], values: pa.Array[Any], malformed: npt.NDArray[np.int64]) -> pa.Array[Any]:
        assert self._corrupt is not None
        rows = len(values)
        corrupt: pa.Array[Any] = pa.nulls(rows, pa.string())
        if len(malformed):
            indices = np.full(rows, -1, np.int64)
            indices[malformed] = malformed
            chosen: Any = pa.array(indices, mask=indices < 0)
            corrupt = values.take(chosen).view(pa.string())
        if column.offset:
            column = pa.concat_arrays([column])
        assert isinstance(column, pa.StructArray)
        children: list[pa.Array[Any]] = [column.field(at) for at in range(column.type.num_fields)]
        children.insert(self._corrupt, corrupt)
        return pa.Array.from_buffers(self._type, rows, [column.buffers()[0]], null_count=column.null_count, children=children)


def buffers_of(values: pa.Array[Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """A binary array's bytes, offsets (one more than rows) and validity (a byte a row; empty if nothing is null)."""
    _, ends, raw = values.buffers()
    if ends is None or not len(values):
        return np.zeros(0, np.uint8), np.zeros(1, np.int32), np.zeros(0, np.uint8)
    offsets = np.frombuffer(memoryview(ends), np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.zeros(0, np.uint8) if raw is None else np.frombuffer(memoryview(raw), np.uint8)
    present = values.is_valid().cast(pa.uint8()).to_numpy() if values.null_count else np.zeros(0, np.uint8)
    return _read_only(data), _read_only(offsets), _read_only(present)


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = values.view()
    view.flags.writeable = False
    return view


@lru_cache(maxsize=16)
def local_offsets(zone: tzinfo) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """From which local second on a zone has which offset: two arrays; before the first and from the last on nothing is said.

    A local time that a clock skips or shows twice has the offset from before the change, as in Java.
    """
    if isinstance(zone, timezone):
        offset = int(zone.utcoffset(None).total_seconds())
        return np.array([-_EVER, _EVER], np.int64), np.array([offset, offset], np.int64)

    def offset_at(second: int) -> int:
        offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())

    first, last, step = 0, 2_145_916_800, 43_200  # 1970 to 2038
    begins, offsets = [first + 86_400], [offset_at(first)]
    for second in range(first, last, step):
        after = offset_at(second + step)
        if after == offsets[-1]:
            continue
        low, high = second, second + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset_at(middle) == offsets[-1] else (low, middle)
        begins.append(high + max(offsets[-1], after))
        offsets.append(after)
    return np.array([*begins, last - 86_400], np.int64), np.array([*offsets, offsets[-1]], np.int64)
