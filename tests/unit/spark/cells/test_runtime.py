"""The runtime of an application with cells, without Spark and without a coordinator."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from shardherd.spark.cells import runtime
from shardherd.spark.cells.runtime import CellRuntime
from shardherd.spark.pod import read_pod
from tests.unit.spark.test_pod import POD


class Waits(CellRuntime):
    """Its agent is asked in this thread, and is not there."""

    agent: Any = None

    def _ask(self, question: Any) -> Any:
        return question(self.agent)


@pytest.mark.parametrize(("trigger", "interval"), [({"processingTime": "10 minutes"}, 600.0), ({"availableNow": True}, 0.0)])
def test_the_agent_knows_how_long_a_query_waits_between_two_triggers(
    trigger: dict[str, Any], interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "interval_of", lambda _spark, text: {"10 minutes": 600.0}[text])
    monkeypatch.setattr(runtime, "Locations", lambda *_: SimpleNamespace(check=lambda: None))
    monkeypatch.setattr(runtime, "start_workers", lambda *_: SimpleNamespace(join=lambda: None))
    monkeypatch.setattr(runtime, "CellRunner", lambda *_: SimpleNamespace(run=lambda: None))
    waits = Waits(read_pod({**POD, "SHARDHERD_STATE_LOCATION": "/state"}))
    warmed: list[float] = []
    waits.agent = SimpleNamespace(warmed=warmed.append)
    spark: Any = SimpleNamespace()
    waits.attach(spark)
    waits.run(lambda cell: cell, trigger)  # type: ignore[arg-type,return-value]
    waits._loop.close()
    for end in (waits._terminate_read, waits._terminate_write):
        os.close(end)
    assert (warmed, waits._trigger_interval()) == ([interval], interval), "and the watch over tasks does not forget it"
