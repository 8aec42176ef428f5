"""The decoder of Kafka's record batches: the same rows as kafka-python's own, and no damage that it does not survive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding import record_layout as layout
from tests.harness.bounds import run_checked
from tests.harness.long import LONG
from tests.property import record_damage
from tests.unit.source.kafka_bytes import CODECS, Record, legacy_batch

EXAMPLES = 2000 if LONG else 40
SEEDS = 300_000 if LONG else 4000
TIMEOUT = 3600 if LONG else 600
CHECKED_SEEDS = 100_000 if LONG else 1000

SHARD = ShardId("clicks/3")
COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")

BYTES = st.none() | st.binary(max_size=60) | st.integers(0, 3000).map(lambda size: b"ab" * size)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=4).map(tuple)
FIELDS = st.tuples(st.integers(1, 4), st.integers(0, 1 << 41), BYTES, BYTES, HEADERS)


def numbered(fields: list[tuple[int, int, bytes | None, bytes | None, Any]], first: int) -> list[Record]:
    """Records with gaps between their offsets."""
    made, offset = [], first
    for step, timestamp, key, value, headers in fields:
        made.append(Record(offset, timestamp, key, value, headers))
        offset += step
    return made


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A few batches, as kafka-python's encoder writes them: compressed by the libraries that producers use."""
    data, first = b"", draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 4))):
        made = numbered(draw(st.lists(FIELDS, min_size=1, max_size=30)), first)
        first = made[-1].offset + draw(st.integers(1, 5))
        if draw(st.integers(0, 4)) == 0:
            plain = [Record(each.offset, each.timestamp, each.key, each.value) for each in made]
            data += legacy_batch(plain, magic=1, codec=draw(st.sampled_from(["none", "gzip", "snappy", "lz4"])))
            continue
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=CODECS[draw(st.sampled_from(sorted(CODECS)))],
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        for each in made:
            builder.append(each.offset - made[0].offset, each.timestamp, each.key, each.value, list(each.headers))
        batch = bytearray(builder.build())
        batch[0:8] = made[0].offset.to_bytes(8, "big")
        data += bytes(batch)
    return data


def by_kafka_python(data: bytes) -> list[tuple[Any, ...]]:
    return [
        (each.offset, each.timestamp, each.timestamp_type, each.key, each.value, each.headers or None)
        for batch in MemoryRecords(bytearray(data))
        for each in batch
    ]


def ours(data: bytes) -> list[tuple[Any, ...]]:
    scanned = record_batches.scan(SHARD, data, 0)
    return [
        (
            row["offset"],
            row["timestamp"],
            row["timestampType"],
            row["key"],
            row["value"],
            row["headers"] and [(each["key"], each["value"]) for each in row["headers"]],
        )
        for batch in record_batches.decode(SHARD, scanned, 0, 1 << 62, COLUMNS)
        for row in batch.set_column(1, "timestamp", batch.column(1).cast("int64")).to_pylist()
    ]


@settings(max_examples=EXAMPLES)
@given(data=batches())
def test_rows_are_those_of_kafka_pythons_own_decoder(data: bytes) -> None:
    expected = [(offset, timestamp * 1000, *rest) for offset, timestamp, *rest in by_kafka_python(data)]

    assert ours(data) == expected


@settings(max_examples=EXAMPLES)
@given(data=batches(), start=st.integers(0, 60), length=st.integers(0, 60))
def test_a_range_is_that_part_of_all_rows(data: bytes, start: int, length: int) -> None:
    everything = ours(data)
    start += everything[0][0] - 5
    scanned = record_batches.scan(SHARD, data, max(start, 0))
    found = [
        row["offset"]
        for batch in record_batches.decode(SHARD, scanned, start, start + length, ("offset",))
        for row in batch.to_pylist()
    ]

    assert found == [row[0] for row in everything if start <= row[0] < start + length]


@pytest.mark.timeout(TIMEOUT)
def test_damage_ends_in_valid_rows_or_in_an_error_that_names_the_batch() -> None:
    seen = {record_damage.one(seed) for seed in range(SEEDS)}

    assert "rows" in seen
    assert not [outcome for outcome in seen if outcome.startswith("no place")]
    # An unknown format is named by its number, and only a time that nobody sends is beyond Spark's timestamps.
    rare = {layout.BAD_FORMAT, layout.BAD_TIMESTAMP}
    assert {reason for status, reason in record_batches.REASONS.items() if status not in rare} - seen == set()


@pytest.mark.timeout(TIMEOUT)
def test_damage_leads_to_no_access_outside_of_an_array() -> None:
    """The compiled loops have no bounds checks in use; here they have, in a process of their own."""
    done = run_checked("tests.property.record_damage", 0, CHECKED_SEEDS)

    assert (done.returncode, done.stderr[-2000:]) == (0, "")
    assert "rows" in done.stdout
