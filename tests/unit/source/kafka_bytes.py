"""Builds the bytes of Kafka record batches for tests, with kafka-python's own encoder and a few bent headers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import cramjam
from kafka import codec as kafka_codecs
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.util import calc_crc32, calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True)
class Record:
    """One record to encode; `offset` is absolute."""

    offset: int
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes | None], ...] = ()


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


def control_batch(offset: int, *, producer: int = 1, abort: bool = False) -> bytes:
    """A transaction's marker, which takes one offset and is no record."""
    key = struct.pack(">hh", 0, 0 if abort else 1)
    plain = batch_of([Record(offset, key=key, value=b"\x00\x00\x00\x00\x00\x00")])
    return sealed(plain, base=offset, last_delta=0, attributes=0x20 | 0x10, producer=producer)


def transactional(data: bytes, producer: int) -> bytes:
    """The same batch, as part of a transaction of that producer."""
    (base,), (last_delta,) = struct.unpack(">q", data[:8]), struct.unpack(">i", data[23:27])
    (attributes,) = struct.unpack(">h", data[21:23])
    return sealed(data, base=base, last_delta=last_delta, attributes=attributes | 0x10, producer=producer)


def legacy_batch(records: Sequence[Record], *, magic: int, codec: str = "none", append_time: int | None = None) -> bytes:
    """Messages of format 0 or 1: one after the other, or compressed in one; `append_time` is the broker's."""
    base = records[0].offset if magic == 1 and codec != "none" else 0
    builder = LegacyRecordBatchBuilder(magic, 0 if codec == "lz4" and magic == 0 else CODECS[codec], 1 << 30)
    for record in records:
        builder.append(record.offset - base, record.timestamp, record.key, record.value)
    data = bytearray(builder.build())
    if codec == "none":
        return bytes(data)
    if codec == "lz4" and magic == 0:
        # Clients before 0.10 wrote a wrong checksum into the header of the frame.
        frame = bytearray(kafka_codecs.lz4_encode(bytes(data)))
        frame[6] ^= 0xFF
        head = struct.pack(">qiIbb", 0, 0, 0, 0, CODECS["lz4"])
        data = bytearray(head + struct.pack(">ii", -1, len(frame)) + frame)
        data[8:12] = struct.pack(">i", len(data) - 12)
    data[0:8] = struct.pack(">q", records[-1].offset)
    if append_time is not None:
        data[17] |= 0x08
        data[18:26] = struct.pack(">q", append_time)
    data[12:16] = struct.pack(">I", calc_crc32(bytes(data[16:])))
    return bytes(data)


def sealed(data: bytes, *, base: int, last_delta: int, attributes: int, producer: int = -1) -> bytes:
    """The batch with these header fields, its right length and its right checksum."""
    out = bytearray(data)
    out[0:8] = struct.pack(">q", base)
    out[8:12] = struct.pack(">i", len(out) - 12)
    out[21:23] = struct.pack(">h", attributes)
    out[23:27] = struct.pack(">i", last_delta)
    out[43:51] = struct.pack(">q", producer)
    out[17:21] = struct.pack(">I", calc_crc32c(bytes(out[21:])))
    return bytes(out)
