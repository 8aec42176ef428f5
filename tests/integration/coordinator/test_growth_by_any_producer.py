"""A topic grows twice under the load of Java's producer, librdkafka's and kafka-python's, and everything fails meanwhile.

The broker stands still right after the growth, so all three try again to write records that they chose a partition for among
the old ones; Java's producer also notices late that there are more. Consumers are killed and leaders change while shards wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaConnectionError
from kafka.partitioner.default import DefaultPartitioner

from dev.cluster import Cluster, daemons
from dev.cluster.kafka import KafkaTrio
from dev.cluster.waiting import wait_for
from tests.harness.kafka import KafkaLab
from tests.harness.long import long
from tests.integration.coordinator.growing import DELIVERY, KEYS, PipedLoad, produce, scene
from tests.integration.coordinator.rig import Rig, becomes, shards
from tests.integration.coordinator.scenes import more_rounds

ROOT = Path(__file__).resolve().parents[3]
LATE = 15.0
"""Seconds after which Java's producer has noticed that there are more partitions."""
STEADY = 150
"""Rounds that a producer writes in 3 seconds or more."""


def java(cluster: Cluster, servers: str, topic: str, folder: Path, keys: list[str], delivery: float = 60.0) -> PipedLoad:
    """It notices up to LATE seconds late that there are more partitions, and tries again for so many seconds."""
    settings = {
        "metadata.max.age.ms": f"{1000 * LATE:.0f}",
        "request.timeout.ms": "2000",
        "delivery.timeout.ms": f"{1000 * delivery:.0f}",
        "linger.ms": "5",
        "retries": f"{2**31 - 1}",  # as all of Java's producers but this program's have it
    }
    given = [text for name, value in settings.items() for text in ("--command-property", f"{name}={value}")]
    lines = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=,"]
    where = ["--bootstrap-server", servers, "--topic", topic]
    main = "org.apache.kafka.tools.ConsoleProducer"
    return PipedLoad(
        daemons.java(cluster.tools, main, *where, *lines, *given), cluster.environment(), folder / "java.log", keys
    )


def librdkafka(cluster: Cluster, servers: str, topic: str, folder: Path, keys: list[str], delivery: float = 60.0) -> PipedLoad:
    settings = {
        "partitioner": "murmur2_random",
        "enable.idempotence": "true",
        "topic.metadata.refresh.interval.ms": "1000",
        "socket.timeout.ms": "2000",
        "message.timeout.ms": f"{1000 * delivery:.0f}",
        "queue.buffering.max.messages": "1000000",
    }
    subprocess.run([ROOT / "benchmarks" / "environment"], check=True)
    given = [f"{name}={value}" for name, value in settings.items()]
    program = Path(__file__).with_name("librdkafka_producer.py")
    command = [str(ROOT / ".venv-bench" / "bin" / "python"), str(program), servers, topic, *given]
    return PipedLoad(command, cluster.environment(), folder / "librdkafka.log", keys)


@long
@pytest.mark.timeout(600)
async def test_keys_stay_in_order_whichever_client_produces_them_and_whatever_fails_while_the_topic_grows(
    rig: Rig, cluster: Cluster, name: str, topic: str, tmp_path: Path
) -> None:
    played = await scene(rig, name, topic, tmp_path, growth_settle=40.0)
    try:
        await played.start()
        late = played.load(java(cluster, rig.kafka.servers, topic, tmp_path, KEYS[:14]))
        native = played.load(librdkafka(cluster, rig.kafka.servers, topic, tmp_path, KEYS[14:28]))
        own = produce(played, KEYS[28:], DefaultPartitioner())
        await becomes(lambda: set(played.read.of) == set(KEYS))

        await rig.kafka.grow(topic, 8)
        # What is on its way now is written once the broker goes on, into the partitions that there were before.
        cluster.signal("kafka", signal.SIGSTOP)
        try:
            await more_rounds(late, 2 * STEADY, within=240.0)
        finally:
            cluster.signal("kafka", signal.SIGCONT)
        await becomes(lambda: len(played.view.growths) == 1)
        await played.replace_worker(0)
        await played.replace_leader()

        await rig.kafka.grow(topic, 16)
        await becomes(lambda: len(played.view.growths) == 2)
        await played.replace_worker(1)
        await becomes(lambda: played.waiting() == 12)
        await played.replace_leader()
        await played.replace_worker(0)

        # The old partitions are read late: what came to them late must be waited for.
        played.workers.hold_up(*shards(topic, *range(4)))
        await more_rounds(late, 6 * STEADY, within=240.0)
        played.workers.hold_up()
        await becomes(lambda: played.waiting() == 0, within=240.0)
        for load in (late, native, own):
            await more_rounds(load, STEADY, within=240.0)
        await played.caught_up()
    finally:
        await played.end()
    assert played.read.disorder() == []
    assert set(played.read.of) == set(KEYS)
    assert set(await asyncio.to_thread(written_partitions, cluster.kafka_bootstrap, topic)) == set(range(16))


@long
@pytest.mark.timeout(600)
async def test_without_a_time_to_settle_a_producer_that_notices_late_is_out_of_order(
    rig: Rig, cluster: Cluster, name: str, topic: str, tmp_path: Path
) -> None:
    """What shows that the test above can fail."""
    played = await scene(rig, name, topic, tmp_path, growth_settle=0.0)
    try:
        await played.start()
        late = played.load(java(cluster, rig.kafka.servers, topic, tmp_path, KEYS))
        await becomes(lambda: set(played.read.of) == set(KEYS))
        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(played.view.shards) == 8)
        await becomes(lambda: played.waiting() == 0)
        played.workers.hold_up(*shards(topic, *range(4)))
        await becomes(lambda: bool(played.read.disorder()))
        played.workers.hold_up()
        await more_rounds(late, STEADY, within=240.0)
        await played.caught_up()
    finally:
        await played.end()


@long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("settle", "in_order"),
    [pytest.param(LATE + DELIVERY, True, id="for as long as they may"), pytest.param(LATE + 20.0, False, id="for less")],
)
async def test_keys_stay_in_order_where_a_topic_settles_for_as_long_as_producers_try_again(
    rig: Rig, cluster: Cluster, kafka: KafkaLab, trio: KafkaTrio, tmp_path: Path, name: str, settle: float, in_order: bool
) -> None:
    """The old partitions take nothing for two minutes, as a broker is away; the new ones take all, and more are added.

    Consumers are killed and leaders change meanwhile. All is read.
    """
    topic = kafka.create(4, on=(1, 2), min_insync_replicas="2")
    played = await scene(rig, name, topic, tmp_path, trio.bootstrap(), growth_settle=settle)
    try:
        await played.start()
        late = played.load(java(cluster, trio.bootstrap(), topic, tmp_path, KEYS[:14], DELIVERY))
        played.load(librdkafka(cluster, trio.bootstrap(), topic, tmp_path, KEYS[14:28], DELIVERY))
        produce(played, KEYS[28:], DefaultPartitioner())
        await becomes(lambda: set(played.read.of) == set(KEYS))

        trio.kill(2)
        await asyncio.to_thread(wait_until_alone, trio, topic)
        running = trio.bootstrap(nodes=trio.running())
        refused = await asyncio.to_thread(ends, running, topic, range(4))
        back = time.monotonic() + 0.5 * DELIVERY
        await more_rounds(late, STEADY, within=240.0)
        await asyncio.to_thread(grow_while_a_broker_is_away, trio, topic, 8)
        await becomes(lambda: len(played.view.growths) == 1)
        await played.replace_worker(0)
        await played.replace_leader()
        await becomes(lambda: time.monotonic() > back, within=DELIVERY)
        assert await asyncio.to_thread(ends, running, topic, range(4)) == refused, "producers try again"
        assert all((await asyncio.to_thread(ends, running, topic, range(4, 8))).values()), "and go over to the new number"
        assert (played.waiting() == 4) is in_order
        await asyncio.to_thread(grow_while_a_broker_is_away, trio, topic, 16)
        await becomes(lambda: played.waiting() == (12 if in_order else 8))
        await played.replace_worker(1)
        await played.replace_leader()
        trio.launch(2)
        await asyncio.to_thread(trio.await_ready, 2)
        await becomes(lambda: played.waiting() == 0, within=2 * settle)
        await more_rounds(late, STEADY, within=240.0)
        await played.caught_up()
    finally:
        await played.end()
    assert (played.read.disorder() == []) is in_order
    assert set(played.read.of) == set(KEYS)
    assert set(await asyncio.to_thread(written_partitions, trio.bootstrap(), topic)) == set(range(16))


def administrator(trio: KafkaTrio) -> contextlib.closing[Any]:
    """One that is told of the brokers that run; the lab's goes on with those that it knows."""
    return contextlib.closing(KafkaAdminClient(bootstrap_servers=trio.bootstrap(nodes=trio.running())))


def wait_until_alone(trio: KafkaTrio, topic: str) -> None:
    """Until broker 1 has no other beside it that has all records: then it takes no more."""

    def others() -> str | None:
        try:
            with administrator(trio) as admin:
                found = admin.describe_topics([topic])[0]["partitions"]
        except KafkaConnectionError as error:
            return f"the others still name broker 2: {error}"
        return None if all(each["isr_nodes"] == [1] for each in found) else f"{found}"

    wait_for("broker 1 alone", others, trio.log(1), 60.0)


def grow_while_a_broker_is_away(trio: KafkaTrio, topic: str, partitions: int) -> None:
    """To twice as many partitions, the new ones where all brokers run."""
    with administrator(trio) as admin:
        admin.create_partitions({topic: {"count": partitions, "assignments": [[1, 3]] * (partitions // 2)}})


def ends(servers: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """The end offset of each of these partitions."""
    with contextlib.closing(KafkaConsumer(bootstrap_servers=servers, group_id=None)) as reader:
        found = reader.end_offsets([TopicPartition(topic, number) for number in partitions])
        return {place.partition: end for place, end in found.items()}


def written_partitions(servers: str, topic: str) -> list[int]:
    """The partitions in which there are records: all, if every producer went over to the new number."""
    return [number for number, end in ends(servers, topic, range(16)).items() if end > 0]
