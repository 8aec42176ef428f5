"""Reads ranges as a task of Spark does, but in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from shardherd.core.model import ShardId
from shardherd.spark.brokers import Brokers
from shardherd.spark.lineage import Mark
from shardherd.spark.planning import ShardRange
from shardherd.spark.reader import read_ranges

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
