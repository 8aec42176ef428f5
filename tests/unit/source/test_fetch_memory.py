"""What the answers of Kafka take in a task's memory, from as many brokers as there may be, over real connections."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.fetch_memory import FetchMemory, Turns
from shardherd.source.reading import range_reader
from shardherd.source.reading.fetch_sizing import FetchSizing
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange
from tests.unit.source.played_kafka import PlayedKafka, offsets_of, spread

MIB = 1024 * 1024
BESIDE = 4 * MIB
"""What decoding and connections take, and the answer that the played broker makes."""


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Where no machine code is kept yet, compiling it takes more memory than anything that is measured here."""
    with PlayedKafka(spread(1, 1, 64)) as kafka:
        brokers = Brokers(kafka.bootstrap)
        read(brokers, kafka, 4 * MIB)
        brokers.close()


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_sizing", FetchSizing())


@pytest.fixture
def fifty() -> Iterator[PlayedKafka]:
    """Fifty brokers, each with two partitions of 256 KiB in batches of 64 KiB."""
    with PlayedKafka(spread(50, 100, 256), dict.fromkeys(range(1, 51), ""), records=64, record_bytes=1000) as kafka:
        yield kafka


def read(brokers: Brokers, kafka: PlayedKafka, fetch_bytes: int) -> None:
    """Everything that there is."""
    ranges = [ShardRange(ShardId(f"clicks/{number}"), 0, log.end) for number, log in kafka.logs.items()]
    rows = sum(batch.num_rows for batch in read_ranges(brokers, ranges, ("offset",), fetch_bytes=fetch_bytes))
    assert rows == sum(log.end for log in kafka.logs.values())


def peak(kafka: PlayedKafka, fetch_bytes: int) -> int:
    """Most bytes that reading everything has taken."""
    brokers = Brokers(kafka.bootstrap)
    brokers.connect(10)
    tracemalloc.start()
    try:
        read(brokers, kafka, fetch_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        brokers.close()


def test_fifty_brokers_take_no_more_memory_than_was_allowed(fifty: PlayedKafka) -> None:
    assert peak(fifty, 8 * MIB) < 8 * MIB + BESIDE


def test_every_broker_gets_its_turn(fifty: PlayedKafka) -> None:
    peak(fifty, 4 * MIB)

    asked = fifty.fetched_from()
    assert set(asked[:50]) == set(range(1, 51)), "none is asked again before all were asked"


def test_a_batch_larger_than_its_share_comes_whole_and_alone() -> None:
    with PlayedKafka(spread(4, 4, 8), dict.fromkeys(range(1, 5), ""), records=4, record_bytes=MIB) as kafka:
        taken = peak(kafka, 4 * MIB)

        # One that is decoded, one that comes and is copied, two at the played broker; a second broker's would be 8 MiB more.
        assert taken < 23 * MIB + BESIDE
    assert {len(each) for each in offsets_of(kafka.asked)} == {1}


@pytest.mark.parametrize(
    ("memory", "brokers", "at_once", "bytes_each"),
    [
        (FetchMemory(), 1, 1, 16 * MIB),
        (FetchMemory(), 3, 3, 64 * MIB // 7),
        (FetchMemory(), 50, 31, 64 * MIB // 63),
        (FetchMemory(4 * MIB), 50, 1, 4 * MIB // 3),
        (FetchMemory(64 * MIB, 5 * MIB), 50, 5, 64 * MIB // 11),
        (FetchMemory(64 * MIB, 100 * MIB), 50, 1, 16 * MIB),
    ],
)
def test_so_many_brokers_are_asked_at_once_that_two_rounds_and_a_copy_fit(
    memory: FetchMemory, brokers: int, at_once: int, bytes_each: int
) -> None:
    assert memory.among(brokers) == (at_once, bytes_each)
    assert memory.batch > memory.total or (2 * at_once + 1) * bytes_each <= memory.total


def test_those_that_wait_the_longest_are_asked_next() -> None:
    turns = Turns()

    assert [turns.next((1, 2, 3), 2), turns.next((1, 2, 3), 2), turns.next((2, 1), 2)] == [[1, 2], [3, 1], [2, 1]]
