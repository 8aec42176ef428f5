"""What is taken from Spark's JSON of a finished micro-batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardherd.spark.driver_runtime import Began, Progress
from shardherd.spark.progress import ProgressListener, progress_of

OFFSETS = {"group": "uid", "shards": {"clicks/0": [0, 7, 1]}, "v": 1, "warm": 0}
SAID: dict[str, Any] = {
    "id": "e7a1",
    "runId": "5876a3d3",
    "name": "cell-3",
    "timestamp": "2026-11-25T03:24:34.056Z",
    "batchId": 12,
    "numInputRows": 9,
    "durationMs": {"addBatch": 1101, "triggerExecution": 1867},
    "stateOperators": [{"operatorName": "stateStoreSave", "customMetrics": {"rocksdbGetLatency": 3}}],
    "sources": [
        {"description": "shardherd", "startOffset": None, "endOffset": OFFSETS, "numInputRows": 7},
        {"description": "another that has not begun", "startOffset": None, "endOffset": None, "numInputRows": 0},
    ],
    "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
}


def test_a_finished_micro_batch_is_told_with_its_ends_phases_and_state() -> None:
    assert progress_of(json.dumps(SAID)) == Progress(
        "cell-3",
        "5876a3d3",
        ((json.dumps(OFFSETS), 7),),
        {"addBatch": 1101, "triggerExecution": 1867},
        ("stateStoreSave",),
        Began("2026-11-25T03:24:34.056Z", 12),
    )


def test_a_query_without_a_name_has_the_empty_one() -> None:
    assert progress_of(json.dumps({**SAID, "name": None})).name == ""


def test_the_jvm_is_asked_for_the_json_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Said:
        def progress(self) -> Said:
            return self

        def json(self) -> str:
            return json.dumps(SAID)

    class Jvm:
        def PythonStreamingQueryListenerWrapper(self, events: Any) -> Any:  # noqa: N802
            return events

    monkeypatch.setattr("pyspark.SparkContext._jvm", Jvm())
    told: list[Progress] = []
    events = ProgressListener(told.append)._jlistener
    events.onQueryStarted(None)
    events.onQueryProgress(Said())
    events.onQueryIdle(None)
    events.onQueryTerminated(None)
    assert told == [progress_of(json.dumps(SAID))]
