"""Builds the bytes of Kafka record batches for tests, with kafka-python's own encoder and a few bent headers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import cramjam
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True)
class Record:
    """One record to encode; `offset` is absolute."""

    offset: int
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes], ...] = ()


def batch_of(records: Sequence[Record], *, codec: str = "none", attributes: int = 0, last_offset: int | None = None) -> bytes:
    """One batch with these records; its base is the first one's offset, `last_offset` may lie beyond the last record."""
    base = records[0].offset
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 30
    )
    for record in records:
        builder.append(record.offset - base, record.timestamp, record.key, record.value, list(record.headers))
    plain = bytes(builder.build())
    body = plain[61:]
    if codec == "snappy":
        body = bytes(cramjam.snappy.compress_raw(body))
    elif codec != "none":
        body = bytes(getattr(cramjam, codec).compress(body))
    last = records[-1].offset if last_offset is None else last_offset
    return sealed(plain[:61] + body, base=base, last_delta=last - base, attributes=attributes | CODECS[codec])


def empty_batch(base: int, last_offset: int, *, attributes: int = 0) -> bytes:
    """A batch whose records were all compacted away: the log keeps its header."""
    emptied = bytearray(batch_of([Record(base)])[:61])
    emptied[57:61] = struct.pack(">i", 0)
    return sealed(bytes(emptied), base=base, last_delta=last_offset - base, attributes=attributes)


def control_batch(offset: int) -> bytes:
    """A transaction's marker, which takes one offset and is no record."""
    return batch_of([Record(offset, key=b"\x00\x00\x00\x01", value=b"\x00\x00\x00\x00\x00\x00")], attributes=0x20 | 0x10)


def sealed(data: bytes, *, base: int, last_delta: int, attributes: int) -> bytes:
    """The batch with these header fields, its right length and its right checksum."""
    out = bytearray(data)
    out[0:8] = struct.pack(">q", base)
    out[8:12] = struct.pack(">i", len(out) - 12)
    out[21:23] = struct.pack(">h", attributes)
    out[23:27] = struct.pack(">i", last_delta)
    out[17:21] = struct.pack(">I", calc_crc32c(bytes(out[21:])))
    return bytes(out)
