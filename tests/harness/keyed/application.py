"""Queries that keep state by key, as a consumer runs them cell by cell, and as one query that never moves runs them.

The arguments are a folder for Delta tables and two topics, `clicks` and `views`. In a group cell c has the query number c
mod 4 of QUERIES. Without a group the same four read all partitions that would be in those cells, once, with
Trigger.AvailableNow, from the broker that is the fourth argument. Each writes a table of its own: in a group by shardherd's
sink, otherwise with the micro-batch's number as Delta's transaction. A group's tables are in a folder for each generation
of its state. In the folder above, `fail-<cell>` makes the cell's micro-batches fail while it exists,
`fail-without-records-<cell>` the next one that reads none, once, and `history` has a line for each that was written, with
the offsets that it had of each shard. Instead of Delta tables a group may have tables of the PostgreSQL at TEST_POSTGRESQL,
or topics whose names begin with TEST_TOPIC, where each record is a row as JSON. With TEST_AVAILABLE_NOW a group's
application ends when all has been read.

A record's value is a number, and the event time is that many seconds after 1970. Every table comes out the same, whatever the
micro-batches are, as long as no record is late.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from shardherd.spark import ranges, register, run_cells, session, sinks
from shardherd.spark.cells import forked
from shardherd.spark.cells.build import Cell

CELLS = 4
LATE = 720
"""Seconds by which a record may be behind the latest before it is late."""

Write: TypeAlias = Callable[[DataFrame, int], None]
Read: TypeAlias = Callable[[str], DataFrame]


class Numbered(StatefulProcessor):
    """Numbers the records of each key: one that was counted twice or whose state was lost gives a number twice."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        found = self._count.get()
        count = found[0] if found else 0
        for _ in rows:
            count += 1
            yield Row(key=key[0], number=count)
        self._count.update((count,))

    def close(self) -> None:
        """Nothing is open."""


def timed(records: DataFrame) -> DataFrame:
    """Key, number and event time of each record."""
    number = F.expr("cast(cast(value as string) as long)")
    found = records.select(F.expr("cast(key as string) as key"), number.alias("number"), "shard", "offset")
    return found.withColumn("at", F.timestamp_seconds("number"))


def windows(read: Read) -> DataFrame:
    """Aggregation in output mode append: a window is written when the watermark has passed it."""
    rows = timed(read("clicks")).withWatermark("at", f"{LATE} seconds")
    counted = rows.groupBy("key", F.window("at", "100 seconds")).agg(F.count("*").alias("n"), F.sum("number").alias("sum"))
    return counted.select("key", F.unix_timestamp("window.start").alias("window"), "n", "sum")


def firsts(read: Read) -> DataFrame:
    """Deduplication: three records of a key have the same third."""
    rows = timed(read("clicks")).withColumn("third", F.expr("number div 36"))
    return rows.dropDuplicates(["key", "third"]).select("key", "third", "shard", "offset")


def pairs(read: Read) -> DataFrame:
    """A join of two streams by key and time."""
    clicks = timed(read("clicks")).withWatermark("at", f"{LATE} seconds").select("key", "number", "at")
    views = timed(read("views")).withWatermark("at", f"{LATE} seconds")
    views = views.select(F.col("key").alias("view_key"), F.col("number").alias("view"), F.col("at").alias("view_at"))
    near = F.expr("key = view_key and view_at >= at - interval 20 seconds and view_at <= at + interval 20 seconds")
    return clicks.join(views, near).select("key", "number", "view")


def numbers(read: Read) -> DataFrame:
    """transformWithState."""
    keyed = timed(read("clicks")).select("key", "number").groupBy("key")
    return keyed.transformWithState(Numbered(), "key string, number long", "Append", "None")


QUERIES: dict[str, Callable[[Read], DataFrame]] = {"windows": windows, "firsts": firsts, "pairs": pairs, "numbers": numbers}


def once(table: Path, writer: str) -> Write:
    """Appends a micro-batch to a Delta table, unless it is there: known by who writes, and its number."""

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.toArrow()
        table.parent.mkdir(parents=True, exist_ok=True)
        if DeltaTable.is_deltatable(str(table)):
            there = DeltaTable(str(table)).transaction_version(writer)
            if there is not None and there >= batch_id:
                return
        done = CommitProperties(app_transactions=[Transaction(writer, batch_id)])
        write_deltalake(str(table), rows, mode="append", commit_properties=done)

    return write


def store_of(name: str, table: Path, cell: Cell) -> Write:
    """Where the micro-batches of a cell go, whose query this is."""
    # What is made of one record, and says of which, needs no cell.
    marks = ["shard", "offset"] if QUERIES[name] is firsts else []
    known_by = None if marks else cell
    if server := os.environ.get("TEST_POSTGRESQL"):
        return sinks.postgresql(server, name, leave_out=marks, cell=known_by)
    if not (topic := os.environ.get("TEST_TOPIC")):
        return sinks.delta(str(table), leave_out=marks, cell=known_by)
    records = sinks.kafka(f"{topic}-{name}", cell=known_by)

    def write(batch: DataFrame, batch_id: int) -> None:
        result = F.to_json(F.struct(*(each for each in batch.columns if each not in marks)))
        records(batch.select(result.alias("value"), *marks), batch_id)

    return write


def cells(folder: Path, topics: dict[str, str], available_now: bool) -> None:
    run = [os.environ["SHARDHERD_CONSUMER"], f"{os.environ['SHARDHERD_POD_UID']}.{os.environ['SHARDHERD_START']}"]

    def build(cell: Cell) -> DataStreamWriter:
        name, query = list(QUERIES.items())[cell.number % len(QUERIES)]
        generation = cell.id.split("/")[-2]
        table = folder / generation / name
        store = store_of(name, table, cell)

        def write(batch: DataFrame, batch_id: int) -> None:
            notes = folder.parent
            if (notes / f"fail-{cell.number}").exists():
                raise RuntimeError("told to fail")
            found = {shard: [start, stop] for shard, (start, stop, _) in ranges(batch_id).items()}
            if not found and (once_only := notes / f"fail-without-records-{cell.number}").exists():
                once_only.unlink()
                raise RuntimeError("told to fail once")
            store(batch, batch_id)
            with (notes / "history").open("a") as history:
                history.write(json.dumps([*run, cell.number, batch_id, found]) + "\n")

        return query(lambda topic: cell.read(topics=[topics[topic]])).writeStream.foreachBatch(write)

    session()
    run_cells(build, trigger="200 milliseconds", available_now=available_now)


def one_query_each(folder: Path, topics: dict[str, str], servers: str) -> None:
    state = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    conf = {
        "spark.sql.streaming.stateStore.providerClass": state,
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    made = SparkSession.builder.master("local[2]")
    for key, text in conf.items():
        made = made.config(key, text)
    address = folder / "forks"
    forked.start(address)
    with forked.asked(address):
        spark = made.getOrCreate()  # left to itself it ends a query whose process takes 10 s to begin
    register(spark)
    for number, (name, query) in enumerate(QUERIES.items()):

        def read(topic: str, number: int = number) -> DataFrame:
            source = spark.readStream.format("shardherd").option("kafka.bootstrap.servers", servers)
            found = source.option("subscribe", topics[topic]).option("startingOffsets", "earliest").load()
            return found.where(F.col("partition") % CELLS == number)

        rows = query(read)
        writer = rows.drop("shard", "offset").writeStream.foreachBatch(once(folder / name, name))
        # One after the other: consumers and brokers have this machine's processors, too.
        writer.trigger(availableNow=True).option("checkpointLocation", f"{folder}/log-{name}").start().awaitTermination()


def main() -> None:
    folder, clicks, views = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    topics = {"clicks": clicks, "views": views}
    if "SHARDHERD_GROUP" in os.environ:
        cells(folder, topics, bool(os.environ.get("TEST_AVAILABLE_NOW")))
    else:
        one_query_each(folder, topics, sys.argv[4])


if __name__ == "__main__":
    main()
