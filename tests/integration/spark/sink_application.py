"""The application whose sink is one of shardherd.spark.sinks, and which a test stops at the steps of a micro-batch.

TEST_TABLE is a Delta table, a table of the PostgreSQL at TEST_POSTGRESQL, or with TEST_KAFKA a topic. While the file
`<step>-<run>` exists in TEST_SINK it waits there, and says so by `at-<step>-<run>`: `before-commit` (files are written, no
position is; in Kafka nothing is written, but the positions are read; not in PostgreSQL), or `after-commit`. With TEST_TASKS
each task waits at `in-task` once it has given its first rows to the sink. It notes in `ranges-<run>` what each micro-batch was
told to have.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from shardherd.spark import ranges, session, sinks
from shardherd.spark.arrow_map import map_in_arrow

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


def made() -> Callable[[DataFrame, int], None]:
    if server := os.environ.get("TEST_POSTGRESQL"):
        return sinks.postgresql(f"{server} options='-c test.run={RUN}'", os.environ["TEST_TABLE"])
    if os.environ.get("TEST_KAFKA"):
        from shardherd.spark.sinks import kafka_topic

        kafka_topic._Store.write = stopping(kafka_topic._Store.write)  # type: ignore[method-assign]
        return sinks.kafka(os.environ["TEST_TABLE"])
    from deltalake import DeltaTable

    DeltaTable.create_write_transaction = stopping(DeltaTable.create_write_transaction)  # type: ignore[method-assign]
    return sinks.delta(os.environ["TEST_TABLE"])


sink = made()


def write(batch: DataFrame, batch_id: int) -> None:
    found = ranges(batch_id)
    if found:
        with (SINK / f"ranges-{RUN}").open("a") as notes:
            notes.write(json.dumps(dict(found)) + "\n")
    number = "offset" if "offset" in batch.columns else "sequenceNumber"
    rows = batch.selectExpr("shard", number, "cast(value as string) as value", "timestamp")
    if os.environ.get("TEST_TASKS"):
        rows = map_in_arrow(rows, stopping_in_tasks, f"shard string, {number} bigint, value string, timestamp timestamp")
    sink(rows, batch_id)
    if found:
        stand_still("after-commit")


spark = session()
query = spark.readStream.format("shardherd").load().writeStream.queryName("test").foreachBatch(write).start()
query.awaitTermination()
