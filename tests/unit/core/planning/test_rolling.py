"""Where a rollout stands at one observation, as a whole value, and who is replaced next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.model.nouns import ConsumerId, GroupSettings, Incarnation, ShardState
from shardherd.core.planning.observed import (
    ConsumerPod,
    Memory,
    Owned,
    OwnedSet,
    Pauses,
    RolloutSettings,
    RolloutStrategy,
    Trouble,
)
from shardherd.core.planning.rollout import Rolling, rolling
from shardherd.core.planning.scaling import SETTLE, Scale
from shardherd.core.planning.sizing import Decision
from tests.unit.core.planning.builders import NOW, WALL, declared, observation, pods, shards, view

C0, C1 = ConsumerId("clicks-0"), ConsumerId("clicks-1")
OLD, NEW = pods(0, 1, current=False), pods(0, 1)
STARTING = (OLD[0], *pods(1, ready=False))
IN_PLACE = RolloutSettings(RolloutStrategy.IN_PLACE)
WRITTEN = {"state": "Progressing", "updated": 0, "total": 2, "target": "now", "proven": "before"}
SINCE = {**WRITTEN, "progressTime": "2023-11-14T22:00:00Z"}
LATE = {**WRITTEN, "progressTime": "2023-11-14T22:12:20Z"}
"""A minute ago."""

EMPTY = view(shards(8))
"""All shards are held by clicks-0."""


def rolled(
    consumers: tuple[ConsumerPod, ...] = OLD,
    desired: int = 2,
    *,
    leaving: frozenset[ConsumerId] = frozenset(),
    written: object = None,
    rollout: RolloutSettings | None = None,
    **fields: Any,
) -> Rolling:
    """The rollout of a group of so many consumers, whose rollout stood in the status as it was written."""
    fields = {"declared": declared(rollout=rollout or RolloutSettings()), **fields}
    before = {"rollout": WRITTEN if written is None else written}
    seen = observation(consumers=consumers, previous=before, **fields)
    return rolling(seen, Scale(Decision(desired, "Fixed", ""), desired, leaving))


def stands(updated: int = 0, **fields: Any) -> Rolling:
    values = {"state": "Progressing", "target": "now", "proven": "before", "total": 2, "progressed": None, **fields}
    return Rolling(updated=updated, **values)


class TestHowFarItIs:
    def test_it_is_complete_once_all_that_stay_run_what_is_declared(self) -> None:
        assert rolled(NEW) == stands(2, state="Complete", proven="now")
        assert rolled(pods(0), 1) == stands(1, state="Complete", proven="now", total=1)

    @pytest.mark.parametrize(
        "second",
        [pods(1, current=False), pods(1, deleting=True), pods(2), ()],
    )
    def test_it_is_not_before_each_of_them_is_updated_and_ready_and_stays(self, second: tuple[ConsumerPod, ...]) -> None:
        standing = rolled((*pods(0), *second))
        assert (standing.state, standing.updated, standing.proven) == ("Progressing", 1, "before")

    def test_a_group_of_nobody_has_proven_nothing(self) -> None:
        assert rolled((), 0) == stands(0, total=0)

    @pytest.mark.parametrize("written", [{}, "by hand"])
    def test_without_a_status_nothing_was_proven(self, written: object) -> None:
        assert rolled((), written=written).proven == ""

    def test_what_was_given_up_is_told_whatever_runs(self) -> None:
        given_up = declared(rejected="it crashed")
        assert rolled(NEW, declared=given_up) == stands(2, state="RolledBack", proven="now", why="it crashed")


class TestWhoIsNext:
    def test_the_highest_ordinal_drains_first(self) -> None:
        assert rolled() == stands(emptied=frozenset({C1}), draining=C1)
        assert rolled((OLD[1], OLD[0])).draining == C1

    def test_and_is_replaced_when_it_holds_nothing(self) -> None:
        memory = Memory(rolling=(C1, NOW - 5.0))
        assert rolled(view=EMPTY, memory=memory) == stands(replace=OLD[1])

    def test_in_place_it_is_replaced_as_it_is(self) -> None:
        assert rolled(rollout=IN_PLACE) == stands(replace=OLD[1])

    def test_those_whose_pods_end_hold_nothing_unless_their_shards_wait_for_them(self) -> None:
        ending = (OLD[0], *pods(1, current=False, deleting=True), *pods(2, current=False, deleting=True))
        assert rolled(ending) == stands(emptied=frozenset({C1}))
        assert rolled(ending, rollout=IN_PLACE) == stands()
        assert rolled((OLD[0], *pods(1, deleting=True))) == stands()

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"stateful_set": None}, id="there is no StatefulSet"),
            pytest.param({"stateful_set": OwnedSet(current=False, replicas=2)}, id="it would make old pods"),
            pytest.param({"service": Owned(ours=False)}, id="a name is taken"),
            pytest.param({"declared": declared(settings=GroupSettings(paused=True))}, id="the group is paused"),
            pytest.param({"leaving": frozenset({ConsumerId("clicks-2")})}, id="somebody leaves"),
            pytest.param({"consumers": (OLD[0], *pods(1, current=False, ready=False))}, id="one is not ready"),
            pytest.param({"consumers": (*pods(0, deleting=True), OLD[1])}, id="one ends"),
            pytest.param({"consumers": OLD[:1]}, id="one is missing"),
            pytest.param({"view": view(shards(1, ShardState.NOT_ALLOC, state_age=59.9))}, id="a shard waits for a holder"),
        ],
    )
    def test_nobody_is_while(self, fields: dict[str, Any]) -> None:
        standing = rolled(**fields)
        assert (standing.replace, standing.draining, standing.emptied) == (None, None, frozenset())

    @pytest.mark.parametrize(
        "row",
        [
            shards(1, ShardState.NOT_ALLOC, state_age=60.0),
            shards(1, ShardState.NOT_ALLOC, present=False),
            shards(1, ShardState.WAIT),
        ],
    )
    def test_a_shard_that_nobody_can_be_given_for_long_keeps_nobody_from_being_replaced(self, row: Any) -> None:
        assert rolled(view=view(row)).draining == C1
        assert rolled(view=None).draining == C1

    @pytest.mark.parametrize(
        "others",
        [
            pods(0, current=False, cordoned=True),
            (),
            pods(2, ready=False),
            pods(2, deleting=True),
            (*pods(0, current=False, cordoned=True), *pods(2, ready=False)),
        ],
    )
    def test_one_that_nobody_can_take_shards_from_is_replaced_as_it_is(self, others: tuple[ConsumerPod, ...]) -> None:
        alone = pods(1, current=False) if any(pod.ordinal == 0 for pod in others) else pods(0, current=False)
        standing = rolled((*others, *alone), 2 if alone[0].ordinal else 1)
        assert (standing.replace, standing.emptied) == (alone[0], frozenset())

    def test_one_that_is_not_cordoned_is_enough(self) -> None:
        beside = (replace(OLD[0], cordoned=True), OLD[1], *pods(2))
        assert rolled(beside).draining == C1

    @pytest.mark.parametrize(
        ("rolling_since", "held", "drains"),
        [
            pytest.param(None, EMPTY, True, id="not told yet"),
            pytest.param((C0, NOW - 50.0), EMPTY, True, id="another was told"),
            pytest.param((C1, NOW - SETTLE + 0.1), EMPTY, True, id="told just now"),
            pytest.param((C1, NOW - SETTLE), EMPTY, False, id="holds nothing"),
            pytest.param((C1, NOW - 59.9), view((*shards(1, holder=C1),)), True, id="still holds shards"),
            pytest.param((C1, NOW - 60.0), view((*shards(1, holder=C1),)), False, id="had its time"),
        ],
    )
    def test_it_drains_until_it_holds_nothing_or_has_had_its_time(
        self, rolling_since: tuple[ConsumerId, float] | None, held: Any, drains: bool
    ) -> None:
        standing = rolled(view=held, memory=Memory(rolling=rolling_since))
        expected = stands(emptied=frozenset({C1}), draining=C1) if drains else stands(replace=OLD[1])
        assert standing == expected


class TestHowLongItWaits:
    began = WALL - 800.0

    def test_the_wait_for_a_new_pod_goes_on(self) -> None:
        assert rolled(STARTING, written=SINCE) == stands(progressed=self.began)

    @pytest.mark.parametrize(
        "written",
        [
            {**SINCE, "target": "before"},
            {name: value for name, value in SINCE.items() if name != "progressTime"},
            {**SINCE, "updated": -1},
        ],
    )
    def test_it_begins_anew_with_another_declaration_a_first_pod_or_one_more_that_runs(self, written: object) -> None:
        assert rolled(STARTING, written=written).progressed == WALL

    def test_it_goes_on_where_as_many_run_as_before(self) -> None:
        assert rolled((*pods(0), *pods(1, ready=False)), written={**SINCE, "updated": 1}).progressed == self.began
        assert rolled(STARTING, written={**SINCE, "updated": "unknown"}).progressed == self.began

    @pytest.mark.parametrize(
        "fields",
        [
            {"declared": declared(settings=GroupSettings(paused=True))},
            {"declared": declared(pauses=Pauses(reconcile=True))},
            {"consumers": OLD},
            {"consumers": (OLD[0], *pods(1, ready=False, deleting=True))},
            {"consumers": (OLD[0], *pods(1, ready=False, current=False))},
            {"consumers": NEW},
        ],
    )
    def test_nobody_is_waited_for_while_no_new_pod_may_become_ready(self, fields: dict[str, Any]) -> None:
        assert rolled(**{"consumers": STARTING, "written": SINCE, **fields}).progressed is None


class TestGoingBack:
    fallback = OwnedSet(replicas=2, fallback="before")

    def back(self, **fields: Any) -> Rolling:
        values = {
            "consumers": STARTING,
            "written": LATE,
            "stateful_set": self.fallback,
            "declared": declared(generation=7, rollout=RolloutSettings(progress_deadline=60.0)),
            **fields,
        }
        return rolled(**values)

    def test_is_due_with_the_deadline_and_says_which_pod_did_not_run(self) -> None:
        why = "What generation 7 declares did not run within spec.rollout.progressDeadline (60 s): Pod clicks-1 was not ready."
        assert self.back() == stands(progressed=WALL - 60.0, back=True, why=why)

    @pytest.mark.parametrize("cause", ["It crashes.", "It crashes"])
    def test_names_the_first_cause_that_is_known_in_a_whole_sentence(self, cause: str) -> None:
        troubled = (
            pods(1, ready=False, trouble=Trouble("CrashLooping", cause)),
            pods(2, ready=False, trouble=Trouble("ImagePull", "No image.")),
        )
        standing = self.back(consumers=(*pods(0, ready=False), *troubled[0], *troubled[1]), desired=3)
        assert standing.why == (
            "What generation 7 declares did not run within spec.rollout.progressDeadline (60 s): It crashes."
        )

    def test_replaces_nobody_by_the_way(self) -> None:
        beside = (*pods(0, ready=False), *pods(1, current=False, deleting=True))
        assert self.back(consumers=beside).emptied == frozenset({C1})

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"declared": declared(rollout=RolloutSettings(progress_deadline=60.1))}, id="before its time"),
            pytest.param({"stateful_set": None}, id="nothing runs"),
            pytest.param({"stateful_set": replace(fallback, current=False)}, id="it is not applied yet"),
            pytest.param({"stateful_set": OwnedSet(replicas=2)}, id="nothing ran before"),
            pytest.param({"stateful_set": replace(fallback, fallback="now")}, id="the same ran before"),
            pytest.param({"written": {**LATE, "proven": "now"}}, id="it ran once"),
            pytest.param({"consumers": NEW}, id="all run"),
        ],
    )
    def test_is_not_done(self, fields: dict[str, Any]) -> None:
        standing = self.back(**fields)
        assert (standing.back, standing.why) == (False, "")

    def test_is_not_done_twice(self) -> None:
        gone_back = declared(rollout=RolloutSettings(progress_deadline=60.0), rejected="it crashed")
        standing = self.back(declared=gone_back)
        assert (standing.back, standing.state, standing.why) == (False, "RolledBack", "it crashed")


class TestWhatIsObserved:
    def test_a_consumer_is_called_by_the_group_and_its_ordinal(self) -> None:
        assert observation().name_of(3) == "clicks-3"

    @pytest.mark.parametrize(
        ("row", "held"),
        [
            (shards(1, holder=C1), True),
            (shards(1, ShardState.TRANSFER, next_consumer=C1), True),
            (shards(1), False),
            (shards(1, ShardState.OVER, holder=C1), False),
            (shards(1, holder=C1, present=False), False),
        ],
    )
    def test_a_consumer_holds_what_it_has_or_is_about_to_get(self, row: Any, held: bool) -> None:
        assert observation(view=view((*shards(2), *row))).holds(C1) is held

    def test_while_the_coordinator_says_nothing_everybody_may_hold_shards(self) -> None:
        assert observation(view=None).holds(C1) is True

    @pytest.mark.parametrize(
        ("run", "dead"),
        [
            (Incarnation("uid", 1), True),
            (Incarnation("uid", 2), True),
            (Incarnation("uid", 3), False),
            (Incarnation("another", 1), False),
        ],
    )
    def test_the_end_of_a_run_proves_that_of_all_earlier_ones_of_its_pod(self, run: Incarnation, dead: bool) -> None:
        assert observation(dead=(Incarnation("uid-9", 1), Incarnation("uid", 2))).is_dead(run) is dead
