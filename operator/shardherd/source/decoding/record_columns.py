"""Arrow columns under construction: the arrays that the kernels write into, and the record batch that they become.

Called by `record_batches`, which decides which records go in. Only the wanted columns take room. The arrays of a batch that was
handed out belong to it for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import compiled_records
from shardherd.source.decoding import record_layout as layout

Column: TypeAlias = "pa.Array[Any]"
Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("headers", HEADERS),
    pa.field("shard", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
"""Every column that there is; Spark demands exactly these Arrow types."""

_WANTED = {
    "key": layout.WANT_KEY,
    "value": layout.WANT_VALUE,
    "offset": layout.WANT_OFFSET,
    "timestamp": layout.WANT_TIMESTAMP,
    "timestampType": layout.WANT_TIMESTAMP_TYPE,
    "headers": layout.WANT_HEADERS,
}


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in their order."""
    return pa.schema([SCHEMA.field(name) for name in columns])


class Columns:
    """Room for `rows` records of one shard, whose keys and values (and headers) take at most `size` bytes."""

    def __init__(self, shard: ShardId, columns: Sequence[str], rows: int, size: int) -> None:
        self._shard = shard
        self._names = columns
        self._wanted = sum(_WANTED.get(name, 0) for name in columns)
        self._rows = rows
        self._size = size
        self._taken = 0
        self._offsets = self._longs(layout.WANT_OFFSET)
        self._timestamps = self._longs(layout.WANT_TIMESTAMP)
        self._types = np.empty(rows if self._wanted & layout.WANT_TIMESTAMP_TYPE else 0, np.int32)
        self._keys = _Binary(rows, size, wanted=bool(self._wanted & layout.WANT_KEY))
        self._values = _Binary(rows, size, wanted=bool(self._wanted & layout.WANT_VALUE))
        self.wants_headers = bool(self._wanted & layout.WANT_HEADERS)
        self._header_rows = _Binary(rows, 0, wanted=self.wants_headers)
        self._header_keys = _Binary(0, size, wanted=self.wants_headers)
        self._header_values = _Binary(0, size, wanted=self.wants_headers)
        self._cursor = np.zeros(layout.CURSOR_FIELDS, np.int64)

    def takes(self, rows: int, size: int) -> bool:
        """Whether there is room for so many more rows and bytes."""
        return int(self._cursor[layout.ROWS]) + rows <= self._rows and self._taken + size <= self._size

    def append(self, data: Bytes, plain: Bytes, batches: Longs, size: int, start: Offset, stop: Offset) -> tuple[int, int]:
        """Add the records of `batches` (see `kernels.records`), which take `size` bytes; room was asked for before.

        Returns the kernel's status and the index of the batch at fault.
        """
        if self.wants_headers:
            headers = int(self._cursor[layout.HEADERS]) + compiled_records.count_headers(data, plain, batches, len(batches))
            self._header_keys.grow(headers)
            self._header_values.grow(headers)
        self._taken += size
        status = compiled_records.records(
            data, plain, batches, len(batches), start, stop, self._wanted,
            self._offsets, self._timestamps, self._types,
            self._keys.ends, self._keys.set, self._keys.data, self._values.ends, self._values.set, self._values.data,
            self._header_rows.ends, self._header_rows.set, self._header_keys.ends, self._header_keys.data,
            self._header_values.ends, self._header_values.set, self._header_values.data, self._cursor,
        )  # fmt: skip
        return status, int(self._cursor[layout.AT_BATCH])

    def batches(self) -> list[pa.RecordBatch]:
        """What was added, as one Arrow batch; none if it was nothing. This object must not be used after it."""
        at = self._cursor.tolist()
        count = at[layout.ROWS]
        if not count:
            return []
        topic, _, partition = self._shard.rpartition("/")
        makers: dict[str, Callable[[], Column]] = {
            "key": lambda: self._keys.array(pa.binary(), count, at[layout.KEY_BYTES], at[layout.NULL_KEYS]),
            "value": lambda: self._values.array(pa.binary(), count, at[layout.VALUE_BYTES], at[layout.NULL_VALUES]),
            "topic": lambda: _constant_text(topic, count),
            "partition": lambda: _fixed(pa.int32(), np.full(count, int(partition), np.int32), count),
            "offset": lambda: _fixed(pa.int64(), self._offsets, count),
            "timestamp": lambda: _fixed(SCHEMA.field("timestamp").type, self._timestamps, count),
            "timestampType": lambda: _fixed(pa.int32(), self._types, count),
            "headers": lambda: self._headers(count, at),
            "shard": lambda: _constant_text(self._shard, count),
        }
        return [pa.RecordBatch.from_arrays([makers[name]() for name in self._names], schema=schema_of(self._names))]

    def _longs(self, bit: int) -> Longs:
        return np.empty(self._rows if self._wanted & bit else 0, np.int64)

    def _headers(self, count: int, at: list[int]) -> Column:
        """A row without headers has a null, as in Spark's own source."""
        headers = at[layout.HEADERS]
        keys = self._header_keys.text(headers, at[layout.HEADER_KEY_BYTES])
        values = self._header_values.array(pa.binary(), headers, at[layout.HEADER_VALUE_BYTES], at[layout.NULL_HEADER_VALUES])
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
        ends = _buffer(self._header_rows.ends[: count + 1])
        validity = self._header_rows.validity(count) if at[layout.NULL_HEADERS] else None
        return pa.Array.from_buffers(HEADERS, count, [validity, ends], null_count=at[layout.NULL_HEADERS], children=[pairs])


class _Binary:
    """Room for a column of variable length: `rows` rows of `size` bytes together; none if it is not wanted."""

    def __init__(self, rows: int, size: int, *, wanted: bool) -> None:
        self.ends = np.empty(rows + 1 if wanted else 1, np.int32)
        self.ends[0] = 0
        self.set = np.empty(rows if wanted else 0, np.uint8)
        self.data = np.empty(size if wanted else 0, np.uint8)

    def grow(self, rows: int) -> None:
        """Room for so many rows."""
        if rows > len(self.set):
            ends, set_ = np.empty(2 * rows + 1, np.int32), np.empty(2 * rows, np.uint8)
            ends[: len(self.ends)] = self.ends
            set_[: len(self.set)] = self.set
            self.ends, self.set = ends, set_

    def validity(self, count: int) -> pa.Buffer:
        return _buffer(np.packbits(self.set[:count], bitorder="little"))

    def array(self, kind: pa.DataType, count: int, size: int, nulls: int) -> Column:
        buffers = [self.validity(count) if nulls else None, _buffer(self.ends[: count + 1]), _buffer(self.data[:size])]
        return pa.Array.from_buffers(kind, count, buffers, null_count=nulls)

    def text(self, count: int, size: int) -> Column:
        """Bytes as text; what is not UTF-8 gets replacement characters, as Kafka's Java client gives it."""
        made = self.array(pa.string(), count, size, 0)
        try:
            made.validate(full=True)
        except pa.ArrowInvalid:
            raw = self.array(pa.binary(), count, size, 0)
            return pa.array([(each or b"").decode(errors="replace") for each in raw.to_pylist()], pa.string())
        return made


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _fixed(kind: pa.DataType, values: npt.NDArray[Any], count: int) -> Column:
    return pa.Array.from_buffers(kind, count, [None, _buffer(values[:count])], null_count=0)


def _constant_text(text: str, count: int) -> Column:
    raw = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    return pa.Array.from_buffers(pa.string(), count, [None, _buffer(ends), pa.py_buffer(raw * count)], null_count=0)
