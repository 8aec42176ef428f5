"""How the ranges of a micro-batch become tasks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardherd.core.model import ShardId
from shardherd.core.tracker import ReadRange
from shardherd.spark.planning import ShardRange, plan_tasks

RANGES = st.dictionaries(
    st.integers(0, 30).map(lambda n: ShardId(f"clicks/{n}")),
    st.tuples(st.integers(0, 100), st.integers(0, 1000)).map(lambda t: ReadRange(t[0], t[0] + t[1], 1)),
    max_size=20,
)


def ranges(**lengths: int) -> dict[ShardId, ReadRange]:
    return {ShardId(f"clicks/{name[1:]}"): ReadRange(5, 5 + length, 1) for name, length in lengths.items()}


def test_many_shards_on_one_core_are_one_task() -> None:
    assert plan_tasks(ranges(s0=3, s1=2, s2=0), 1) == [
        (ShardRange(ShardId("clicks/0"), 5, 8), ShardRange(ShardId("clicks/1"), 5, 7))
    ]


def test_tasks_read_about_as_many_records_each() -> None:
    tasks = plan_tasks(ranges(s0=100, s1=60, s2=50, s3=10), 2)

    assert [sum(each.stop - each.start for each in task) for task in tasks] == [110, 110]


def test_a_warm_up_has_a_task_for_every_slot() -> None:
    assert plan_tasks({}, 3, every_slot=True) == [(), (), ()]
    assert [len(task) for task in plan_tasks(ranges(s0=1), 2, every_slot=True)] == [1, 0]


@pytest.mark.parametrize("every_slot", [True, False])
@given(found=RANGES, slots=st.integers(1, 8))
def test_every_record_is_in_exactly_one_task_and_the_plan_is_a_pure_function(
    every_slot: bool, found: Mapping[ShardId, ReadRange], slots: int
) -> None:
    tasks = plan_tasks(found, slots, every_slot=every_slot)

    assert tasks == plan_tasks(dict(reversed(list(found.items()))), slots, every_slot=every_slot)
    assert len(tasks) <= slots
    planned = {each.shard: (each.start, each.stop) for task in tasks for each in task}
    assert sum(len(task) for task in tasks) == len(planned)
    assert planned == {shard: (each.start, each.stop) for shard, each in found.items() if each.start < each.stop}
    loads = [sum(each.stop - each.start for each in task) for task in tasks]
    largest = max((each.stop - each.start for each in found.values()), default=0)
    assert not loads or max(loads) - min(loads) <= largest
