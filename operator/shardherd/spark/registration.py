"""Makes the source known to a session that is no consumer of a ConsumerGroup; `shardherd.spark.register` calls it.

What it learns of the session (how many tasks can run at once), and where typed values are counted, reaches Spark's processes
with the class. It reads nothing; `warming` starts the workers beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import Accumulator, SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from shardherd.spark.decode_stats import Counts, CountsParam
from shardherd.spark.kinesis.options import STREAM_OPTION
from shardherd.spark.source import ShardherdSource, make_known
from shardherd.spark.warming import start_workers

_counters: dict[str, Accumulator[Counts]] = {}
"""Of each application of this process (its id), the typed values that its tasks have decoded."""


class NotCountedError(RuntimeError):
    """Typed values are not counted for this session. Says why."""


def register_source(spark: SparkSession, *, warm_up: bool, given: Mapping[str, str] | None = None) -> None:
    """As `shardherd.spark.register`. `given` are options of the reads that name no brokers themselves."""
    context = _context(spark)
    again = context is not None and context.applicationId in _counters
    at_once = None if context is None else _slots(context)
    counter = None if context is None else _counter(context)

    # Made here, so that Spark sends its value to its processes and not its name: they learn what this session has.
    class Registered(ShardherdSource):
        slots = at_once
        counted = counter

        def __init__(self, options: Mapping[str, str]) -> None:
            super().__init__(_with(dict(given or {}), options))

    make_known(spark, Registered)
    if warm_up and at_once is not None and not again:
        start_workers(spark, at_once)


def _with(given: Mapping[str, str], options: Mapping[str, str]) -> Mapping[str, str]:
    names = {name.lower() for name in options}
    if not given or "kafka.bootstrap.servers" in names or STREAM_OPTION in names:
        return options
    # What bounds a group's micro-batches has no meaning without one.
    kept = {name: value for name, value in options.items() if name.lower() != "targetbatchseconds"}
    return {**{name: value for name, value in given.items() if name.lower() not in names}, **kept}


def values_of(spark: SparkSession) -> Counts:
    """As `shardherd.spark.values_read`."""
    context = _context(spark)
    if context is None:
        raise NotCountedError("Spark Connect does not bring back what its tasks have counted: see the executors' log")
    if context.applicationId not in _counters:
        raise NotCountedError("call shardherd.spark.register(spark) first; in a ConsumerGroup it is a metric of the driver")
    return _counters[context.applicationId].value


def _counter(context: SparkContext) -> Accumulator[Counts]:
    if context.applicationId not in _counters:
        _counters[context.applicationId] = context.accumulator(Counts(), CountsParam())
    return _counters[context.applicationId]


def _context(spark: SparkSession) -> SparkContext | None:
    """None with Spark Connect."""
    try:
        return spark.sparkContext
    except PySparkAttributeError:
        return None


def _slots(context: SparkContext) -> int | None:
    """How many tasks this application can run at once; None if that cannot be known: executors come and go."""
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    wanted = int(conf.get("spark.executor.instances", "0") or 0) * int(conf.get("spark.executor.cores", "1") or 1)
    return max(1, wanted, context.defaultParallelism)
