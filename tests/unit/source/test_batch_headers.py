"""What is told of records by the headers of their batches, by brokers that send no batch of which a part has no room."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.batch_headers import event_times, sizes_at
from shardherd.source.kafka.fetching import Fetched
from tests.unit.source.kafka_bytes import Record, batch_of, control_batch, empty_batch, legacy_batch

A, B, C, D = (ShardId(f"clicks/{number}") for number in range(4))


class Broker:
    """Has a batch in each of these shards, and sends only the first one that is asked for whatever its size, as Kafka does."""

    def __init__(self, logs: Mapping[ShardId, bytes], end: Offset) -> None:
        self.asked: list[tuple[ShardId, ...]] = []
        self._logs, self._end = logs, end

    def begin_fetch(
        self, positions: Mapping[ShardId, Offset], timeout: float, *, shard_bytes: int
    ) -> Callable[[], list[Fetched]]:
        self.asked.append(tuple(positions))
        found: list[Fetched] = []
        for shard, asked in positions.items():
            data = self._logs[shard] if asked < self._end else b""
            fits = len(data) <= shard_bytes or not any(part.data for part in found)
            found.append(Fetched(shard, asked, data if fits else b"", self._end))
        return lambda: found


def batch(size: int, newest: int) -> bytes:
    records = [Record(offset, timestamp=newest - 9 + offset, value=random.Random(1).randbytes(size)) for offset in range(10)]
    return batch_of(records)


def test_the_sizes_and_times_of_records_are_told_however_large_their_batches_are() -> None:
    logs = {A: batch(2_000, 5_000), B: batch(2_000, 6_000), C: batch(50, 7_000), D: batch(100_000, 8_000)}
    broker = Broker(logs, 10)

    sizes = sizes_at(broker, dict.fromkeys(logs, 3), 1.0)

    assert sizes == {shard: len(data) / 10 for shard, data in logs.items()}
    assert broker.asked == [(A, B, C, D), (B, D), (D,)]
    assert event_times(broker, dict.fromkeys(logs, 3), 1.0) == {A: 5.0, B: 6.0, C: 7.0, D: 8.0}


def test_a_shard_without_records_is_asked_once_and_has_no_size() -> None:
    broker = Broker({A: b"", B: b""}, 10)

    assert sizes_at(broker, {A: 10, B: 10}, 1.0) == {}
    assert broker.asked == [(A, B)]


@pytest.mark.parametrize(
    ("magic", "codec", "times"), [(0, "none", {}), (0, "gzip", {}), (1, "none", {A: 5.0}), (1, "gzip", {})]
)
def test_messages_of_the_formats_before_have_sizes_and_times_of_their_own(
    magic: int, codec: str, times: dict[ShardId, float]
) -> None:
    data = legacy_batch([Record(0, timestamp=5_000, key=b"key", value=b"v" * 300)], magic=magic, codec=codec)
    broker = Broker({A: data}, 1)

    assert sizes_at(broker, {A: 0}, 1.0) == {A: len(data)}
    assert event_times(broker, {A: 0}, 1.0) == times


def test_marks_of_transactions_and_batches_without_records_say_nothing_of_the_records_after_them() -> None:
    large = batch_of([Record(3, timestamp=5_000, value=b"v" * 50_000)])
    mark, emptied = control_batch(0), empty_batch(1, 2)
    after = Broker({A: mark + emptied + large[:200], B: emptied}, 4)

    assert sizes_at(after, {A: 0, B: 1}, 1.0) == {A: len(large)}
    assert event_times(Broker({A: mark + large}, 4), {A: 0}, 1.0) == {A: 5.0}
    assert sizes_at(Broker({A: mark}, 1), {A: 0}, 1.0) == {A: len(mark)}
