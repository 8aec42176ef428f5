"""The inner loops that turn Kafka's record batches into columns: where batches begin, and what their records hold.

`compiled_records` compiles them by numba and is the only caller. They touch no Python object and allocate nothing: they read
buffers and write into arrays that the caller sized. Every length is checked before it is used, so malformed bytes give a
negative status, never a crash or a read outside of the buffer (tests run them with numba's bounds checks as well). It is long
by its list of the columns' parts, which compiled functions take one by one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from shardherd.source.decoding.record_layout import (
    AT_BATCH,
    ATTRIBUTES,
    BAD_BATCH_ORDER,
    BAD_COUNT,
    BAD_FORMAT,
    BAD_HEADERS,
    BAD_LENGTH,
    BAD_OFFSET,
    BAD_RECORD,
    BAD_TIMESTAMP,
    BAD_VARINT,
    BASE_OFFSET,
    CHECKSUM,
    CONTROL,
    COUNT,
    END,
    FIRST_TIMESTAMP,
    FORMAT,
    HEADER_KEY_BYTES,
    HEADER_SIZE,
    HEADER_VALUE_BYTES,
    HEADERS,
    IN_PLACE,
    KEY_BYTES,
    LARGEST,
    LAST_OFFSET,
    LEGACY_HEADER_SIZE,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    NULL_HEADER_VALUES,
    NULL_HEADERS,
    NULL_KEYS,
    NULL_VALUES,
    OF_USERS,
    POSITION,
    PRODUCER,
    ROWS,
    SMALLEST_HEADER,
    TRAILING_BYTES,
    VALUE_BYTES,
    WANT_HEADERS,
    WANT_KEY,
    WANT_OFFSET,
    WANT_TIMESTAMP,
    WANT_TIMESTAMP_TYPE,
    WANT_VALUE,
)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Number: TypeAlias = Any
"""A machine integer: numpy's inside a kernel, Python's outside."""

_LARGEST_TIMESTAMP = 9_223_372_036_854_775
"""Milliseconds that still fit Spark's microseconds."""


_intrinsic: Any = intrinsic
_cgutils: Any = cgutils
_config: Any = numba.config
_inlined: Any = register_jitable


@_intrinsic  # type: ignore[untyped-decorator]
def _memcpy(_context: Any, into: Any, at: Any, source: Any, begin: Any, size: Any) -> Any:
    """Copy source[begin:begin + size] to into[at:at + size] as fast as the machine can, without a check."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, to_at, of, of_at, count = arguments
        to_data = context.make_array(signature.args[0])(context, builder, to).data
        of_data = context.make_array(signature.args[2])(context, builder, of).data
        _cgutils.raw_memcpy(builder, builder.gep(to_data, [to_at]), builder.gep(of_data, [of_at]), count, 1)
        return context.get_dummy_value()

    return types.void(into, at, source, begin, size), generate


def _checked_copy(into: Bytes, at: Number, source: Bytes, begin: Number, size: Number) -> None:
    for i in range(size):
        into[at + i] = source[begin + i]


def _fast_copy(into: Bytes, at: Number, source: Bytes, begin: Number, size: Number) -> None:
    _memcpy(into, at, source, begin, size)


# Where numba checks bounds, the copies must be checked as well.
_copy: Any = _inlined(_checked_copy if _config.BOUNDSCHECK else _fast_copy)


@_inlined  # type: ignore[untyped-decorator]
def _big_endian(data: Bytes, position: Number, size: Number) -> Number:
    """A signed big-endian integer of `size` bytes."""
    value = np.uint64(0)
    for i in range(size):
        value = np.uint64((value << np.uint64(8)) | np.uint64(data[position + i]))
    shift = np.uint64(64 - 8 * size)
    return np.int64(np.uint64(value << shift)) >> np.int64(shift)


@_inlined  # type: ignore[untyped-decorator]
def _write_big_endian(into: Bytes, position: Number, value: Number) -> None:
    """A number in 4 bytes."""
    for i in range(4):
        into[position + i] = np.uint8((value >> (24 - 8 * i)) & 0xFF)


def count_batches(data: Bytes) -> Number:
    """How many batches `scan` can find in `data` at the most."""
    position, size, count = np.int64(0), np.int64(len(data)), 0
    while size - position >= 17:
        length = _big_endian(data, position + 8, 4)
        if length < LEGACY_HEADER_SIZE:
            return count + 1
        position += 12 + length
        count += 1
    return count


def scan(data: Bytes, batches: npt.NDArray[np.int64]) -> Number:
    """Find the whole record batches in `data`; a cut-off last one is left out.

    Writes one row of BATCH_FIELDS for each into `batches`, which has `count_batches` rows and one more. Returns how many it
    found, of which the last row says what LARGEST and OF_USERS are; or a negative status, and the last row has the base offset
    and the format of the batch at fault.
    """
    position = np.int64(0)
    size = np.int64(len(data))
    count = 0
    largest = np.int64(0)
    of_users = np.int64(0)
    fault = len(batches) - 1
    while size - position >= 17:
        length = _big_endian(data, position + 8, 4)
        base = _big_endian(data, position, 8)
        magic = np.int64(data[position + 16])
        batches[fault, BASE_OFFSET] = base
        batches[fault, FORMAT] = magic
        if magic > 2:
            return BAD_FORMAT
        if length < (HEADER_SIZE - 12 if magic == 2 else LEGACY_HEADER_SIZE + 8 * magic):
            return BAD_LENGTH
        end = position + 12 + length
        if end > size:
            break
        if magic == 2:
            last = base + _big_endian(data, position + 23, 4)
            records = _big_endian(data, position + 57, 4)
            if last < base or base < 0 or records < 0 or records > last - base + 1:
                return BAD_COUNT
            batches[count, POSITION] = position + HEADER_SIZE
            batches[count, ATTRIBUTES] = _big_endian(data, position + 21, 2)
            batches[count, FIRST_TIMESTAMP] = _big_endian(data, position + 27, 8)
            batches[count, MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
            batches[count, PRODUCER] = _big_endian(data, position + 43, 8)
            batches[count, CHECKSUM] = _big_endian(data, position + 17, 4) & 0xFFFFFFFF
        else:
            # The offset of a compressed message is that of the last one in it; where it begins is not said.
            last = base
            records = 1
            if base < 0:
                return BAD_COUNT
            batches[count, POSITION] = position
            batches[count, ATTRIBUTES] = np.int64(data[position + 17])
            batches[count, FIRST_TIMESTAMP] = 0
            batches[count, MAX_TIMESTAMP] = 0
            batches[count, PRODUCER] = -1
            batches[count, CHECKSUM] = _big_endian(data, position + 12, 4) & 0xFFFFFFFF
        if count > 0 and base <= batches[count - 1, LAST_OFFSET]:
            return BAD_BATCH_ORDER
        batches[count, END] = end
        batches[count, BASE_OFFSET] = base
        batches[count, LAST_OFFSET] = last
        batches[count, COUNT] = records
        batches[count, FORMAT] = magic
        batches[count, IN_PLACE] = 1
        # In formats 0 and 1 that bit has no meaning.
        if records > 0 and not (magic == 2 and batches[count, ATTRIBUTES] & CONTROL):
            of_users += 1
        largest = max(largest, end - position)
        count += 1
        position = end
    batches[fault, LARGEST] = largest
    batches[fault, OF_USERS] = of_users
    return count


@_inlined  # type: ignore[untyped-decorator]
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


def pack(ends: Ints, given: Bytes, data: Bytes, into: Bytes) -> Number:
    """MessagePack of byte strings: an array of what is data[ends[i]:ends[i + 1]], and of nil where `given` is 0, if it has any.

    `into` has 5 bytes for each, and 5 more, beside those of the strings. Returns how many bytes it took, or a negative status.
    """
    rows, at = len(ends) - 1, np.int64(5)
    if len(into) < 5:
        return BAD_LENGTH
    into[0] = 0xDD
    _write_big_endian(into, 1, rows)
    for row in range(rows):
        begin = np.int64(ends[row])
        size = np.int64(ends[row + 1]) - begin
        if begin < 0 or size < 0 or begin + size > len(data) or at + 5 + size > len(into):
            return BAD_LENGTH
        if len(given) > row and given[row] == 0:
            into[at] = 0xC0
            at += 1
        else:
            into[at] = 0xC6
            _write_big_endian(into, at + 1, size)
            _copy(into, at + 5, data, begin, size)
            at += 5 + size
    return at


def records(
    data: Bytes,
    plain: Bytes,
    batches: npt.NDArray[np.int64],
    batch_count: Number,
    start: Number,
    stop: Number,
    wanted: Number,
    offsets: Longs,
    timestamps: Longs,
    timestamp_types: Ints,
    key_ends: Ints,
    key_set: Bytes,
    keys: Bytes,
    value_ends: Ints,
    value_set: Bytes,
    values: Bytes,
    header_ends: Ints,
    header_set: Bytes,
    header_key_ends: Ints,
    header_keys: Bytes,
    header_value_ends: Ints,
    header_value_set: Bytes,
    header_values: Bytes,
    cursor: Longs,
) -> Number:
    """Append the records of batches[:batch_count] whose offset is in [start, stop) to the columns that are `wanted`.

    A batch's records are source[POSITION:END], where source is `data` if the batch is IN_PLACE and `plain` if not. `cursor` is
    moved on; its meaning is that of ROWS and the following. `key_ends[i + 1]` is where row i's key ends in `keys` (entry 0 must
    be 0), `key_set[i]` is 0 for a null; `header_ends[i + 1]` is where row i's headers end in the arrays of headers. The caller
    has seen to room: rows for every announced record, bytes for every byte of the batches, a header for every two of them.
    Returns 0 or a negative status; the batch at fault is then cursor[AT_BATCH].
    """
    want_key, want_value = wanted & WANT_KEY != 0, wanted & WANT_VALUE != 0
    want_offset, want_timestamp = wanted & WANT_OFFSET != 0, wanted & WANT_TIMESTAMP != 0
    want_type, want_headers = wanted & WANT_TIMESTAMP_TYPE != 0, wanted & WANT_HEADERS != 0
    row, key_at, value_at = cursor[ROWS], cursor[KEY_BYTES], cursor[VALUE_BYTES]
    null_keys, null_values = cursor[NULL_KEYS], cursor[NULL_VALUES]
    header_at, header_key_at, header_value_at = cursor[HEADERS], cursor[HEADER_KEY_BYTES], cursor[HEADER_VALUE_BYTES]
    for at in range(batch_count):
        cursor[AT_BATCH] = at
        source = data if batches[at, IN_PLACE] else plain
        position, end = batches[at, POSITION], batches[at, END]
        base, last = batches[at, BASE_OFFSET], batches[at, LAST_OFFSET]
        append_time = np.int32(1 if batches[at, ATTRIBUTES] & LOG_APPEND_TIME else 0)
        first_timestamp, max_timestamp = batches[at, FIRST_TIMESTAMP], batches[at, MAX_TIMESTAMP]
        previous = base - 1
        for _ in range(batches[at, COUNT]):
            length, position = _varint(source, position, end)
            if position < 0:
                return BAD_VARINT
            if length < 1 or length > end - position:
                return BAD_RECORD
            limit = position + length
            position += 1  # the record's attributes: none is defined
            stamp, position = _varint(source, position, limit)
            if position < 0:
                return BAD_VARINT
            delta, position = _varint(source, position, limit)
            if position < 0:
                return BAD_VARINT
            offset = base + delta
            if offset <= previous or offset > last:
                return BAD_OFFSET
            previous = offset
            if offset < start or offset >= stop:
                position = limit
                continue
            key_size, position = _varint(source, position, limit)
            if position < 0:
                return BAD_VARINT
            key_from = position
            if key_size >= 0:
                if key_size > limit - position:
                    return BAD_RECORD
                position += key_size
            value_size, position = _varint(source, position, limit)
            if position < 0:
                return BAD_VARINT
            if value_size > limit - position:
                return BAD_RECORD
            if want_key:
                if key_size >= 0:
                    key_set[row] = 1
                    _copy(keys, key_at, source, key_from, key_size)
                    key_at += key_size
                else:
                    key_set[row] = 0
                    null_keys += 1
                key_ends[row + 1] = key_at
            if want_value:
                if value_size >= 0:
                    value_set[row] = 1
                    _copy(values, value_at, source, position, value_size)
                    value_at += value_size
                else:
                    value_set[row] = 0
                    null_values += 1
                value_ends[row + 1] = value_at
            if want_offset:
                offsets[row] = offset
            if want_timestamp:
                milliseconds = max_timestamp if append_time else first_timestamp + stamp
                if milliseconds > _LARGEST_TIMESTAMP or milliseconds < -_LARGEST_TIMESTAMP:
                    return BAD_TIMESTAMP
                timestamps[row] = milliseconds * 1000
            if want_type:
                timestamp_types[row] = append_time
            headers, position = _varint(source, position + max(value_size, 0), limit)
            if position < 0 or headers < 0 or headers > (limit - position) // SMALLEST_HEADER:
                return BAD_HEADERS
            if want_headers:
                header_set[row] = 1 if headers > 0 else 0
                if headers == 0:
                    cursor[NULL_HEADERS] += 1
                for _header in range(headers):
                    size, position = _varint(source, position, limit)
                    if position < 0 or size < 0 or size > limit - position:
                        return BAD_HEADERS
                    _copy(header_keys, header_key_at, source, position, size)
                    header_key_at += size
                    size, position = _varint(source, position + size, limit)
                    if position < 0 or size > limit - position:
                        return BAD_HEADERS
                    header_value_set[header_at] = 1 if size >= 0 else 0
                    if size < 0:
                        cursor[NULL_HEADER_VALUES] += 1
                    _copy(header_values, header_value_at, source, position, max(size, 0))
                    header_value_at += max(size, 0)
                    position += max(size, 0)
                    header_at += 1
                    header_key_ends[header_at] = header_key_at
                    header_value_ends[header_at] = header_value_at
                header_ends[row + 1] = header_at
                if position != limit:
                    return BAD_RECORD
            row += 1
            # Headers that nobody wants are skipped by the record's length.
            position = limit
        if position != end:
            return TRAILING_BYTES
    cursor[ROWS], cursor[KEY_BYTES], cursor[VALUE_BYTES] = row, key_at, value_at
    cursor[NULL_KEYS], cursor[NULL_VALUES] = null_keys, null_values
    cursor[HEADERS], cursor[HEADER_KEY_BYTES], cursor[HEADER_VALUE_BYTES] = header_at, header_key_at, header_value_at
    return 0
