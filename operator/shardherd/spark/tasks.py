"""Whether Spark runs a task: what was cancelled goes on for a while, in its Python workers for up to their own time-out.

Asked by `driver_runtime` before the agent tells that nothing of a run goes on. Reads what the scheduler knows, and not the
listeners: a task counts until its executor has said that it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def running(spark: SparkSession) -> bool:
    """Whether a task of this application runs, or may. Raises Py4JError if Spark cannot be asked."""
    context = spark.sparkContext._jsc
    scheduler = None if context is None else context.sc().taskScheduler()
    if scheduler is None:
        return True  # stopped: its executors are ending, and nothing reports when they have
    counts = scheduler.runningTasksByExecutors().valuesIterator()
    while counts.hasNext():
        if counts.next():
            return True
    return False
