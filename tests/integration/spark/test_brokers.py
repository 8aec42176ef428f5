"""The reader against a real broker, without Spark."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import TopicPartition

from dev.cluster import Cluster
from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka import cluster_connection
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.fetch_memory import FetchMemory
from shardherd.source.kafka.leader_epochs import LogChecks
from shardherd.source.reading.lost_records import RangeLostError
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange
from tests.integration.spark.drivers import grow, until

Create = Callable[..., str]

AS_A_WORKER: dict[str, Any] = {"memory": FetchMemory(), "checks": LogChecks()}


@pytest.fixture
def brokers(cluster: Cluster) -> Iterator[Brokers]:
    made = Brokers(cluster.kafka_bootstrap)
    yield made
    made.close()


@pytest.fixture
def create(cluster: Cluster) -> Iterator[Create]:
    """Makes a topic with this configuration; returns its name."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)

    def make(shards: int = 2, **config: str) -> str:
        name = f"reader-{uuid.uuid4().hex[:8]}"
        topic_configs = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, shards, 1, topic_configs=topic_configs)])
        return name

    yield make
    admin.close()


def send(cluster: Cluster, topic: str, shards: int, count: int, size: int = 100) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap, linger_ms=5, max_request_size=8 << 20)
    for number in range(count):
        for partition in range(shards):
            producer.send(topic, value=b"%d:%d:" % (partition, number) + b"x" * size, key=b"k%d" % number, partition=partition)
    producer.flush()
    producer.close()


def read(brokers: Brokers, *ranges: ShardRange) -> dict[str, list[tuple[int, bytes]]]:
    found: dict[str, list[tuple[int, bytes]]] = {each.shard: [] for each in ranges}
    for batch in read_ranges(brokers, ranges, ("shard", "offset", "value")):
        for row in batch.to_pylist():
            found[row["shard"]].append((row["offset"], row["value"].rstrip(b"x")))
    return found


@pytest.mark.parametrize("codec", ["uncompressed", "lz4", "gzip", "snappy", "zstd"])
def test_a_real_broker_is_read_exactly_whatever_its_compression(
    cluster: Cluster, brokers: Brokers, create: Create, codec: str
) -> None:
    topic = create(2, compression_type=codec)
    send(cluster, topic, 2, 500)
    first, second = ShardId(f"{topic}/0"), ShardId(f"{topic}/1")

    assert brokers.end_offsets([first, second], 10) == {first: 500, second: 500}
    assert read(brokers, ShardRange(first, 3, 497), ShardRange(second, 0, 500)) == {
        first: [(i, b"0:%d:" % i) for i in range(3, 497)],
        second: [(i, b"1:%d:" % i) for i in range(500)],
    }


def test_transactions_markers_at_the_end_of_a_range_are_passed(cluster: Cluster, brokers: Brokers, create: Create) -> None:
    topic = create(1)
    producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap, transactional_id=topic)
    producer.init_transactions()
    for number in range(3):
        producer.begin_transaction()
        producer.send(topic, value=b"0:%d:" % number, partition=0)
        producer.commit_transaction()
    producer.close()
    shard = ShardId(f"{topic}/0")

    until(
        lambda: brokers.end_offsets([shard], 10) == {shard: 6}, "the last transaction's marker is there, which nobody waits for"
    )
    assert read(brokers, ShardRange(shard, 0, 6)) == {shard: [(0, b"0:0:"), (2, b"0:1:"), (4, b"0:2:")]}


def test_batches_larger_than_a_shards_share_of_a_fetch_are_read(cluster: Cluster, brokers: Brokers, create: Create) -> None:
    topic = create(2, max_message_bytes=str(16 << 20))
    send(cluster, topic, 2, 3, size=6 << 20)

    found = read(brokers, *(ShardRange(ShardId(f"{topic}/{n}"), 0, 3) for n in range(2)))

    assert found == {f"{topic}/{n}": [(i, b"%d:%d:" % (n, i)) for i in range(3)] for n in range(2)}


def test_deleted_records_are_an_error_that_names_the_shard(cluster: Cluster, brokers: Brokers, create: Create) -> None:
    topic = create(1)
    send(cluster, topic, 1, 10)
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)
    admin.delete_records({TopicPartition(topic, 0): 5})
    admin.close()

    with pytest.raises(RangeLostError, match=f"shard {topic}/0: the records from offset 2 up to 5 are lost; it starts at 5"):
        read(brokers, ShardRange(ShardId(f"{topic}/0"), 2, 8))


def test_a_topic_that_grows_is_found(cluster: Cluster, brokers: Brokers, create: Create) -> None:
    topic = create(1)
    send(cluster, topic, 1, 2)
    assert brokers.end_offsets([ShardId(f"{topic}/0")], 10) == {f"{topic}/0": 2}
    grow(cluster, topic, 3)
    send(cluster, topic, 3, 2)

    found = read(brokers, *(ShardRange(ShardId(f"{topic}/{n}"), 0, 2) for n in range(3)))

    assert {shard: len(rows) for shard, rows in found.items()} == {f"{topic}/{n}": 2 for n in range(3)}


def test_an_unreachable_kafka_is_named() -> None:
    brokers = Brokers("127.0.0.1:9")
    try:
        with pytest.raises(
            BrokersUnavailableError, match=r"127\.0\.0\.1:9 did not answer within 3 s \(clicks/0\) .*ECONNREFUSED.*: check"
        ):
            brokers.end_offsets([ShardId("clicks/0")], 3)
    finally:
        brokers.close()


def test_on_an_event_loop_an_unreachable_kafka_is_named_too_and_the_loop_goes_on_meanwhile() -> None:
    brokers = Brokers("127.0.0.1:9")
    passed = 0

    async def story() -> None:
        async def beside() -> None:
            nonlocal passed
            for _ in range(5):
                await asyncio.sleep(0.01)
                passed += 1

        asked = brokers.fetch({ShardId("clicks/0"): 0}, 1.0, shard_bytes={ShardId("clicks/0"): 1}, **AS_A_WORKER)
        with pytest.raises(BrokersUnavailableError, match=r"127\.0\.0\.1:9 did not answer within 1 s \(clicks/0\) .*: check"):
            await asyncio.gather(asked, beside())

    try:
        asyncio.run(story())
    finally:
        brokers.close()
    assert passed == 5


def test_an_event_loop_is_given_what_a_thread_is(cluster: Cluster, brokers: Brokers, create: Create) -> None:
    topic = create(2)
    send(cluster, topic, 2, 100)
    positions = {ShardId(f"{topic}/{n}"): 10 * n for n in range(2)}
    sizes = dict.fromkeys(positions, 1 << 20)
    given = asyncio.run(brokers.fetch(positions, 10, shard_bytes=sizes, **AS_A_WORKER))
    assert ([each.end for each in given], given) == ([100, 100], brokers.begin_fetch(positions, 10, shard_bytes=sizes)())


def test_an_event_loop_that_is_over_before_the_answer_breaks_nothing(
    cluster: Cluster, brokers: Brokers, create: Create
) -> None:
    topic = create(1)
    send(cluster, topic, 1, 2)
    shard = ShardId(f"{topic}/0")

    async def given_up() -> None:
        # At the end of a shard a broker keeps a Fetch for half a second.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(brokers.fetch({shard: 2}, 10, shard_bytes={shard: 1}, **AS_A_WORKER), 0.1)

    asyncio.run(given_up())
    assert brokers.end_offsets([shard], 10) == {shard: 2}


def test_a_call_that_ends_before_the_next_try_names_the_cause_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_connection, "BOOTSTRAP_TIMEOUT", 1.0)
    brokers = Brokers("127.0.0.1:9")
    try:
        for timeout in (20.0, 0.01):
            with pytest.raises(BrokersUnavailableError, match="ECONNREFUSED"):
                brokers.end_offsets([ShardId("clicks/0")], timeout)
    finally:
        brokers.close()
