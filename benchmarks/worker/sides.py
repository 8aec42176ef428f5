"""One side of `bench-worker` as a process: reads a topic with a trivial handler, and prints what that took as JSON.

Run by `__main__`, the peers in the environment of the benchmarks. A side must not import what another one needs. Ours finds its
group in the environment, as in a pod.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH = 500
"""Records of one batch: what Kafka's consumers take at a time by default."""

LATENCY_OURS = "latency-ours"
"""The side whose latency is measured; its `fetch_interval` may follow."""

READY = "ready"
"""What a side that is to be written for says once it reads."""


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


class Latencies:
    """How long each record took from its producer to its handler; the first ones, in which all become warm, do not count."""

    def __init__(self, wanted: int, warm: int) -> None:
        self._left, self._warm = wanted + warm, warm
        self._began = self._cpu = 0.0
        self._found: list[int] = []
        self._lock = threading.Lock()
        self.all = threading.Event()

    def record(self, value: bytes) -> None:
        """A record came to its handler now."""
        took = time.monotonic_ns() - int(value[:20])
        with self._lock:
            self._left -= 1
            if self._warm > 0:
                self._warm -= 1
                self._began, self._cpu = time.perf_counter(), time.process_time()
            else:
                self._found.append(took)
            if self._left == 0:
                self._cpu = (time.process_time() - self._cpu) / (time.perf_counter() - self._began)
                self.all.set()

    def report(self) -> dict[str, float]:
        """Percentiles in milliseconds, percent of a core meanwhile, and the memory of a consumer that has nothing to do."""
        time.sleep(REST)
        found = sorted(self._found)
        kib = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
        return {
            "p50": found[len(found) // 2] / 1e6,
            "p99": found[len(found) * 99 // 100] / 1e6,
            "longest": found[-1] / 1e6,
            "cpu": 100 * self._cpu,
            "rest": kib / 1024,
        }


REST = 2.0
"""Seconds without a record before the memory of a consumer at rest is looked at."""


def worker(
    servers: str,
    partitions: int,
    process: Callable[[Any], None],
    batch: int,
    all_: threading.Event,
    report: Callable[[], dict[str, float]],
    **options: Any,
) -> dict[str, float]:
    """Ours with these options, until it has had all; what there is to report while it still holds its shards."""
    from shardherd.worker import Checkpoint, Options, Processor, Records, Worker

    held = []

    class Calls(Processor):
        def initialize(self, shard: str) -> None:
            held.append(shard)
            if len(held) == partitions:
                print(READY, flush=True)

        def process(self, records: Records, checkpoint: Checkpoint) -> None:  # noqa: ARG002 - a processor has it
            process(records)

    ours = Worker(Calls, bootstrap=servers, options=Options(batch_size=batch, **options))
    thread = threading.Thread(target=ours.run)
    thread.start()
    all_.wait(600)
    found = report()
    ours.shutdown()
    thread.join()
    return found


def counting(count: Count, handle: Callable[[Any], int]) -> Callable[[Any], None]:
    """What our processor does with a batch, to be counted."""

    def process(records: Any) -> None:
        began = time.perf_counter()
        count.batch(len(records), handle(records), began)

    return process


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


def confluent_latency(servers: str, topic: str, partitions: int, found: Latencies) -> None:
    """Record by record: `consume()` would wait for a whole batch, or for its time to be over."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    print(READY, flush=True)
    while not found.all.is_set():
        message = consumer.poll(1.0)
        if message is not None:
            if message.error():
                raise RuntimeError(message.error())
            found.record(message.value())
    print(json.dumps(found.report()), flush=True)
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


def produce_slowly(servers: str, topic: str, partitions: int, records: int) -> None:
    """RATE records of 100 bytes a second, each with the time at which it was given to the producer."""
    from confluent_kafka import Producer

    # By default librdkafka sends each record as a request of its own, however many are under way: the broker would be measured.
    settings = {"bootstrap.servers": servers, "linger.ms": 0, "max.in.flight.requests.per.connection": 5}
    producer, begun = Producer(settings), time.monotonic()
    for number in range(records):
        # Not by poll(): librdkafka rounds what is less than a millisecond down to none, and the producer would spin.
        time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
        producer.poll(0)
        producer.produce(topic, b"%020d%080d" % (time.monotonic_ns(), number), partition=number % partitions)
    producer.flush()


RATE = 1000
WARM = 2000


def main(side: str, servers: str, topic: str, partitions: int, records: int) -> None:
    """See __main__. The side with what it reads, and how many records."""
    if side.startswith("produce"):
        {"produce": produce, "produce-slowly": produce_slowly}[side](servers, topic, partitions, records)
        return
    if side.startswith("latency"):
        late = Latencies(records - WARM, WARM)
        if side.startswith(LATENCY_OURS):
            interval = float(side.removeprefix(LATENCY_OURS) or 0)

            def each(records: Any) -> None:
                for record in records:
                    late.record(record.value)

            print(
                json.dumps(worker(servers, partitions, each, BATCH, late.all, late.report, fetch_interval=interval)), flush=True
            )
        else:
            confluent_latency(servers, topic, partitions, late)
        return
    count = Count(records)
    if side == "ours":
        worker(servers, partitions, counting(count, one_by_one), BATCH, count.all, count.report, threads=1)
    elif side == "arrow":
        worker(servers, partitions, counting(count, as_arrow), 100_000, count.all, count.report, threads=1)
    else:
        {"confluent": confluent, "kafka-python": kafka_python}[side](servers, topic, partitions, count)
    print(json.dumps(count.report()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
