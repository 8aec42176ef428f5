"""Keys stay in order while their topic grows under load: real producers, a real broker, consumers that read and checkpoint.

The producers are those of kafka-python: they choose a partition by murmur2 of the key modulo the number that they know of.
`Late` goes on with the number that it knew for as long as a producer may.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.partitioner.default import DefaultPartitioner, murmur2

from shardherd.core.model.nouns import CheckpointResult, GroupSpec, ShardId, ShardState
from shardherd.source.kafka.partitions import partition_of
from tests.integration.contract.labs import eventually
from tests.integration.coordinator.rig import Consumer, Coordinator, Rig, becomes, shards

KEYS = [f"key-{number}".encode() for number in range(40)]


class Sink:
    """What consumers have handled: the numbers of each key, in the order in which they came."""

    def __init__(self) -> None:
        self.of: dict[bytes, list[int]] = defaultdict(list)

    def disorder(self) -> list[bytes]:
        """The keys of which a number came before a smaller one that had not come yet."""
        found = []
        for key, numbers in sorted(self.of.items()):
            highest = -1
            for number in numbers:
                if number > highest + 1:
                    found.append(key)
                    break
                highest = max(highest, number)
        return found


@dataclass
class Load:
    """Writes a sequence for each key, round after round, until it is stopped."""

    producer: KafkaProducer
    topic: str
    keys: list[bytes]
    rounds: int = 0
    over: bool = False

    def write(self) -> None:
        while not self.over:
            sent = [self.producer.send(self.topic, key=key, value=str(self.rounds).encode()) for key in self.keys]
            for each in sent:
                each.get(30)
            self.rounds += 1
            time.sleep(0.02)


class Late(DefaultPartitioner):  # type: ignore[misc]
    """Of a producer that knows of as many partitions as it is told: its metadata is that old."""

    known = 4

    def partition(self, topic: str, key: bytes, serialized_key: bytes, *rest: Any) -> int:
        return int((murmur2(serialized_key) & 0x7FFFFFFF) % self.known)


class Reader:
    """One consumer of the group with a real Kafka client: reads what it holds, hands it to the sink, checkpoints."""

    def __init__(self, consumer: Consumer, servers: str, sink: Sink) -> None:
        self.consumer, self._sink, self._stopped = consumer, sink, False
        self.slow: frozenset[ShardId] = frozenset()
        """What it does not read for now."""
        self._client = KafkaConsumer(bootstrap_servers=servers, group_id=None, enable_auto_commit=False)

    async def run(self) -> None:
        """Until it is told to stop: a heartbeat, a read, a checkpoint."""
        while not self._stopped:
            await self.consumer.heartbeat()
            wanted = {shard: at for shard, at in self.consumer.positions.items() if shard not in self.slow}
            done = await asyncio.to_thread(self._read, wanted)
            if done:
                outcomes = await self.consumer.commit(done)
                assert {each.result for each in outcomes} <= {CheckpointResult.OK, CheckpointResult.WITHHELD}
            await asyncio.sleep(0.02)

    def _read(self, positions: dict[ShardId, int]) -> dict[ShardId, int]:
        if not positions:
            return {}
        places = {TopicPartition(*partition_of(shard)): shard for shard in positions}
        self._client.assign(list(places))
        for place, shard in places.items():
            self._client.seek(place, positions[shard])
        done: dict[ShardId, int] = {}
        for place, records in self._client.poll(timeout_ms=200, max_records=500).items():
            for record in records:
                self._sink.of[record.key].append(int(record.value))
            done[places[place]] = records[-1].offset + 1
        return done

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._client.close()


class Scene:
    """A group of two readers at work, and what produces for it."""

    def __init__(self, rig: Rig, topic: str, spec: GroupSpec) -> None:
        self.rig, self.topic, self.spec, self.sink = rig, topic, spec, Sink()
        self.readers: list[Reader] = []
        self.loads: list[Load] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def read(self, coordinator: Coordinator) -> None:
        for ordinal in range(2):
            consumer = await self.rig.consumer(coordinator, self.spec, ordinal)
            self.readers.append(Reader(consumer, self.rig.kafka.servers, self.sink))
        self._tasks += [asyncio.create_task(reader.run()) for reader in self.readers]

    def produce(self, keys: list[bytes], partitioner: DefaultPartitioner) -> Load:
        made = KafkaProducer(
            bootstrap_servers=self.rig.kafka.servers, acks="all", metadata_max_age_ms=500, partitioner=partitioner
        )
        load = Load(made, self.topic, keys)
        self.loads.append(load)
        self._tasks.append(asyncio.create_task(asyncio.to_thread(load.write)))
        return load

    async def end(self) -> None:
        for load in self.loads:
            load.over = True
        for reader in self.readers:
            reader.stop()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in (*(reader.close for reader in self.readers), *(load.producer.close for load in self.loads)):
            with suppress(TimeoutError):
                await asyncio.to_thread(each)
        assert [each for each in results if each is not None] == []

    async def caught_up(self) -> None:
        """Until all that was produced is in the sink."""
        for load in self.loads:
            load.over = True

        async def all_there() -> bool:
            wanted = {key: load.rounds for load in self.loads for key in load.keys}
            return all(set(self.sink.of[key]) >= set(range(count)) for key, count in wanted.items())

        await eventually(all_there, 60.0)


async def scene(rig: Rig, name: str, topic: str, settle: float) -> tuple[Scene, Coordinator]:
    coordinator = await rig.coordinator()
    made = await rig.group(name, (topic,), consumers=2)
    spec = replace(made, settings=replace(made.settings, ordered=True, growth_settle=settle))
    coordinator.server.coordination.apply(spec)
    return Scene(rig, topic, spec), coordinator


async def test_each_key_is_read_in_order_while_its_topic_grows_twice_under_load(rig: Rig, name: str, topic: str) -> None:
    """From 4 to 8 and on to 16 within the settle time, with a producer that notices late."""
    played, coordinator = await scene(rig, name, topic, settle=6.0)
    try:
        await played.read(coordinator)
        behind = Late()
        played.produce(KEYS[:20], DefaultPartitioner())
        late = played.produce(KEYS[20:], behind)
        await becomes(lambda: set(played.sink.of) == set(KEYS))

        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(coordinator.view(played.spec.identity).growths) == 1)
        await rig.kafka.grow(topic, 16)
        await becomes(lambda: len(coordinator.view(played.spec.identity).growths) == 2)
        assert coordinator.view(played.spec.identity).shards_in(ShardState.WAIT) == 12
        before = late.rounds
        await becomes(lambda: late.rounds > before + 5)
        behind.known, before = 16, late.rounds
        await becomes(lambda: coordinator.view(played.spec.identity).shards_in(ShardState.WAIT) == 0)
        await becomes(lambda: late.rounds > before + 5)
        await played.caught_up()
        assert sorted(shard.shard for shard in coordinator.view(played.spec.identity).shards) == sorted(
            shards(topic, *range(16))
        )
    finally:
        await played.end()
    assert played.sink.disorder() == []
    assert set(played.sink.of) == set(KEYS)


async def test_with_no_time_for_late_producers_the_same_load_is_out_of_order(rig: Rig, name: str, topic: str) -> None:
    """What shows that the test above can fail: a producer that goes on with the old number after the cutover is taken."""
    played, coordinator = await scene(rig, name, topic, settle=0.0)
    try:
        await played.read(coordinator)
        behind = Late()
        late = played.produce(KEYS, behind)
        await becomes(lambda: set(played.sink.of) == set(KEYS))
        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(coordinator.view(played.spec.identity).shards) == 8)
        await becomes(lambda: coordinator.view(played.spec.identity).shards_in(ShardState.WAIT) == 0)
        # The old partitions are read late, while the producer goes on to write there, and then to the new ones.
        for reader in played.readers:
            reader.slow = frozenset(shards(topic, *range(4)))
        for known in (4, 8):
            behind.known, before = known, late.rounds
            await becomes(lambda before=before: late.rounds > before + 5)  # type: ignore[misc]
        await becomes(lambda: bool(played.sink.disorder()))
        for reader in played.readers:
            reader.slow = frozenset()
        await played.caught_up()
    finally:
        await played.end()
    assert played.sink.disorder()
