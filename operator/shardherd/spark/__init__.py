"""shardherd in a Spark application: `session()` makes it a group's consumer, `register()` only gives it the source.

`run_cells()` runs queries that keep state by key. `ranges()` and the package `sinks` are for writing each record once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shardherd.source.kafka_python.unfinished_package import leave_unfinished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardherd.spark.cells.build import Build
    from shardherd.spark.decode_stats import Counts
    from shardherd.spark.running_batch import BatchRanges

__all__ = ["ranges", "register", "run_cells", "session", "values_read"]

leave_unfinished()


def session(
    name: str | None = None, conf: Mapping[str, str] | None = None, *, gauge: Callable[[], float] | None = None
) -> SparkSession:
    """The SparkSession of this consumer, with the agent running beside it and `format("shardherd")` registered.

    Call it first, in the main thread. `name` is the application's name (default: the group's), `conf` overrides what the
    ConsumerGroup says. `gauge` says how full the application is, from 0 to 1, for a group with `watermarks.own`; it is called
    every few seconds, in a thread of its own. Raises NotInPodError outside a driver pod, SessionError when called too late or
    in another thread.
    Under `shardherd run` there is no group: then the source reads what the command line says.
    """
    if "SHARDHERD_ALONE" in os.environ and "SHARDHERD_GROUP" not in os.environ:
        from shardherd.spark.alone import make_alone

        return make_alone(name, conf)
    # Spark's workers import this package for the reader alone; they must not pay for the driver's side.
    from shardherd.spark.application import make_session

    return make_session(name, conf, gauge)


def run_cells(build: Build, *, trigger: str = "2 seconds", available_now: bool = False) -> None:
    """Run a query that keeps state by key, once for each cell that this consumer holds; returns when the application is to end.

    For a ConsumerGroup with `spec.state`, after `session()`. `build(cell)` is called for each start of a cell's query: it
    reads with `cell.read(...)` (several times for a join), and returns the DataStreamWriter. `run_cells` gives it trigger,
    name and checkpoint location, and starts it: every `trigger`, or with `available_now` until what there is has been read.
    When a cell moves, its query stops after a micro-batch and goes on elsewhere, with its state, its watermark and the next
    batch id. A sink may see a micro-batch again: write so that `cell.id` and the batch id tell it. A query that fails is
    started again, and the other cells read on.

    Raises CellsError if it is called in the wrong place or `build` returns something else, LocationError if the storage of the
    state cannot be trusted, and whatever `build` raises.
    """
    from shardherd.spark.application import run_cells_now

    run_cells_now(build, trigger, available_now=available_now)


def register(spark: SparkSession, *, warm_up: bool = True) -> None:
    """Make `format("shardherd")` known to a session, to read Kafka without an operator.

    Every query must then give the option `kafka.bootstrap.servers`. Executors need shardherd installed too. With `warm_up` a
    small Spark job starts the Python workers in the background (not with Spark Connect or dynamic allocation), so that the
    first rows come sooner.
    """
    from shardherd.spark.registration import register_source

    register_source(spark, warm_up=warm_up)


def ranges(batch_id: int) -> BatchRanges:
    """Which records the running micro-batch has: for every shard with records the range `(start, stop, epoch)`.

    For sinks of your own, in the function that `foreachBatch` calls, with its batch id. A record stands in the range of its
    shard: `start <= offset < stop`. Store `stop` of every shard together with the rows, unless more is stored, and write only
    what is not below the position that is stored: then each record is written once, whichever consumer writes it. `epoch`
    grows whenever the shard is given to somebody: a writer with a smaller one than is stored must write nothing. After a
    restart the ranges are of what is really read again. The result has the group's UID as `group`. docs/sinks.md has
    examples.

    Raises RangesError if `batch_id` is not the running micro-batch, or nothing of a ConsumerGroup is read.
    """
    from shardherd.spark.application import ranges_now

    return ranges_now(batch_id)


def values_read(spark: SparkSession) -> Counts:
    """How many typed values the finished tasks of this application have decoded since `register(spark)`.

    It has `values` (all), `slow` (how many of them took the slow path) and `malformed`. Raises NotCountedError where nothing is
    counted: with Spark Connect, and in a ConsumerGroup, where it is a metric.
    """
    from shardherd.spark.registration import values_of

    return values_of(spark)
