"""Joins orders and payments, of two topics, by their keys, and appends what fits to a Delta table, each pair once.

Arguments: which join, the table, and the two topics. Records are JSON: a number, and the time of the event. The joins are:

- `window`: every order with every payment of its key in the same second;
- `sliding`: the same of 2 seconds, which begin every second: a pair is there once for each that it is in;
- `session`: every order with every payment of its key, as long as no 1.2 seconds pass without either; written when the
  watermark has passed;
- `interval`: every order with the payments of its key from 2 seconds before to 1 second after it: both ends count;
- `co-group`: all orders and payments of a key and second, as two lists, also where one is empty; written when the watermark
  has passed.
"""

import sys

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardherd.spark import run_cells, session
from shardherd.spark.cells.build import Cell
from shardherd.spark.sinks import delta

LATE = "1 second"


def read(cell: Cell, topic: str, name: str) -> DataFrame:
    """The records of one topic: the key, and `<name>` and `<name>_time` of the value."""
    value = F.from_json(F.col("value").cast("string"), "number LONG, event_time TIMESTAMP")
    records = cell.read(topics=[topic]).select(F.col("key").cast("string").alias("key"), value.alias("value"))
    named = records.select("key", F.col("value.number").alias(name), F.col("value.event_time").alias(f"{name}_time"))
    return named.withWatermark(f"{name}_time", LATE)


def window_join(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Every pair of one key whose events are in the same second."""
    return _in_windows(orders, payments, "1 second")


def sliding_join(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Every pair of one key in 2 seconds, of which a new pair of seconds begins each second: once for each that it is in."""
    return _in_windows(orders, payments, "2 seconds", "1 second")


def _in_windows(orders: DataFrame, payments: DataFrame, length: str, slide: str | None = None) -> DataFrame:
    left = orders.withColumn("window", F.window("order_time", length, slide))
    right = payments.withColumn("window", F.window("payment_time", length, slide))
    return left.join(right, ["key", "window"]).select("key", "order", "payment")


def session_join(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Every pair of one key's session, which goes on until nothing of the key has come for 1.2 seconds.

    Spark has such windows in aggregations alone: so the two are one stream, and the pairs are made of each session's lists.
    """
    session = F.session_window("time", "1200 milliseconds")
    grouped = _either(orders, payments).groupBy("key", session).agg(_every("order"), _every("payment"))
    first = grouped.select("key", F.explode("orders").alias("order"), "payments")
    return first.select("key", "order", F.explode("payments").alias("payment"))


def interval_join(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Every payment from 2 seconds before to 1 second after an order of its key: both ends count."""
    left, right = orders.alias("left"), payments.alias("right")
    near = F.expr("payment_time BETWEEN order_time - INTERVAL 2 SECONDS AND order_time + INTERVAL 1 SECOND")
    return left.join(right, (F.col("left.key") == F.col("right.key")) & near).select("left.key", "order", "payment")


def co_group(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """All orders and all payments of one key and second, also where one of the two is missing."""
    window = F.window("time", "1 second")
    grouped = _either(orders, payments).groupBy("key", window).agg(_every("order"), _every("payment"))
    return grouped.select("key", F.col("window.start").cast("double").alias("second"), "orders", "payments")


def _either(orders: DataFrame, payments: DataFrame) -> DataFrame:
    nothing = F.lit(None).cast("long")
    return orders.select("key", "order", nothing.alias("payment"), F.col("order_time").alias("time")).unionByName(
        payments.select("key", nothing.alias("order"), "payment", F.col("payment_time").alias("time"))
    )


def _every(name: str) -> Column:
    return F.array_sort(F.collect_list(name)).alias(f"{name}s")


JOINS = {
    "window": window_join,
    "sliding": sliding_join,
    "session": session_join,
    "interval": interval_join,
    "co-group": co_group,
}


def main(join: str, place: str, orders: str, payments: str) -> None:
    """Run it."""

    def build(cell: Cell) -> DataStreamWriter:
        joined = JOINS[join](read(cell, orders, "order"), read(cell, payments, "payment"))
        return joined.writeStream.outputMode("append").foreachBatch(delta(place, cell=cell))

    session()
    run_cells(build)


if __name__ == "__main__":
    main(*sys.argv[1:5])
