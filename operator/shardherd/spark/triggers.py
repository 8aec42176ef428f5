"""How often a streaming query is triggered, as far as Spark tells.

Asked by `driver_runtime` between two micro-batches, and by `cells.runtime` before the first, so that the agent can say until
when its query waits. Decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def trigger_interval(spark: SparkSession, run: str) -> float:
    """The interval of this run of a query in seconds, 0 if it is triggered at once or has ended. Raises Py4JError.

    Only a query of Trigger.ProcessingTime has one.
    """
    for query in spark.streams.active:
        if str(query.runId) == run:
            trigger = query._jsq.streamingQuery().trigger()
            if trigger.getClass().getSimpleName() == "ProcessingTimeTrigger":
                return float(trigger.intervalMs()) / 1000
    return 0.0


def interval_of(spark: SparkSession, processing_time: str) -> float:
    """The seconds of an interval as a trigger of Spark's is given it, like "5 seconds". Raises Py4JError for anything else."""
    trigger = getattr(spark._jvm, "org.apache.spark.sql.streaming.Trigger").ProcessingTime(processing_time.strip())
    return float(trigger.intervalMs()) / 1000
