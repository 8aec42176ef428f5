"""Has each shard of a micro-batch written by one task, for sinks whose tasks move the shard's position with its rows.

`kafka_topic` and `postgresql_table` call it on the driver. Tasks tell of each shard whether it was written, or which conflict
was in the way. It decides neither what is still to be written nor how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from shardherd.spark.arrow_map import map_in_arrow
from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks.frames import shard_by_shard
from shardherd.spark.sinks.positions import Pending
from shardherd.spark.sinks.rows import WRITTEN_DDL
from shardherd.transactions.outcomes import ConflictError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Job(Protocol):
    """What the tasks are told of the micro-batch."""

    @property
    def ranges(self) -> Mapping[str, BatchRange]: ...
    @property
    def wanted(self) -> Mapping[str, Pending]: ...


J = TypeVar("J", bound=Job)


def by_tasks(
    frame: DataFrame, task: Callable[[Iterable[pa.RecordBatch], J], Iterator[pa.RecordBatch]]
) -> Callable[[J], Iterable[Sequence[Any]]]:
    """What has `task` write the rows of a job's shards; it gives the rows that the tasks tell, of `rows.WRITTEN`."""

    def written(job: J) -> Iterable[Sequence[Any]]:
        rows = shard_by_shard(frame, job.wanted, job.ranges)
        return map_in_arrow(rows, lambda batches: task(batches, job), WRITTEN_DDL).collect()

    return written


def without_rows(answers: Iterable[Sequence[Any]], wanted: Iterable[str], where: str) -> list[str]:
    """The shards of which no row was made, so that no task has moved them. Raises ConflictError if a task tells of one."""
    written = list(answers)
    conflicts = [conflict for _, conflict in written if conflict is not None]
    if conflicts:
        raise ConflictError(f"a part of the micro-batch was not written to {where}: {conflicts[0]}")
    return sorted(set(wanted) - {shard for shard, _ in written})
