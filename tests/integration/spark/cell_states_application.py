"""The application of a group with cells that keeps state of several kinds, of which TEST_QUERY says one.

`outer` (a full outer join of two sides), `timers` (a row for each key when a timer of event time fires), `ttl` (a count that is
forgotten after TEST_TTL seconds, beside one that is not). Values are `<side>:<seconds>`. Each micro-batch is a file of
JSON, named by cell and batch id, so that one which is run again replaces itself.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, ValueState

from shardherd.spark import run_cells, session
from shardherd.spark.cells.build import Cell

SINK = Path(os.environ["TEST_SINK"])
RUN = f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}"
TTL = int(float(os.environ.get("TEST_TTL", "0")) * 1000)
WAITS = 10
"""Seconds of event time after which a record finds no partner, and a timer fires."""


def number_in(state: ValueState) -> int:
    found = state.get()
    return 0 if found is None else int(found[0])


class Sums(StatefulProcessor):
    """The number of a key's records, told once none has come for a while."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        times = [row.at.timestamp() for row in rows]
        self._count.update((number_in(self._count) + len(times),))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(int(1000 * (max(times) + WAITS)))
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(key=key[0], count=number_in(self._count))
        self._count.clear()

    def close(self) -> None:
        """Nothing is open."""


class Counts(StatefulProcessor):
    """Two counts of a key's records, one of which is forgotten in time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._lately = handle.getValueState("lately", "count long", TTL)
        self._ever = handle.getValueState("ever", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        lately, ever = number_in(self._lately), number_in(self._ever)
        come = sum(1 for _ in rows)
        self._lately.update((lately + come,))
        self._ever.update((ever + come,))
        yield Row(key=key[0], lately=lately + come, ever=ever + come)

    def close(self) -> None:
        """Nothing is open."""


def records(cell: Cell) -> DataFrame:
    said = F.split(F.col("value").cast("string"), ":")
    at = F.timestamp_seconds(said[1].cast("long"))
    return cell.read().select(F.col("key").cast("string").alias("key"), said[0].alias("side"), at.alias("at"))


def side(cell: Cell, name: str) -> DataFrame:
    found = records(cell).where(F.col("side") == name).withWatermark("at", "0 seconds")
    return found.select(F.col("key").alias(f"{name}_key"), F.col("at").alias(f"{name}_at"))


def outer(cell: Cell) -> DataFrame:
    near = F.expr(f"l_key = r_key and r_at between l_at and l_at + interval {WAITS} seconds")
    found = side(cell, "l").join(side(cell, "r"), near, "full_outer")
    return found.select("l_key", "r_key")


def timers(cell: Cell) -> DataFrame:
    keyed = records(cell).withWatermark("at", "0 seconds").groupBy("key")
    return keyed.transformWithState(Sums(), "key string, count long", "Append", "EventTime")


def ttl(cell: Cell) -> DataFrame:
    return (
        records(cell)
        .groupBy("key")
        .transformWithState(Counts(), "key string, lately long, ever long", "Append", "ProcessingTime")
    )


def build(cell: Cell) -> DataStreamWriter:
    def write(batch: DataFrame, batch_id: int) -> None:
        rows = [list(row) for row in batch.collect()]
        partial = SINK / f".{RUN}.{cell.number}"
        partial.write_text(json.dumps({"run": RUN, "rows": rows}))
        partial.rename(SINK / f"{cell.number}.{batch_id}.json")

    return (
        {"outer": outer, "timers": timers, "ttl": ttl}[os.environ["TEST_QUERY"]](cell)
        .writeStream.outputMode("append")
        .foreachBatch(write)
    )


session()
run_cells(build, trigger="200 milliseconds")
