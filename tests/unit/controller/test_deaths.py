"""What proves that an incarnation is dead, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.controller.deaths import Deaths
from shardherd.core.model.nouns import ConsumerId, Incarnation
from tests.unit.controller.builders import driver_pod, executor_pod, terminated

UID = "aaaaaaaa-0000-0000-0000-000000000000"
C0 = ConsumerId("clicks-0")
FIRST, SECOND = Incarnation(UID, 1), Incarnation(UID, 2)


def seen(*pods: dict[str, Any], gone: bool = False) -> Deaths:
    deaths = Deaths()
    for pod in pods:
        deaths.see(pod, gone=gone)
    return deaths


def test_a_running_driver_is_not_dead() -> None:
    assert seen(driver_pod()).dead() == ()


def test_a_terminated_container_names_who_died() -> None:
    assert seen(driver_pod(state=terminated(1))).proven(ordered=False, executors=0) == ((C0, FIRST),)


def test_the_last_state_of_a_container_that_runs_again_is_proof_too() -> None:
    again = driver_pod(state={"running": {}}, lastState=terminated(2), restartCount=2)
    assert seen(again).proven(ordered=False, executors=0) == ((C0, SECOND),)


def test_the_latest_end_is_kept() -> None:
    deaths = seen(driver_pod(state=terminated(2), lastState=terminated(1)), driver_pod(lastState=terminated(1)))
    assert deaths.dead() == (SECOND,)


def test_a_pod_that_went_with_its_status_is_proof() -> None:
    assert seen(driver_pod(state=terminated(1)), gone=True).dead() == (FIRST,)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(driver_pod(), id="it vanished while it ran"),
        pytest.param(driver_pod(state=terminated(None)), id="its container does not say which start it was"),
        pytest.param(driver_pod(state=terminated(1, reason="ContainerStatusUnknown")), id="the kubelet does not know"),
        pytest.param(driver_pod(state={"terminated": {"message": "not JSON"}}), id="the message is something else"),
        pytest.param(driver_pod(state={"terminated": {"message": '{"start": "1"}'}}), id="the start is not a number"),
        pytest.param(driver_pod(state={"waiting": {"reason": "CrashLoopBackOff"}}), id="it waits"),
    ],
)
def test_what_proves_nothing(pod: dict[str, Any]) -> None:
    assert seen(pod, gone=True).dead() == ()


class TestAnOrderedGroup:
    """The executors of the incarnation must have ended, too."""

    def proven(self, *executors: dict[str, Any], gone: bool = False) -> tuple[object, ...]:
        deaths = seen(driver_pod(state=terminated(2)))
        for executor in executors:
            deaths.see(executor, gone=gone)
        assert deaths.dead() == (SECOND,)
        return deaths.proven(ordered=True, executors=2)

    def test_a_running_executor_is_in_the_way(self) -> None:
        assert self.proven(executor_pod(1, SECOND, **terminated(None)), executor_pod(2, SECOND)) == ()

    def test_all_executors_ended(self) -> None:
        ended = [executor_pod(number, SECOND, **terminated(None)) for number in (1, 2)]
        assert self.proven(*ended) == ((C0, SECOND),)

    def test_an_executor_of_an_earlier_start_is_in_the_way(self) -> None:
        assert self.proven(executor_pod(1, SECOND, **terminated(None)), executor_pod(2, FIRST)) == ()

    def test_an_executor_of_a_later_start_is_not(self) -> None:
        later = executor_pod(2, Incarnation(UID, 3))
        assert self.proven(executor_pod(1, SECOND, **terminated(None)), later) == ((C0, SECOND),)

    def test_an_executor_that_vanished_while_it_ran_proves_nothing(self) -> None:
        assert self.proven(executor_pod(1, SECOND), gone=True) == ()

    def test_an_executor_that_never_got_a_node_and_went_never_ran(self) -> None:
        assert self.proven(executor_pod(1, SECOND, node=""), gone=True) == ((C0, SECOND),)

    def test_an_executor_that_has_no_node_yet_may_still_get_one(self) -> None:
        assert self.proven(executor_pod(1, SECOND, node="")) == ()

    def test_no_executor_at_all_means_that_we_did_not_look_in_time(self) -> None:
        assert self.proven() == ()

    def test_an_executor_once_seen_ended_stays_ended(self) -> None:
        assert self.proven(executor_pod(1, SECOND, **terminated(None)), executor_pod(1, SECOND)) == ((C0, SECOND),)

    def test_what_is_known_of_a_start_does_not_wait_for_what_is_not_of_the_next(self) -> None:
        """The second start ended before it had made an executor, or before we looked: of the first one all is known."""
        assert self.proven(executor_pod(1, FIRST, **terminated(None))) == ((C0, FIRST),)

    def test_of_two_starts_with_executors_the_one_whose_all_have_ended_is_proven(self) -> None:
        assert self.proven(executor_pod(1, FIRST, **terminated(None)), executor_pod(2, SECOND)) == ((C0, FIRST),)

    def test_executors_of_other_pods_prove_and_hinder_nothing(self) -> None:
        other = "bbbbbbbb-0000-0000-0000-000000000000"
        assert self.proven(executor_pod(1, Incarnation(other, 2), **terminated(None))) == ()
        ours = executor_pod(1, SECOND, **terminated(None))
        assert self.proven(executor_pod(2, Incarnation(other, 1)), ours) == ((C0, SECOND),)

    @pytest.mark.parametrize(("state", "proven"), [({}, ()), (terminated(None), ((C0, SECOND),))], ids=["runs", "ended"])
    def test_an_executor_of_a_pod_from_before_they_were_given_up_is_waited_for(
        self, state: dict[str, Any], proven: tuple[object, ...]
    ) -> None:
        deaths = seen(driver_pod(state=terminated(2)), executor_pod(1, FIRST, **state))
        assert deaths.proven(ordered=True, executors=0) == proven

    def test_without_executors_the_driver_is_enough(self) -> None:
        assert seen(driver_pod(state=terminated(2))).proven(ordered=True, executors=0) == ((C0, SECOND),)


class TestReporting:
    proof = ((C0, SECOND),)

    def test_a_proof_is_reported_once(self) -> None:
        deaths = Deaths()
        assert deaths.unreported(self.proof, ()) == self.proof
        deaths.reported(SECOND)
        assert deaths.unreported(self.proof, ()) == ()

    @pytest.mark.parametrize("listed", [FIRST, SECOND])
    def test_and_again_while_the_coordinator_still_lists_the_dead(self, listed: Incarnation) -> None:
        deaths = Deaths()
        deaths.reported(SECOND)
        assert deaths.unreported(self.proof, (listed,)) == self.proof

    def test_but_not_when_it_lists_the_one_that_came_after(self) -> None:
        deaths = Deaths()
        deaths.reported(SECOND)
        assert deaths.unreported(self.proof, (Incarnation(UID, 3),)) == ()


def test_only_so_many_pods_are_remembered() -> None:
    deaths = Deaths()
    for number in range(1000):
        deaths.see(driver_pod(uid=f"{number:08d}-0000-0000-0000-000000000000", state=terminated(1)))
    assert len(deaths.dead()) == 256
    assert deaths.dead()[-1].pod_uid.startswith("00000999")
