"""The application of both sides: `python -m benchmarks.state.follower`.

It keeps the greatest value of each key. With a driver pod's environment there is a query for each cell, otherwise one over all
shards of BENCH_TOPIC, which a line on the standard input stops and starts. It prints a line of JSON at the end of each
micro-batch with rows: when, on the machine's monotonic clock, and of which cell.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardherd.spark import python_path, register, run_cells, session
from shardherd.spark.application import STATE
from shardherd.spark.cells.build import Cell

TRIGGER = "1 second"


def greatest_values(records: DataFrame, say: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """The query."""
    pairs = records.selectExpr("cast(key as string) as key", "cast(value as string) as value")
    return pairs.groupBy("key").agg(F.max("value").alias("value")).writeStream.outputMode("update").foreachBatch(say)


def saying(cell: str) -> Callable[[DataFrame, int], None]:
    """The sink."""

    def said(batch: DataFrame, _number: int) -> None:
        if batch.count():
            # In one piece: queries of several cells say so at the same moment.
            sys.stdout.write(json.dumps({"at": time.monotonic(), "shards": [cell]}) + "\n")
            sys.stdout.flush()

    return said


def build(cell: Cell) -> DataStreamWriter:
    """Of one cell."""
    return greatest_values(cell.read(), saying(f"cell/{cell.number}"))


def one_query() -> None:
    """All shards, in a session that has what a driver of a group has."""
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", os.environ["BENCH_MEMORY"])
    for key, text in {**STATE, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(key, text)
    with python_path.launched():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    options = {"kafka.bootstrap.servers": os.environ["BENCH_SERVERS"], "subscribe": os.environ["BENCH_TOPIC"]}

    def started() -> StreamingQuery:
        source = spark.readStream.format("shardherd").options(**options).option("startingOffsets", "earliest").load()
        writer = greatest_values(source, saying("all")).trigger(processingTime=TRIGGER)
        return writer.option("checkpointLocation", os.environ["BENCH_LOCATION"]).start()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    query = started()
    try:
        for _ in sys.stdin:
            query.stop()
            query = started()
    finally:
        query.stop()
        spark.stop()


def main() -> None:
    """See the module."""
    if "SHARDHERD_GROUP" in os.environ:
        session()
        run_cells(build, trigger=TRIGGER)
    else:
        one_query()


if __name__ == "__main__":
    main()
