"""The compiled inner loops that turn Kafka record batches (format 2) into columns: header scan, checksum, records.

Called by `records` only. They allocate nothing and touch no Python object: they read one buffer and write into arrays that the
caller sized, and they check every length before they use it, so malformed bytes give a negative status, never a crash. The
signatures are explicit, so that importing this module compiles (or loads from numba's cache) everything and calling it
never does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba import types

F = TypeVar("F", bound=Callable[..., Any])
Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Number: TypeAlias = Any
"""A machine integer: numpy's inside a kernel, Python's outside."""

HEADER_SIZE = 61
"""Bytes of a record batch before its records."""

# Columns of one row that `scan` writes for a batch.
POSITION, END, BASE_OFFSET, LAST_OFFSET, ATTRIBUTES, FIRST_TIMESTAMP, MAX_TIMESTAMP, COUNT = range(8)
BATCH_FIELDS = 8

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
CONTROL = 0x20

# Statuses below zero; `records` has a sentence for each.
BAD_LENGTH, BAD_MAGIC, BAD_CHECKSUM, BAD_COUNT, BAD_VARINT = -1, -2, -3, -4, -5
BAD_RECORD, BAD_OFFSET, TRAILING_BYTES, BAD_BATCH_ORDER = -6, -7, -8, -9


_njit: Any = numba.njit

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_types: Any = types
_PAIR = _types.Tuple((types.int64, types.int64))
_OUT_BYTES = types.uint8[::1]
_OUT_LONGS = types.int64[::1]
_OUT_INTS = types.int32[::1]


def _compiled(*signature: Any, inline: bool = False) -> Callable[[F], F]:
    """numba's njit with a declared signature, cached, without the interpreter's lock."""

    def wrap(function: F) -> F:
        made: F = _njit(*signature, cache=True, nogil=True, inline="always" if inline else "never")(function)
        return made

    return wrap


def _crc_tables() -> npt.NDArray[np.uint32]:
    """CRC-32C tables for eight bytes at a time."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(0x82F63B78), values >> 1).astype(np.uint32)
    tables[0] = values
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_CRC = _crc_tables()


@_compiled(types.uint32(_BYTES, types.int64, types.int64))
def crc32c(data: Bytes, start: Number, end: Number) -> Number:
    """CRC-32C (Castagnoli) of data[start:end]."""
    crc = np.uint32(0xFFFFFFFF)
    i = start
    while i + 8 <= end:
        low = (
            np.uint32(data[i]) | (np.uint32(data[i + 1]) << 8) | (np.uint32(data[i + 2]) << 16) | (np.uint32(data[i + 3]) << 24)
        )
        low = np.uint32(low ^ crc)
        crc = np.uint32(
            _CRC[7, low & 0xFF]
            ^ _CRC[6, (low >> 8) & 0xFF]
            ^ _CRC[5, (low >> 16) & 0xFF]
            ^ _CRC[4, (low >> 24) & 0xFF]
            ^ _CRC[3, data[i + 4]]
            ^ _CRC[2, data[i + 5]]
            ^ _CRC[1, data[i + 6]]
            ^ _CRC[0, data[i + 7]]
        )
        i += 8
    while i < end:
        crc = np.uint32((crc >> 8) ^ _CRC[0, (crc ^ data[i]) & 0xFF])
        i += 1
    return np.uint32(crc ^ np.uint32(0xFFFFFFFF))


@_compiled(types.int64(_BYTES, types.int64, types.int64))
def _big_endian(data: Bytes, position: Number, size: Number) -> Number:
    """A signed big-endian integer of `size` bytes."""
    value = np.uint64(0)
    for i in range(size):
        value = np.uint64((value << np.uint64(8)) | np.uint64(data[position + i]))
    shift = np.uint64(64 - 8 * size)
    return np.int64(np.uint64(value << shift)) >> np.int64(shift)


@_compiled(types.int64(_BYTES, types.int64[:, ::1], types.boolean))
def scan(data: Bytes, batches: npt.NDArray[np.int64], checksums: bool) -> Number:
    """Find the whole record batches in `data`; a cut-off last one is left out.

    Writes one row of BATCH_FIELDS for each into `batches` and returns how many, or a negative status.
    """
    position = np.int64(0)
    size = np.int64(len(data))
    count = 0
    while size - position >= 17:
        length = _big_endian(data, position + 8, 4)
        if length < HEADER_SIZE - 12:
            return BAD_LENGTH
        if data[position + 16] != 2:
            return BAD_MAGIC
        end = position + 12 + length
        if end > size:
            break
        if checksums and _big_endian(data, position + 17, 4) & 0xFFFFFFFF != crc32c(data, position + 21, end):
            return BAD_CHECKSUM
        base = _big_endian(data, position, 8)
        delta = _big_endian(data, position + 23, 4)
        records = _big_endian(data, position + 57, 4)
        if delta < 0 or base < 0 or records < 0 or records > delta + 1:
            return BAD_COUNT
        if count > 0 and base <= batches[count - 1, LAST_OFFSET]:
            return BAD_BATCH_ORDER
        batches[count, POSITION] = position + HEADER_SIZE
        batches[count, END] = end
        batches[count, BASE_OFFSET] = base
        batches[count, LAST_OFFSET] = base + delta
        batches[count, ATTRIBUTES] = _big_endian(data, position + 21, 2)
        batches[count, FIRST_TIMESTAMP] = _big_endian(data, position + 27, 8)
        batches[count, MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
        batches[count, COUNT] = records
        count += 1
        position = end
    return count


@_compiled(_PAIR(_BYTES, types.int64, types.int64), inline=True)
def _varint(data: Bytes, position: Number, end: Number) -> tuple[Number, Number]:
    """A zigzag varint and the position after it, which is -1 if it is cut off or too long."""
    if position >= end:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(data[position])
    position += 1
    raw = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while byte >= 128:
        if position >= end or shift > 63:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), np.int64(position)


@_compiled(
    types.int64(
        _BYTES, types.int64, types.int64, types.int64[::1], types.int64, types.int64, types.boolean, types.boolean,
        _OUT_LONGS, _OUT_LONGS, _OUT_INTS, _OUT_BYTES, _OUT_BYTES, _OUT_INTS, _OUT_BYTES, _OUT_BYTES, _OUT_LONGS,
    )
)  # fmt: skip
def records(
    data: Bytes,
    position: Number,
    end: Number,
    batch: Longs,
    start: Number,
    stop: Number,
    want_key: bool,
    want_value: bool,
    offsets: Longs,
    timestamps: Longs,
    key_ends: Ints,
    key_set: Bytes,
    keys: Bytes,
    value_ends: Ints,
    value_set: Bytes,
    values: Bytes,
    cursor: Longs,
) -> Number:
    """Append the records of one batch whose offset is in [start, stop) to the columns.

    data[position:end] are the batch's records, uncompressed; `batch` is its row from `scan`. `cursor` holds the number of
    rows, key bytes and value bytes written so far, and null keys and null values; it is moved on. `key_ends[i + 1]` is where
    row i's key ends in `keys` (entry 0 must be 0), `key_set[i]` is 0 for a null. Returns 0 or a negative status.
    """
    base = batch[BASE_OFFSET]
    last = batch[LAST_OFFSET]
    append_time = (batch[ATTRIBUTES] & LOG_APPEND_TIME) != 0
    row, key_at, value_at = cursor[0], cursor[1], cursor[2]
    null_keys, null_values = cursor[3], cursor[4]
    previous = base - 1
    for _ in range(batch[COUNT]):
        length, position = _varint(data, position, end)
        if position < 0:
            return BAD_VARINT
        if length < 1 or length > end - position:
            return BAD_RECORD
        limit = position + length
        position += 1  # the record's attributes: none is defined
        stamp, position = _varint(data, position, limit)
        if position < 0:
            return BAD_VARINT
        delta, position = _varint(data, position, limit)
        if position < 0:
            return BAD_VARINT
        offset = base + delta
        if offset <= previous or offset > last:
            return BAD_OFFSET
        previous = offset
        if offset < start or offset >= stop:
            position = limit
            continue
        key_size, position = _varint(data, position, limit)
        if position < 0:
            return BAD_VARINT
        key_from = position
        if key_size >= 0:
            if key_size > limit - position:
                return BAD_RECORD
            position += key_size
        value_size, position = _varint(data, position, limit)
        if position < 0:
            return BAD_VARINT
        if value_size > limit - position:
            return BAD_RECORD
        if want_key:
            if key_size >= 0:
                key_set[row] = 1
                for i in range(key_size):
                    keys[key_at + i] = data[key_from + i]
                key_at += key_size
            else:
                key_set[row] = 0
                null_keys += 1
            key_ends[row + 1] = key_at
        if want_value:
            if value_size >= 0:
                value_set[row] = 1
                for i in range(value_size):
                    values[value_at + i] = data[position + i]
                value_at += value_size
            else:
                value_set[row] = 0
                null_values += 1
            value_ends[row + 1] = value_at
        offsets[row] = offset
        timestamps[row] = (batch[MAX_TIMESTAMP] if append_time else batch[FIRST_TIMESTAMP] + stamp) * 1000
        row += 1
        # Headers are not a column yet: they are skipped by the record's length, but must at least be announced.
        headers, position = _varint(data, position + max(value_size, 0), limit)
        if position < 0 or headers < 0:
            return BAD_RECORD
        position = limit
    if position != end:
        return TRAILING_BYTES
    cursor[0], cursor[1], cursor[2] = row, key_at, value_at
    cursor[3], cursor[4] = null_keys, null_values
    return 0
