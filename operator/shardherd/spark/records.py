"""Turns the raw bytes of a Fetch response into Arrow record batches.

Decides which records of a shard's bytes are in a range, and what the columns look like; `reader` calls it in Spark's Python
workers. It does no input or output. `python -m shardherd.spark.records` compiles the kernels into numba's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardherd.core.model import Offset, ShardId
from shardherd.spark import kernels

Column: TypeAlias = "pa.Array[Any]"

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("shard", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
"""Every column that the source has, in its order; Spark demands exactly these Arrow types."""

FLUSH_BYTES = 64 * 1024 * 1024
"""Uncompressed bytes after which an Arrow batch is closed: far below the 2 GiB that its 32-bit offsets can address."""

_REASONS = {
    kernels.BAD_LENGTH: "a batch is shorter than its header",
    kernels.BAD_MAGIC: "a batch is not of format 2 (formats 0 and 1 are older than Kafka 0.11: rewrite the topic)",
    kernels.BAD_CHECKSUM: "a checksum does not match",
    kernels.BAD_COUNT: "a batch's offsets and record count contradict each other",
    kernels.BAD_VARINT: "a number is cut off or too long",
    kernels.BAD_RECORD: "a record's lengths contradict each other",
    kernels.BAD_OFFSET: "a record's offset is not in its batch, or not above the one before it",
    kernels.TRAILING_BYTES: "bytes are left over after a batch's last record",
    kernels.BAD_BATCH_ORDER: "a batch starts below the end of the one before it",
}


class CorruptRecordsError(ValueError):
    """The bytes of a shard are not what Kafka promises. Names the shard, the offset asked for, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The whole batches in one shard's bytes. `next_offset` is where the next Fetch goes on (the asked offset if none)."""

    data: npt.NDArray[np.uint8]
    batches: npt.NDArray[np.int64]
    next_offset: Offset


def _snappy(data: npt.NDArray[np.uint8]) -> Any:
    """Snappy as Kafka writes it: raw, or in the blocks of the Java library's stream."""
    raw = data.tobytes()
    if raw[:8] != b"\x82SNAPPY\x00":
        return cramjam.snappy.decompress_raw(raw)
    out, position = bytearray(), 16
    while position < len(raw):
        size = int.from_bytes(raw[position : position + 4], "big")
        block = raw[position + 4 : position + 4 + size]
        if len(block) != size or not size:
            raise cramjam.DecompressionError("a snappy block is cut off")
        out += bytes(cramjam.snappy.decompress_raw(block))
        position += 4 + size
    return bytes(out)


_CODECS: dict[int, Callable[[Any], Any]] = {
    1: cramjam.gzip.decompress,
    2: _snappy,
    3: cramjam.lz4.decompress,
    4: cramjam.zstd.decompress,
}


def scan(shard: ShardId, data: bytes | memoryview, asked: Offset, *, checksums: bool = True) -> Scan:
    """Find the whole batches that a Fetch from offset `asked` returned. Raises CorruptRecordsError."""
    view = np.frombuffer(data, dtype=np.uint8)
    batches = np.empty((len(view) // kernels.HEADER_SIZE + 1, kernels.BATCH_FIELDS), dtype=np.int64)
    count = kernels.scan(view, batches, checksums)
    if count < 0:
        raise CorruptRecordsError(f"shard {shard}, fetched from offset {asked}: {_REASONS[count]}")
    found = batches[:count]
    last = int(found[-1, kernels.LAST_OFFSET]) + 1 if count else asked
    return Scan(view, found, max(asked, last))


@dataclass(frozen=True, slots=True)
class _Part:
    """One batch's records, uncompressed: data[position:end]."""

    batch: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]
    position: int
    end: int


def decode(shard: ShardId, scanned: Scan, start: Offset, stop: Offset, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The records with start <= offset < stop, in order, as Arrow batches of `columns` (names of SCHEMA).

    Control batches give no rows. Nothing in the range gives no batch. Raises CorruptRecordsError.
    """
    parts: list[_Part] = []
    size = 0
    for batch in scanned.batches:
        control = batch[kernels.ATTRIBUTES] & kernels.CONTROL
        if control or batch[kernels.LAST_OFFSET] < start or not batch[kernels.COUNT]:
            continue
        if batch[kernels.BASE_OFFSET] >= stop:
            break
        part = _uncompressed(shard, scanned.data, batch)
        # Batches of one timestamp type go together: the type is a column of the whole Arrow batch.
        mixed = parts and (parts[0].batch[kernels.ATTRIBUTES] ^ batch[kernels.ATTRIBUTES]) & kernels.LOG_APPEND_TIME
        if parts and (mixed or size + part.end - part.position > FLUSH_BYTES):
            yield from _columns(shard, parts, start, stop, columns)
            parts, size = [], 0
        parts.append(part)
        size += part.end - part.position
    if parts:
        yield from _columns(shard, parts, start, stop, columns)


def _uncompressed(shard: ShardId, data: npt.NDArray[np.uint8], batch: npt.NDArray[np.int64]) -> _Part:
    codec = int(batch[kernels.ATTRIBUTES]) & kernels.CODEC_MASK
    position, end = int(batch[kernels.POSITION]), int(batch[kernels.END])
    if codec == 0:
        return _Part(batch, data, position, end)
    where = f"shard {shard}, batch at offset {batch[kernels.BASE_OFFSET]}"
    if codec not in _CODECS:
        raise CorruptRecordsError(f"{where}: unknown compression codec {codec}")
    try:
        plain = np.frombuffer(memoryview(_CODECS[codec](data[position:end])), dtype=np.uint8)
    except cramjam.DecompressionError as error:
        raise CorruptRecordsError(f"{where}: codec {codec} cannot be decompressed: {error}") from error
    if len(plain) > np.iinfo(np.int32).max:
        raise CorruptRecordsError(f"{where}: {len(plain)} bytes do not fit one Arrow batch")
    return _Part(batch, plain, 0, len(plain))


def _columns(
    shard: ShardId, parts: Sequence[_Part], start: Offset, stop: Offset, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    # A record takes at least 6 bytes after its length, so a lying count cannot make us allocate more than the data allows.
    bound = sum(part.end - part.position for part in parts)
    rows = min(sum(int(part.batch[kernels.COUNT]) for part in parts), bound)
    want_key, want_value = "key" in columns, "value" in columns
    offsets, timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
    keys, values = _Binary(rows, bound, want_key), _Binary(rows, bound, want_value)
    cursor = np.zeros(5, np.int64)
    for part in parts:
        where = f"shard {shard}, batch at offset {part.batch[kernels.BASE_OFFSET]}"
        if int(part.batch[kernels.COUNT]) + int(cursor[0]) > rows:
            raise CorruptRecordsError(f"{where}: more records than bytes")
        status = kernels.records(
            part.data, part.position, part.end, part.batch, start, stop, want_key, want_value,
            offsets, timestamps, keys.ends, keys.set, keys.data, values.ends, values.set, values.data, cursor,
        )  # fmt: skip
        if status < 0:
            raise CorruptRecordsError(f"{where}: {_REASONS[status]}")
    count = int(cursor[0])
    if not count:
        return
    topic, _, partition = shard.rpartition("/")
    append_time = bool(parts[0].batch[kernels.ATTRIBUTES] & kernels.LOG_APPEND_TIME)
    makers: dict[str, Callable[[], Column]] = {
        "key": lambda: keys.array(count, int(cursor[1]), int(cursor[3])),
        "value": lambda: values.array(count, int(cursor[2]), int(cursor[4])),
        "topic": lambda: _constant_text(topic, count),
        "partition": lambda: _constant_int(int(partition), count),
        "offset": lambda: _fixed(pa.int64(), offsets, count),
        "timestamp": lambda: _fixed(SCHEMA.field("timestamp").type, timestamps, count),
        "timestampType": lambda: _constant_int(int(append_time), count),
        "shard": lambda: _constant_text(shard, count),
    }
    yield pa.RecordBatch.from_arrays([makers[name]() for name in columns], schema=schema_of(columns))


class _Binary:
    """Room for a binary column: at most `rows` rows of `size` bytes together; none if it is not wanted."""

    def __init__(self, rows: int, size: int, wanted: bool) -> None:
        self.ends = np.empty(rows + 1 if wanted else 1, np.int32)
        self.ends[0] = 0
        self.set = np.empty(rows if wanted else 0, np.uint8)
        self.data = np.empty(size if wanted else 0, np.uint8)

    def array(self, count: int, size: int, nulls: int) -> Column:
        validity = _buffer(np.packbits(self.set[:count], bitorder="little")) if nulls else None
        buffers = [validity, _buffer(self.ends[: count + 1]), _buffer(self.data[:size])]
        return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=nulls)


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _fixed(kind: pa.DataType, values: npt.NDArray[np.int64], count: int) -> Column:
    return pa.Array.from_buffers(kind, count, [None, _buffer(values[:count])], null_count=0)


def _constant_int(value: int, count: int) -> Column:
    return pa.Array.from_buffers(pa.int32(), count, [None, _buffer(np.full(count, value, np.int32))], null_count=0)


def _constant_text(text: str, count: int) -> Column:
    raw = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    return pa.Array.from_buffers(pa.string(), count, [None, _buffer(ends), pa.py_buffer(raw * count)], null_count=0)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])


if __name__ == "__main__":
    print(f"the kernels of {kernels.__name__} are compiled and cached")
