"""Topics that come and go under a pattern while Python consumers process them, on a real broker: every record is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from tests.integration.local.herd import Herd
from tests.integration.local.test_workers import PYTHON

ROUNDS = 4
STAYS = 6
"""Shards of the topic that stays."""
PARTITIONS = 2
RECORDS = 50
"""In each partition of a topic that comes."""


class Topics:
    """Those that come and go; the herd's own topic stays."""

    def __init__(self, herd: Herd) -> None:
        self._herd = herd
        self._admin = KafkaAdminClient(bootstrap_servers=herd.bootstrap)
        self._producer = KafkaProducer(bootstrap_servers=herd.bootstrap, acks="all")
        self.written: Counter[tuple[str, int]] = Counter()
        """Shard and offset of each record of theirs."""
        self.there = 0

    def make(self, number: int) -> str:
        """Its name, once it is there."""
        topic = f"{self._herd.name}.{number}"
        shape = {"num_partitions": PARTITIONS, "replication_factor": 1}
        self._admin.create_topics({topic: shape}, wait_for_metadata=True)
        return topic

    def come(self, number: int) -> None:
        """Make the topic, write to it, and wait until all of it is processed."""
        topic = self.make(number)
        self.there += 1
        for offset in range(RECORDS):
            for partition in range(PARTITIONS):
                self._producer.send(topic, value=b"%d" % offset, partition=partition)
                self.written[f"{topic}/{partition}", offset] += 1
        self._producer.flush()
        self._herd.until(f"{topic} is processed", lambda: self.written <= Counter(self._herd.read()))

    def go(self, number: int) -> None:
        """Delete the topic, and wait until the group counts its shards no more."""
        self._admin.delete_topics([f"{self._herd.name}.{number}"])
        self.there -= 1
        self.await_held()

    def await_held(self) -> None:
        """Wait until the shards of all topics that are there, and only they, are held and read."""
        wanted = STAYS + PARTITIONS * self.there

        def held() -> bool:
            found = self._herd.status()["shards"]
            return (found["total"], found["alreadyAlloc"]) == (wanted, wanted)

        self._herd.until(f"{wanted} shards are held", held, within=60)

    def close(self) -> None:
        self._producer.close()
        self._admin.close()


@pytest.fixture
def topics(herd: Herd) -> Iterator[Topics]:
    found = Topics(herd)
    yield found
    found.close()


def reasons(herd: Herd) -> set[str]:
    """Those of the group's conditions."""
    return {each["reason"] for each in herd.status()["conditions"]}


def test_topics_come_and_go_while_two_consumers_process_them_and_each_record_is_processed_once(
    herd: Herd, topics: Topics
) -> None:
    pattern = rf"{herd.name}(\.[0-9]+)?"
    manifest = herd.declare(replicas=2, source={"kafka": {"topicPattern": pattern}}, application=PYTHON)
    herd.up("-f", str(manifest), "--bootstrap", herd.bootstrap, "--app-dir", str(Path(__file__).parent))
    herd.write()
    herd.await_spread({"0": 3, "1": 3})

    topics.come(0)
    for number in range(1, ROUNDS):
        topics.come(number)
        topics.go(number - 1)
        if number == 1:
            herd.kill_operator()
            herd.up()
    topics.await_held()
    topics.make(0)
    herd.until("what was made anew is told of", lambda: "SourceRecreated" in reasons(herd), 60)

    written, missing, _ = herd.account()
    assert (written > 0, missing) == (True, 0), "of the topic that stayed"
    assert Counter(herd.read()) == topics.written + Counter(
        (shard, offset) for shard, count in herd.written.items() for offset in range(count)
    )
    assert [herd.container(f"{herd.name}-{number}").starts() for number in range(2)] == [1, 1], "nobody was started again"
