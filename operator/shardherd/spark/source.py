"""The Spark data source `format("shardherd")`: a stream reader that is a thin client of the agent.

Spark runs these classes in four kinds of processes (the driver's planner, one process for the life of a query, a second planner
and the executors' workers); nothing is shared between them but the pickled InputPartition. Which records a micro-batch has is
the agent's decision; how they become tasks is `planning`'s; reading them is `reader`'s.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shardherd.spark.link import AgentLink
from shardherd.spark.offsets import Offsets, parse
from shardherd.spark.planning import ShardRange, plan_tasks

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("shard", StringType()),
    ]
)
"""Every column. `.schema(...)` with fewer of them reads fewer, which is faster."""

OPTIONS = ("maxOffsetsPerTrigger", "targetBatchSeconds")


class ShardherdSource(DataSource):
    """`spark.readStream.format("shardherd").load()` reads the shards that this consumer holds, whichever they are.

    Options: `maxOffsetsPerTrigger` (most records of a micro-batch, shared fairly by the shards) and `targetBatchSeconds`
    (how long a micro-batch should take at the measured rate; default 10). A shard moves only between micro-batches.
    """

    @classmethod
    def name(cls) -> str:
        return "shardherd"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        fields = {field.name: field.dataType for field in SCHEMA.fields}
        for field in schema.fields:
            if fields.get(field.name) != field.dataType:
                allowed = ", ".join(f"{name} {kind.simpleString()}" for name, kind in fields.items())
                raise ValueError(
                    f"column {field.name!r} of type {field.dataType.simpleString()} is not of this source; it has: {allowed}"
                )
        return ShardherdStreamReader(dict(self.options), tuple(field.name for field in schema.fields))


class Slice(InputPartition):
    """One task: the ranges it reads (none: it only warms its worker up), and where."""

    def __init__(self, ranges: tuple[ShardRange, ...], bootstrap_servers: str, kafka: dict[str, Any]) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.bootstrap_servers = bootstrap_servers
        self.kafka = kafka


def _positive(options: dict[str, str], name: str) -> float | None:
    """An option that must be a positive number; names are not case-sensitive."""
    raw = {key.lower(): value for key, value in options.items()}.get(name.lower())
    if raw is None:
        return None
    try:
        value = float(raw)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise ValueError(f"option {name} must be a number above 0, not {raw!r}")
    return value


class ShardherdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader. Everything but `read` runs in one process for the life of a query."""

    def __init__(self, options: dict[str, str], columns: tuple[str, ...]) -> None:
        if unknown := sorted(key for key in options if key.lower() not in {name.lower() for name in OPTIONS}):
            raise ValueError(f"unknown option {unknown[0]!r} of format shardherd; it has {', '.join(OPTIONS)}")
        limit = _positive(options, "maxOffsetsPerTrigger")
        self._limit = None if limit is None else max(1, int(limit))
        self._target = _positive(options, "targetBatchSeconds")
        self._columns = columns
        # Made on first use: this object is pickled for the executors as well.
        self._link: AgentLink | None = None
        self._known: dict[str, int] = {}
        self._handed: str | None = None
        self._replays: dict[str, frozenset[str]] = {}

    # --- in the process of the query -------------------------------------------------------------------------------------

    def _agent(self) -> AgentLink:
        if self._link is None:
            # Spark ends this process by SIGTERM, and Python would die of it without calling stop().
            signal.signal(signal.SIGTERM, _leave)
            self._link = AgentLink({"targetBatchSeconds": self._target})
        return self._link

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return Offsets(self._agent().facts["group"]).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        answer = self._agent().ask("latest", start=start, limit=rows)
        self._known = answer["ends"]
        if answer["end"] is None:
            return start
        end: dict[str, Any] = answer["end"]
        self._handed = json.dumps(end)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if not self._known:
            return None
        return {"ends": dict(sorted(self._known.items()))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        facts = self._agent().facts
        group = facts["group"]
        first, last = parse(start, group), parse(end, group)
        ranges = dict(last.shards)
        if (text := json.dumps(end)) != self._handed:
            ours = self._ours(text, end)
            ranges = {shard: each for shard, each in ranges.items() if shard in ours}
        tasks = plan_tasks(ranges, facts["slots"], every_slot=last.warm > first.warm)
        return [Slice(task, facts["bootstrapServers"], facts["kafka"]) for task in tasks]

    def _ours(self, text: str, end: dict[str, Any]) -> frozenset[str]:
        """Which shards of a micro-batch that this process did not plan are read again: decided once for each."""
        if text not in self._replays:
            self._replays = {text: frozenset(self._agent().ask("replay", end=end)["ours"])}
        return self._replays[text]

    def commit(self, end: dict[str, Any]) -> None:
        """Says nothing new: it comes a micro-batch late, and never on an idle stream."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._agent().ask("prepare")

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()

    # --- in the executors' workers ---------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # numba and pyarrow are for the workers alone: the planner's processes start once a query and must start fast.
        from shardherd.spark.reader import brokers_of, read_ranges, warm_up

        assert isinstance(partition, Slice)
        brokers = brokers_of(partition.bootstrap_servers, partition.kafka)
        if not partition.ranges:
            warm_up(brokers)
        return read_ranges(brokers, partition.ranges, self._columns)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    # SIGTERM may come twice; the second must not break the first one's cleaning up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
