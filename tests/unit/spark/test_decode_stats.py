"""Counts of typed values on their way from a worker to its driver's metrics, over real HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.accumulators import Accumulator

from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.reading import range_reader
from shardherd.source.reading.ranges import ShardRange
from shardherd.source.values.value_format import ValueFormat
from shardherd.spark import decode_stats, kafka_readers, reader
from shardherd.spark.agent import Agent
from shardherd.spark.decode_stats import (
    MOST_WORKERS,
    Counts,
    CountsAddress,
    CountsParam,
    ReceivedCounts,
    added,
    new_address,
    reported,
)
from shardherd.spark.metrics import AgentMetrics, serve_http
from shardherd.spark.schema import Wanted
from tests.unit.source.kafka_bytes import Record, batch_of
from tests.unit.spark.simulated import GROUP, ME, RUN, FakeCoordinator, FakeEnds, Observed, nobody_knows

ADDRESS = CountsAddress("127.0.0.1", 1, "a-token")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has counted nothing."""
    monkeypatch.setattr(decode_stats, "_counted", {})


def message(worker: str, values: int, slow: int = 0, malformed: int = 0) -> dict[str, object]:
    return {"worker": worker, "values": values, "slow": slow, "malformed": malformed}


def read(*values: bytes) -> Iterator[object]:
    data = batch_of([Record(at, value=value) for at, value in enumerate(values)])
    shard = ShardId("clicks/3")
    decode = reader.decoding(ValueFormat("json", "a int"), ("value",))
    return decode(shard, record_batches.scan(shard, data, 0), 0, 1 << 40, ("value",))


async def test_the_slow_share_of_typed_values_is_a_metric_of_the_driver(unused_tcp_port: int) -> None:
    async def nothing(_reason: str) -> None:
        return

    agent = Agent(SessionSettings(GROUP, ME, RUN), FakeCoordinator(), FakeEnds({}), Observed(), nothing, nobody_knows)
    metrics, address = AgentMetrics("demo", "clicks", "clicks-0"), new_address("127.0.0.1", unused_tcp_port)
    runner = await serve_http(agent, metrics, unused_tcp_port, ReceivedCounts(address))

    def count(name: str, **labels: str) -> float | None:
        own = {"namespace": "demo", "consumergroup": "clicks", "consumer": "clicks-0"}
        return metrics.registry.get_sample_value(name, own | labels)

    await asyncio.to_thread(lambda: list(reported(read(b'{"a":1}', b"{'a':1}", b'{"a":"x"}'), address)))
    await asyncio.to_thread(lambda: list(reported(read(b'{"a":1}'), address)))
    assert count("shardherd_source_values_total", path="fast") == 2
    assert count("shardherd_source_values_total", path="slow") == 2
    assert count("shardherd_source_malformed_values_total") == 1

    await asyncio.to_thread(lambda: list(reported(read(b"{"), replace(address, token="another"))))
    assert count("shardherd_source_values_total", path="slow") == 2, "a stranger's counts are not taken"
    await runner.cleanup()


def test_a_driver_that_cannot_be_told_is_logged_and_the_task_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(reported(iter([1, 2]), ADDRESS)) == [1, 2]

    assert "cannot tell the agent at 127.0.0.1:1 how many typed values there were" in caplog.text


def test_a_message_that_was_lost_does_no_harm() -> None:
    received = ReceivedCounts(ADDRESS)

    assert received.take(message("a", 10, 2, 1)) == Counts(10, 2, 1)
    assert received.take(message("b", 5)) == Counts(5)
    assert received.take(message("a", 40, 3, 1)) == Counts(30, 1, 0), "with what was in the lost one"
    assert received.take(message("a", 40, 3, 1)) == Counts()


def test_workers_that_ended_long_ago_are_forgotten() -> None:
    received = ReceivedCounts(ADDRESS)
    for number in range(MOST_WORKERS + 1):
        received.take(message(str(number), 1))

    assert received.take(message("1", 1)) == Counts()
    assert received.take(message("0", 1)) == Counts(1)


def test_a_message_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="a worker's message has worker, values, slow and malformed, not 'slow'"):
        ReceivedCounts(ADDRESS).take({"worker": "a", "values": 1})


def test_a_task_tells_at_its_end_and_only_if_it_decodes_values(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CountsAddress] = []
    batch = pa.RecordBatch.from_pydict({"value": [b"x"]})

    def asking(batches: Iterator[object], address: CountsAddress) -> Iterator[object]:
        asked.append(address)
        return batches

    monkeypatch.setattr(reader, "brokers_of", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(range_reader, "read_ranges", lambda *_args, **_kwargs: iter([batch]))
    monkeypatch.setattr(kafka_readers, "reported", asking)
    task = kafka_readers.Slice((ShardRange(ShardId("clicks/3"), 0, 1),), "kafka:9092", {}, counts_address=ADDRESS)
    typed_values = ValueFormat("json", "a int")

    assert list(kafka_readers.read_slice(task, Wanted(("value", "offset")))) == [batch]
    assert list(kafka_readers.read_slice(task, Wanted(("offset",), values=typed_values))) == [batch]
    assert asked == []
    assert list(kafka_readers.read_slice(task, Wanted(("value",), values=typed_values))) == [batch]
    assert asked == [ADDRESS]


def test_without_an_agent_a_finished_task_adds_what_it_decoded_to_sparks_accumulator() -> None:
    total = Accumulator(-77, Counts(5, 1, 1), CountsParam())
    list(read(b"{'a':1}"))  # by a task before it in this worker

    list(added(read(b'{"a":1}', b"{'a':1}", b'{"a":"x"}'), total))
    assert total.value == Counts(8, 3, 2)

    unfinished = added(read(b'{"a":1}'), total)
    next(unfinished)
    unfinished.close()  # type: ignore[attr-defined]
    assert total.value == Counts(8, 3, 2), "Spark runs it again"


def test_the_accumulator_begins_at_nothing_in_a_task() -> None:
    assert CountsParam().zero(Counts(5, 1, 1)) == Counts()
