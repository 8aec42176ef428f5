"""A topic that grows under load: what produces for it, and the group that reads it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from kafka.partitioner.default import DefaultPartitioner, murmur2

from shardherd.core.model.nouns import KafkaSource
from tests.integration.coordinator.rig import Rig
from tests.integration.coordinator.scenes import Load, Scene
from tests.integration.coordinator.workers import SEQUENCES, Workers

KEYS = [f"key-{number}" for number in range(40)]
DELIVERY = 240.0
"""Seconds for which producers try again: twice as long as by default."""


@dataclass
class OwnLoad:
    """Load by kafka-python, which waits for each round to be acknowledged."""

    producer: KafkaProducer
    topic: str
    keys: list[str]
    rounds: int = 0
    over: bool = False

    def write(self) -> None:
        while not self.over:
            sent = [self.producer.send(self.topic, key=key.encode(), value=str(self.rounds).encode()) for key in self.keys]
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
    keys: list[str]
    rounds: int = 0
    over: bool = False

    def write(self) -> None:
        with self.log.open("wb") as log:
            running = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.environment)
        assert running.stdin is not None
        with running.stdin as lines:
            while not self.over:
                lines.writelines(f"{key},{self.rounds}\n".encode() for key in self.keys)
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


def produce(scene: Scene, keys: list[str], partitioner: DefaultPartitioner, *, rounds: int = 0) -> Load:
    """By kafka-python, from this round on."""
    source = scene.spec.source
    assert isinstance(source, KafkaSource)
    made = KafkaProducer(
        bootstrap_servers=source.bootstrap_servers,
        acks="all",
        metadata_max_age_ms=500,
        delivery_timeout_ms=int(1000 * DELIVERY),
        partitioner=partitioner,
    )
    return scene.load(OwnLoad(made, source.topics[0], keys, rounds))


async def scene(rig: Rig, name: str, topic: str, folder: Path, servers: str = "", **settings: Any) -> Scene:
    """`servers`: those of the brokers, if they are not the rig's."""
    coordinator = await rig.coordinator()
    made = await rig.group(name, (topic,), consumers=2, servers=servers or rig.kafka.servers)
    spec = replace(made, settings=replace(made.settings, ordered=True, **settings))
    coordinator.server.coordination.apply(spec)
    return Scene(rig, Workers(rig, coordinator, spec, folder, SEQUENCES))
