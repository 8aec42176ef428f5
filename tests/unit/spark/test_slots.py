"""Tasks of a micro-batch while executors come and go."""

from __future__ import annotations

import pytest

from shardherd.spark.slots import LONG, Slots


@pytest.mark.parametrize(
    ("executors", "took", "wanted"),
    [
        pytest.param(2, 0.1, 4, id="as many as run at once"),
        pytest.param(2, LONG, 8, id="twice as many while there is too much to read"),
        pytest.param(4, LONG, 10, id="never more than all executors run"),
        pytest.param(9, 0.1, 10, id="executors beyond the limit are going already"),
        pytest.param(0, 0.1, 2, id="one at least, or Spark would not start any"),
        pytest.param(0, LONG, 4, id="also when there is too much to read"),
    ],
)
def test_tasks_follow_what_spark_runs(executors: int, took: float, wanted: int) -> None:
    slots = Slots(cores=2, least=0, most=5)
    slots.runs(executors)
    slots.took(took)
    assert slots.wanted == wanted


@pytest.mark.parametrize(("least", "wanted"), [(0, 3), (2, 6)])
def test_it_begins_with_the_fewest_executors(least: int, wanted: int) -> None:
    assert Slots(cores=3, least=least, most=5).wanted == wanted
