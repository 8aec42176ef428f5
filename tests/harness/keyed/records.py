"""The two topics of a group with cells and the records in them, and how far the group has read them, as Kafka says.

What is written is numbered in rounds and depends on nothing but which round it is. Knows nothing of how the group runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from shardherd.core.model.naming import cell
from shardherd.core.model.nouns import ShardId
from tests.harness.keyed.application import CELLS, LATE, QUERIES

KEYS = 12
ROUND = LATE // 3
"""Numbers in a round. What is two rounds old has been read, before another round is written: then nothing is late."""

JOINED = list(QUERIES).index("pairs")
"""The cell whose query reads both topics: in the others nothing would ever be read of the views."""

END = 10**6
"""The number of the last record of each partition: with it the watermark passes all others."""


class Records:
    """The topics `clicks`, which bears the group's name, and `views`; both are new, with a partition for each cell."""

    def __init__(self, bootstrap: str, group: str, clicks: str) -> None:
        """`group`: under which name Kafka has the group's positions."""
        self.bootstrap = bootstrap
        self.clicks, self.views = clicks, f"{clicks}-views"
        self._group = group
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._partitions = {self.clicks: CELLS, self.views: CELLS}
        made = {name: {"num_partitions": count, "replication_factor": 1} for name, count in self._partitions.items()}
        self._admin.create_topics(made, wait_for_metadata=True)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, metadata_max_age_ms=200)
        self._ends: list[dict[str, int]] = []  # of each round: the end of each shard
        self._offsets: dict[str, int] = {}

    def close(self) -> None:
        self._producer.close()
        self._admin.close()

    def create(self, topics: Iterable[str]) -> None:
        """Topics that are written to, of one partition each."""
        made = {name: {"num_partitions": 1, "replication_factor": 1} for name in topics}
        self._admin.create_topics(made, wait_for_metadata=True)

    def rows_in(self, topic: str) -> Counter[tuple[Any, ...]]:
        """The rows of JSON that such a topic has, as who reads committed records sees it."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, isolation_level="read_committed", enable_auto_commit=False)
        try:
            part = TopicPartition(topic, 0)
            consumer.assign([part])
            consumer.seek_to_beginning(part)
            end, found = consumer.end_offsets([part])[part], Counter[tuple[Any, ...]]()
            while consumer.position(part) < end:
                for batch in consumer.poll(timeout_ms=200).values():
                    found.update(tuple(json.loads(each.value).values()) for each in batch)
            return found
        finally:
            consumer.close()

    @property
    def shards(self) -> int:
        """How many there are."""
        return sum(self._partitions.values())

    def double(self, until: Callable[[str, Callable[[], bool]], bool]) -> None:
        """Give the topic of clicks twice as many partitions; `until` waits until a condition of this description holds."""
        partitions = 2 * self._partitions[self.clicks]
        self._admin.create_partitions({self.clicks: partitions})

        def shown() -> bool:
            return len(self._producer.partitions_for(self.clicks)) == partitions

        until(f"the producer knows {partitions} partitions of {self.clicks}", shown)
        self._partitions[self.clicks] = partitions

    @property
    def rounds(self) -> int:
        """How many were written."""
        return len(self._ends)

    def write_round(self) -> None:
        """A click for each number, and views of the keys of the cell that joins; a key's partition is that of its hash."""
        for number in range(self.rounds * ROUND, (self.rounds + 1) * ROUND):
            self._send(self.clicks, number, number % KEYS)
            if number // 2 % CELLS == JOINED:
                self._send(self.views, number, number // 2 % KEYS)
        self._written()

    def write_end(self) -> None:
        for partition in range(self._partitions[self.clicks]):
            self._send(self.clicks, END, partition)
        self._send(self.views, END, JOINED)
        self._written()

    def _send(self, topic: str, number: int, key: int) -> None:
        partition = key % self._partitions[topic]
        self._producer.send(topic, key=b"k%d" % key, value=b"%d" % number, partition=partition)
        shard = f"{topic}/{partition}"
        self._offsets[shard] = self._offsets.get(shard, 0) + 1

    def _written(self) -> None:
        self._producer.flush()
        self._ends.append(dict(self._offsets))

    def ends(self, number: int, *, but: int | None = None) -> Mapping[str, int]:
        """Where each shard ended with this round; of all cells but one."""
        return {shard: end for shard, end in self._ends[number].items() if cell(ShardId(shard), CELLS) != but}

    def positions(self) -> Mapping[str, int]:
        """Up to where the group has finished each shard, durably."""
        found = self._admin.list_group_offsets(self._group)[self._group]
        return {f"{where.topic}/{where.partition}": int(position.offset) for where, position in found.items()}
