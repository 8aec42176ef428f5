"""One side of `bench-worker` as a process: reads a whole topic with a trivial handler, and prints what that took as JSON.

Run by `__main__`, the peers in the environment of the benchmarks. A side must not import what another one needs.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

BATCH = 500
"""Records of one batch: what Kafka's consumers take at a time by default."""


class Count:
    """What a handler has had, and when it began and ended."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.records = self.size = 0
        self.began = self.ended = 0.0
        self.cpu = 0.0
        self.all = threading.Event()
        self._lock = threading.Lock()

    def batch(self, records: int, size: int, began: float) -> None:
        """A batch was handled, from then on."""
        with self._lock:
            if not self.records:
                self.began, self.cpu = began, time.process_time()
            self.records += records
            self.size += size
            if self.records >= self.wanted:
                self.ended = time.perf_counter()
                self.cpu = time.process_time() - self.cpu
                self.all.set()

    def report(self) -> dict[str, float]:
        return {
            "records": self.records,
            "size": self.size,
            "seconds": self.ended - self.began,
            "cpu": self.cpu,
            "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def worker(servers: str, topic: str, partitions: int, count: Count, handle: Callable[[Any], int], batch: int) -> None:
    """Ours, in a group that is played in this process."""
    from shardherd.testing.group import PlayedGroup
    from shardherd.worker import Checkpoint, Options, Processor, Records, Worker

    class Counts(Processor):
        def process(self, records: Records, checkpoint: Checkpoint) -> None:  # noqa: ARG002 - a processor has it
            began = time.perf_counter()
            count.batch(len(records), handle(records), began)

    with PlayedGroup(shards=partitions, topic=topic) as group:
        where = group.environment("played-0")
        ours = Worker(Counts, environment=where, bootstrap=servers, options=Options(batch_size=batch, threads=1))
        thread = threading.Thread(target=ours.run)
        thread.start()
        count.all.wait(600)
        ours.shutdown()
        thread.join()


def one_by_one(records: Any) -> int:
    size = 0
    for record in records:
        size += len(record.value)
    return size


def as_arrow(records: Any) -> int:
    import pyarrow.compute as pc

    lengths: Any = pc
    return int(lengths.sum(lengths.binary_length(records.table.column("value"))).as_py())


def confluent(servers: str, topic: str, partitions: int, count: Count) -> None:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False}
    # By default it waits for a second before it fetches on once enough is queued: it would mostly wait.
    consumer = Consumer(settings | {"fetch.queue.backoff.ms": 2})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    while not count.all.is_set():
        messages = consumer.consume(BATCH, 1.0)
        began, size = time.perf_counter(), 0
        for message in messages:
            if message.error():
                raise RuntimeError(message.error())
            size += len(message.value())
        if messages:
            count.batch(len(messages), size, began)
    consumer.close()


def kafka_python(servers: str, topic: str, partitions: int, count: Count) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    while not count.all.is_set():
        found = consumer.poll(timeout_ms=1000, max_records=BATCH)
        began, size, records = time.perf_counter(), 0, 0
        for batch in found.values():
            for message in batch:
                size += len(message.value)
            records += len(batch)
        if records:
            count.batch(records, size, began)
    consumer.close()


def produce(servers: str, topic: str, partitions: int, records: int) -> None:
    """So many records of 100 bytes, evenly, in batches as lz4 makes them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 20, "batch.size": 262_144})
    for number, value in enumerate(_values(records)):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def _values(records: int) -> Iterator[bytes]:
    for number in range(records):
        yield b'{"id": %012d, "user": "user-%06d", "page": "/articles/%04d", "tail": "%030d"}' % (
            number,
            number % 100_000,
            number % 1000,
            number,
        )


def main(side: str, servers: str, topic: str, partitions: int, records: int) -> None:
    count = Count(records)
    if side == "produce":
        produce(servers, topic, partitions, records)
        return
    if side == "ours":
        worker(servers, topic, partitions, count, one_by_one, BATCH)
    elif side == "arrow":
        worker(servers, topic, partitions, count, as_arrow, 100_000)
    else:
        {"confluent": confluent, "kafka-python": kafka_python}[side](servers, topic, partitions, count)
    print(json.dumps(count.report()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
