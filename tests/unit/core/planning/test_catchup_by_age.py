"""What mode Lag asks for where the source counts no records: it goes by the age of the oldest unread one."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.core.model.nouns import ShardState
from shardherd.core.planning.catchup import EVALUATE, Wish, wish
from shardherd.core.planning.observed import LagScaling, OwnedSet, Scaling, ScalingMode, Sizing
from shardherd.core.planning.traffic import INTERVAL, SPAN
from tests.unit.core.planning.builders import NOW, declared, observation, shards, status_of, view

WINDOW = 300.0
SAID = ("CatchingUp", "said before")
CALM = tuple((NOW - WINDOW + INTERVAL * each, 2) for each in range(60))
"""One fewer has done for a whole window."""


def picture(age: int | None) -> Any:
    return view(shards(12, lag_records=None), counts_records=False, lag_seconds=age, source="kinesis")


def asked(
    age: int | None, goal: int = 3, *, steady: float = 1000.0, high: int = 10, advice: bool = False, **remembered: Any
) -> Wish:
    """With so many consumers that have read for so long, and this age; a record may be 100 s old."""
    scaling = Scaling(
        mode=ScalingMode.LAG,
        min_replicas=1,
        max_replicas=high,
        stabilization_window=WINDOW,
        recommend_only=advice,
        lag=LagScaling(target_catchup=100.0, max_step=2),
    )
    looked = observation(declared=declared(scaling=scaling), stateful_set=OwnedSet(replicas=goal))
    known = Sizing(goal=goal, steady_since=NOW - steady, **{"said": SAID, **remembered})
    return wish(looked, picture(age), known, 12)


def said(age: int, number: str) -> str:
    return (
        f"The oldest record that is not checkpointed is {age} s old, and spec.scaling.lag.targetCatchupSeconds is 100:"
        f" {number}. Records are not counted in this kind of source."
    )


@pytest.mark.parametrize(
    ("age", "goal", "wanted"), [(101, 3, 4), (150, 3, 5), (1000, 3, 5), (1000, 1, 2), (1000, 9, 10), (120, 1, 2)]
)
def test_records_that_wait_too_long_ask_for_more_a_bounded_step_at_a_time(age: int, goal: int, wanted: int) -> None:
    found = asked(age, goal)
    assert (found.replicas, found.reason) == (wanted, "CatchingUp")
    assert found.message.startswith(f"The oldest record that is not checkpointed is {age} s old")


def test_a_step_is_explained_with_the_age_and_the_limit() -> None:
    assert asked(200).message == said(200, "5 consumers in place of 3")


def test_a_step_is_watched_before_the_next_one() -> None:
    assert asked(200, steady=EVALUATE - 1).replicas == 3
    assert asked(200, steady=EVALUATE).replicas == 5


def test_there_are_never_more_than_allowed_and_that_is_said() -> None:
    found = asked(200, 4, high=4)
    assert (found.replicas, found.limit and found.limit[0]) == (4, "MaxReplicas")


@pytest.mark.parametrize(("age", "replicas"), [(10, 2), (11, 3), (100, 3)])
def test_one_fewer_is_tried_only_when_records_have_long_been_read_at_once(age: int, replicas: int) -> None:
    found = asked(age, wishes=CALM)
    assert found.replicas == replicas
    assert (found.reason == "LoadFell") == (replicas == 2)


def test_that_one_fewer_is_enough_is_recommended_again_and_again() -> None:
    assert asked(0, wishes=CALM).wishes == ()
    first = asked(0, wishes=CALM, advice=True)
    assert (first.recommended, first.reason, first.wishes) == (2, "LoadFell", (*CALM, (NOW, 2)))
    again = asked(1, wishes=first.wishes, advice=True, said=(first.reason, first.message), recommended=2)
    assert again == first


def test_not_before_the_window_is_full_or_while_something_moves() -> None:
    assert asked(0, wishes=CALM[40:]).replicas == 3
    assert asked(0, wishes=CALM, steady=SPAN - 1).replicas == 3
    assert asked(0, wishes=((NOW - 10, 3), *CALM)).replicas == 3


def test_nothing_changes_while_no_age_is_known() -> None:
    assert asked(None, wishes=CALM) == Wish(3, *SAID, 3, wishes=CALM)
    measuring = "How fast records are written and read is being measured."
    assert asked(None, wishes=CALM, said=("", "")) == Wish(3, "Measuring", measuring, 3, wishes=CALM)


@pytest.mark.parametrize(
    ("age", "number", "steady"),
    [(50, "3 consumers as before", 1000.0), (0, "2 consumers in place of 3", 1000.0), (200, "5 consumers in place of 3", 0.0)],
)
def test_a_number_that_something_else_chose_is_explained_with_the_age(age: int, number: str, steady: float) -> None:
    found = asked(age, steady=steady, said=("MinReplicas", "a limit"))
    assert (found.replicas, found.reason, found.message) == (3, "KeepingUp", said(age, number))


def test_the_last_consumer_stays() -> None:
    assert asked(0, 1, wishes=tuple((at, 1) for at, _ in CALM)).replicas == 1


def test_the_status_tells_seconds_and_no_records() -> None:
    assert status_of(observation(view=picture(42)))["lag"] == {"seconds": 42}
    assert status_of(observation(view=picture(None)))["lag"] == {}


def test_what_waits_for_its_parents_stands_still_for_that_reason() -> None:
    held = (*shards(1, lag_records=None), *shards(1, ShardState.WAIT, lag_records=None), *shards(1, ShardState.OVER))
    (row,) = status_of(observation(view=view(held, counts_records=False)))["stuckShards"]
    assert (row["reason"], row["message"]) == (
        "WaitsForParents",
        "in an ordered group it waits until the shards that come before it are read to their ends",
    )
