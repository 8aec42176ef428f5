"""A group with cells whose counts a sink writes; a test has it stand still when a micro-batch is about to be committed.

TEST_TABLE is a Delta table, a table of the PostgreSQL at TEST_POSTGRESQL, or with TEST_KAFKA a topic. Each micro-batch of a
cell adds the keys whose counts have changed. While the file `before-commit-<run>` exists in TEST_SINK a micro-batch waits
there, and says so by `at-before-commit-<run>`: in Delta files are written and no position is, in the others the positions are
read. With TEST_TASKS each task waits at `in-task` once it has given its rows to the sink.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardherd.spark import run_cells, session, sinks
from shardherd.spark.arrow_map import map_in_arrow
from shardherd.spark.cells.build import Cell

SINK = Path(os.environ["TEST_SINK"])
RUN = f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}"


def stand_still(step: str) -> None:
    while (SINK / f"{step}-{RUN}").exists():
        (SINK / f"at-{step}-{RUN}").touch()
        time.sleep(0.02)


def stopping_in_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        stand_still("in-task")


def stopping(commit: Callable[..., Any]) -> Callable[..., Any]:
    def stops(*args: Any, **more: Any) -> Any:
        stand_still("before-commit")
        return commit(*args, **more)

    return stops


def made(cell: Cell) -> Callable[[DataFrame, int], None]:
    table = os.environ["TEST_TABLE"]
    if server := os.environ.get("TEST_POSTGRESQL"):
        return sinks.postgresql(server, table, cell=cell)
    return sinks.kafka(table, cell=cell) if os.environ.get("TEST_KAFKA") else sinks.delta(table, cell=cell)


def with_tasks_that_stop(sink: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        schema = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in batch.schema)
        sink(map_in_arrow(batch, stopping_in_tasks, schema), batch_id)

    return write


def build(cell: Cell) -> DataStreamWriter:
    records = cell.read().selectExpr("cast(key as string) as key")
    counts = records.groupBy("key").count()
    if os.environ.get("TEST_KAFKA"):
        counts = counts.selectExpr("key", "concat(key, ':', count) as value")
    sink = made(cell)
    if os.environ.get("TEST_TASKS"):
        sink = with_tasks_that_stop(sink)
    return counts.writeStream.outputMode("update").foreachBatch(sink)


def main() -> None:
    from deltalake import DeltaTable

    from shardherd.spark.sinks import kafka_topic, postgresql_table

    DeltaTable.create_write_transaction = stopping(DeltaTable.create_write_transaction)  # type: ignore[method-assign]
    for store in (kafka_topic._Store, postgresql_table._Store):
        store.write = stopping(store.write)  # type: ignore[method-assign]
    session()
    run_cells(build, trigger="200 milliseconds")


main()
