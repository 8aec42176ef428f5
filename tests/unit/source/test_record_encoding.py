"""Record batches that are made of Arrow columns are read back by kafka-python as they were, each key where Kafka puts it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka import codec as kafka_codecs
from kafka.partitioner.default import murmur2
from kafka.record import MemoryRecords

from shardherd.source.decoding.codecs import Arena, decompress
from shardherd.source.encoding.record_encoding import BATCH_BYTES, COMPRESSIONS, Encoder, HeaderError, PartitionError, Producer

NOW = 1_700_000_000_000
BLOCK = 32 * 1024
KAFKA_PYTHON: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": kafka_codecs.gzip_decode,
    "snappy": kafka_codecs.snappy_decode,
    "lz4": kafka_codecs.lz4_decode,
    "zstd": kafka_codecs.zstd_decode,
}


def read(data: bytes) -> tuple[Any, list[Any]]:
    """The only batch in these bytes, and its records."""
    found = MemoryRecords(data)
    batch: Any = found.next_batch()
    assert batch.validate_crc()
    assert found.next_batch() is None
    return batch, list(batch)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_are_read_back_in_the_partitions_of_their_keys(compression: str) -> None:
    draw = random.Random(7)
    keys = [None if number % 7 == 0 else draw.randbytes(draw.randrange(12)) for number in range(500)]
    values = [None if number % 11 == 0 else draw.randbytes(draw.randrange(300)) for number in range(500)]
    rows = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    found = []
    for batch in Encoder(Producer(7, 3), compression).encode(rows.slice(1), 5, 2, NOW):
        about, records = read(batch.data)
        assert (about.producer_id, about.producer_epoch, about.base_sequence, about.is_transactional) == (7, 3, 0, True)
        assert len(records) == batch.records
        found += [(batch.partition, each.key, each.value, each.timestamp) for each in records]

    wanted = [
        (2 if key is None else (murmur2(key) & 0x7FFFFFFF) % 5, key, value, NOW)
        for key, value in zip(keys[1:], values[1:], strict=True)
    ]
    assert found == sorted(wanted, key=lambda each: each[0])


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_blocks_of_every_size_are_undone_by_the_source_and_by_kafka_python(compression: str, size: int) -> None:
    codec, compress = COMPRESSIONS[compression]
    noise = random.Random(size).randbytes(size)
    for data in (noise, (noise[: size // 9 + 1] * 9)[:size]):
        body, arena = compress(np.frombuffer(data, np.uint8)), Arena()
        if codec:
            begin, end = decompress(codec, memoryview(body), arena)
            assert arena.data[begin:end].tobytes() == data
        assert KAFKA_PYTHON[compression](body) == data


def test_snappy_has_the_frame_of_kafkas_java_client() -> None:
    data = random.Random(7).randbytes(BLOCK + 1)
    assert COMPRESSIONS["snappy"][1](np.frombuffer(data, np.uint8)) == kafka_codecs.snappy_encode(data)


def test_batches_are_bounded_numbered_on_and_a_larger_record_is_alone() -> None:
    values = [b"a" * 400_000, b"b" * 400_000, b"c" * 400_000, b"d" * (BATCH_BYTES + 1), b"e"]
    encoder = Encoder(Producer(1, 1))
    batches = list(encoder.encode(pa.table({"value": pa.array(values)}), 1, 0, NOW))
    more = list(encoder.encode(pa.table({"value": pa.array([b"f"])}), 1, 0, NOW))

    assert [[each.value[:1] for each in read(batch.data)[1]] for batch in batches] == [
        [b"a", b"b"],
        [b"c"],
        [b"d"],
        [b"e"],
    ]
    assert [read(batch.data)[0].base_sequence for batch in (*batches, *more)] == [0, 2, 3, 4, 5]


def test_batches_beside_and_after_a_larger_record_are_no_larger_than_others() -> None:
    encoder = Encoder(Producer(1, 1))
    small = [bytes([number]) * 300_000 for number in range(20)]
    beside = list(encoder.encode(pa.table({"value": pa.array([*small, b"x" * (5 * BATCH_BYTES), *small])}), 1, 0, NOW))
    after = list(encoder.encode(pa.table({"value": pa.array(small)}), 1, 0, NOW))

    assert [batch.records for batch in beside] == [3, 3, 3, 3, 3, 3, 2, 1, 3, 3, 3, 3, 3, 3, 2]
    assert [batch.records for batch in after] == [3, 3, 3, 3, 3, 3, 2]


def test_headers_times_and_partitions_of_the_rows_are_kept() -> None:
    headers = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    rows = pa.table(
        {
            "value": pa.array([b"a", b"b"]),
            "headers": pa.array([[{"key": "ü", "value": None}, {"key": "h", "value": b"x" * 200}], None], headers),
            "timestamp": pa.array([5_999, None], pa.timestamp("us", "UTC")),
            "partition": pa.array([2, None], pa.int32()),
        }
    )
    found = {batch.partition: read(batch.data)[1][0] for batch in Encoder(Producer(1, 1)).encode(rows, 3, 1, NOW)}

    assert {number: (each.value, each.timestamp, list(each.headers)) for number, each in found.items()} == {
        2: (b"a", 5, [("ü", None), ("h", b"x" * 200)]),
        1: (b"b", NOW, []),
    }


def test_a_partition_that_is_not_there_is_named() -> None:
    rows = pa.table({"value": pa.array([b"a"]), "partition": pa.array([3])})
    with pytest.raises(PartitionError, match="a row names the partition 3, and the topic has 3: 0 to 2, or null"):
        list(Encoder(Producer(1, 1)).encode(rows, 3, 0, NOW))


@pytest.mark.parametrize(
    ("header", "said"), [(None, "None"), ({"key": None, "value": b"v"}, r"\{'key': None, 'value': b'v'\}")]
)
def test_a_header_without_a_key_is_named(header: dict[str, Any] | None, said: str) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.table({"value": pa.array([b"a"], pa.binary()), "headers": pa.array([[header]], kind)})

    with pytest.raises(
        HeaderError, match=f"a row has the header {said}: in the column headers only a header's value may be null"
    ):
        list(Encoder(Producer(1, 1)).encode(rows, 3, 0, NOW))
