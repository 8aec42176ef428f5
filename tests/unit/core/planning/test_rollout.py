"""How pods are replaced that were made from an older declaration, and when all go back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.model.nouns import ConsumerId, GroupSettings, ShardState
from shardherd.core.model.reasons import CRASH_LOOPING
from shardherd.core.planning.observed import (
    ConsumerPod,
    Memory,
    Observation,
    OwnedSet,
    Pauses,
    RolloutSettings,
    RolloutStrategy,
    Trouble,
)
from shardherd.core.planning.plan import Action, ApplyStatefulSet, DeletePod, Event, Plan, RollBack, TellCoordinator, plan
from shardherd.core.planning.scaling import SETTLE
from tests.unit.core.planning.builders import NOW, WALL, declared, observation, pods, shards, view

C1 = ConsumerId("clicks-1")
IN_PLACE = RolloutSettings(RolloutStrategy.IN_PLACE)
WHY = "it was made from an older declaration"
OLD = pods(0, 1, current=False)


def actions(**fields: object) -> tuple[Action, ...]:
    """What is done besides telling the coordinator, in a group of two whose consumers are replaced in place."""
    fields = {"declared": declared(rollout=IN_PLACE), **fields}
    return plan(observation(**fields)).actions[1:]


class TestTheOrder:
    """One at a time, the highest ordinal first, and only while everything runs."""

    def test_the_highest_is_replaced_first(self) -> None:
        assert actions(consumers=OLD) == (DeletePod("clicks-1", "uid-1", WHY),)

    def test_the_next_one_waits_until_the_first_is_back(self) -> None:
        assert actions(consumers=(OLD[0], *pods(1, ready=False))) == ()
        assert actions(consumers=(OLD[0], *pods(1, deleting=True))) == ()
        assert actions(consumers=OLD[:1]) == ()

    def test_and_until_its_shards_have_a_holder_again(self) -> None:
        free = (*shards(4), *shards(4, ShardState.NOT_ALLOC, state_age=5.0))
        assert actions(consumers=(OLD[0], *pods(1)), view=view(free)) == ()
        lost = (*shards(4), *shards(4, ShardState.NOT_ALLOC, state_age=61.0))
        assert actions(consumers=(OLD[0], *pods(1)), view=view(lost)) == (DeletePod("clicks-0", "uid-0", WHY),)

    def test_and_goes_when_it_is(self) -> None:
        assert actions(consumers=(OLD[0], *pods(1))) == (DeletePod("clicks-0", "uid-0", WHY),)

    def test_those_that_are_not_ready_are_replaced_at_once(self) -> None:
        stuck = pods(0, 1, current=False, ready=False)
        why = "it is not ready and was made from an older declaration"
        assert actions(consumers=stuck) == (DeletePod("clicks-0", "uid-0", why), DeletePod("clicks-1", "uid-1", why))

    def test_those_that_cannot_run_as_declared_stay(self) -> None:
        assert actions(consumers=pods(0, 1, ready=False, trouble=Trouble(CRASH_LOOPING, "it crashes"))) == ()

    def test_none_is_replaced_before_the_stateful_set_makes_new_ones(self) -> None:
        assert actions(consumers=OLD, stateful_set=OwnedSet(current=False, replicas=2)) == (ApplyStatefulSet(2),)
        stuck = pods(0, 1, current=False, ready=False)
        assert actions(consumers=stuck, stateful_set=OwnedSet(current=False, replicas=2)) == (ApplyStatefulSet(2),)

    def test_none_is_replaced_in_a_paused_group(self) -> None:
        assert actions(consumers=OLD, declared=declared(settings=GroupSettings(paused=True))) == ()

    def test_a_group_whose_pods_run_what_is_declared_restarts_none(self) -> None:
        assert actions() == ()


class Roll:
    """A group of two that rolls out by draining, its clock and its memory."""

    def __init__(self, **rollout: Any) -> None:
        self.declared = declared(rollout=RolloutSettings(**rollout))
        self.consumers: tuple[ConsumerPod, ...] = OLD
        self.held = observation().view
        self.set = OwnedSet(replicas=2, fallback="before")
        self.time, self.memory = 0.0, Memory()
        self.previous: Mapping[str, Any] = {"rollout": {"target": "before", "proven": "before", "state": "Complete"}}

    def observe(self) -> Observation:
        return observation(
            declared=self.declared,
            consumers=self.consumers,
            view=self.held,
            stateful_set=self.set,
            now=NOW + self.time,
            wall=WALL + self.time,
            memory=self.memory,
            previous=self.previous,
        )

    def step(self, after: float = 0.0, **changes: Any) -> Plan:
        """Plan after some seconds and these changes; what was planned is remembered."""
        self.time += after
        for name, value in changes.items():
            setattr(self, name, value)
        planned = plan(self.observe())
        self.memory, self.previous = planned.memory, planned.status
        return planned

    def rollout(self) -> Mapping[str, Any]:
        """The status of the rollout."""
        found = self.previous["rollout"]
        assert isinstance(found, Mapping)
        return found


def emptied(planned: Plan) -> set[ConsumerId]:
    """Who is told to hold nothing."""
    first = planned.actions[0]
    assert isinstance(first, TellCoordinator)
    return set(first.spec.cordoned)


class TestDraining:
    all_to_the_other = view(shards(8))

    def test_it_gives_its_shards_to_the_others_before_it_is_replaced(self) -> None:
        roll = Roll()
        first = roll.step()
        assert (emptied(first), first.actions[1:]) == ({C1}, ())
        assert (emptied(roll.step(5)), roll.step(5).actions[1:]) == ({C1}, ())
        gone = roll.step(5, held=self.all_to_the_other)
        assert gone.actions[1:] == (DeletePod("clicks-1", "uid-1", WHY),)

    def test_it_is_given_nothing_while_its_pod_ends(self) -> None:
        roll = Roll()
        roll.step()
        ending = roll.step(5, consumers=(OLD[0], *pods(1, current=False, deleting=True)), held=self.all_to_the_other)
        assert (emptied(ending), ending.actions[1:]) == ({C1}, ())

    def test_its_successor_holds_shards_again(self) -> None:
        roll = Roll()
        roll.step()
        assert emptied(roll.step(30, consumers=(OLD[0], *pods(1, ready=False)))) == set()

    def test_a_picture_from_before_it_was_told_is_not_believed(self) -> None:
        roll = Roll()
        roll.step(held=self.all_to_the_other)
        assert roll.step(SETTLE / 2).actions[1:] == ()
        assert roll.step(SETTLE).actions[1:] == (DeletePod("clicks-1", "uid-1", WHY),)

    def test_it_goes_with_its_shards_when_the_drain_timeout_has_passed(self) -> None:
        roll = Roll()
        roll.step()
        assert roll.step(59).actions[1:] == ()
        assert roll.step(1).actions[1:] == (DeletePod("clicks-1", "uid-1", WHY),)

    def test_one_alone_has_nobody_to_give_its_shards_to(self) -> None:
        roll = Roll()
        alone = roll.step(consumers=OLD[:1], set=OwnedSet(replicas=1), held=view(shards(4)))
        assert (emptied(alone), alone.actions[1:]) == (set(), (DeletePod("clicks-0", "uid-0", WHY),))

    def test_nor_has_one_beside_those_that_are_cordoned(self) -> None:
        roll = Roll()
        first, second = OLD
        planned = roll.step(consumers=(replace(first, cordoned=True), second))
        assert planned.actions[1:] == (DeletePod("clicks-1", "uid-1", WHY),)

    def test_progress_is_told(self) -> None:
        roll = Roll()
        roll.step(consumers=(OLD[0], *pods(1)))
        assert roll.rollout() == {
            "state": "Progressing",
            "updated": 1,
            "total": 2,
            "target": "now",
            "proven": "before",
        }
        roll.step(10, consumers=(*pods(0, ready=False), *pods(1)))
        assert roll.rollout()["progressTime"] == "2023-11-14T22:13:30Z"
        done = roll.step(60, consumers=pods(0, 1))
        assert roll.rollout() == {
            "state": "Complete",
            "updated": 2,
            "total": 2,
            "target": "now",
            "proven": "now",
        }
        assert Event("RolledOut", "2 of 2 consumers run what generation 1 declares.") in done.turned


def test_in_place_its_shards_wait_for_it_and_it_is_not_told_to_hold_nothing() -> None:
    roll = Roll(strategy=RolloutStrategy.IN_PLACE)
    planned = roll.step()
    assert (emptied(planned), planned.actions[1:]) == (set(), (DeletePod("clicks-1", "uid-1", WHY),))
    assert emptied(roll.step(1, consumers=(OLD[0], *pods(1, current=False, deleting=True)))) == set()


class TestGoingBack:
    broken = (OLD[0], *pods(1, ready=False, trouble=Trouble(CRASH_LOOPING, "The application in pod clicks-1 ended.")))
    why = (
        "What generation 1 declares did not run within spec.rollout.progressDeadline (100 s): "
        "The application in pod clicks-1 ended."
    )

    def begun(self) -> Roll:
        roll = Roll(progress_deadline=100.0)
        roll.step(consumers=self.broken)
        return roll

    def test_a_new_declaration_that_does_not_run_in_time_is_taken_back(self) -> None:
        roll = self.begun()
        assert roll.step(99).actions[1:] == ()
        back = roll.step(1)
        assert back.actions[1:] == (RollBack(2, self.why),)
        assert back.done == (Event("RolledBack", f"{self.why} All pods go back to what ran before.", warning=True),)

    def test_each_consumer_that_runs_it_gives_it_time_anew(self) -> None:
        roll = Roll(progress_deadline=100.0)
        roll.step(consumers=(OLD[0], *pods(1, ready=False)))
        roll.step(90, consumers=(OLD[0], *pods(1)))
        assert roll.step(90, consumers=(*pods(0, ready=False), *pods(1))).actions[1:] == ()

    def test_and_so_does_one_that_runs_it_beside_another_that_does_not(self) -> None:
        roll = Roll(progress_deadline=100.0)
        first, *others = self.broken
        roll.set, roll.held = replace(roll.set, replicas=3), view(shards(12))
        roll.step(consumers=(first, *others, *pods(2, ready=False)))
        began = roll.rollout()["progressTime"]
        roll.step(10, consumers=(first, *others, *pods(2)))
        assert (began, roll.rollout()["progressTime"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:13:30Z")

    def test_an_operator_that_was_restarted_goes_on_counting(self) -> None:
        roll = self.begun()
        assert roll.step(100, memory=Memory()).actions[1:] == (RollBack(2, self.why),)

    def test_one_that_ran_once_is_not_taken_back_for_what_breaks_later(self) -> None:
        roll = Roll(progress_deadline=100.0)
        roll.step(consumers=pods(0, 1))
        assert roll.step(1000, consumers=self.broken).actions[1:] == ()

    def test_there_must_be_something_to_go_back_to(self) -> None:
        roll = self.begun()
        assert roll.step(1000, set=OwnedSet(replicas=2)).actions[1:] == ()

    @pytest.mark.parametrize("pause", [{"settings": GroupSettings(paused=True)}, {"pauses": Pauses(reconcile=True)}])
    def test_the_time_of_a_pause_does_not_count(self, pause: dict[str, Any]) -> None:
        roll = self.begun()
        roll.step(10, declared=replace(roll.declared, **pause))
        roll.step(1000)
        unpaused = declared(rollout=RolloutSettings(progress_deadline=100.0))
        assert roll.step(1, declared=unpaused).actions[1:] == ()
        assert roll.step(100).actions[1:] == (RollBack(2, self.why),)

    def test_what_was_taken_back_is_told_until_something_else_is_declared(self) -> None:
        roll = self.begun()
        roll.step(100)
        rejected = replace(roll.declared, rejected=self.why, template_hash="before")
        roll.step(5, declared=rejected, consumers=pods(0, 1))
        assert (roll.rollout()["state"], roll.rollout()["message"]) == ("RolledBack", self.why)
        message = f"{self.why} All pods went back to what ran before: change spec.application."
        assert condition(roll, "Stalled") == ("True", "RolledBack", message)
        roll.step(5, declared=replace(roll.declared, rejected="", template_hash="better"), consumers=pods(0, 1))
        assert condition(roll, "Stalled")[:2] == ("False", "NotStalled")


def condition(roll: Roll, kind: str) -> tuple[str, str, str]:
    """A condition of the status: status, reason, message."""
    return next((c["status"], c["reason"], c["message"]) for c in roll.previous["conditions"] if c["type"] == kind)
