"""Messages of formats 0 and 1, which old segments still hold."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kafka.codec import gzip_encode
from kafka.record.util import calc_crc32

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from tests.unit.source.kafka_bytes import Record, batch_of, legacy_batch

SHARD = ShardId("clicks/3")
NAMES = ("offset", "timestamp", "timestampType", "key", "value", "headers", "shard")
RECORDS = [
    Record(7, 1000, b"a", b"one"),
    Record(8, 2000, None, b""),
    Record(9, 3000, b"", None),
]


def rows(data: bytes, start: int = 0, stop: int = 1 << 40, columns: tuple[str, ...] = NAMES) -> list[tuple[Any, ...]]:
    scanned = record_batches.scan(SHARD, data, start)
    found = [row for batch in record_batches.decode(SHARD, scanned, start, stop, columns) for row in batch.to_pylist()]
    return [tuple(row.values()) for row in found]


def seconds(data: bytes) -> list[tuple[int, float, int]]:
    return [(offset, at.timestamp(), kind) for offset, at, kind in rows(data, columns=("offset", "timestamp", "timestampType"))]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_read_whatever_their_compression(magic: int, codec: str) -> None:
    data = legacy_batch(RECORDS, magic=magic, codec=codec)

    assert rows(data, columns=("offset", "key", "value", "headers", "shard")) == [
        (7, b"a", b"one", None, "clicks/3"),
        (8, None, b"", None, "clicks/3"),
        (9, b"", None, None, "clicks/3"),
    ]
    assert rows(data, 8, 9, ("offset",)) == [(8,)]
    assert record_batches.scan(SHARD, data, 7).next_offset == 10


def test_format_0_has_no_time_and_format_1_that_of_the_producer_or_of_the_broker() -> None:
    assert seconds(legacy_batch(RECORDS, magic=0)) == [(offset, -0.001, -1) for offset in (7, 8, 9)]
    assert seconds(legacy_batch(RECORDS, magic=0, codec="gzip")) == [(offset, -0.001, -1) for offset in (7, 8, 9)]
    assert seconds(legacy_batch(RECORDS, magic=1)) == [(7, 1.0, 0), (8, 2.0, 0), (9, 3.0, 0)]
    assert seconds(legacy_batch(RECORDS, magic=1, codec="gzip")) == [(7, 1.0, 0), (8, 2.0, 0), (9, 3.0, 0)]
    assert seconds(legacy_batch(RECORDS, magic=1, codec="gzip", append_time=9000)) == [(offset, 9.0, 1) for offset in (7, 8, 9)]


def test_formats_may_follow_each_other_in_one_answer() -> None:
    data = (
        legacy_batch([Record(1), Record(2)], magic=0)
        + legacy_batch([Record(4), Record(6)], magic=1, codec="lz4")
        + batch_of([Record(7), Record(9)], codec="zstd")
        + batch_of([Record(10)])
    )

    assert rows(data, columns=("offset",)) == [(1,), (2,), (4,), (6,), (7,), (9,), (10,)]


def resealed(data: bytes) -> bytes:
    out = bytearray(data)
    out[8:12] = struct.pack(">i", len(out) - 12)
    out[12:16] = struct.pack(">I", calc_crc32(bytes(out[16:])))
    return bytes(out)


ONE = legacy_batch([Record(7, 1000, b"key", b"value")], magic=1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ONE[:-1] + b"!", "its checksum does not match"),
        (resealed(ONE + b"!"), "format 1: bytes are left over after a message"),
        (resealed(ONE[:-1]), "format 1: a message is cut off"),
        (resealed(ONE[:17] + b"\x01" + ONE[18:]), "format 1: gzip cannot be decompressed"),
        (resealed(ONE[:17] + b"\x04" + ONE[18:]), "format 1: zstd cannot be decompressed"),
        (resealed(legacy_batch([Record(7, value=None)], magic=0)[:17] + b"\x01" + b"\xff" * 8), "message without a value"),
        (ONE[:8] + b"\x00\x00\x00\x05" + ONE[12:], "it is shorter than its header"),
        (ONE + ONE, "it starts below the end of the batch before it"),
    ],
)
def test_a_damaged_old_message_is_refused_with_its_offset(data: bytes, reason: str) -> None:
    with pytest.raises(record_batches.CorruptRecordsError, match=rf"shard clicks/3, batch at offset 7.*: .*{reason}"):
        rows(data)


def test_a_compressed_message_in_a_compressed_one_is_refused() -> None:
    inner = legacy_batch(RECORDS, magic=1, codec="gzip")
    outer = legacy_batch([Record(9, value=b"x")], magic=1, codec="gzip")
    value = gzip_encode(inner)
    data = resealed(outer[:26] + struct.pack(">ii", -1, len(value)) + value)

    with pytest.raises(record_batches.CorruptRecordsError, match="a compressed message inside of a compressed one"):
        rows(data)
