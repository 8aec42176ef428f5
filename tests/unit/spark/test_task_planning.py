"""How the ranges of a micro-batch become tasks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import ShardId
from shardherd.source.reading.ranges import ShardRange
from shardherd.spark.task_planning import Splitting, plan_tasks

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


def test_without_known_slots_every_shard_is_a_task() -> None:
    assert [len(task) for task in plan_tasks(ranges(s0=1, s1=2, s2=3), None)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("splitting", "loads"),
    [
        (Splitting(), [103]),
        (Splitting(tasks=4), [26, 26, 26, 25]),
        (Splitting(records=50), [35, 34, 34]),
        (Splitting(tasks=2, records=60), [52, 51]),
        (Splitting(tasks=500), [1] * 103),
    ],
)
def test_large_ranges_are_split_into_equal_tasks(splitting: Splitting, loads: list[int]) -> None:
    tasks = plan_tasks(ranges(s0=100, s1=3), 1, splitting=splitting)

    assert sorted((sum(each.stop - each.start for each in task) for task in tasks), reverse=True) == loads


@given(found=RANGES, tasks=st.none() | st.integers(1, 40), records=st.none() | st.integers(1, 500), slots=st.integers(1, 8))
def test_splitting_keeps_every_record_in_one_task_and_no_shard_twice_in_one(
    found: Mapping[ShardId, ReadRange], tasks: int | None, records: int | None, slots: int
) -> None:
    planned = plan_tasks(found, slots, splitting=Splitting(tasks, records))

    total = sum(each.stop - each.start for each in found.values())
    assert all(len({each.shard for each in task}) == len(task) and task for task in planned)
    read = sorted((each.shard, offset) for task in planned for each in task for offset in range(each.start, each.stop))
    assert read == sorted((shard, offset) for shard, each in found.items() for offset in range(each.start, each.stop))
    if tasks is not None:
        assert len(planned) >= min(tasks, total)
    if records is not None:
        assert all(sum(each.stop - each.start for each in task) <= records for task in planned)
