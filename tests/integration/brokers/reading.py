"""Reads ranges as a task of Spark does, but in this process; and what an attempt is refused with that is to fail."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.leader_epochs import Mark
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange

COLUMNS = ("shard", "offset", "value")

Rows = dict[str, list[tuple[int, bytes]]]
"""Shard -> offset and what the record says, in the order in which they were read."""


def whole(topic: str, partitions: int, count: int) -> tuple[ShardRange, ...]:
    """The first `count` records of every partition."""
    return tuple(ShardRange(ShardId(f"{topic}/{number}"), 0, count) for number in range(partitions))


def sent(topic: str, partitions: int, first: int, stop: int) -> Rows:
    """What `KafkaLab.send` wrote, from one number to another."""
    return {f"{topic}/{p}": [(n, b"%d:%d:" % (p, n)) for n in range(first, stop)] for p in range(partitions)}


class Reading:
    """One task's reading, batch by batch; `rows` is what it gave so far."""

    def __init__(
        self,
        brokers: Brokers,
        *ranges: ShardRange,
        topic_ids: dict[str, str] | None = None,
        fail_on_data_loss: bool = True,
        marks: Mapping[ShardId, Sequence[Mark]] | None = None,
    ) -> None:
        self.rows: Rows = {each.shard: [] for each in ranges}
        self._batches: Iterator[pa.RecordBatch] = read_ranges(
            brokers, ranges, COLUMNS, topic_ids=topic_ids, fail_on_data_loss=fail_on_data_loss, marks=marks
        )
        self._rest: Future[Rows] | None = None

    def step(self) -> None:
        """Read one batch."""
        self._keep(next(self._batches))

    def rest(self) -> Rows:
        """Read to the end; everything that was read."""
        for batch in self._batches:
            self._keep(batch)
        return self.rows

    def go_on(self) -> None:
        """Read to the end in a thread, while the test does something else."""

        pool = ThreadPoolExecutor(1, "reading")
        self._rest = pool.submit(self.rest)
        pool.shutdown(wait=False)

    def finish(self, timeout: float = 60.0) -> Rows:
        """The rows once the thread has ended; raises what it raised."""
        assert self._rest is not None
        return self._rest.result(timeout)

    def _keep(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self.rows[row["shard"]].append((row["offset"], row["value"].rstrip(b"x")))


def read(brokers: Brokers, *ranges: ShardRange) -> Rows:
    return Reading(brokers, *ranges).rest()


WITHIN = 60.0
"""Seconds within which an attempt names what is wrong. One alone may be over before a broker that is busy has answered it."""


class _Refusals:
    """The errors of attempts that never succeed, until the message of one names the cause."""

    def __init__(self, kind: type[Exception], cause: str) -> None:
        self._kind, self._cause = kind, cause
        self._deadline = time.monotonic() + WITHIN
        self.message = ""

    @contextmanager
    def expected(self) -> Iterator[None]:
        """In the block one attempt is made."""
        with pytest.raises(self._kind) as raised:
            yield
        self.message = str(raised.value)
        late = time.monotonic() >= self._deadline and not self.named
        assert not late, f"not {self._cause!r} within {WITHIN:g} s, but: {self.message}"

    @property
    def named(self) -> bool:
        return re.search(self._cause, self.message) is not None


def refusal(attempt: Callable[[], object], cause: str) -> str:
    """The message that a worker's attempt is refused with once it names the cause."""
    refusals = _Refusals(BrokersUnavailableError, cause)
    while not refusals.named:
        with refusals.expected():
            attempt()
    return refusals.message


async def operators_refusal(attempt: Callable[[], Awaitable[object]], cause: str) -> str:
    """The same of an attempt of the operator's."""
    refusals = _Refusals(SourceUnavailableError, cause)
    while not refusals.named:
        with refusals.expected():
            await attempt()
    return refusals.message
