"""A topic grows twice under the load of Java's producer, librdkafka's and kafka-python's, and everything fails meanwhile.

The broker stands still right after the growth, so all three try again to write records that they chose a partition for among
the old ones; Java's producer also notices late that there are more. Consumers are killed and leaders change while shards wait.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.partitioner.default import DefaultPartitioner

from dev.cluster import Cluster, daemons
from shardherd.core.model.nouns import ShardState
from tests.harness.long import long
from tests.integration.coordinator.growing import KEYS, Load, PipedLoad, scene
from tests.integration.coordinator.rig import Rig, becomes, shards

ROOT = Path(__file__).resolve().parents[3]
STEADY = 150
"""Rounds that a producer writes in 3 seconds or more."""


def java(cluster: Cluster, topic: str, folder: Path, keys: list[bytes]) -> PipedLoad:
    """It notices up to 15 s late that there are more partitions."""
    settings = {"metadata.max.age.ms": "15000", "request.timeout.ms": "2000", "delivery.timeout.ms": "60000", "linger.ms": "5"}
    given = [text for name, value in settings.items() for text in ("--command-property", f"{name}={value}")]
    lines = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=,"]
    where = ["--bootstrap-server", cluster.kafka_bootstrap, "--topic", topic]
    main = "org.apache.kafka.tools.ConsoleProducer"
    return PipedLoad(
        daemons.java(cluster.tools, main, *where, *lines, *given), cluster.environment(), folder / "java.log", keys
    )


def librdkafka(cluster: Cluster, topic: str, folder: Path, keys: list[bytes]) -> PipedLoad:
    settings = {
        "partitioner": "murmur2_random",
        "enable.idempotence": "true",
        "topic.metadata.refresh.interval.ms": "1000",
        "socket.timeout.ms": "2000",
        "message.timeout.ms": "60000",
    }
    subprocess.run([ROOT / "benchmarks" / "environment"], check=True)
    given = [f"{name}={value}" for name, value in settings.items()]
    program = Path(__file__).with_name("librdkafka_producer.py")
    command = [str(ROOT / ".venv-bench" / "bin" / "python"), str(program), cluster.kafka_bootstrap, topic, *given]
    return PipedLoad(command, cluster.environment(), folder / "librdkafka.log", keys)


async def rounds(load: Load, count: int) -> None:
    """Until it has written so many more: 20 ms each, or longer."""
    before = load.rounds
    await becomes(lambda: load.rounds > before + count, within=240.0)


@long
@pytest.mark.timeout(600)
async def test_keys_stay_in_order_whichever_client_produces_them_and_whatever_fails_while_the_topic_grows(
    rig: Rig, cluster: Cluster, name: str, topic: str, tmp_path: Path
) -> None:
    played, coordinator = await scene(rig, name, topic, settle=40.0)
    group = played.spec.identity
    try:
        await played.read(coordinator)
        late = played.load(java(cluster, topic, tmp_path, KEYS[:14]))
        native = played.load(librdkafka(cluster, topic, tmp_path, KEYS[14:28]))
        own = played.produce(KEYS[28:], DefaultPartitioner())
        await becomes(lambda: set(played.sink.of) == set(KEYS))

        await rig.kafka.grow(topic, 8)
        # What is on its way now is written once the broker goes on, into the partitions that there were before.
        cluster.signal("kafka", signal.SIGSTOP)
        try:
            await rounds(late, 2 * STEADY)
        finally:
            cluster.signal("kafka", signal.SIGCONT)
        await becomes(lambda: len(coordinator.view(group).growths) == 1)
        await played.replace_reader(coordinator, 0)
        coordinator = await played.replace_coordinator(coordinator)

        await rig.kafka.grow(topic, 16)
        await becomes(lambda: len(coordinator.view(group).growths) == 2)
        await played.replace_reader(coordinator, 1)
        await becomes(lambda: coordinator.view(group).shards_in(ShardState.WAIT) == 12)
        coordinator = await played.replace_coordinator(coordinator)
        await played.replace_reader(coordinator, 0)

        # The old partitions are read late: what came to them late must be waited for.
        played.neglect(shards(topic, *range(4)))
        await rounds(late, 6 * STEADY)
        played.neglect(())
        await becomes(lambda: coordinator.view(group).shards_in(ShardState.WAIT) == 0, within=240.0)
        for load in (late, native, own):
            await rounds(load, STEADY)
        await played.caught_up()
    finally:
        await played.end()
    assert played.sink.disorder() == []
    assert set(played.sink.of) == set(KEYS)
    assert set(await asyncio.to_thread(written_partitions, cluster, topic)) == set(range(16))


@long
@pytest.mark.timeout(600)
async def test_without_a_time_to_settle_a_producer_that_notices_late_is_out_of_order(
    rig: Rig, cluster: Cluster, name: str, topic: str, tmp_path: Path
) -> None:
    """What shows that the test above can fail."""
    played, coordinator = await scene(rig, name, topic, settle=0.0)
    group = played.spec.identity
    try:
        await played.read(coordinator)
        late = played.load(java(cluster, topic, tmp_path, KEYS))
        await becomes(lambda: set(played.sink.of) == set(KEYS))
        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(coordinator.view(group).shards) == 8)
        await becomes(lambda: coordinator.view(group).shards_in(ShardState.WAIT) == 0)
        played.neglect(shards(topic, *range(4)))
        await becomes(lambda: bool(played.sink.disorder()))
        played.neglect(())
        await rounds(late, STEADY)
        await played.caught_up()
    finally:
        await played.end()


def written_partitions(cluster: Cluster, topic: str) -> list[int]:
    """The partitions in which there are records: all, if every producer went over to the new number."""
    reader = KafkaConsumer(bootstrap_servers=cluster.kafka_bootstrap, group_id=None)
    try:
        ends = reader.end_offsets([TopicPartition(topic, number) for number in range(16)])
        return [place.partition for place, end in ends.items() if end > 0]
    finally:
        reader.close()
