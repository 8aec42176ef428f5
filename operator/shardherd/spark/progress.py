"""Hears of Spark that micro-batches are finished; `application` adds the listener to its session.

It takes an event's JSON, which is one call of the JVM. PySpark's own events make a thousand, field by field, most of them for
the metrics of state stores: a tenth of a second of the processor for each micro-batch, and where cores are short all that is
told came a minute late. It tells, and decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from shardherd.spark.driver_runtime import Began, Progress


def progress_of(text: str) -> Progress:
    """What Spark says of a finished micro-batch, as `StreamingQueryProgress.json` has it."""
    said = json.loads(text)
    ends = tuple(
        (json.dumps(source["endOffset"]), int(source["numInputRows"])) for source in said["sources"] if source.get("endOffset")
    )
    return Progress(
        str(said["name"] or ""),
        str(said["runId"]),
        ends,
        {str(phase): int(took) for phase, took in said["durationMs"].items()},
        tuple(str(operator["operatorName"]) for operator in said["stateOperators"]),
        Began(str(said["timestamp"]), int(said["batchId"])),
    )


class ProgressListener(StreamingQueryListener):
    """Tells of each finished micro-batch: an idle query would tell the agent nothing else."""

    def __init__(self, finished: Callable[[Progress], None]) -> None:
        self._events = _Events(finished)

    @property
    def _jlistener(self) -> Any:
        # PySpark asks for it once, to add it to the JVM's listeners.
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(self._events)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """PySpark's way to tell, which is not gone."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """As `onQueryStarted`."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """As `onQueryStarted`."""


class _Events:
    """What the JVM calls."""

    def __init__(self, finished: Callable[[Progress], None]) -> None:
        self._finished = finished

    def onQueryStarted(self, _event: Any) -> None:  # noqa: N802
        """Nothing is finished yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._finished(progress_of(event.progress().json()))

    def onQueryIdle(self, _event: Any) -> None:  # noqa: N802
        """Nothing was finished."""

    def onQueryTerminated(self, _event: Any) -> None:  # noqa: N802
        """The stream reader's connection says it too, and in the right order."""

    class Java:
        """For py4j."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
