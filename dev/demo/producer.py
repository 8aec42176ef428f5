"""Writes JSON click events to a topic: a backlog at once, then a steady rate until SIGTERM. A process of its own.

Started by `dev.demo.traffic`. It counts what the broker has acknowledged, by partition, in a file that others read; the
producer is idempotent, so that the counts are the topic's end offsets. It follows the topic when that grows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

USERS = [f"user-{n:05d}" for n in range(10_000)]
PAGES = ["/", "/search", "/basket", "/checkout", *(f"/product/{n}" for n in range(200))]
HASHES = {user: zlib.crc32(user.encode()) for user in USERS}
TICK_S = 0.05
MOST_UNACKNOWLEDGED = 50_000
REPORT_S = 0.5


def events(seed: int) -> Iterator[tuple[str, str]]:
    """Endless (user, page), the same for the same seed."""
    chosen = random.Random(seed)
    while True:
        yield from zip(chosen.choices(USERS, k=1000), chosen.choices(PAGES, k=1000), strict=True)


class Producer:
    """Sends events and counts what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, state: Path, seed: int) -> None:
        self._topic = topic
        self._state = state
        self._kafka = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            linger_ms=20,
            batch_size=256 * 1024,
            metadata_max_age_ms=1_000,
        )
        self._events = events(seed)
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._sent = 0
        self._acknowledged: Counter[int] = Counter()
        self.failed: list[str] = []
        self._backlog_done = False

    def send(self, count: int) -> None:
        """Hand `count` events to the client library; it sends them when a batch is full or 20 ms old."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        partitions = len(self._kafka.partitions_for(self._topic) or (0,))
        for number, (user, page) in zip(itertools.islice(self._ids, count), self._events, strict=False):
            body = (
                f'{{"id":{number},"user":"{user}","page":"{page}","event_time":"{now}","session":"{HASHES[user]:08x}",'
                '"agent":"Mozilla/5.0 (X11; Linux x86_64)"}'
            )
            sent = self._kafka.send(self._topic, key=user.encode(), value=body.encode(), partition=HASHES[user] % partitions)
            sent.add_callback(self._on_acknowledged)
            sent.add_errback(self._on_failed)
        self._sent += count

    def _on_acknowledged(self, metadata: Any) -> None:
        with self._lock:
            self._acknowledged[metadata.partition] += 1

    def _on_failed(self, error: BaseException) -> None:
        with self._lock:
            self.failed.append(repr(error))

    def crowded(self) -> bool:
        """Whether so much is unanswered that more would only fill the memory."""
        with self._lock:
            return self._sent - sum(self._acknowledged.values()) - len(self.failed) > MOST_UNACKNOWLEDGED

    def flush(self) -> None:
        """Wait until everything sent has been answered."""
        self._kafka.flush(timeout=60)

    def backlog_written(self) -> None:
        self._backlog_done = True
        self.report()

    def report(self, stopped: bool = False) -> None:
        """Write the state file, whole or not at all."""
        with self._lock:
            body = {
                "sent": self._sent,
                "produced": {str(partition): n for partition, n in sorted(self._acknowledged.items())},
                "failed": self.failed[:5],
                "backlogDone": self._backlog_done,
                "stopped": stopped,
            }
        temporary = self._state.with_suffix(".new")
        temporary.write_text(json.dumps(body))
        temporary.replace(self._state)


def main() -> int:
    """Run until SIGTERM or SIGINT. Exit code 1 if a record could not be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--backlog", type=int, default=0, help="records to write at once")
    parser.add_argument("--rate", type=float, default=0, help="records a second after that")
    parser.add_argument("--state", type=Path, required=True, help="file for the counts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    producer = Producer(options.bootstrap, options.topic, options.state, options.seed)
    producer.report()

    left = options.backlog
    reported = time.monotonic()
    while left and not stop.is_set():
        if producer.crowded():
            stop.wait(TICK_S)
        else:
            step = min(left, 2_000)
            producer.send(step)
            left -= step
        if time.monotonic() - reported > REPORT_S:
            producer.report()
            reported = time.monotonic()
    producer.flush()
    producer.backlog_written()

    started, sent = time.monotonic(), 0
    while not stop.wait(TICK_S):
        due = int((time.monotonic() - started) * options.rate) - sent
        if due > 0:
            producer.send(due)
            sent += due
        if time.monotonic() - reported > REPORT_S:
            producer.report()
            reported = time.monotonic()
    producer.flush()
    producer.report(stopped=True)
    return 1 if producer.failed else 0


if __name__ == "__main__":
    sys.exit(main())
