"""A task reads exactly its ranges, from brokers that are played by the test."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.brokers import SHARD_FETCH_BYTES, Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.fetch_memory import FetchMemory
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.kafka.leader_epochs import LogChecks
from shardherd.source.kafka.partitions import partition_of
from shardherd.source.reading import lost_records, range_reader
from shardherd.source.reading.fetch_sizing import UNKNOWN, FetchSizing
from shardherd.source.reading.lost_records import RangeLostError
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange
from shardherd.spark.reader import warm_up
from tests.unit.source.kafka_bytes import Record, batch_of, control_batch, empty_batch
from tests.unit.source.played_kafka import Log, PlayedKafka

A, B = ShardId("clicks/0"), ShardId("clicks/1")
MIB = 1024 * 1024


class FakeBrokers:
    """Logs of batches. A Fetch gives each shard's next batches up to `size` bytes, the very first one always whole."""

    def __init__(
        self, logs: Mapping[ShardId, list[tuple[int, bytes]]], end_offsets: Mapping[ShardId, int], size: int = 1 << 20
    ) -> None:
        self._logs = logs
        self._end_offsets = end_offsets
        self._size = size
        self.asked: list[dict[ShardId, int]] = []
        self.bytes_asked: list[dict[ShardId, int]] = []
        self.failures: list[Exception] = []
        self.beginning = 0
        self.written = -1

    def begin_fetch(
        self,
        positions: Mapping[ShardId, int],
        timeout: float,
        *,
        shard_bytes: Mapping[ShardId, int],
        memory: FetchMemory,
        checks: LogChecks,
    ) -> Callable[[], list[Fetched]]:
        self.asked.append(dict(positions))
        self.bytes_asked.append(dict(shard_bytes))
        failure = self.failures.pop(0) if self.failures else None
        answer = [self._answer(shard, at, index == 0) for index, (shard, at) in enumerate(positions.items())]

        def wait() -> list[Fetched]:
            if failure is not None:
                raise failure
            return answer

        return wait

    async def fetch(self, positions: Mapping[ShardId, int], timeout: float, **how: Any) -> list[Fetched]:
        return self.begin_fetch(positions, timeout, **how)()

    def _answer(self, shard: ShardId, position: int, first: bool) -> Fetched:
        if position < self.beginning:
            return Fetched(shard, position, b"", self._end_offsets[shard], start=self.beginning)
        data = b"".join(batch for last, batch in self._logs[shard] if last >= position)
        whole = next((len(batch) for last, batch in self._logs[shard] if last >= position), 0)
        size = max(self._size, whole) if first else self._size
        return Fetched(shard, position, data[:size], self._end_offsets[shard], written=self.written)


def read(brokers: Any, *ranges: ShardRange) -> list[tuple[str, int]]:
    rows = [row for batch in read_ranges(brokers, ranges, ("shard", "offset")) for row in batch.to_pylist()]
    return [(row["shard"], row["offset"]) for row in rows]


def log_of(*batches: tuple[int, int]) -> list[tuple[int, bytes]]:
    """Batches by their first and last offset, each record of 100 bytes."""
    return [(last, batch_of([Record(i, value=b"x" * 100) for i in range(first, last + 1)])) for first, last in batches]


def test_ranges_of_several_shards_are_read_exactly_and_in_order() -> None:
    brokers = FakeBrokers({A: log_of((0, 4), (5, 9)), B: log_of((0, 19))}, {A: 10, B: 20}, size=700)

    rows = read(brokers, ShardRange(A, 3, 9), ShardRange(B, 5, 15))

    assert [row for row in rows if row[0] == A] == [(A, i) for i in range(3, 9)]
    assert [row for row in rows if row[0] == B] == [(B, i) for i in range(5, 15)]


def test_a_range_may_end_in_offsets_without_a_record() -> None:
    compacted = [(4, batch_of([Record(0), Record(2)], last_offset=4)), (5, control_batch(5)), (9, empty_batch(6, 9))]
    brokers = FakeBrokers({A: compacted}, {A: 10})

    assert read(brokers, ShardRange(A, 1, 10)) == [(A, 2)]
    assert read(brokers, ShardRange(A, 6, 8)) == []


def test_the_next_fetch_is_sent_before_the_last_one_is_decoded() -> None:
    brokers = FakeBrokers({A: log_of((0, 4), (5, 9))}, {A: 10}, size=700)
    batches = read_ranges(brokers, [ShardRange(A, 0, 10)], ("offset",))  # type: ignore[arg-type]

    next(batches)

    assert brokers.asked == [{A: 0}, {A: 5}]


def test_a_batch_larger_than_a_fetch_comes_when_its_shard_is_first() -> None:
    brokers = FakeBrokers({A: log_of((0, 0), (1, 1), (2, 2)), B: log_of((0, 50))}, {A: 3, B: 51}, size=200)

    rows = read(brokers, ShardRange(A, 0, 3), ShardRange(B, 0, 51))

    assert sorted(rows) == [(A, 0), (A, 1), (A, 2), *((B, i) for i in range(51))]


def test_what_a_task_holds_does_not_grow_with_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardherd.source.decoding.record_batches.ARROW_BYTES", MIB)
    batch = batch_of([Record(at, value=b"x" * 8192) for at in range(128)])

    class Endless(FakeBrokers):
        def _answer(self, shard: ShardId, position: int, first: bool) -> Fetched:
            # Where a batch begins is the one thing that its checksum does not cover.
            batches = (at.to_bytes(8, "big") + batch[8:] for at in range(position, position + 4 * 128, 128))
            return Fetched(shard, position, b"".join(batches), self._end_offsets[shard])

    def peak(count: int) -> int:
        """Most bytes that reading so many megabytes has taken."""
        brokers: Any = Endless({A: []}, {A: count * 128})
        tracemalloc.start()
        try:
            rows = sum(batch.num_rows for batch in read_ranges(brokers, [ShardRange(A, 0, count * 128)], ("value",)))
            assert rows == count * 128
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(16), peak(64)

    assert few < 20 * MIB, "two answers of four megabytes, and what is decoded of one"
    assert many < few + MIB


def test_a_broker_that_comes_back_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "RETRY_DELAY", 0)
    brokers = FakeBrokers({A: log_of((0, 4))}, {A: 5})
    brokers.failures = [BrokersUnavailableError("connection refused")] * 3

    assert read(brokers, ShardRange(A, 0, 5)) == [(A, i) for i in range(5)]


def test_a_worker_is_warm_also_while_kafka_is_away(caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def connect(self, timeout: float) -> None:
            raise BrokersUnavailableError("connection refused")

    away: Any = Away()
    warm_up(away)

    assert caplog.messages == ["warming up without Kafka: connection refused"]


def test_a_kafka_that_stays_away_is_named_with_shard_and_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "RETRY_DELAY", 0.01)
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT", 0.05)
    brokers = FakeBrokers({A: []}, {A: 5})
    brokers.failures = [BrokersUnavailableError("connection refused")] * 1000

    with pytest.raises(
        BrokersUnavailableError, match=r"shard clicks/0: no record from offset 2 on .* up to 5: connection refused"
    ):
        read(brokers, ShardRange(A, 2, 5))


def test_an_open_transaction_that_holds_records_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT", 0.02)
    brokers = FakeBrokers({A: log_of((0, 4))}, {A: 5})
    brokers.written = 20

    with pytest.raises(BrokersUnavailableError, match="a transaction that is still open holds them back from offset 5 on"):
        read(brokers, ShardRange(A, 2, 10))


def test_a_shard_that_lost_its_end_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_records, "TRUNCATED_AFTER", 0.02)
    brokers = FakeBrokers({A: log_of((0, 4))}, {A: 5})

    with pytest.raises(RangeLostError, match=r"shard clicks/0: the records from offset 5 up to 9 are lost; it ends at 5 now"):
        read(brokers, ShardRange(A, 0, 9))


def test_without_fail_on_data_loss_what_there_is_of_every_shard_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_records, "TRUNCATED_AFTER", 0.0)
    brokers = FakeBrokers({A: log_of((0, 4)), B: log_of((0, 9))}, {A: 5, B: 10})

    rows = [
        (row["shard"], row["offset"])
        for batch in read_ranges(
            brokers,  # type: ignore[arg-type]
            [ShardRange(A, 0, 9), ShardRange(B, 0, 10)],
            ("shard", "offset"),
            fail_on_data_loss=False,
        )
        for row in batch.to_pylist()
    ]

    assert sorted(rows) == [*((A, i) for i in range(5)), *((B, i) for i in range(10))]


def test_deleted_records_are_not_read_from_a_batch_that_still_holds_them() -> None:
    brokers = FakeBrokers({A: log_of((0, 9))}, {A: 10})
    brokers.beginning = 6

    found = read_ranges(brokers, [ShardRange(A, 2, 10)], ("offset",), fail_on_data_loss=False)  # type: ignore[arg-type]

    assert [row["offset"] for batch in found for row in batch.to_pylist()] == [6, 7, 8, 9]


def test_the_next_range_asks_for_about_as_many_bytes_as_it_has() -> None:
    shard = ShardId("backlog/0")
    records = [(first, first + 99) for first in range(0, 1000, 100)]
    log = [(last, batch_of([Record(i, value=b"x" * 900) for i in range(first, last + 1)])) for first, last in records]
    brokers = FakeBrokers({shard: log}, {shard: 1000}, size=200_000)
    batch = len(log[0][1])
    assert {len(data) for _, data in log} == {batch}

    read(brokers, ShardRange(shard, 0, 200))
    read(brokers, ShardRange(shard, 200, 210), ShardRange(A, 5, 5))

    assert brokers.bytes_asked == [{shard: UNKNOWN}, {shard: 2 * batch + batch // 10}]


def test_a_shard_that_got_nothing_asks_for_all_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_sizing", FetchSizing())
    brokers = FakeBrokers({A: log_of((0, 0)), B: log_of((0, 50))}, {A: 1, B: 51}, size=200)

    read(brokers, ShardRange(A, 0, 1), ShardRange(B, 0, 51))

    assert brokers.bytes_asked == [{A: UNKNOWN, B: UNKNOWN}, {B: SHARD_FETCH_BYTES}]


def test_an_empty_range_asks_nobody() -> None:
    brokers = FakeBrokers({}, {})

    assert read(brokers, ShardRange(A, 5, 5)) == []
    assert brokers.asked == []


def test_a_shard_is_named_topic_and_partition() -> None:
    assert partition_of(ShardId("a.b-c/12")) == ("a.b-c", 12)
    with pytest.raises(ValueError, match="'clicks' is not of the form topic/partition"):
        partition_of(ShardId("clicks"))


def test_a_topic_that_was_deleted_is_an_error_in_the_end_or_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT", 1.0)
    monkeypatch.setattr(range_reader, "RETRY_DELAY", 0.01)
    monkeypatch.setattr(lost_records, "TRUNCATED_AFTER", 0.1)
    with PlayedKafka({0: Log(1, 640), 1: Log(1, 640)}, records=64, record_limit=64) as kafka:
        brokers = Brokers(kafka.bootstrap)

        def rest(*, fail: bool) -> int:
            kafka.deleted = False
            ranges = [ShardRange(A, 0, 640), ShardRange(B, 0, 640)]
            batches = read_ranges(brokers, ranges, ("offset",), fail_on_data_loss=fail)
            rows = next(batches).num_rows
            kafka.deleted = True
            return rows + sum(batch.num_rows for batch in batches)

        with pytest.raises(
            BrokersUnavailableError,
            match=r": \[Error 3\] UnknownTopicOrPartitionError: topic 'clicks' of shard clicks/. does not exist",
        ):
            rest(fail=True)
        assert 0 < rest(fail=False) < 1280
        brokers.close()
    said = [text for text in caplog.messages if "are lost" in text]
    assert [text.partition(":")[0] for text in said] == ["shard clicks/0", "shard clicks/1"]
    assert all(
        text.endswith("are lost; topic 'clicks' was deleted; going on without them, as failOnDataLoss is false")
        for text in said
    )


def test_a_topic_is_not_left_out_while_nobody_says_that_it_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT", 0.3)
    monkeypatch.setattr(range_reader, "REQUEST_TIMEOUT", 0.5)
    with PlayedKafka({0: Log(1, 640)}, records=64) as kafka:
        brokers = Brokers(kafka.bootstrap)
    with pytest.raises(BrokersUnavailableError) as raised:
        list(read_ranges(brokers, [ShardRange(A, 0, 640)], ("offset",), fail_on_data_loss=False))
    brokers.close()
    assert type(raised.value) is BrokersUnavailableError
