"""A topic that grows under load: what produces, two consumers that read it, and a sink that sees the order of keys."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.partitioner.default import DefaultPartitioner, murmur2

from shardherd.core.model.errors import CoordinatorUnavailableError, NotLeadingError
from shardherd.core.model.nouns import CheckpointResult, GroupSpec, KafkaSource, ShardId
from shardherd.source.kafka.partitions import partition_of
from tests.integration.contract.labs import eventually
from tests.integration.coordinator.rig import Consumer, Coordinator, Rig, becomes

KEYS = [f"key-{number}".encode() for number in range(40)]
DELIVERY = 240.0
"""Seconds for which producers try again: twice as long as by default."""


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


class Load(Protocol):
    """Writes a sequence for each key, round after round, until it is `over`."""

    keys: list[bytes]
    rounds: int
    """How many were written."""
    over: bool

    def write(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class OwnLoad:
    """Load by kafka-python, which waits for each round to be acknowledged."""

    producer: KafkaProducer
    topic: str
    keys: list[bytes]
    rounds: int = 0
    over: bool = False

    def write(self) -> None:
        while not self.over:
            sent = [self.producer.send(self.topic, key=key, value=str(self.rounds).encode()) for key in self.keys]
            for each in sent:
                each.get(DELIVERY)
            self.rounds += 1
            time.sleep(0.02)

    def close(self) -> None:
        self.producer.close()


@dataclass
class PipedLoad:
    """Load by a program: it produces the lines `key,value` of its standard input, and ends once all are acknowledged.

    It waits for no round, so some of its records are always on their way. What it complains of goes to the file `log`.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    keys: list[bytes]
    rounds: int = 0
    over: bool = False

    def write(self) -> None:
        with self.log.open("wb") as log:
            running = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.environment)
        assert running.stdin is not None
        with running.stdin as lines:
            while not self.over:
                lines.writelines(b"%s,%d\n" % (key, self.rounds) for key in self.keys)
                lines.flush()
                self.rounds += 1
                time.sleep(0.02)
        assert running.wait(180) == 0, self.log.read_text()
        assert [line for line in self.log.read_text().splitlines() if "ERROR" in line] == []

    def close(self) -> None:
        """Its program has ended with `write`."""


class Late(DefaultPartitioner):  # type: ignore[misc]
    """Of a producer that knows of as many partitions as it is told: its metadata is that old."""

    known = 4

    def partition(self, topic: str, key: bytes, serialized_key: bytes, *rest: Any) -> int:
        return int((murmur2(serialized_key) & 0x7FFFFFFF) % self.known)


class Reader:
    """One consumer of the group with a real Kafka client: reads what it holds, hands it to the sink, checkpoints."""

    def __init__(self, consumer: Consumer, servers: str, sink: Sink) -> None:
        self.consumer, self._sink, self._stopped, self._killed = consumer, sink, False, False
        self.slow: frozenset[ShardId] = frozenset()
        """What it does not read for now."""
        self._client = KafkaConsumer(bootstrap_servers=servers, group_id=None, enable_auto_commit=False)

    async def run(self) -> None:
        """Until it is told to stop: a heartbeat, a read, a checkpoint. What nobody answers it does again."""
        while not self._stopped:
            with suppress(CoordinatorUnavailableError, NotLeadingError):
                await self._round()
            await asyncio.sleep(0.02)

    async def _round(self) -> None:
        await self.consumer.heartbeat()
        wanted = {shard: at for shard, at in self.consumer.positions.items() if shard not in self.slow}
        done = await asyncio.to_thread(self._read, wanted)
        if done and not self._killed:
            outcomes = await self.consumer.commit(done)
            assert {each.result for each in outcomes} <= {CheckpointResult.OK, CheckpointResult.WITHHELD}

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

    def kill(self) -> None:
        """End as `kill -9` would end it: what it has handled last is checkpointed by nobody."""
        self._stopped = self._killed = True

    def close(self) -> None:
        self._client.close()


class Scene:
    """A group of two readers at work, and what produces for it."""

    def __init__(self, rig: Rig, topic: str, spec: GroupSpec) -> None:
        assert isinstance(spec.source, KafkaSource)
        self.servers = spec.source.bootstrap_servers
        self.rig, self.topic, self.spec, self.sink = rig, topic, spec, Sink()
        self.readers: list[Reader] = []
        self.slow: frozenset[ShardId] = frozenset()
        self._running: dict[int, asyncio.Task[None]] = {}
        self.loads: list[Load] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def read(self, coordinator: Coordinator) -> None:
        for ordinal in range(2):
            self._start(ordinal, await self.rig.consumer(coordinator, self.spec, ordinal))

    def _start(self, ordinal: int, consumer: Consumer) -> None:
        reader = Reader(consumer, self.servers, self.sink)
        reader.slow = self.slow
        self.readers[ordinal:] = [reader, *self.readers[ordinal + 1 :]]
        self._running[ordinal] = asyncio.create_task(reader.run())

    def produce(self, keys: list[bytes], partitioner: DefaultPartitioner) -> Load:
        made = KafkaProducer(
            bootstrap_servers=self.servers,
            acks="all",
            metadata_max_age_ms=500,
            delivery_timeout_ms=int(1000 * DELIVERY),
            partitioner=partitioner,
        )
        return self.load(OwnLoad(made, self.topic, keys))

    def load(self, load: Load) -> Load:
        self.loads.append(load)
        self._tasks.append(asyncio.create_task(asyncio.to_thread(load.write)))
        return load

    def neglect(self, shards: Collection[ShardId]) -> None:
        """Let nobody read these for now."""
        self.slow = frozenset(shards)
        for reader in self.readers:
            reader.slow = self.slow

    async def replace_reader(self, coordinator: Coordinator, ordinal: int) -> None:
        """Kill one as by `kill -9`, and let the next start of its container take its place."""
        killed = self.readers[ordinal]
        killed.kill()
        await self._running[ordinal]
        killed.close()
        next_start = killed.consumer.restarted()
        next_start.client = (await self.rig.consumer(coordinator, self.spec, ordinal)).client
        self._start(ordinal, next_start)

    async def replace_coordinator(self, coordinator: Coordinator) -> Coordinator:
        """Let another leader take over, until it knows the group."""
        await coordinator.stop()
        again = await self.rig.coordinator()
        again.server.coordination.apply(self.spec)
        for ordinal, reader in enumerate(self.readers):
            reader.consumer.client = (await self.rig.consumer(again, self.spec, ordinal)).client
        views = again.server.coordination
        await becomes(lambda: (view := views.view(self.spec.identity)) is not None and view.discovered)
        return again

    async def end(self) -> None:
        for load in self.loads:
            load.over = True
        for reader in self.readers:
            reader.stop()
        results = await asyncio.gather(*self._running.values(), *self._tasks, return_exceptions=True)
        for each in (*(reader.close for reader in self.readers), *(load.close for load in self.loads)):
            with suppress(TimeoutError):
                await asyncio.to_thread(each)
        failed = [each for each in results if each is not None]
        assert failed == []

    async def caught_up(self) -> None:
        """Until all that was produced is in the sink, and whoever produced has ended."""
        for load in self.loads:
            load.over = True

        async def all_there() -> bool:
            wanted = {key: load.rounds for load in self.loads for key in load.keys}
            return all(set(self.sink.of[key]) >= set(range(count)) for key, count in wanted.items())

        await asyncio.gather(*self._tasks)
        await eventually(all_there, 60.0)


async def scene(rig: Rig, name: str, topic: str, settle: float, servers: str = "") -> tuple[Scene, Coordinator]:
    """`servers`: those of the brokers, if they are not the rig's."""
    coordinator = await rig.coordinator()
    made = await rig.group(name, (topic,), consumers=2, servers=servers or rig.kafka.servers)
    spec = replace(made, settings=replace(made.settings, ordered=True, growth_settle=settle))
    coordinator.server.coordination.apply(spec)
    return Scene(rig, topic, spec), coordinator
