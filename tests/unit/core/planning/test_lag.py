"""Mode Lag against a simulated topic: what is written, what consumers can read, and how many there are because of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.model.nouns import Condition, ConsumerId, ShardId, ShardState, ShardView
from shardherd.core.planning.catchup import EVALUATE, NO_GAIN_FOR
from shardherd.core.planning.observed import LagScaling, Memory, Observation, OwnedSet, Pauses, Scaling, ScalingMode
from shardherd.core.planning.plan import ApplyStatefulSet, Plan, plan
from tests.unit.core.planning.builders import NOW, WALL, consumers, declared, observation, pods, view

START = 20.0
"""Seconds that a new consumer needs until it reads."""


class Group:
    """A group of `shards` shards, all even. `written(t)` and `readable(n)` are records a second."""

    def __init__(
        self,
        written: Callable[[float], float],
        readable: Callable[[int], float] = lambda consumers: 100.0 * consumers,
        *,
        shards: int = 12,
        backlog: int = 0,
        replicas: int | None = None,
        **scaling: Any,
    ) -> None:
        self.written, self.readable, self.shards = written, readable, shards
        self.scaling = Scaling(mode=ScalingMode.LAG, **scaling)
        self.pauses = Pauses()
        self.time, self.end, self.position = 0.0, float(backlog), 0.0
        self.replicas = replicas
        self.since: dict[int, float] = dict.fromkeys(range(replicas or 0), -START)
        self.memory = Memory()
        self.status: Mapping[str, Any] = {}
        self.fields: dict[str, Any] = {}
        self.history: list[tuple[float, int, str]] = []
        self.events: list[str] = []

    def ready(self) -> int:
        """Consumers that read."""
        return sum(1 for begun in self.since.values() if self.time - begun >= START)

    def observe(self) -> Observation:
        """The controller's picture now."""
        ready = self.ready()
        rows = [
            ShardView(
                ShardId(f"clicks/{number}"),
                ShardState.ALREADY_ALLOC if ready else ShardState.NOT_ALLOC,
                ConsumerId(f"clicks-{number % ready}") if ready else None,
                checkpoint=int(self.position / self.shards),
                end=int(self.end / self.shards),
                lag_records=int(self.end / self.shards) - int(self.position / self.shards),
            )
            for number in range(self.shards)
        ]
        waiting = tuple(replace(pod, ready=self.time - self.since[pod.ordinal] >= START) for pod in pods(*self.since))
        return replace(
            observation(),
            declared=declared(scaling=self.scaling, pauses=self.pauses, drain_timeout=1.0),
            now=NOW + self.time,
            wall=WALL + self.time,
            stateful_set=None if self.replicas is None else OwnedSet(replicas=self.replicas),
            consumers=waiting,
            view=view(rows, consumers=consumers(*([1] * ready)), **self.fields),
            memory=self.memory,
            previous=self.status,
        )

    def tick(self) -> Plan:
        """One second."""
        self.end += self.written(self.time)
        self.position = min(self.end, self.position + (self.readable(self.ready()) if self.ready() else 0.0))
        planned = plan(self.observe())
        self.memory, self.status = planned.memory, dict(planned.status)
        for action in planned.actions:
            if isinstance(action, ApplyStatefulSet):
                self.replicas = action.replicas
                self.since = {n: self.since.get(n, self.time) for n in range(action.replicas)}
                self.history.append((self.time, action.replicas, planned.decision.reason))
        self.events += [event.reason for event in (*planned.done, *planned.turned)]
        self.time += 1.0
        return planned

    def run(self, seconds: float) -> Group:
        """Let time pass."""
        until = self.time + seconds
        while self.time < until:
            self.tick()
        return self

    def restart(self) -> None:
        """Another operator takes over: it knows the status and nothing else."""
        self.memory = Memory()

    @property
    def lag(self) -> float:
        """Records that nobody has read."""
        return self.end - self.position

    def decisions(self) -> list[tuple[int, str]]:
        """Every number of consumers that was set, and why."""
        return [(number, reason) for _, number, reason in self.history]


def steadily(rate: float) -> Callable[[float], float]:
    """So many records a second, for ever."""
    return lambda _time: rate


def test_a_new_group_starts_with_one_and_grows_to_what_keeps_up() -> None:
    group = Group(steadily(350), max_replicas=10).run(1200)
    # 350 records/s of which one consumer reads 100, four fifths of that planned for: 4.4.
    assert group.replicas == 5
    assert group.lag < 1000
    assert group.decisions()[0] == (1, "FirstConsumers")
    assert {reason for _, reason in group.decisions()[1:]} <= {"CatchingUp", "KeepingUp"}


def test_a_backlog_is_read_within_its_target() -> None:
    group = Group(steadily(100), backlog=120_000, lag=LagScaling(target_catchup=300)).run(60)
    first = group.time
    while group.lag > 1000:
        group.run(1)
    assert group.time - first < 300 + 4 * (EVALUATE + START)
    assert max(number for number, _ in group.decisions()) in range(4, 8)


def test_a_decision_says_what_it_was_made_from() -> None:
    group = Group(steadily(350), replicas=2).run(60)
    scaling = group.status["scaling"]
    assert (scaling["desired"], scaling["reason"]) == (5, "CatchingUp")
    assert re.fullmatch(
        r"350 records/s are written, 200 records/s read, \d+ records behind, one consumer reads 100 records/s: "
        r"\d consumers to keep up and to catch up within 300 s\.",
        scaling["message"],
    )
    written = dict(scaling)
    group.run(30)
    # It stands as it was decided: what changes with every look is in status.lag.
    assert {**group.status["scaling"], "trial": None} == {**written, "trial": None}


def test_a_decision_is_told_although_the_status_was_not_due_when_it_was_made() -> None:
    group = Group(steadily(350), replicas=2)
    written = group.status
    while not group.history:
        written = group.status
        group.tick()
    # The status of this very moment was not written, and the next one is planned with the one before.
    group.status = written
    group.tick()
    assert (group.status["scaling"]["desired"], group.status["scaling"]["reason"]) == (5, "CatchingUp")


def test_one_decision_changes_the_number_by_no_more_than_a_step() -> None:
    group = Group(steadily(900), replicas=1, lag=LagScaling(max_step=2)).run(2000)
    numbers = [1, *(number for number, _ in group.decisions())]
    assert max(after - before for before, after in itertools.pairwise(numbers)) == 2
    assert group.replicas == 10


def test_there_are_never_more_consumers_than_shards() -> None:
    group = Group(steadily(900), shards=3, replicas=1, max_replicas=10).run(1200)
    assert group.replicas == 3
    assert condition(group, "ScalingLimited")[:2] == ("True", "TooFewShards")


def test_nor_more_than_the_limit() -> None:
    group = Group(steadily(900), replicas=1, max_replicas=4).run(1200)
    assert group.replicas == 4
    assert condition(group, "ScalingLimited")[:2] == ("True", "MaxReplicas")


def test_a_limit_that_is_lowered_holds_at_once() -> None:
    group = Group(steadily(350), max_replicas=10).run(1200)
    group.scaling = replace(group.scaling, max_replicas=3)
    group.run(60)
    assert (group.replicas, condition(group, "ScalingLimited")[:2]) == (3, ("True", "MaxReplicas"))


def test_and_so_does_a_least_number_that_is_raised() -> None:
    group = Group(steadily(50), replicas=1).run(60)
    group.scaling = replace(group.scaling, min_replicas=3)
    group.run(60)
    assert group.decisions() == [(3, "MinReplicas")]


def test_after_a_limit_has_moved_the_number_the_status_says_why_it_is_right() -> None:
    group = Group(steadily(150), replicas=1).run(300)
    group.scaling = replace(group.scaling, min_replicas=4, stabilization_window=86_400.0)
    group.run(120)
    assert (group.replicas, group.status["scaling"]["reason"]) == (4, "MinReplicas")

    group.scaling = replace(group.scaling, min_replicas=1)
    group.run(600)
    scaling = group.status["scaling"]
    assert (group.replicas, scaling["reason"], "are written" in scaling["message"]) == (4, "KeepingUp", True)
    group.run(600)
    assert group.status["scaling"] == scaling


class TestScalingIn:
    def test_waits_until_less_was_needed_for_a_whole_window(self) -> None:
        group = Group(lambda time: 350 if time < 1200 else 100, stabilization_window=300).run(1200)
        assert group.replicas == 5
        group.run(290)
        assert group.replicas == 5
        group.run(150)
        assert group.replicas == 2
        assert group.decisions()[-1][1] == "LoadFell"
        assert group.events.count("Draining") == sum(1 for _, reason in group.decisions() if reason == "LoadFell")

    def test_is_put_off_by_a_burst(self) -> None:
        group = Group(lambda time: 350 if time % 200 < 100 else 100, stabilization_window=300).run(3000)
        assert "LoadFell" not in [reason for _, reason in group.decisions()]

    def test_goes_on_from_where_it_is_after_a_restart_but_only_after_a_whole_window(self) -> None:
        group = Group(lambda time: 350 if time < 1200 else 100, stabilization_window=300).run(1400)
        group.restart()
        group.run(290)
        assert group.replicas == 5
        group.run(100)
        assert group.replicas == 2

    def test_tries_one_fewer_where_nobody_was_ever_busy(self) -> None:
        group = Group(steadily(10), replicas=3, stabilization_window=60).run(1000)
        assert group.decisions() == [(2, "PaceUnknown"), (1, "PaceUnknown")]

    def test_and_comes_back_once_it_knows_better(self) -> None:
        group = Group(steadily(150), replicas=3, stabilization_window=60).run(3000)
        assert group.replicas == 2
        assert group.lag < 1000


class TestAScaleOutThatDoesNotHelp:
    """What is read goes to something that takes 250 records a second, from however many."""

    def stuck(self) -> Group:
        return Group(steadily(400), lambda count: min(250.0, 100.0 * count), replicas=3, max_replicas=8)

    def test_is_taken_back(self) -> None:
        group = self.stuck().run(400)
        (out, why), (back, undone) = group.decisions()
        assert (out > 3, why, back, undone) == (True, "CatchingUp", 3, "ScaleOutUndone")
        assert condition(group, "ScalingLimited")[:2] == ("True", "NoGain")

    def test_and_not_tried_again_for_a_while_not_even_after_a_restart(self) -> None:
        group = self.stuck().run(400)
        group.restart()
        group.run(NO_GAIN_FOR - 400)
        assert len(group.decisions()) == 2
        group.run(400 + EVALUATE)
        assert group.decisions()[2][0] > 3

    def test_is_judged_by_the_operator_that_comes_after(self) -> None:
        group = self.stuck().run(60)
        assert "trial" in group.status["scaling"]
        group.restart()
        assert group.run(400).decisions()[-1] == (3, "ScaleOutUndone")

    def test_one_that_helps_stays(self) -> None:
        group = Group(steadily(400), replicas=3, max_replicas=8).run(1000)
        assert "ScaleOutUndone" not in [reason for _, reason in group.decisions()]


class TestZero:
    def scaling(self) -> dict[str, Any]:
        return {"min_replicas": 0, "stabilization_window": 60.0}

    def test_is_reached_once_all_was_read_for_the_window(self) -> None:
        group = Group(lambda time: 70 if time < 100 else 0, **self.scaling()).run(150)
        assert group.replicas == 1
        group.run(20)
        assert (group.replicas, group.decisions()[-1]) == (0, (0, "Idle"))

    def test_is_left_with_the_first_record(self) -> None:
        group = Group(lambda time: 12 if time >= 500 else 0, replicas=0, **self.scaling()).run(500)
        assert group.history == []
        group.run(2)
        assert group.decisions() == [(1, "RecordsArrived")]

    def test_is_left_with_as_many_as_the_backlog_takes(self) -> None:
        group = Group(lambda time: 350 if time < 600 else 90_000 if time == 1500 else 0, **self.scaling()).run(1500)
        assert group.replicas == 0
        group.run(8)
        # 90,000 records within 300 s, of which one consumer reads 100 a second.
        assert group.decisions()[-1] == (3, "RecordsArrived")

    def test_is_kept_by_a_restarted_operator(self) -> None:
        group = Group(steadily(0), replicas=0, **self.scaling()).run(100)
        group.restart()
        assert group.run(100).history == []

    def test_is_where_a_new_group_begins_that_has_nothing_to_read(self) -> None:
        assert Group(steadily(0), **self.scaling()).run(10).decisions() == [(0, "Idle")]

    def test_is_no_goal_where_one_has_to_stay(self) -> None:
        assert Group(steadily(0), min_replicas=1, stabilization_window=60.0).run(1000).replicas == 1

    def test_is_reached_in_mode_shards_too(self) -> None:
        group = Group(lambda time: 100 if time < 100 else 0, **self.scaling())
        group.scaling = replace(group.scaling, mode=ScalingMode.SHARDS)
        assert group.run(250).decisions() == [(3, "FollowingShards"), (0, "Idle")]


@pytest.mark.parametrize(
    "fields",
    [
        {"source_reachable": False, "source_error": "no broker"},
        {"withheld": (Condition("GroupHasLiveMembers", "console-consumer"),)},
    ],
)
def test_nothing_is_decided_from_what_cannot_be_measured(fields: dict[str, Any]) -> None:
    group = Group(steadily(350), replicas=2)
    group.fields = fields
    group.run(600)
    assert (group.replicas, condition(group, "ScalingActive")[:2]) == (2, ("False", "SourceAway"))


def test_recommend_only_tells_and_does_nothing() -> None:
    group = Group(steadily(350), replicas=2, recommend_only=True).run(600)
    assert (group.replicas, group.history) == (2, [])
    assert group.status["recommendedReplicas"] >= 5
    assert condition(group, "ScalingActive")[:2] == ("False", "RecommendOnly")
    assert "ScaleRecommended" in group.events


@pytest.mark.parametrize("rate", [0, 100, 240])
@pytest.mark.parametrize("window", [0.0, 30.0, 300.0])
def test_a_recommendation_is_told_once_and_then_nothing_changes_any_more(rate: float, window: float) -> None:
    group = Group(steadily(rate), replicas=3, recommend_only=True, stabilization_window=window).run(400)
    before = dict(group.status)
    assert before["scaling"]["reason"] == "RecommendOnly"
    assert "Measuring" not in before["scaling"]["message"]
    for _ in range(900):
        group.tick()
        assert {name: group.status[name] for name in ("scaling", "conditions", "recommendedReplicas")} == {
            name: before[name] for name in ("scaling", "conditions", "recommendedReplicas")
        }


class TestPauses:
    def test_no_consumer_is_added_while_scale_out_is_paused(self) -> None:
        group = Group(steadily(350), replicas=2)
        group.pauses = Pauses(scale_out=True)
        group.run(300)
        assert (group.history, condition(group, "ScalingLimited")[:2]) == ([], ("True", "ScaleOutPaused"))
        group.pauses = Pauses()
        group.run(300)
        assert group.replicas is not None
        assert group.replicas >= 5

    def test_none_is_removed_while_scale_in_is_paused(self) -> None:
        group = Group(lambda time: 350 if time < 1200 else 100).run(1200)
        group.pauses = Pauses(scale_in=True)
        group.run(1000)
        assert (group.replicas, condition(group, "ScalingLimited")[:2]) == (5, ("True", "ScaleInPaused"))


def condition(group: Group, kind: str) -> tuple[str, str, str]:
    """A condition of the status: status, reason, message."""
    return next((c["status"], c["reason"], c["message"]) for c in group.status["conditions"] if c["type"] == kind)
