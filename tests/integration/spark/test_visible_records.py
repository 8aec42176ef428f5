"""What a real broker holds, read by us and by kafka-python's consumer: transactions, compaction, times and headers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import TopicPartition

from dev.cluster import Cluster
from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka import wide_reads
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange
from tests.integration.spark.drivers import until

Create = Callable[..., str]
COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")


@pytest.fixture
def create(cluster: Cluster) -> Iterator[Create]:
    """Makes a topic of one shard with this configuration; returns its name."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)

    def make(**config: str) -> str:
        name = f"visible-{uuid.uuid4().hex[:8]}"
        # Some records are years old, and a broker deletes such as soon as it looks.
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): text for key, text in config.items()}
        admin.create_topics([NewTopic(name, 1, 1, topic_configs=settings)])
        return name

    yield make
    admin.close()


@pytest.fixture
def produce(cluster: Cluster) -> Iterator[Callable[..., KafkaProducer]]:
    """Makes producers, which are closed at the end."""
    made: list[KafkaProducer] = []

    def make(**settings: Any) -> KafkaProducer:
        made.append(KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ours(cluster: Cluster, topic: str, *, committed: bool) -> tuple[int, list[tuple[Any, ...]]]:
    """The end of the shard, and every visible record before it."""
    brokers, shard = Brokers(cluster.kafka_bootstrap, committed=committed), ShardId(f"{topic}/0")
    try:
        end = brokers.end_offsets([shard], 10)[shard]
        return end, [
            (
                row["offset"],
                row["timestamp"] // 1000,
                row["timestampType"],
                row["key"],
                row["value"],
                [(each["key"], each["value"]) for each in row["headers"] or ()],
            )
            for batch in read_ranges(brokers, [ShardRange(shard, 0, end)], COLUMNS)
            for row in batch.set_column(1, "timestamp", batch.column(1).cast("int64")).to_pylist()
        ]
    finally:
        brokers.close()


def await_end(cluster: Cluster, topic: str, end: int) -> None:
    """Wait until this is the offset after the last record or marker."""
    brokers, shard = Brokers(cluster.kafka_bootstrap), ShardId(f"{topic}/0")
    try:
        until(lambda: brokers.end_offsets([shard], 10) == {shard: end}, f"{topic} ends at {end}")
    finally:
        brokers.close()


def by_kafka_python(cluster: Cluster, topic: str, *, committed: bool) -> tuple[int, list[tuple[Any, ...]]]:
    """The same of kafka-python's consumer."""
    level = "read_committed" if committed else "read_uncommitted"
    consumer = KafkaConsumer(bootstrap_servers=cluster.kafka_bootstrap, isolation_level=level, enable_auto_commit=False)
    partition = TopicPartition(topic, 0)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end, found = consumer.end_offsets([partition])[partition], list[tuple[Any, ...]]()
        deadline = time.monotonic() + 30
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, f"it stays at {consumer.position(partition)} of {end}"
            for record in consumer.poll(timeout_ms=200).get(partition, ()):
                headers = list(record.headers or ())
                found.append((record.offset, record.timestamp, record.timestamp_type, record.key, record.value, headers))
        return end, found
    finally:
        consumer.close()


def test_both_isolation_levels_show_what_kafkas_consumer_shows(
    cluster: Cluster, create: Create, produce: Callable[..., KafkaProducer]
) -> None:
    topic = create()
    plain = produce(compression_type="lz4")
    first, second = produce(transactional_id=f"{topic}-1"), produce(transactional_id=f"{topic}-2", compression_type="zstd")
    first.init_transactions()
    second.init_transactions()

    def send(producer: KafkaProducer, name: str, count: int = 3) -> None:
        for number in range(count):
            producer.send(topic, value=f"{name} {number}".encode(), headers=[("n", b"%d" % number)], partition=0)
        producer.flush()

    first.begin_transaction()
    second.begin_transaction()
    send(first, "aborted")
    send(plain, "plain")
    send(second, "committed beside an aborted one")
    first.abort_transaction()
    send(plain, "plain after an abort")
    second.commit_transaction()
    first.begin_transaction()
    send(first, "committed after an abort")
    first.commit_transaction()
    second.begin_transaction()
    send(second, "aborted, large", 400)
    second.abort_transaction()
    send(plain, "decided")
    first.begin_transaction()
    send(first, "still open")
    send(plain, "after the open one")

    markers = 4  # of the transactions that ended: the broker writes them after it has answered
    written = 3 * 8 + 400
    await_end(cluster, topic, written + markers)

    committed, everything = ours(cluster, topic, committed=True), ours(cluster, topic, committed=False)

    assert committed == by_kafka_python(cluster, topic, committed=True)
    assert everything == by_kafka_python(cluster, topic, committed=False)
    assert {value.rpartition(b" ")[0].decode() for _, _, _, _, value, _ in committed[1]} == {
        "plain",
        "committed beside an aborted one",
        "plain after an abort",
        "committed after an abort",
        "decided",
    }
    assert len(everything[1]) == written
    assert committed[0] < everything[0]
    first.commit_transaction()
    await_end(cluster, topic, written + markers + 1)
    assert ours(cluster, topic, committed=True) == by_kafka_python(cluster, topic, committed=True)


def test_a_compacted_shard_is_read_over_its_gaps(
    cluster: Cluster, create: Create, produce: Callable[..., KafkaProducer]
) -> None:
    topic = create(cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001", max_compaction_lag_ms="100")
    producer = produce(compression_type="snappy", linger_ms=20)
    for number in range(300):
        producer.send(topic, key=b"key %d" % (number % 7), value=b"value %d" % number, partition=0)
    producer.flush()

    def offsets() -> list[int]:
        # Only a segment that is not the newest one is compacted.
        producer.send(topic, key=b"roll", value=b"x", partition=0)
        producer.flush()
        return [row[0] for row in ours(cluster, topic, committed=False)[1]]

    deadline = time.monotonic() + 120
    while len(offsets()) > 100:
        assert time.monotonic() < deadline, "the broker does not compact"
        time.sleep(0.5)

    # The broker goes on compacting. What is there now was there for kafka-python if it is still there after that has read.
    end, rows, theirs = 0, list[tuple[Any, ...]](), None

    def stands() -> bool:
        nonlocal end, rows, theirs
        end, rows = ours(cluster, topic, committed=False)
        theirs = by_kafka_python(cluster, topic, committed=False)
        return ours(cluster, topic, committed=False) == (end, rows)

    until(stands, "the broker has compacted what there is")
    assert (end, rows) == theirs
    assert {row[3]: row[4] for row in rows if row[3] != b"roll"} == {
        b"key %d" % (number % 7): b"value %d" % number for number in range(293, 300)
    }


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_what_producers_write_is_read_as_kafkas_consumer_reads_it(
    cluster: Cluster, create: Create, produce: Callable[..., KafkaProducer], codec: str | None
) -> None:
    topic = create(message_timestamp_type="LogAppendTime" if codec == "gzip" else "CreateTime")
    producer = produce(compression_type=codec, linger_ms=20, enable_idempotence=True)
    for number in range(500):
        producer.send(
            topic,
            key=None if number % 5 == 0 else b"key %d" % number,
            value=None if number % 7 == 0 and number % 5 else b"x" * (number % 300),
            headers=[("trace", b"%d" % number), ("empty", b"")] if number % 3 == 0 else None,
            timestamp_ms=1_700_000_000_000 + number,
            partition=0,
        )
    producer.flush()

    assert ours(cluster, topic, committed=False) == by_kafka_python(cluster, topic, committed=False)


def test_large_answers_come_in_large_reads(
    cluster: Cluster, create: Create, produce: Callable[..., KafkaProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create()
    producer = produce(linger_ms=20)
    for _ in range(40):
        producer.send(topic, value=b"x" * 100_000, partition=0)
    producer.flush()
    sizes: list[int] = []

    receive = wide_reads.receive

    def counted(sock: Any) -> tuple[memoryview, Exception | None]:
        data, error = receive(sock)
        sizes.append(len(data))
        return data, error

    monkeypatch.setattr(wide_reads, "receive", counted)

    assert len(ours(cluster, topic, committed=False)[1]) == 40
    assert sum(sizes) > 4_000_000
    assert max(sizes) > 16 * 1024
