"""Makes Kafka's record batches of Arrow columns, for one producer of a transaction: where records go, and their bytes.

The Kafka sink calls it in the executors' workers. It knows no broker, no transaction and no shard: who the producer is, and how
many partitions there are, it is told.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cramjam
import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardherd.source.encoding import compiled_writing

BATCH_BYTES = 1_000_000
"""Most bytes of a batch before it is compressed, below the default of `message.max.bytes`. A larger record has its own."""

RECORD_OVERHEAD = 64
"""More bytes than a record has beside its key, value and headers."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED = struct.Struct(">hiqqqhii")
_BEFORE_LENGTH, _TRANSACTIONAL = 12, 0x10
_LZ4_BLOCK = 64 * 1024
# A frame of version 1 of independent blocks of 64 KiB at most; the last byte is the header's own checksum.
_LZ4_BEGIN = b"\x04\x22\x4d\x18\x60\x40\x82"
_SNAPPY_BLOCK = 32 * 1024
# The stream of the Java library, which Kafka's clients for Java read: its version, and the oldest that it is compatible with.
_SNAPPY_BEGIN = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)

Bytes = npt.NDArray[np.uint8]


def _lz4(data: Bytes) -> bytes:
    found = [_LZ4_BEGIN]
    for at in range(0, len(data), _LZ4_BLOCK):
        block = data[at : at + _LZ4_BLOCK].tobytes()
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            found += [len(packed).to_bytes(4, "little"), packed]
        else:
            found += [(len(block) | 0x80000000).to_bytes(4, "little"), block]
    return b"".join([*found, bytes(4)])


def _snappy(data: Bytes) -> bytes:
    found = [_SNAPPY_BEGIN]
    for at in range(0, len(data), _SNAPPY_BLOCK):
        packed = bytes(cramjam.snappy.compress_raw(data[at : at + _SNAPPY_BLOCK].tobytes()))
        found += [len(packed).to_bytes(4, "big"), packed]
    return b"".join(found)


COMPRESSIONS: Mapping[str, tuple[int, Callable[[Bytes], bytes]]] = {
    "none": (0, lambda data: data.tobytes()),
    "gzip": (1, lambda data: bytes(cramjam.gzip.compress(data.tobytes()))),
    "snappy": (2, _snappy),
    "lz4": (3, _lz4),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data.tobytes()))),
}
"""Kafka's number of a codec, and how it is done, by its name."""


@dataclass(frozen=True, slots=True)
class Producer:
    """Under which identity batches are written."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch for one partition, as it goes over the wire."""

    partition: int
    data: bytes
    records: int


class RowError(ValueError):
    """A row that cannot be a record. Says what is wrong with it."""


class PartitionError(RowError):
    """A row names a partition that the topic does not have."""


class HeaderError(RowError):
    """A row has a header without a key, which a record cannot have."""


class Encoder:
    """Encodes for one producer. It counts, for every partition, the records that were sent: brokers want each number once."""

    def __init__(self, producer: Producer, compression: str = "none") -> None:
        self._producer = producer
        self._codec, self._compress = COMPRESSIONS[compression]
        self._sent: dict[int, int] = {}
        self._out = np.empty(BATCH_BYTES, np.uint8)

    def encode(self, rows: pa.Table, partitions: int, keyless: int, now: int) -> Iterator[Batch]:
        """The batches of these rows, in order within each partition.

        `rows` has `value`, and may have `key`, `headers`, `partition` and `timestamp`. A row goes to its partition, or else to
        its key's as Kafka's clients place it, or else to `keyless`. Its time is its `timestamp`, or else `now`, in
        milliseconds. Raises RowError.
        """
        count = rows.num_rows
        key_at, keys, key_there = _binary(rows, "key")
        value_at, values, value_there = _binary(rows, "value")
        header_at, headers, _ = _headers(rows)
        placed = _partitions(rows, partitions)
        if compiled_writing.place(key_at, keys, key_there, placed, partitions):
            placed[placed < 0] = keyless
        order = np.argsort(placed, kind="stable")
        bounds = np.searchsorted(placed[order], np.arange(partitions + 1))
        times = _times(rows, now)
        sizes = (key_at[1:] - key_at[:-1]).astype(np.int64) + (value_at[1:] - value_at[:-1]) + (header_at[1:] - header_at[:-1])
        needed = int(sizes.max(initial=0)) + RECORD_OVERHEAD
        if needed > len(self._out):
            self._out = np.empty(needed, np.uint8)
        said = np.zeros(3, np.int64)
        assert bounds[-1] == count

        def write(first: int, end: int, out: Bytes) -> int:
            # fmt: off
            return compiled_writing.write(
                order, first, end, times, key_at, keys, key_there, value_at, values, value_there, header_at, headers, out, said,
            )
            # fmt: on

        for partition in range(partitions):
            first, end = int(bounds[partition]), int(bounds[partition + 1])
            while first < end:
                # What a larger record has room for, brokers need not take of others, which may compress less.
                written = write(first, end, self._out[:BATCH_BYTES]) or write(first, first + 1, self._out)
                assert written, "there is room for the largest record"
                used, first_time, last_time = (int(each) for each in said)
                yield self._batch(partition, self._out[:used], written, first_time, last_time)
                first += written

    def _batch(self, partition: int, records: Bytes, count: int, first_time: int, last_time: int) -> Batch:
        sequence = self._sent.get(partition, 0)
        self._sent[partition] = (sequence + count) & 0x7FFFFFFF
        body = self._compress(records)
        about = (self._codec | _TRANSACTIONAL, count - 1, first_time, last_time, self._producer.id, self._producer.epoch)
        checksum = google_crc32c.extend(google_crc32c.value(_CHECKED.pack(*about, sequence, count)), body)
        length = _HEADER.size - _BEFORE_LENGTH + len(body)
        return Batch(partition, _HEADER.pack(0, length, -1, 2, checksum, *about, sequence, count) + body, count)


def _buffers(values: pa.Array[Any]) -> tuple[npt.NDArray[np.int32], Bytes, Bytes]:
    """Where each value begins, with the end of the last; all bytes; and which rows have a value."""
    _, offsets, data = values.buffers()
    if not len(values) or offsets is None:
        return np.zeros(len(values) + 1, np.int32), np.zeros(1, np.uint8), np.zeros(len(values), np.uint8)
    at = np.frombuffer(memoryview(offsets), np.int32)[values.offset : values.offset + len(values) + 1]
    there = pc.cast(pc.is_valid(values), pa.uint8()).to_numpy(zero_copy_only=False)
    return at, np.frombuffer(memoryview(data), np.uint8) if data is not None and data.size else np.zeros(1, np.uint8), there


def _binary(rows: pa.Table, name: str) -> tuple[npt.NDArray[np.int32], Bytes, Bytes]:
    if name not in rows.column_names:
        return np.zeros(rows.num_rows + 1, np.int32), np.zeros(1, np.uint8), np.zeros(rows.num_rows, np.uint8)
    return _buffers(_whole(rows.column(name).cast(pa.binary())))


def _whole(column: Any) -> pa.Array[Any]:
    """A column as one array."""
    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return found if isinstance(found, pa.Array) else found.chunk(0)


def _headers(rows: pa.Table) -> tuple[npt.NDArray[np.int32], Bytes, Bytes]:
    if "headers" not in rows.column_names:
        return np.zeros(rows.num_rows + 1, np.int32), np.zeros(1, np.uint8), np.zeros(rows.num_rows, np.uint8)
    found = [b"" if not each else _header_bytes(each) for each in rows.column("headers").to_pylist()]
    return _buffers(pa.array(found, pa.binary()))


def _header_bytes(headers: list[dict[str, Any] | None]) -> bytes:
    parts = [_varint(len(headers))]
    for each in headers:
        if each is None or each["key"] is None:
            raise HeaderError(f"a row has the header {each}: in the column headers only a header's value may be null")
        key, value = each["key"].encode(), each["value"]
        parts += [_varint(len(key)), key, _varint(-1 if value is None else len(value)), value or b""]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    found = bytearray()
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _partitions(rows: pa.Table, count: int) -> npt.NDArray[np.int64]:
    """The partitions that the rows name themselves, -1 where they do not."""
    if "partition" not in rows.column_names:
        return np.full(rows.num_rows, -1, np.int64)
    named = _whole(rows.column("partition").cast(pa.int64()))
    if named.null_count < len(named):
        low, high = (each(named).as_py() for each in (pc.min, pc.max))
        if low < 0 or high >= count:
            raise PartitionError(
                f"a row names the partition {low if low < 0 else high}, and the topic has {count}: 0 to {count - 1}, or null"
            )
    return np.array(named.fill_null(-1).to_numpy(zero_copy_only=False))


def _times(rows: pa.Table, now: int) -> npt.NDArray[np.int64]:
    if "timestamp" not in rows.column_names:
        return np.full(rows.num_rows, now, np.int64)
    found = _whole(rows.column("timestamp"))
    found = found.cast(pa.timestamp("ms", found.type.tz), safe=False).cast(pa.int64()).fill_null(now)
    return np.ascontiguousarray(found.to_numpy(zero_copy_only=False))
