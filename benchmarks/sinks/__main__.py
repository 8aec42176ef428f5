"""Rows a second of each sink against Spark's own writer of the same format: `python -m benchmarks.sinks --rows 400000`.

One SparkSession with two cores writes the same rows, which are in its memory, by both sides in turn. Delta's peer is Spark's
Parquet writer; Kafka's is Spark's own Kafka sink; PostgreSQL's is Spark's JDBC writer, as it is and with the driver's faster
way to insert. A last row compares with a plain COPY of each of Spark's partitions: it says what positions cost. The brokers
and the server run on the same cores. Each side's first run does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from benchmarks.broker import broker, create_topic, delete_topic
from benchmarks.source.engine import session
from benchmarks.table import Row, middle, render
from dev.cluster.postgresql import PostgreSQL
from dev.cluster.tools import Tools
from shardherd.core.model.nouns import ShardId
from shardherd.spark.arrow_map import map_in_arrow
from shardherd.spark.running_batch import BatchRange, BatchRanges
from shardherd.spark.sinks import delta, kafka, postgresql
from shardherd.spark.sinks.delta_table import DeltaSink
from shardherd.spark.sinks.kafka_topic import KafkaSink
from shardherd.spark.sinks.postgresql_rows import csv_of
from shardherd.spark.sinks.postgresql_table import PostgreSQLSink

SHARDS, CORES, GOAL = 4, 2, 0.8
COLUMNS = ("shard", "offset", "key", "value")

Write = Callable[[DataFrame, int], None]
"""Writes one micro-batch, whose records begin at this offset in each shard."""


class Sides:
    """Both sides of each format, and where they write."""

    def __init__(self, spark: SparkSession, rows: int, folder: Path, servers: str) -> None:
        self._spark, self._rows, self._folder, self._servers = spark, rows, folder, servers
        self.source = create_topic(servers, SHARDS)
        self.topic = create_topic(servers, SHARDS)
        self._group = str(uuid.uuid4())

    def close(self) -> None:
        for topic in (self.source, self.topic):
            delete_topic(self._servers, topic)

    def frame(self) -> DataFrame:
        """Rows of 160 bytes and keys, in Spark's memory."""
        number = F.col("id")
        shard = F.concat(F.lit(f"{self.source}/"), (number % SHARDS).cast("string"))
        value = F.concat(F.lpad(number.cast("string"), 12, "0"), F.lit("x" * 148))
        found = self._spark.range(0, self._rows, 1, CORES).select(
            shard.alias("shard"),
            F.floor(number / SHARDS).alias("offset"),
            F.concat(F.lit("key-"), (number % 10_000).cast("string")).alias("key"),
            value.alias("value"),
        )
        found = found.persist()
        found.count()
        return found

    def ranges(self, first: int) -> BatchRanges:
        each = self._rows // SHARDS
        found = {ShardId(f"{self.source}/{number}"): BatchRange(first, first + each, 1) for number in range(SHARDS)}
        return BatchRanges(found, group=self._group, batch_id=first, run="bench")

    def kafka(self) -> tuple[Write, Write]:
        sink = kafka(self.topic, options={"kafka.bootstrap.servers": self._servers})

        def peer(frame: DataFrame, _first: int) -> None:
            writer = frame.select("key", "value").write.format("kafka").option("topic", self.topic)
            writer.option("kafka.bootstrap.servers", self._servers).option("kafka.acks", "all").save()

        return self._written_by(sink), peer

    def delta(self) -> tuple[Write, Write]:
        sink = delta(str(self._folder / "table"))

        def peer(frame: DataFrame, _first: int) -> None:
            frame.select(*COLUMNS).write.mode("append").parquet(str(self._folder / "parquet"))

        return self._written_by(sink), peer

    def jdbc(self, server: PostgreSQL, *, together: bool) -> tuple[Write, Write]:
        """Spark's own writer as the peer; with `together` the driver makes one statement of many rows of a batch."""
        ours, theirs = self._tables(server)
        sink = postgresql(server.conninfo, ours)
        url = f"{server.jdbc_url}&reWriteBatchedInserts={str(together).lower()}"

        def peer(frame: DataFrame, _first: int) -> None:
            frame.select(*COLUMNS).write.mode("append").jdbc(url, theirs, properties={"driver": "org.postgresql.Driver"})

        return self._written_by(sink), peer

    def copy(self, server: PostgreSQL) -> tuple[Write, Write]:
        """COPY without positions and without all of a shard in one task as the peer."""
        conninfo = server.conninfo
        ours, theirs = self._tables(server)
        sink = postgresql(conninfo, ours)

        def copied(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            command = f"COPY {theirs} FROM STDIN WITH (FORMAT csv)"
            with psycopg.connect(conninfo) as connection, connection.cursor() as cursor, cursor.copy(command) as into:
                for batch in batches:
                    into.write(csv_of(batch, COLUMNS))
            yield from ()

        def peer(frame: DataFrame, _first: int) -> None:
            map_in_arrow(frame.select(*COLUMNS), copied, "nothing string").collect()

        return self._written_by(sink), peer

    def _written_by(self, sink: DeltaSink | KafkaSink | PostgreSQLSink) -> Write:
        """Our side."""
        return lambda frame, first: sink.write(frame.select(*COLUMNS), self.ranges(first))

    def _tables(self, server: PostgreSQL) -> tuple[str, str]:
        """A new table of each side."""
        ours, theirs = (f"{side}_{uuid.uuid4().hex[:8]}" for side in ("ours", "theirs"))
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            for table in (ours, theirs):
                connection.execute(f'CREATE TABLE {table} (shard text, "offset" bigint, key text, value text)'.encode())
        return ours, theirs


def measured(name: str, sides: tuple[Write, Write], frame: DataFrame, rows: int, rounds: int, goal: float) -> Row:
    """Rows a second of both sides, which take turns."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        first = number * (rows // SHARDS)
        batch = frame.withColumn("offset", F.col("offset") + first)
        for side in (0, 1) if number % 2 else (1, 0):
            begun = time.monotonic()
            sides[side](batch, first)
            if number:
                rates[side].append(rows / (time.monotonic() - begun))
    print(name, *(", ".join(f"{each:,.0f}" for each in side) for side in rates), sep=" | ", flush=True)
    return Row(name, middle(rates[0]), middle(rates[1]), goal, "rows/s", more_is_better=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked: Any = parser.parse_args()
    rows = asked.rows - asked.rows % SHARDS
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(broker())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tools = Tools()
        server = PostgreSQL(tools)
        stack.callback(server.close)
        server.start()
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = session(CORES, tools.postgresql_jars)
        stack.callback(spark.stop)
        sides = Sides(spark, rows, folder, servers)
        stack.callback(sides.close)
        frame = sides.frame()
        found = [
            measured(name, both, frame, rows, asked.rounds, goal)
            for name, both, goal in (
                ("Kafka", sides.kafka(), GOAL),
                ("Delta", sides.delta(), GOAL),
                ("PostgreSQL", sides.jdbc(server, together=False), GOAL),
                ("PostgreSQL, reWriteBatchedInserts", sides.jdbc(server, together=True), GOAL),
                ("PostgreSQL, COPY without positions", sides.copy(server), 0.0),
            )
        ]
    print(render(found))


if __name__ == "__main__":
    main()
