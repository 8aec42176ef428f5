"""The source without an operator, on a real broker: what needs no Spark. The tests call it as Spark does."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import TopicPartition

from dev.cluster import Cluster
from shardherd.source.kafka.listing import TopicMissingError
from shardherd.source.reading.lost_records import RangeLostError
from shardherd.source.reading.start_positions import RangeBoundError
from shardherd.spark import standalone
from shardherd.spark.source import ShardherdSource
from shardherd.spark.standalone import DataLostError
from tests.integration.spark.drivers import grow, produce, until

T0 = 1_700_000_000_000
"""When the first record was written, in milliseconds."""

Rows = list[tuple[str, int]]


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)
    yield made
    made.close()


@pytest.fixture
def create(admin: KafkaAdminClient) -> Callable[..., str]:
    """Makes a topic with so many partitions; returns its name."""

    def make(partitions: int = 1, name: str = "") -> str:
        topic = name or f"alone-{uuid.uuid4().hex[:8]}"
        # Some of its records are years old, and a broker deletes such as soon as it looks.
        settings = {"retention.ms": "-1"}
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)], wait_for_metadata=True)
        return topic

    return make


def columns_of(source: ShardherdSource) -> Any:
    return type(source.schema())([field for field in source.schema().fields if field.name in ("shard", "offset")])


def read(reader: Any, slices: list[Any]) -> Rows:
    batches = (batch for each in slices for batch in reader.read(each))
    return sorted((row["shard"], row["offset"]) for batch in batches for row in batch.to_pylist())


class Stream:
    """A query: its offsets live on, its processes do not."""

    def __init__(self, cluster: Cluster, **options: str) -> None:
        self.options = {"kafka.bootstrap.servers": cluster.kafka_bootstrap, **options}
        self.at: dict[str, Any] = {}

    def run(self, *, most: int = 100) -> list[Rows]:
        """The rows of each micro-batch until nothing is new, in a process of its own."""
        source = ShardherdSource(self.options)
        reader: Any = source.streamReader(columns_of(source))
        found: list[Rows] = []
        try:
            self.at = self.at or reader.initialOffset()
            for _ in range(most):
                end = reader.latestOffset(self.at, reader.getDefaultReadLimit())
                if end == self.at:
                    break
                found.append(read(reader, reader.partitions(self.at, end)))
                self.at = end
        finally:
            reader.stop()
        return found

    def replay(self, end: Mapping[str, Any]) -> Rows:
        """What a new process reads again of an unfinished micro-batch that ends there."""
        source = ShardherdSource(self.options)
        reader: Any = source.streamReader(columns_of(source))
        try:
            return read(reader, reader.partitions(reader.initialOffset(), end))
        finally:
            reader.stop()


def batch(cluster: Cluster, **options: str) -> Rows:
    source = ShardherdSource({"kafka.bootstrap.servers": cluster.kafka_bootstrap, **options})
    reader: Any = source.reader(columns_of(source))
    return read(reader, reader.partitions())


def rows_of(topic: str, *spans: tuple[int, int, int]) -> Rows:
    """Rows by partition, first and next offset."""
    return sorted((f"{topic}/{partition}", at) for partition, first, stop in spans for at in range(first, stop))


def test_a_batch_is_bounded_by_offsets_or_by_times(cluster: Cluster, create: Callable[..., str]) -> None:
    topic = create()
    producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap)
    for number in range(4):
        producer.send(topic, value=b"x", partition=0, timestamp_ms=T0 + 1000 * number)
    producer.flush()
    producer.close()

    def offsets(**options: str) -> list[int]:
        return [offset for _, offset in batch(cluster, subscribe=topic, **options)]

    assert offsets() == [0, 1, 2, 3]
    assert offsets(startingOffsets=json.dumps({topic: {"0": 1}}), endingOffsets=json.dumps({topic: {"0": 3}})) == [1, 2]
    assert offsets(startingTimestamp=str(T0 + 500), endingTimestamp=str(T0 + 1500)) == [1]
    assert offsets(startingOffsetsByTimestamp=json.dumps({topic: {"0": T0 + 2000}}), endingTimestamp=str(T0 + 9999)) == [2, 3]
    assert offsets(startingTimestamp=str(T0 + 9999), startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(RangeBoundError, match=r"option startingTimestamp: shard \S+/0 has no record at or after"):
        offsets(startingTimestamp=str(T0 + 9999))
    with pytest.raises(RangeBoundError, match=r"is to be read up to offset 9 .*, but it has records up to 4 only"):
        offsets(endingOffsets=json.dumps({topic: {"0": 9}}))
    with pytest.raises(RangeBoundError, match="option startingOffsets names shard nowhere/0, which is not among those"):
        offsets(startingOffsets=json.dumps({topic: {"0": 0}, "nowhere": {"0": 0}}))


def test_topics_that_do_not_exist_are_named_and_not_made(
    cluster: Cluster, create: Callable[..., str], admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardherd.source.kafka.listing.APPEARS_WITHIN", 0.2)
    topic = create()
    absent = f"absent-{topic}"

    with pytest.raises(TopicMissingError, match=f"'{absent}' does not exist at .*: create it, or correct the options"):
        batch(cluster, subscribe=f"{topic},{absent}")
    with pytest.raises(TopicMissingError, match=f"'{topic}/7' does not exist"):
        batch(cluster, assign=json.dumps({topic: [0, 7]}))
    assert absent not in admin.list_topics()


def test_a_stream_goes_on_in_another_process_and_finds_new_partitions_and_topics(
    cluster: Cluster, create: Callable[..., str]
) -> None:
    topic = create(2)
    produce(cluster.kafka_bootstrap, topic, 2, 30)
    stream = Stream(cluster, subscribePattern=f"{topic}.*", startingOffsets="earliest", maxOffsetsPerTrigger="40")
    first = stream.run()
    assert [len(each) for each in first] == [40, 20]
    assert sorted(first[0] + first[1]) == rows_of(topic, (0, 0, 30), (1, 0, 30))

    grow(cluster, topic, 3)
    another = create(1, f"{topic}-b")
    produce(cluster.kafka_bootstrap, topic, 3, 5, first=30)
    produce(cluster.kafka_bootstrap, another, 1, 4)
    assert stream.run() == [sorted(rows_of(topic, (0, 30, 35), (1, 30, 35), (2, 0, 5)) + rows_of(another, (0, 0, 4)))]
    assert stream.run() == []


def test_the_end_is_fixed_by_the_first_micro_batch_and_a_replay_reads_exactly_what_was_logged(
    cluster: Cluster, create: Callable[..., str]
) -> None:
    topic = create()
    produce(cluster.kafka_bootstrap, topic, 1, 10)
    stream = Stream(cluster, subscribe=topic)
    assert stream.run() == [[]]
    produce(cluster.kafka_bootstrap, topic, 1, 3, first=10)
    assert stream.run() == [rows_of(topic, (0, 10, 13))]
    logged = stream.at
    produce(cluster.kafka_bootstrap, topic, 1, 4, first=13)

    assert stream.replay(logged) == rows_of(topic, (0, 10, 13))
    assert stream.run() == [rows_of(topic, (0, 13, 17))]


def test_bytes_of_a_micro_batch_are_bounded(cluster: Cluster, create: Callable[..., str]) -> None:
    topic = create()
    for at in range(0, 40, 10):
        produce(cluster.kafka_bootstrap, topic, 1, 10, first=at)

    found = Stream(cluster, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="300").run()

    assert [row for each in found for row in each] == rows_of(topic, (0, 0, 40))
    assert max(len(each) for each in found) <= 30, "no record has less than ten bytes"


def test_records_that_were_deleted_are_an_error_unless_that_is_allowed(
    cluster: Cluster, create: Callable[..., str], admin: KafkaAdminClient
) -> None:
    topic = create()
    produce(cluster.kafka_bootstrap, topic, 1, 15)
    admin.delete_records({TopicPartition(topic, 0): 12})
    stream = Stream(cluster, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 5}}))

    with pytest.raises(RangeLostError, match=f"shard {topic}/0: the records from offset 5 up to 12 are lost"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    assert stream.run() == [rows_of(topic, (0, 12, 15))]


def test_a_topic_made_anew_is_an_error_unless_that_is_allowed(
    cluster: Cluster, create: Callable[..., str], admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "LOSS_GRACE", 0.0)
    topic = create()
    produce(cluster.kafka_bootstrap, topic, 1, 5)
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest")
    assert stream.run() == [rows_of(topic, (0, 0, 5))]
    admin.delete_topics([topic])
    until(lambda: topic not in admin.list_topics(), "the topic is gone")
    with pytest.raises(DataLostError, match=f"topic '{topic}' does not exist any more"):
        stream.run()
    create(1, topic)
    produce(cluster.kafka_bootstrap, topic, 1, 9)

    with pytest.raises(DataLostError, match=f"topic '{topic}' was deleted and made anew"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    assert stream.run() == [rows_of(topic, (0, 0, 9))]
    assert stream.run() == []
