"""How often a streaming query is triggered, as far as Spark tells.

Asked by `runtime` between two micro-batches, so that the agent can say until when its query waits. Decides nothing.
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
