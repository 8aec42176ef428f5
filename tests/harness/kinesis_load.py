"""What writes to the stream `orders` for tests, and workers whose processors note what they are given."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from shardherd.core.model.nouns import ShardId
from shardherd.worker import Checkpoint, Options, Processor, Record, Records, Worker
from tests.harness.kinesis import put
from tests.harness.kinesis_group import KinesisGroup
from tests.unit.source.test_kinesis_aggregation import aggregated

KEYS = tuple(f"key-{number}" for number in range(12))


class Sink:
    """What all workers have processed: for each key its numbers, in the order of the calls."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = defaultdict(list)
        self.shards: set[ShardId] = set()
        self._lock = threading.Lock()

    def __call__(self) -> Processor:
        sink = self

        class Writes(Processor):
            def process(self, records: Records, checkpoint: Checkpoint) -> None:
                for record in records:
                    sink.write(records.shard, record)

        return Writes()

    def write(self, shard: ShardId, record: Record) -> None:
        with self._lock:
            self.shards.add(shard)
            self.rows[(record.key or b"").decode()].append(int(record.value or b""))

    def __len__(self) -> int:
        return sum(len(rows) for rows in list(self.rows.values()))


def put_round(client: Any, stream: str, keys: Iterable[str], number: int) -> None:
    """This number under each of the keys, every other record as the producer library writes it."""
    text = str(number).encode()
    put(client, stream, [(key, text if at % 2 else aggregated((key, text, None))) for at, key in enumerate(keys)])


class Writer:
    """Writes 0, 1, 2 and so on under each of the keys, every other record as the producer library does."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.written: dict[str, list[int]] = {key: [] for key in KEYS}

    def write(self, each: int = 10) -> None:
        for _ in range(each):
            number = len(self.written[KEYS[0]])
            for numbers in self.written.values():
                numbers.append(number)
            put_round(self.client, "orders", KEYS, number)

    def __len__(self) -> int:
        return sum(len(numbers) for numbers in self.written.values())


def worker_of(group: KinesisGroup, name: str, factory: Any, **options: Any) -> Worker:
    given = Options(**{"save_interval": 0.1, "drain_timeout": 5.0, **options})
    return Worker(factory, options=given, environment=group.environment(name))
