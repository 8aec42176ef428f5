"""Another broker leads a partition from now on, as JStorm's text has it: a worker goes on there, and misses nothing."""

from __future__ import annotations

import threading
from dataclasses import replace

from shardherd.testing.group import PlayedGroup
from shardherd.worker import Ack, Options, Record, RecordProcessor, Worker
from tests.unit.source.played_kafka import NOT_LEADER, TOPIC, Log, PlayedKafka
from tests.unit.worker.test_worker import running

BATCH = 64


class Reads(RecordProcessor):
    """Notes what it was given, and acknowledges it."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def process(self, record: Record, ack: Ack) -> None:
        self.offsets.append(record.offset)
        ack()


def test_leader_change_loses_nothing() -> None:
    reads, refused = Reads(), threading.Event()

    class Kafka(PlayedKafka):
        def _refused(self, node: int, log: Log, epoch: int) -> int:
            code = super()._refused(node, log, epoch)
            if code == NOT_LEADER:
                refused.set()
            return code

    with (
        PlayedGroup(shards=1, topic=TOPIC) as group,
        Kafka({0: Log(1, 5 * BATCH)}, {1: "", 2: ""}, records=BATCH) as kafka,
    ):
        (shard,) = group.shards
        worker = Worker(
            lambda: reads,
            options=Options(save_interval=0.1, drain_timeout=5.0),
            environment=group.environment("played-0"),
            bootstrap=kafka.bootstrap,
        )
        with running(worker) as raised:
            group.until("what there is is read", lambda: group.checkpoints() == {shard: 5 * BATCH})
            kafka.logs[0] = kafka.logs[0].elected(2, end=8 * BATCH)
            group.until("the new leader is read", lambda: group.checkpoints() == {shard: 8 * BATCH})
            kafka.logs[0] = replace(kafka.logs[0].elected(1), end=9 * BATCH)
            group.until("and the old one again", lambda: group.checkpoints() == {shard: 9 * BATCH})
        brokers = [each.broker for each in kafka.asked if "Fetch" in type(each.request).__name__]
    assert (reads.offsets, raised) == (list(range(9 * BATCH)), [])
    assert refused.is_set(), "the one that led said: this server is not the leader for that topic-partition"
    assert {1, 2} <= set(brokers)
