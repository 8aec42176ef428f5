"""Where the Kafka sink's tasks send records without a key, over brokers that note what they are sent."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.source.encoding.record_encoding import Batch, Producer
from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks import kafka_rows
from shardherd.spark.sinks.kafka_rows import WriteJob, write_records
from shardherd.spark.sinks.positions import Pending
from shardherd.transactions.kafka_transactions import Output, Transaction
from shardherd.transactions.outcomes import Stored
from tests.harness.micro_batches import A

PARTITIONS = 3
ROWS = 7
"""Rows of one record batch."""


class Brokers:
    """They take all that is sent: for each time the partitions, and how many records each was sent."""

    def __init__(self) -> None:
        self.sent: list[dict[int, int]] = []

    def begin_open(self, output: Output, shard: ShardId) -> Callable[[], Transaction]:
        return lambda: Transaction(shard, output.transactional_id(shard), Producer(1, 1), None)

    def begin_send(self, output: Output, transaction: Transaction, rounds: list[list[Batch]]) -> Callable[[], None]:
        self.sent.append({each.partition: each.records for batches in rounds for each in batches})
        return lambda: None

    def begin_commit(self, output: Output, transaction: Transaction, stored: Stored) -> Callable[[], None]:
        return lambda: None


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(kafka_rows, "connection", lambda *_: made)
    # So that each record batch is sent by itself.
    monkeypatch.setattr(kafka_rows, "SHARD_BYTES", 0)
    return made


def write(keys: list[list[bytes | None]]) -> None:
    """One task of one shard, of record batches with these keys."""
    count = sum(map(len, keys))
    offsets = iter(range(count))
    batches = [
        pa.record_batch(
            {
                "shard": pa.array([A] * len(each)),
                "offset": pa.array([next(offsets) for _ in each], pa.int64()),
                "key": pa.array(each, pa.binary()),
                "value": pa.array([b"value"] * len(each)),
            }
        )
        for each in keys
    ]
    job = WriteJob(
        "x:9092",
        Security(),
        Output("topic", "group", 60),
        PARTITIONS,
        "none",
        ("key", "value"),
        {A: BatchRange(0, count, 1)},
        {A: Pending(0, count, 1, None)},
    )
    assert [row for answer in write_records(batches, job) for row in answer.to_pylist()] == [{"shard": A, "conflict": None}]


@pytest.mark.parametrize("before", range(PARTITIONS))
def test_rows_without_a_key_go_to_one_partition_and_those_sent_after_them_to_the_next(
    brokers: Brokers, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "randrange", lambda _: before)
    write([[None] * ROWS] * 4)

    assert brokers.sent == [{(before + each) % PARTITIONS: ROWS} for each in range(1, 5)]


def test_tasks_begin_at_any_partition(brokers: Brokers) -> None:
    """Else those of a small micro-batch would all write to the same one."""
    for _ in range(60):
        write([[None]])

    assert {number for sent in brokers.sent for number in sent} == set(range(PARTITIONS))


def test_rows_with_a_key_stay_where_it_puts_them(brokers: Brokers) -> None:
    write([[b"key"]] * 4)

    first = brokers.sent[0]
    assert brokers.sent == [first] * 4
    assert first.keys() <= set(range(PARTITIONS))
