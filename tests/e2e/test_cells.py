"""Keyed state on the real node, in executors: whatever happens, the tables are those of one query that never moved.

The group is ordered: what comes when the topics grow waits for its parents.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dev.demo.lab import Lab
from tests.e2e.keyed import prepare, trial
from tests.harness.cluster import Tell
from tests.harness.keyed.schedule import Step
from tests.harness.long import long
from tests.harness.quick_spark import _quick_spark

__all__ = ["_quick_spark"]

pytestmark = pytest.mark.timeout(900)

STEPS = (
    Step("grow", settled=True),
    Step("double", settled=True),
    Step("kill", settled=True, victim=0),
    Step("operator", settled=False),
    Step("shrink", settled=True),
)


@long
def test_cells_with_executors_write_what_one_query_writes(installed: Lab, tmp_path: Path, tell: Tell) -> None:
    prepare(installed)
    with trial(installed, tmp_path, f"keyed-{os.getpid()}", settle="5s") as keyed:
        began, with_executors = time.monotonic(), set[tuple[str, str]]()

        def taken(step: Step) -> None:
            with_executors.update(keyed.group.runs_with_executors())
            tell(f"cells with executors: {step}, and what was written before is read ({time.monotonic() - began:.0f} s)")

        keyed.rows_are_those_of_one_query(1, STEPS, taken)
        tell(f"cells with executors: the rows are those of one query ({time.monotonic() - began:.0f} s)")
        keyed.batch_ids_go_on()
        keyed.new_shards_waited()
        wrote = {(each.consumer, each.incarnation) for each in keyed.history()}
        first, second = f"{keyed.group.name}-0", f"{keyed.group.name}-1"
        starts = sorted((consumer, incarnation.rpartition(".")[2]) for consumer, incarnation in wrote)
        assert starts == [(first, "1"), (first, "2"), (second, "1")], (
            "the killed one and the one that is gone have written, too"
        )
        assert wrote <= with_executors
