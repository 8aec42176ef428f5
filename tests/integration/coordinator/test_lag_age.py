"""The age of the lag on a real broker, against what a plain consumer finds at the committed positions."""

from __future__ import annotations

import asyncio
import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from shardherd.core.model.nouns import GroupSpec, ShardId
from tests.integration.coordinator.rig import Consumer, Coordinator, Rig, becomes, settle, shards

CLOSE = 1.5
"""Seconds: the age is in whole ones, and time goes on between two looks at it."""

ABOUT = 5.0
"""Seconds by which an age may be out for a record to be the one that is meant: the others are older or newer by more."""


async def oldest(rig: Rig, spec: GroupSpec, topic: str) -> float | None:
    """When the oldest record was written that is not checkpointed, as a consumer of Kafka's own protocol reads it."""
    committed = await rig.kafka.connector.offsets(spec).read(shards(topic, 0, 1, 2, 3))

    def read() -> float | None:
        level = "read_committed" if spec.kafka.read_committed else "read_uncommitted"
        reader = KafkaConsumer(bootstrap_servers=rig.kafka.servers, isolation_level=level)
        written: list[float] = []
        try:
            for number in range(4):
                partition = TopicPartition(topic, number)
                reader.assign([partition])
                position = committed.get(ShardId(f"{topic}/{number}"), 0)
                if reader.end_offsets([partition])[partition] > position:
                    reader.seek(partition, position)
                    written += following(reader, partition)
        finally:
            reader.close()
        return min(written, default=None)

    return await asyncio.to_thread(read)


def following(reader: KafkaConsumer, partition: TopicPartition) -> list[float]:
    """When the next record was written that this consumer is given; none if what is left is for nobody."""
    deadline = time.monotonic() + 30.0
    end = reader.end_offsets([partition])[partition]
    while reader.position(partition) < end:
        records = reader.poll(timeout_ms=1000, max_records=1).get(partition, [])
        if records:
            return [records[0].timestamp / 1000]
        assert time.monotonic() < deadline, f"nothing of {partition} from {reader.position(partition)} up to {end} was read"
    return []


async def shown(rig: Rig, coordinator: Coordinator, spec: GroupSpec, topic: str) -> float:
    """The age that the group shows, once it is the true one; the truth does not change meanwhile."""
    written = await oldest(rig, spec, topic)

    def age() -> float:
        seconds = coordinator.view(spec.identity).lag_seconds
        return -1.0 if seconds is None else seconds

    await becomes(lambda: abs(age() - (0.0 if written is None else time.time() - written)) <= CLOSE)
    return age()


async def served(rig: Rig, name: str, topic: str, *, read_committed: bool = False) -> tuple[Coordinator, GroupSpec, Consumer]:
    """A group of one consumer, which holds all shards."""
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1, read_committed=read_committed)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    return coordinator, spec, consumer


async def test_a_backlog_from_before_the_group_is_as_old_as_it_is_however_little_is_written_since(
    rig: Rig, name: str, topic: str
) -> None:
    begun = time.time() - 120.0
    for number in range(4):
        # All of a sudden: by the rate since, this would be of hundreds of seconds.
        await asyncio.gather(*(rig.kafka.append(topic, number, 1, since=begun) for _ in range(50)))
    coordinator, spec, _ = await served(rig, name, topic)

    for _ in range(5):
        await rig.kafka.append(topic, 0, 1)
        assert await shown(rig, coordinator, spec, topic) == pytest.approx(time.time() - begun, abs=ABOUT)


async def test_a_backlog_grows_old_once_producers_have_stopped_and_is_gone_when_it_is_read(
    rig: Rig, name: str, topic: str
) -> None:
    coordinator, spec, consumer = await served(rig, name, topic)
    await becomes(lambda: coordinator.view(spec.identity).lag_seconds == 0)
    begun = time.time()
    await rig.kafka.append(topic, 2, 30, since=begun)

    first = await shown(rig, coordinator, spec, topic)
    later = begun + first + 4.0
    await becomes(lambda: time.time() >= later)
    assert await shown(rig, coordinator, spec, topic) > first

    await consumer.commit({shards(topic, 2)[0]: 30})
    view = coordinator.view(spec.identity)
    assert (sum(shard.lag_records or 0 for shard in view.shards), view.lag_seconds) == (0, 0)


async def test_of_skewed_shards_the_oldest_record_counts_and_then_the_next(rig: Rig, name: str, topic: str) -> None:
    now = time.time()
    for number, ago in enumerate((640.0, 100.0, 30.0)):
        await rig.kafka.append(topic, number, 20 * (3 - number), since=now - ago)
    coordinator, spec, consumer = await served(rig, name, topic)
    first, second, third = shards(topic, 0, 1, 2)

    assert await shown(rig, coordinator, spec, topic) == pytest.approx(time.time() - now + 640.0, abs=ABOUT)
    await consumer.commit({first: 17})
    assert await shown(rig, coordinator, spec, topic) == pytest.approx(time.time() - now + 623.0, abs=ABOUT)
    await consumer.commit({first: 60})
    assert await shown(rig, coordinator, spec, topic) == pytest.approx(time.time() - now + 100.0, abs=ABOUT)
    await consumer.commit({second: 40, third: 5})
    assert await shown(rig, coordinator, spec, topic) == pytest.approx(time.time() - now + 25.0, abs=ABOUT)


async def test_what_a_group_of_read_committed_never_reads_has_no_age(rig: Rig, name: str, topic: str) -> None:
    def write() -> None:
        producer = KafkaProducer(bootstrap_servers=rig.kafka.servers, transactional_id=topic)
        ago = round((time.time() - 300.0) * 1000)
        try:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, value=b"kept", partition=0, timestamp_ms=ago)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send(topic, value=b"aborted", partition=1, timestamp_ms=ago)
            producer.flush()
            producer.abort_transaction()
        finally:
            producer.close()

    await asyncio.to_thread(write)
    coordinator, spec, consumer = await served(rig, name, topic, read_committed=True)
    first, second = shards(topic, 0, 1)
    assert await shown(rig, coordinator, spec, topic) == pytest.approx(300.0, abs=30.0)

    # The mark that ends the first transaction, and all of the second, are left.
    await consumer.commit({first: 1})
    assert await shown(rig, coordinator, spec, topic) == 0
    view = coordinator.view(spec.identity)
    assert {row.shard: row.lag_records for row in view.shards if row.lag_records} == {first: 1, second: 2}
    await rig.kafka.append(topic, 1, 1, since=time.time() - 50.0)
    assert await shown(rig, coordinator, spec, topic) == pytest.approx(50.0, abs=30.0)
