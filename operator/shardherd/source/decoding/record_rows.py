"""Decoded records of one shard as arrays: the room that the compiled loops write into, and the rows that it becomes.

Called by `record_batches`, which decides which records go in. Only the wanted columns take room. `record_columns` makes Arrow
of rows, the worker makes Python objects of them. It does not pay for Arrow unless a program asks for it: nothing here imports
it. The arrays of rows that were handed out belong to them for good.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import msgspec
import numpy as np
import numpy.typing as npt

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import compiled_records
from shardherd.source.decoding import record_layout as layout

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

FEW = 16
"""Byte strings of which Python makes objects sooner than a kernel is called."""

_STRINGS = msgspec.msgpack.Decoder(list[bytes | None])
_ALL = np.empty(0, np.uint8)
"""None of them is null."""

_WANTED = {
    "key": layout.WANT_KEY,
    "value": layout.WANT_VALUE,
    "offset": layout.WANT_OFFSET,
    "timestamp": layout.WANT_TIMESTAMP,
    "timestampType": layout.WANT_TIMESTAMP_TYPE,
    "headers": layout.WANT_HEADERS,
}


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of byte strings: the i-th is data[ends[i]:ends[i + 1]], or null where `set` is 0; without `set` none is."""

    ends: Ints
    data: Bytes
    set: Bytes | None = None

    def slice(self, first: int, stop: int) -> Texts:
        return Texts(self.ends[first : stop + 1], self.data, None if self.set is None else self.set[first:stop])

    def list(self) -> list[bytes | None]:
        """As Python objects."""
        if self.set is not None and not self.set.any():
            return [None] * len(self.set)
        found = _by_slices(self) if len(self.ends) <= FEW else _by_kernel(self)
        if found is None:
            raise ValueError("the ends of a column are not within it")
        return found


def _by_kernel(column: Texts) -> list[bytes | None] | None:
    # msgspec makes 500 of them in the time in which a comprehension makes 100.
    into = np.empty(5 * len(column.ends) + int(column.ends[-1] - column.ends[0]), np.uint8)
    size = compiled_records.pack(column.ends, _ALL if column.set is None else column.set, column.data, into)
    return None if size < 0 else _STRINGS.decode(into.data[:size])


def _by_slices(column: Texts) -> list[bytes | None] | None:
    ends, data = column.ends.tolist(), column.data.data
    if ends[0] < 0 or ends[-1] > len(data) or ends != sorted(ends):
        return None
    given = repeat(1) if column.set is None else column.set
    return [bytes(data[begin:end]) if here else None for (begin, end), here in zip(pairwise(ends), given, strict=False)]


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of rows: those of the i-th are keys and values [ends[i]:ends[i + 1]]; it has some if `set` is not 0."""

    ends: Ints
    set: Bytes
    keys: Texts
    values: Texts

    def slice(self, first: int, stop: int) -> Headers:
        return Headers(self.ends[first : stop + 1], self.set[first:stop], self.keys, self.values)

    def list(self) -> list[tuple[tuple[str, bytes | None], ...]]:
        """As Python objects. What is no UTF-8 in a name gets replacement characters, as Kafka's Java client gives it."""
        if not self.set.any():
            return [()] * len(self.set)
        first, last = int(self.ends[0]), int(self.ends[-1])
        names = [(each or b"").decode(errors="replace") for each in self.keys.slice(first, last).list()]
        pairs = list(zip(names, self.values.slice(first, last).list(), strict=True))
        return [tuple(pairs[begin:end]) for begin, end in pairwise((self.ends - first).tolist())]


@dataclass(frozen=True, slots=True)
class Rows:
    """So many records of one shard, in order. A column that was not wanted is empty; `timestamps` are in microseconds."""

    shard: ShardId
    count: int
    offsets: Longs
    timestamps: Longs
    types: Ints
    keys: Texts
    values: Texts
    headers: Headers

    def slice(self, first: int, most: int) -> Rows:
        """At most so many of them from the `first` one on; they share the arrays. All columns must have been wanted."""
        stop = min(first + most, self.count)
        return Rows(
            self.shard,
            stop - first,
            self.offsets[first:stop],
            self.timestamps[first:stop],
            self.types[first:stop],
            self.keys.slice(first, stop),
            self.values.slice(first, stop),
            self.headers.slice(first, stop),
        )


def rows_of(
    shard: ShardId,
    offsets: Sequence[Offset],
    timestamps: Sequence[int],
    types: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[tuple[str, bytes | None]]],
) -> Rows:
    """Rows of what is there as Python objects. Raises OverflowError for a time that is too large."""
    pairs = [pair for each in headers for pair in each]
    return Rows(
        shard,
        len(offsets),
        np.array(offsets, np.int64),
        np.array(timestamps, np.int64),
        np.array(types, np.int32),
        _texts(keys),
        _texts(values),
        Headers(
            _ends([len(each) for each in headers]),
            np.array([bool(each) for each in headers], np.uint8),
            _texts([name.encode() for name, _ in pairs]),
            _texts([value for _, value in pairs]),
        ),
    )


def _texts(values: Sequence[bytes | None]) -> Texts:
    given = np.array([each is not None for each in values], np.uint8)
    data = np.frombuffer(b"".join(each or b"" for each in values), np.uint8)
    return Texts(_ends([len(each or b"") for each in values]), data, None if given.all() else given)


def _ends(sizes: Sequence[int]) -> Ints:
    return np.concatenate((np.zeros(1, np.int32), np.cumsum(np.array(sizes, np.int32), dtype=np.int32)))


class Room:
    """Room for `rows` records of one shard, whose keys and values (and headers) take at most `size` bytes."""

    def __init__(self, shard: ShardId, columns: Sequence[str], rows: int, size: int) -> None:
        self._shard = shard
        self._columns = columns
        self._wanted = sum(_WANTED.get(name, 0) for name in columns)
        self._rows = rows
        self._size = size
        self._taken = 0
        self._offsets = self._longs(layout.WANT_OFFSET)
        self._timestamps = self._longs(layout.WANT_TIMESTAMP)
        self._types = np.empty(rows if self._wanted & layout.WANT_TIMESTAMP_TYPE else 0, np.int32)
        self._keys = _Binary(rows, size, wanted=bool(self._wanted & layout.WANT_KEY))
        self._values = _Binary(rows, size, wanted=bool(self._wanted & layout.WANT_VALUE))
        wants_headers = bool(self._wanted & layout.WANT_HEADERS)
        # As many as there can be: to count them first would be to read every record twice. What is not touched takes no memory.
        headers = size // layout.SMALLEST_HEADER
        self._header_rows = _Binary(rows, 0, wanted=wants_headers)
        self._header_keys = _Binary(headers, size, wanted=wants_headers)
        self._header_values = _Binary(headers, size, wanted=wants_headers)
        self._cursor = np.zeros(layout.CURSOR_FIELDS, np.int64)
        self._append = compiled_records.records(
            self._offsets, self._timestamps, self._types,
            self._keys.ends, self._keys.set, self._keys.data, self._values.ends, self._values.set, self._values.data,
            self._header_rows.ends, self._header_rows.set, self._header_keys.ends, self._header_keys.data,
            self._header_values.ends, self._header_values.set, self._header_values.data, self._cursor,
        )  # fmt: skip
        self._unused = self._references()

    def again(self, shard: ShardId, columns: Sequence[str], rows: int, size: int) -> bool:
        """Whether it can be used anew, for so much, and is from now on: nobody has rows of it any more."""
        if (columns, rows <= self._rows, size <= self._size, self._references()) != (self._columns, True, True, self._unused):
            return False
        self._shard, self._taken = shard, 0
        self._cursor[:] = 0
        return True

    def _references(self) -> list[int]:
        # Whatever is made of an array, in numpy or in Arrow, refers to it.
        columns = (self._keys, self._values, self._header_rows, self._header_keys, self._header_values)
        found = [sys.getrefcount(each) for column in columns for each in (column.ends, column.set, column.data)]
        return [*found, *(sys.getrefcount(each) for each in (self._offsets, self._timestamps, self._types))]

    def takes(self, rows: int, size: int) -> bool:
        """Whether there is room for so many more rows and bytes."""
        return int(self._cursor[layout.ROWS]) + rows <= self._rows and self._taken + size <= self._size

    def append(self, data: Bytes, plain: Bytes, batches: Longs, size: int, start: Offset, stop: Offset) -> tuple[int, int]:
        """Add the records of `batches` (see `kernels.records`), which take `size` bytes; room was asked for before.

        Returns the kernel's status and the index of the batch at fault.
        """
        self._taken += size
        status = self._append(data, plain, batches, len(batches), start, stop, self._wanted)
        return status, int(self._cursor[layout.AT_BATCH])

    def rows(self) -> list[Rows]:
        """What was added; none if it was nothing. This object must not be used after it, but `again`."""
        at = self._cursor.tolist()
        count, headers = at[layout.ROWS], at[layout.HEADERS]
        if not count:
            return []
        return [
            Rows(
                self._shard,
                count,
                self._offsets[:count],
                self._timestamps[:count],
                self._types[:count],
                self._keys.texts(count, at[layout.KEY_BYTES], at[layout.NULL_KEYS]),
                self._values.texts(count, at[layout.VALUE_BYTES], at[layout.NULL_VALUES]),
                Headers(
                    self._header_rows.ends[: count + 1],
                    self._header_rows.set[:count],
                    self._header_keys.texts(headers, at[layout.HEADER_KEY_BYTES], 0),
                    self._header_values.texts(headers, at[layout.HEADER_VALUE_BYTES], at[layout.NULL_HEADER_VALUES]),
                ),
            )
        ]

    def _longs(self, bit: int) -> Longs:
        return np.empty(self._rows if self._wanted & bit else 0, np.int64)


class _Binary:
    """Room for a column of variable length: `rows` rows of `size` bytes together; none if it is not wanted."""

    def __init__(self, rows: int, size: int, *, wanted: bool) -> None:
        self.ends: Ints = np.empty(rows + 1 if wanted else 1, np.int32)
        self.ends[0] = 0
        self.set: Bytes = np.empty(rows if wanted else 0, np.uint8)
        self.data: Bytes = np.empty(size if wanted else 0, np.uint8)

    def texts(self, count: int, size: int, nulls: int) -> Texts:
        return Texts(self.ends[: count + 1], self.data[:size], self.set[:count] if nulls else None)
