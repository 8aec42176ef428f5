"""Makes the source known to a session that is no consumer of a ConsumerGroup; `shardherd.spark.register` calls it.

It starts nothing. What it learns of the session (how many tasks can run at once) reaches Spark's processes with the class.
"""

from __future__ import annotations

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from shardherd.spark.source import ShardherdSource


def register_source(spark: SparkSession) -> None:
    """As `shardherd.spark.register`."""

    # Made here, so that Spark sends its value to its processes and not its name: they learn how many tasks can run at once.
    class Registered(ShardherdSource):
        slots = _slots(spark)

    spark.dataSource.register(Registered)


def _slots(spark: SparkSession) -> int | None:
    """How many tasks this application can run at once; None if that cannot be known (Connect, executors that come and go)."""
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        return None
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    wanted = int(conf.get("spark.executor.instances", "0") or 0) * int(conf.get("spark.executor.cores", "1") or 1)
    return max(1, wanted, context.defaultParallelism)
