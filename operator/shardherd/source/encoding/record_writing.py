"""The inner loops that make Kafka's records of columns: which partition a key belongs to, and the bytes of records.

`compiled_writing` compiles them by numba and is the only caller. They touch no Python object and allocate nothing: they read
Arrow's buffers and write into arrays that the caller sized.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Number: TypeAlias = Any
"""A machine integer: numpy's inside a kernel, Python's outside."""

USED, FIRST_TIME, LAST_TIME = range(3)
"""What `write` says of a batch: its bytes, and the first and the greatest timestamp of its records."""

_WORD = 0xFFFFFFFF
_FACTOR = 0x5BD1E995
_SEED = 0x9747B28C

_inlined: Any = register_jitable


@_inlined  # type: ignore[untyped-decorator]
def _mixed(number: Number) -> Number:
    number = (number * _FACTOR) & _WORD
    number ^= number >> 24
    return (number * _FACTOR) & _WORD


@_inlined  # type: ignore[untyped-decorator]
def _murmur2(keys: Bytes, begin: Number, end: Number) -> Number:
    """The hash that Kafka's clients place keys by, as a number of 32 bits without a sign."""
    found = (_SEED ^ (end - begin)) & _WORD
    at = begin
    while at + 4 <= end:
        word = keys[at] | keys[at + 1] << 8 | keys[at + 2] << 16 | keys[at + 3] << 24
        found = ((found * _FACTOR) & _WORD) ^ _mixed(word)
        at += 4
    if at < end:
        left = end - at
        if left == 3:
            found ^= np.int64(keys[at + 2]) << 16
        if left >= 2:
            found ^= np.int64(keys[at + 1]) << 8
        found ^= np.int64(keys[at])
        found = (found * _FACTOR) & _WORD
    found ^= found >> 13
    found = (found * _FACTOR) & _WORD
    return found ^ (found >> 15)


def place(key_at: Ints, keys: Bytes, key_there: Bytes, placed: Longs, count: int) -> int:
    """The partition, of `count`, of every row that has a key and none yet (below 0). How many rows are left without one."""
    left = 0
    for row in range(len(placed)):
        if placed[row] >= 0:
            continue
        if key_there[row]:
            placed[row] = (_murmur2(keys, key_at[row], key_at[row + 1]) & 0x7FFFFFFF) % count
        else:
            left += 1
    return left


@_inlined  # type: ignore[untyped-decorator]
def _put(out: Bytes, at: Number, number: Number) -> Number:
    """Write a signed number as Kafka's varint; where the next byte goes."""
    left = np.uint64(number << 1) ^ np.uint64(number >> 63)
    while left >= np.uint64(128):
        out[at] = np.uint8((left & np.uint64(127)) | np.uint64(128))
        left >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@_inlined  # type: ignore[untyped-decorator]
def _size(number: Number) -> Number:
    left = np.uint64(number << 1) ^ np.uint64(number >> 63)
    size = 1
    while left >= np.uint64(128):
        left >>= np.uint64(7)
        size += 1
    return size


def write(
    order: Longs,
    first: int,
    end: int,
    times: Longs,
    key_at: Ints,
    keys: Bytes,
    key_there: Bytes,
    value_at: Ints,
    values: Bytes,
    value_there: Bytes,
    header_at: Ints,
    headers: Bytes,
    out: Bytes,
    said: Longs,
) -> int:
    """Write the rows order[first:end] as the records of one batch until `out` is full. How many were written.

    `header_at` and `headers` are each row's headers as they stand in a record, their number first; empty for none.
    """
    used = 0
    first_time = times[order[first]] if first < end else 0
    last_time = first_time
    index = first
    while index < end:
        row = order[index]
        key_size = key_at[row + 1] - key_at[row] if key_there[row] else -1
        value_size = value_at[row + 1] - value_at[row] if value_there[row] else -1
        header_size = header_at[row + 1] - header_at[row]
        after = times[row] - first_time
        number = index - first
        size = 1 + _size(after) + _size(number) + _size(key_size) + _size(value_size)
        size += max(key_size, 0) + max(value_size, 0) + max(header_size, 1)
        if used + _size(size) + size > len(out):
            break
        used = _put(out, used, size)
        out[used] = 0
        used = _put(out, used + 1, after)
        used = _put(out, used, number)
        used = _put(out, used, key_size)
        for at in range(key_size):
            out[used + at] = keys[key_at[row] + at]
        used += max(key_size, 0)
        used = _put(out, used, value_size)
        for at in range(value_size):
            out[used + at] = values[value_at[row] + at]
        used += max(value_size, 0)
        if header_size > 0:
            for at in range(header_size):
                out[used + at] = headers[header_at[row] + at]
            used += header_size
        else:
            out[used] = 0
            used += 1
        last_time = max(last_time, times[row])
        index += 1
    said[USED] = used
    said[FIRST_TIME] = first_time
    said[LAST_TIME] = last_time
    return index - first
