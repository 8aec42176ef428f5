"""What Spark calls of a query that reads Kafka, in a ConsumerGroup or by itself, and nothing that decides.

`source` makes these, `kinesis.group_reader` builds on one. Which records a micro-batch has, a `BatchPlanner` decides (the
agent, or without a ConsumerGroup `standalone`); `task_planning` makes tasks, `reader` reads them. Nothing is shared between the
process of the query and the executors' workers but what is pickled.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.fetch_memory import FETCH_MEMORY
from shardherd.source.kafka.leader_epochs import Mark
from shardherd.source.reading.ranges import ShardRange
from shardherd.source.values.value_format import RAW
from shardherd.spark.batch_planner import BatchPlanner, ReaderSettings
from shardherd.spark.decode_stats import Counts, CountsAddress, added, reported
from shardherd.spark.kinesis import readers
from shardherd.spark.link import AgentLink
from shardherd.spark.logged_epochs import marks_of
from shardherd.spark.offsets import Offsets, parse
from shardherd.spark.option_table import Mode
from shardherd.spark.options import Settings
from shardherd.spark.schema import Wanted
from shardherd.spark.task_planning import Splitting, plan_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator


@dataclass(eq=False, repr=False)
class Slice(InputPartition):
    """One task: the ranges it reads (none: it only warms its worker up), and where."""

    ranges: tuple[ShardRange, ...]
    bootstrap_servers: str
    security: Mapping[str, Any]
    topic_ids: Mapping[str, str] | None = None
    fail_on_data_loss: bool = True
    committed: bool = False
    rack: str | None = None
    fetch_bytes: int = FETCH_MEMORY
    marks: Mapping[ShardId, tuple[Mark, ...]] | None = None
    counts_address: CountsAddress | None = None


def _slices(
    tasks: list[tuple[ShardRange, ...]], reader: ReaderSettings, settings: Settings, before: Offsets, offsets: Offsets
) -> list[InputPartition]:
    marks = marks_of(before, offsets)
    return [
        Slice(
            task,
            reader.bootstrap_servers,
            reader.security,
            topic_ids=offsets.topics,
            fail_on_data_loss=settings.fail_on_data_loss,
            committed=reader.committed,
            rack=settings.rack,
            fetch_bytes=settings.fetch_bytes,
            marks={each.shard: marks[each.shard] for each in task if each.shard in marks},
            counts_address=reader.counts_address,
        )
        for task in tasks
    ]


def read_slice(
    partition: InputPartition, wanted: Wanted, counted: Accumulator[Counts] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in an executor's worker."""
    # numba and pyarrow are for the workers alone: the planner's processes start once a query and must start fast.
    from shardherd.source.reading.range_reader import read_ranges
    from shardherd.spark.reader import brokers_of, declared, decoding, warm_up

    if not isinstance(partition, Slice):  # Spark's own, for a batch without a task
        return iter(())
    brokers = brokers_of(partition.bootstrap_servers, partition.security, committed=partition.committed, rack=partition.rack)
    if not partition.ranges:
        warm_up(brokers)
    batches = read_ranges(
        brokers,
        partition.ranges,
        wanted.names,
        topic_ids=partition.topic_ids,
        fail_on_data_loss=partition.fail_on_data_loss,
        decode=decoding(wanted.values, wanted.names),
        fetch_bytes=partition.fetch_bytes,
        marks=partition.marks,
    )
    if wanted.not_null:
        batches = declared(batches, wanted.not_null)
    if wanted.values.kind == RAW or "value" not in wanted.names:
        return batches
    if partition.counts_address is not None:
        return reported(batches, partition.counts_address)
    return batches if counted is None else added(batches, counted)


class ShardherdBatchReader(DataSourceReader):
    """Reads what there is between two places, once."""

    def __init__(
        self, settings: Settings, wanted: Wanted, slots: int | None, counted: Accumulator[Counts] | None = None
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._slots = slots
        self._counted = counted

    def partitions(self) -> list[InputPartition]:
        from shardherd.spark.standalone import between, reader_settings

        settings = self._settings
        splitting = Splitting(settings.min_tasks, settings.max_task_records)
        found = between(settings)
        tasks = plan_tasks(found.shards, self._slots, splitting=splitting)
        return _slices(tasks, reader_settings(settings, self._slots), settings, found, found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(partition, self._wanted, self._counted)


class ShardherdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader. Everything but `read` runs in one process for the life of a query."""

    def __init__(
        self, settings: Settings, wanted: Wanted, slots: int | None = None, counted: Accumulator[Counts] | None = None
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._slots = slots
        self._counted = counted
        # Made on first use: this object is pickled for the executors as well.
        self._batch_planner: BatchPlanner | None = None
        self._known: Mapping[ShardId, Offset] = {}
        self._handed: str | None = None
        self._replays: dict[str, frozenset[ShardId]] = {}

    # --- in the process of the query -------------------------------------------------------------------------------------

    def _planner(self) -> BatchPlanner:
        if self._batch_planner is None:
            # Spark ends this process by SIGTERM, and Python would die of it without calling stop().
            signal.signal(signal.SIGTERM, readers.leave)
            self._batch_planner = self._make_planner()
        return self._batch_planner

    def _make_planner(self) -> BatchPlanner:
        if self._settings.mode is Mode.GROUP:
            settings = self._settings
            return AgentLink(settings.limits, committed=settings.committed, cell=settings.cell, topics=settings.topics)
        from shardherd.spark.standalone import connect

        return connect(self._settings, self._slots)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return Offsets(self._planner().reader_settings.group).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limits = self._settings.limits
        if limits.max_records is not None:
            return ReadMaxRows(limits.max_records)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_records is None else ReadMinRows(limits.min_records)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # Spark hands the default limit back, or asks for everything: then it is Trigger.Once.
        once = isinstance(limit, ReadAllAvailable)
        answer = self._planner().latest(start, once=once)
        while answer.unread:  # the agent parks each question for a moment
            answer = self._planner().latest(start, once=once)
        self._known = answer.end_offsets
        if answer.end is None:
            return start
        self._handed = json.dumps(answer.end)
        return answer.end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if not self._known:
            return None
        return {"ends": dict(sorted(self._known.items()))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        planner = self._planner()
        reader_settings = planner.reader_settings
        first, last = parse(start, reader_settings.group), parse(end, reader_settings.group)
        ranges = dict(last.shards)
        if (text := json.dumps(end)) != self._handed:
            ours = self._ours(text, end)
            ranges = {shard: each for shard, each in ranges.items() if shard in ours}
        return self._tasks(ranges, reader_settings, first, last)

    def _tasks(
        self, ranges: Mapping[ShardId, ReadRange], reader: ReaderSettings, first: Offsets, last: Offsets
    ) -> list[InputPartition]:
        """The tasks of the micro-batch that follows `first` and ends at `last`."""
        settings = self._settings
        splitting = None if self._planner().ordered else Splitting(settings.min_tasks, settings.max_task_records)
        tasks = plan_tasks(ranges, reader.slots, every_slot=last.warm > first.warm, splitting=splitting)
        return _slices(tasks, reader, settings, first, last)

    def _ours(self, text: str, end: dict[str, Any]) -> frozenset[ShardId]:
        """Which shards of a micro-batch that this process did not plan are read again: decided once for each."""
        if text not in self._replays:
            self._replays = {text: self._planner().replay(end)}
        return self._replays[text]

    def commit(self, end: dict[str, Any]) -> None:
        """Says nothing new: it comes a micro-batch late, and never on an idle stream."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner().prepare()

    def stop(self) -> None:
        if self._batch_planner is not None:
            self._batch_planner.close()

    # --- in the executors' workers ---------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(partition, self._wanted, self._counted)
