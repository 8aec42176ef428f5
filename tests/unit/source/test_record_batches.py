"""What the decoder makes of a Fetch response's bytes."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from typing import Any

import cramjam
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding.record_columns import SCHEMA, schema_of
from shardherd.spark.schema import SCHEMA as SPARK_SCHEMA
from tests.unit.source.kafka_bytes import CODECS, Record, batch_of, control_batch, empty_batch, sealed

SHARD = ShardId("clicks/3")
ALL = tuple(SCHEMA.names)


def rows(data: bytes, start: int = 0, stop: int = 1 << 40, columns: Sequence[str] = ALL) -> list[dict[str, Any]]:
    scanned = record_batches.scan(SHARD, data, start)
    return [row for batch in record_batches.decode(SHARD, scanned, start, stop, columns) for row in batch.to_pylist()]


def offsets(data: bytes, start: int = 0, stop: int = 1 << 40) -> list[int]:
    return [row["offset"] for row in rows(data, start, stop)]


def test_every_column_of_a_record_is_what_was_produced() -> None:
    data = batch_of([Record(7, 1_700_000_000_123, b"user-1", b'{"page": "/"}', (("trace", b"abc"),))])

    assert rows(data) == [
        {
            "key": b"user-1",
            "value": b'{"page": "/"}',
            "topic": "clicks",
            "partition": 3,
            "offset": 7,
            "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.UTC),
            "timestampType": 0,
            "headers": [{"key": "trace", "value": b"abc"}],
            "shard": "clicks/3",
        }
    ]


def test_the_arrow_schema_is_the_one_that_spark_demands() -> None:
    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    spark = StructType([field for field in SPARK_SCHEMA.fields if field.name != "headers"]).add("headers", headers)

    assert to_arrow_schema(spark, timezone="UTC") == schema_of(spark.names)
    assert sorted(spark.names) == sorted(SCHEMA.names)


def test_only_the_asked_columns_are_made_in_the_asked_order() -> None:
    data = batch_of([Record(0, value=b"a"), Record(1, value=None)])

    assert rows(data, columns=("shard", "value")) == [
        {"shard": "clicks/3", "value": b"a"},
        {"shard": "clicks/3", "value": None},
    ]


def test_null_and_empty_keys_and_values_stay_apart() -> None:
    data = batch_of([Record(0, key=None, value=b""), Record(1, key=b"", value=None), Record(2, key=b"k", value=b"v")])

    assert [(row["key"], row["value"]) for row in rows(data)] == [(None, b""), (b"", None), (b"k", b"v")]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_codec_gives_the_same_rows(codec: str) -> None:
    produced = [Record(i, key=b"k%d" % i, value=b"v" * (i % 97), headers=(("h", b"x"),)) for i in range(5000)]

    found = rows(batch_of(produced[:3000], codec=codec) + batch_of(produced[3000:], codec=codec))

    assert [(r["offset"], r["key"], r["value"]) for r in found] == [(r.offset, r.key, r.value) for r in produced]


def test_snappy_in_the_java_librarys_blocks_is_read() -> None:
    plain = batch_of([Record(i, value=b"abc" * 10) for i in range(100)])
    body = plain[61:]
    blocks = [bytes(cramjam.snappy.compress_raw(body[i : i + 700])) for i in range(0, len(body), 700)]
    stream = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + b"".join(len(b).to_bytes(4, "big") + b for b in blocks)

    assert offsets(sealed(plain[:61] + stream, base=0, last_delta=99, attributes=2)) == list(range(100))


def test_records_below_the_start_and_from_the_end_on_are_cut() -> None:
    data = batch_of([Record(i) for i in range(10, 20)]) + batch_of([Record(i) for i in range(20, 30)])

    assert offsets(data, 13, 22) == list(range(13, 22))
    assert offsets(data, 30, 40) == []
    assert offsets(data, 12, 12) == []


def test_gaps_of_compaction_and_control_batches_are_no_rows_but_are_passed() -> None:
    data = batch_of([Record(3), Record(6)], last_offset=9) + control_batch(10) + empty_batch(11, 15) + batch_of([Record(17)])

    assert offsets(data, 2) == [3, 6, 17]
    assert record_batches.scan(SHARD, data, 2).next_offset == 18
    assert record_batches.scan(SHARD, control_batch(10), 10).next_offset == 11
    assert record_batches.scan(SHARD, empty_batch(11, 15), 11).next_offset == 16


def test_a_cut_off_last_batch_is_left_for_the_next_fetch() -> None:
    first, second = batch_of([Record(0), Record(1)]), batch_of([Record(2), Record(3)])
    for cut in range(1, len(second)):
        scanned = record_batches.scan(SHARD, first + second[:cut], 0)
        assert (scanned.next_offset, len(scanned.batches)) == (2, 1)
    assert record_batches.scan(SHARD, second[:40], 2).next_offset == 2
    assert record_batches.scan(SHARD, b"", 2).next_offset == 2


def test_log_append_time_is_the_batchs_time() -> None:
    data = batch_of([Record(0, 1000), Record(1, 5000)], attributes=0x08) + batch_of([Record(2, 1000)])

    found = rows(data, columns=("offset", "timestamp", "timestampType"))

    assert [(row["offset"], row["timestamp"].timestamp(), row["timestampType"]) for row in found] == [
        (0, 5.0, 1),
        (1, 5.0, 1),
        (2, 1.0, 0),
    ]


def test_headers_are_a_list_of_pairs_and_null_when_there_are_none() -> None:
    many = tuple((f"h{i}", b"x" * i) for i in range(300))
    produced = [
        Record(0),
        Record(1, headers=(("trace", b"abc"), ("trace", None), ("", b""))),
        Record(2, headers=many),
        Record(3),
    ]

    found = rows(batch_of(produced[:3]) + batch_of(produced[3:], codec="zstd"), columns=("headers", "offset"))

    assert found == [
        {"headers": [{"key": k, "value": v} for k, v in each.headers] or None, "offset": each.offset} for each in produced
    ]


def test_a_headers_key_that_is_no_text_gets_replacement_characters() -> None:
    data = bytearray(batch_of([Record(0, headers=(("k!y", b"v"),))]))
    data[data.index(b"k!y") + 1] = 0xFF

    assert rows(sealed(bytes(data), base=0, last_delta=0, attributes=0), columns=("headers",)) == [
        {"headers": [{"key": "k\ufffdy", "value": b"v"}]}
    ]


def test_a_time_beyond_sparks_timestamps_is_an_error_only_if_it_is_wanted() -> None:
    data = batch_of([Record(5, 1 << 62)])

    with pytest.raises(record_batches.CorruptRecordsError) as error:
        rows(data)
    assert str(error.value) == (
        "shard clicks/3, batch at offset 5: a record's time is beyond what Spark's timestamps can say (is it in nanoseconds?): "
        "leave the column timestamp out of the query's schema, or go on after this batch"
    )
    assert rows(data, columns=("offset",)) == [{"offset": 5}]


def test_a_long_answer_becomes_several_arrow_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "ARROW_BYTES", 5000)
    monkeypatch.setattr(record_batches, "GROUP_BYTES", 1)
    data = b"".join(batch_of([Record(i, value=b"x" * 2000)]) for i in range(7))

    batches = list(record_batches.decode(SHARD, record_batches.scan(SHARD, data, 0), 0, 9, ALL))

    assert [batch.num_rows for batch in batches] == [2, 2, 2, 1]
    assert all(batch.schema == SCHEMA for batch in batches)
    for batch in batches:
        batch.validate(full=True)


@pytest.mark.parametrize("group_bytes", [1, 3000, 1 << 20])
def test_rows_do_not_depend_on_how_batches_are_grouped(monkeypatch: pytest.MonkeyPatch, group_bytes: int) -> None:
    monkeypatch.setattr(record_batches, "GROUP_BYTES", group_bytes)
    monkeypatch.setattr(record_batches, "ARROW_ROWS", 40)
    produced = [Record(i, key=b"%d" % i, value=b"v" * (i % 50), headers=(("h", b"%d" % i),) * (i % 3)) for i in range(400)]
    names = sorted(CODECS)
    data = b"".join(batch_of(produced[at : at + 10], codec=names[at // 10 % 5]) for at in range(0, 400, 10))

    found = rows(data)

    assert [(row["offset"], row["key"], row["value"], len(row["headers"] or ())) for row in found] == [
        (each.offset, each.key, each.value, len(each.headers)) for each in produced
    ]


def test_a_large_value_survives() -> None:
    value = random.Random(5).randbytes(700_000)

    assert [row["value"] for row in rows(batch_of([Record(0, value=value)], codec="lz4"), columns=("value",))] == [value]


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (lambda b: b[:16] + b"\x03" + b[17:], "format 3 is none of 0, 1 and 2"),
        (lambda b: b[:8] + b"\x00\x00\x00\x05" + b[12:], "shorter than its header"),
        (lambda b: b[:70] + bytes([b[70] ^ 1]) + b[71:], "checksum does not match"),
        (lambda b: b + b, "starts below the end"),
        (lambda b: sealed(b[:57] + b"\x00\x00\x00\x09" + b[61:], base=0, last_delta=1, attributes=0), "contradict each other"),
        (lambda b: sealed(b[:57] + b"\x7f\xff\xff\xff" + b[61:], base=0, last_delta=0x7FFFFFFF, attributes=0), "cannot be in"),
        (lambda b: sealed(b[:61] + b"\x7e" + b[62:], base=0, last_delta=1, attributes=0), "record's lengths contradict"),
        (lambda b: sealed(b[:61] + b"\xff" * (len(b) - 61), base=0, last_delta=1, attributes=0), "cut off or too long"),
        (lambda b: sealed(b + b"\x00", base=0, last_delta=1, attributes=0), "left over"),
        (lambda b: sealed(b, base=0, last_delta=1, attributes=3), "not a frame of version 1"),
        (lambda b: sealed(b, base=0, last_delta=1, attributes=6), "unknown compression codec 6"),
    ],
)
def test_broken_bytes_are_refused_with_the_shard_and_the_reason(bend: Any, reason: str) -> None:
    with pytest.raises(record_batches.CorruptRecordsError, match=reason) as raised:
        rows(bend(batch_of([Record(0, value=b"one"), Record(1, value=b"two")])))
    assert "shard clicks/3, batch at offset 0" in str(raised.value)


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_either_raises_or_gives_whole_valid_columns(seed: int) -> None:
    chance = random.Random(seed)
    keys = [chance.randbytes(3) if i % 3 else None for i in range(50)]
    produced = [Record(i, key=keys[i], value=chance.randbytes(chance.randrange(40))) for i in range(50)]
    plain = batch_of(produced)
    for _ in range(50):
        damaged = bytearray(plain)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(12, len(damaged))] = chance.randrange(256)
        try:
            scanned = record_batches.scan(SHARD, bytes(damaged), 0, checksums=False)
            batches: list[pa.RecordBatch] = list(record_batches.decode(SHARD, scanned, 0, 1 << 40, ALL))
        except record_batches.CorruptRecordsError:
            continue
        for batch in batches:
            batch.validate(full=True)
            found = batch.column("offset").to_numpy()
            assert (found[1:] > found[:-1]).all()
