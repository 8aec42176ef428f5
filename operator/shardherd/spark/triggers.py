"""How often the streaming queries of a session are triggered, as far as Spark tells.

Asked by `runtime` between two micro-batches, so that the agent can say until when its query waits. Decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def trigger_interval(spark: SparkSession) -> float:
    """The longest of the intervals of the active queries in seconds, 0 if all are triggered at once. Raises Py4JError.

    Only a query of Trigger.ProcessingTime has one. One that ends meanwhile counts as well as not.
    """
    longest = 0.0
    for query in spark.streams.active:
        trigger = query._jsq.streamingQuery().trigger()
        if trigger.getClass().getSimpleName() == "ProcessingTimeTrigger":
            longest = max(longest, trigger.intervalMs() / 1000)
    return longest
