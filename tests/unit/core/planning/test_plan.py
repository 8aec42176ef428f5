"""What the planner does, policy by policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.model.nouns import Condition, ConsumerId, GroupSettings, GroupSpec, Incarnation, Reset, ResetTo, ShardState
from shardherd.core.model.reasons import IMAGE_UNAVAILABLE
from shardherd.core.planning.observed import ExecutorPod, Memory, Owned, OwnedSet, Pauses, Scaling, ScalingMode, Trouble
from shardherd.core.planning.plan import (
    REPLACE_AFTER,
    Action,
    ApplyBudget,
    ApplyService,
    ApplyStatefulSet,
    DeletePod,
    Event,
    PublishTrust,
    ReportDeath,
    TellCoordinator,
    plan,
)
from tests.unit.core.planning.builders import IDENTITY, NOW, consumers, declared, observation, pods, shards, view

C0, C1, C2 = (ConsumerId(f"clicks-{ordinal}") for ordinal in range(3))
DEAD = Incarnation("uid-0", 1)


def actions(**fields: object) -> tuple[Action, ...]:
    """The actions for an ordinary group with these differences, without what is told to the coordinator each time."""
    planned = plan(observation(**fields)).actions
    assert isinstance(planned[0], TellCoordinator)
    return planned[1:]


def spec(wanted: int, *leaving: ConsumerId) -> TellCoordinator:
    """What the coordinator is told of the ordinary group."""
    source, settings = declared().source, declared().settings
    return TellCoordinator(GroupSpec(IDENTITY, source, settings, wanted, frozenset(leaving), "shardherd-spark"))


def test_a_group_that_is_as_declared_is_left_alone() -> None:
    planned = plan(observation())
    assert (planned.actions, planned.done, planned.proven, planned.decision.desired) == ((spec(2),), (), "now", 2)


def test_a_new_group_gets_its_service_its_budget_and_then_its_consumers() -> None:
    planned = plan(observation(stateful_set=None, service=None, budget=None, consumers=()))
    assert planned.actions == (spec(2), ApplyService(), ApplyBudget(), ApplyStatefulSet(2))
    why = "8 shards to read, 4 for each consumer: 2 consumers."
    assert planned.done == (Event("ScaledUp", f"From 0 to 2 consumers. {why}", cause="FollowingShards"),)


def test_no_consumer_is_started_before_the_shards_are_known() -> None:
    fresh = observation(stateful_set=None, service=None, budget=None, consumers=(), view=None)
    assert plan(fresh).actions == (spec(0), ApplyService(), ApplyBudget())


def test_objects_that_are_not_as_declared_are_applied_again() -> None:
    stale = Owned(current=False)
    assert actions(service=stale, budget=stale, stateful_set=OwnedSet(current=False, replicas=2)) == (
        ApplyService(),
        ApplyBudget(),
        ApplyStatefulSet(2),
    )


def test_nothing_that_belongs_to_somebody_else_is_touched() -> None:
    theirs = OwnedSet(ours=False, current=False, replicas=5)
    assert actions(stateful_set=theirs, service=None, budget=None, consumers=()) == ()


def test_more_shards_scale_out_at_once_and_it_is_told() -> None:
    planned = plan(observation(view=view(shards(12))))
    assert planned.actions == (spec(3), ApplyStatefulSet(3))
    why = "12 shards to read, 4 for each consumer: 3 consumers."
    assert planned.done == (Event("ScaledUp", f"From 2 to 3 consumers. {why}", cause="FollowingShards"),)


def test_fewer_shards_drain_the_highest_ordinal_before_it_goes() -> None:
    drained = view(shards(4))
    first = plan(observation(view=drained))
    assert first.actions == (spec(1, C1),)
    assert first.memory.draining_since == {C1: NOW}
    second = plan(observation(view=drained, memory=first.memory, now=NOW + 5))
    assert second.actions == (spec(1, C1), ApplyStatefulSet(1))
    why = "4 shards to read, 4 for each consumer: 1 consumer."
    assert second.done == (Event("ScaledDown", f"From 2 to 1 consumer. {why}", cause="FollowingShards"),)


def test_a_group_that_is_being_deleted_is_left_to_its_owner_references() -> None:
    planned = plan(observation(declared=declared(deleting=True), stateful_set=None, service=None))
    assert planned.actions == ()
    assert planned.done == ()


def test_deaths_are_reported_before_anything_else_is_done() -> None:
    planned = plan(observation(deaths=((C0, DEAD),), service=None))
    assert planned.actions == (spec(2), ReportDeath(C0, DEAD), ApplyService())


@pytest.mark.parametrize(
    ("declares", "executors", "expected"),
    [
        pytest.param(0, (), False, id="none"),
        pytest.param(2, (), True, id="declared, and none has been seen"),
        pytest.param(0, (ExecutorPod("e", "e1", DEAD),), True, id="one of a pod from before they were given up"),
        pytest.param(0, (ExecutorPod("e", "e1", DEAD, ended=True, deleting=True),), False, id="one that has ended"),
    ],
)
def test_the_coordinator_is_told_whether_executors_may_outlive_their_driver(
    declares: int, executors: tuple[ExecutorPod, ...], expected: bool
) -> None:
    first = plan(observation(declared=declared(executors=declares), executors=executors)).actions[0]
    assert isinstance(first, TellCoordinator)
    assert first.spec.executors is expected


def test_executors_of_a_dead_driver_are_deleted_and_others_are_not() -> None:
    executors = (
        ExecutorPod("clicks-0-1-exec-1", "e1", DEAD),
        ExecutorPod("clicks-0-1-exec-2", "e2", DEAD, deleting=True),
        ExecutorPod("clicks-0-2-exec-1", "e3", Incarnation("uid-0", 2)),
        ExecutorPod("clicks-1-1-exec-1", "e4", Incarnation("uid-1", 1)),
    )
    assert actions(executors=executors, dead=(DEAD,)) == (DeletePod("clicks-0-1-exec-1", "e1", "its driver is dead"),)


@pytest.mark.parametrize(("vary", "deleted"), [(True, (DeletePod("given-back", "e1", "it has ended"),)), (False, ())])
def test_executors_that_spark_gave_back_are_deleted_where_it_does_not_do_so_itself(
    vary: bool, deleted: tuple[Action, ...]
) -> None:
    run = Incarnation("uid-0", 1)
    executors = (
        ExecutorPod("given-back", "e1", run, ended=True),
        ExecutorPod("going", "e2", run, deleting=True, ended=True),
        ExecutorPod("running", "e3", run),
    )
    assert actions(declared=declared(executors=4, executors_vary=vary), executors=executors) == deleted


def test_executors_of_a_dead_driver_are_deleted_once() -> None:
    run = Incarnation("uid-0", 1)
    executors = (ExecutorPod("ended", "e1", run, ended=True),)
    seen = observation(declared=declared(executors=4, executors_vary=True), executors=executors, dead=(run,))
    assert [action.name for action in plan(seen).actions if isinstance(action, DeletePod)] == ["ended"]


def test_the_end_of_a_later_start_proves_the_end_of_earlier_ones() -> None:
    executors = (ExecutorPod("clicks-0-1-exec-1", "e1", DEAD),)
    later = (Incarnation("uid-0", 3),)
    assert actions(executors=executors, dead=later) == (DeletePod("clicks-0-1-exec-1", "e1", "its driver is dead"),)


class TestAConsumerThatHangs:
    """It is neither ready nor heard any more, and would end by itself if it could: its pod is replaced."""

    hanging = pods(0, ready=False, running=True)
    seen = observation(consumers=(*hanging, *pods(1)), view=view(shards(8), silent=((C0, DEAD),)))
    limit = seen.declared.settings.progress_timeout
    why = "it stayed silent for spec.progressTimeout, and is not ready"

    def after(self, seconds: float, **fields: object) -> tuple[Action, ...]:
        memory = plan(self.seen).memory
        return plan(replace(self.seen, now=NOW + seconds, memory=memory, **fields)).actions[1:]  # type: ignore[arg-type]

    def test_is_given_time_to_come_back(self) -> None:
        assert self.after(self.limit - 1) == ()

    def test_is_given_that_time_once(self) -> None:
        later = plan(replace(self.seen, now=NOW + 10, memory=plan(self.seen).memory))
        assert later.memory.hanging_since == {"uid-0": NOW}

    def test_is_replaced_after_that(self) -> None:
        assert self.after(self.limit) == (DeletePod("clicks-0", "uid-0", self.why),)

    def test_is_left_alone_while_nothing_is_to_be_changed(self) -> None:
        declared = replace(self.seen.declared, pauses=Pauses(reconcile=True))
        assert DeletePod("clicks-0", "uid-0", self.why) not in self.after(self.limit, declared=declared)

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"consumers": pods(0, 1)}, id="it is ready, so it is cut off from us"),
            pytest.param(
                {"consumers": (*pods(0, ready=False, running=True, answers=True), *pods(1))},
                id="its node is silent, and the kubelet heard it last",
            ),
            pytest.param({"consumers": (*pods(0, ready=False), *pods(1))}, id="its container does not run"),
            pytest.param({"consumers": (*pods(0, ready=False, running=True, deleting=True), *pods(1))}, id="it goes already"),
            pytest.param({"view": view(shards(8))}, id="the coordinator hears it again"),
            pytest.param({"view": view(shards(8), silent=((C0, Incarnation("uid-9", 2)),))}, id="another pod was silent"),
            pytest.param({"view": None}, id="the coordinator does not show it"),
            pytest.param({"dead": (DEAD,)}, id="its container was started again"),
        ],
    )
    def test_is_left_alone_and_has_all_of_its_time_anew_when_it_does_not_hang(self, changed: dict[str, Any]) -> None:
        between = replace(self.seen, now=NOW + 10, memory=plan(self.seen).memory, **changed)
        planned = plan(between)
        assert DeletePod("clicks-0", "uid-0", self.why) not in planned.actions
        again = replace(self.seen, now=NOW + 10 + self.limit - 1, memory=planned.memory)
        assert plan(again).actions[1:] == ()


class TestAnExpiredConsumer:
    """Its agent ends it when it is told; if it does not, its pod is replaced."""

    seen = observation(view=view(shards(8), expired=((C0, DEAD),)))

    def after(self, seconds: float, **fields: object) -> tuple[Action, ...]:
        memory = plan(self.seen).memory
        return plan(replace(self.seen, now=NOW + seconds, memory=memory, **fields)).actions[1:]  # type: ignore[arg-type]

    def test_is_given_time_to_end_by_itself(self) -> None:
        assert self.after(REPLACE_AFTER - 1) == ()

    def test_is_replaced_after_that(self) -> None:
        assert self.after(REPLACE_AFTER) == (DeletePod("clicks-0", "uid-0", "it was expired and did not end"),)

    def test_is_left_alone_once_it_has_ended(self) -> None:
        assert self.after(REPLACE_AFTER, dead=(DEAD,)) == ()

    def test_is_left_alone_once_a_newer_one_is_accepted(self) -> None:
        assert self.after(REPLACE_AFTER, view=view(shards(8))) == ()

    def test_is_replaced_whoever_else_has_expired(self) -> None:
        gone, second = Incarnation("uid-gone", 1), Incarnation("uid-1", 1)
        both = view(shards(8), expired=((C0, gone), (C1, second)))
        memory = plan(observation(view=both)).memory
        planned = plan(observation(view=both, memory=memory, now=NOW + REPLACE_AFTER))
        assert planned.actions[1:] == (DeletePod("clicks-1", "uid-1", "it was expired and did not end"),)

    def test_is_left_alone_while_the_coordinator_does_not_show_it(self) -> None:
        assert self.after(REPLACE_AFTER, view=None) == ()

    def test_is_not_deleted_twice(self) -> None:
        assert self.after(REPLACE_AFTER, consumers=(*pods(0, deleting=True), *pods(1))) == ()

    def test_is_no_matter_if_its_pod_was_replaced_by_another(self) -> None:
        assert self.after(REPLACE_AFTER, consumers=(replace(pods(0)[0], uid="other"), *pods(1))) == ()


class TestASupersededPod:
    """A late request of an earlier pod of its name was heard after its own: it is refused for ever, and replaced at once."""

    refused = view(shards(8), superseded=((C0, "uid-old"), (C0, "uid-0"), (C1, "uid-0")))
    gone = DeletePod("clicks-0", "uid-0", "another pod of its name was heard after it, so the coordinator refuses it")

    def test_is_deleted_with_an_event(self) -> None:
        planned = plan(observation(view=self.refused))
        assert planned.actions == (spec(2), self.gone)
        message = (
            "Pod clicks-0 (UID uid-0) is refused by the coordinator: another pod of its name was heard after it."
            " It is deleted, and made anew."
        )
        assert planned.done == (Event("PodSuperseded", message, warning=True),)

    def test_is_not_deleted_twice(self) -> None:
        planned = plan(observation(view=self.refused, consumers=(*pods(0, deleting=True), *pods(1))))
        assert (planned.actions, planned.done) == ((spec(2),), ())

    def test_is_no_matter_once_another_is_there(self) -> None:
        planned = plan(observation(view=self.refused, consumers=(replace(pods(0)[0], uid="uid-new"), *pods(1))))
        assert (planned.actions, planned.done) == ((spec(2),), ())

    def test_is_left_alone_while_the_reconcile_is_paused_or_the_group_is_deleted(self) -> None:
        for declaration in (replace(declared(), pauses=Pauses(reconcile=True)), replace(declared(), deleting=True)):
            planned = plan(observation(view=self.refused, declared=declaration))
            assert (self.gone in planned.actions, planned.done) == (False, ())


class TestEvents:
    """What turned is told once."""

    def test_a_group_that_became_ready_says_so(self) -> None:
        assert plan(observation()).turned == (Event("Ready", "2 consumers read 8 shards."),)

    def test_and_does_not_repeat_itself(self) -> None:
        seen = observation()
        assert plan(replace(seen, previous=plan(seen).status)).turned == ()

    def test_one_cause_of_two_conditions_is_one_event(self) -> None:
        trouble = Trouble(IMAGE_UNAVAILABLE, 'Pod clicks-0 cannot get the image "x" (ErrImageNeverPull)')
        planned = plan(observation(consumers=pods(0, 1, ready=False, trouble=trouble)))
        assert planned.turned == (Event(IMAGE_UNAVAILABLE, trouble.message, warning=True),)

    def test_a_source_that_went_away_is_a_warning(self) -> None:
        lost = view(shards(8), consumers=consumers(4, 4), source_reachable=False, source_error="no broker at kafka:9092")
        assert plan(observation(view=lost)).turned == (Event("SourceUnavailable", "no broker at kafka:9092", warning=True),)

    def test_starting_is_no_news(self) -> None:
        assert plan(observation(consumers=pods(0, 1, ready=False))).turned == ()
        assert plan(observation(view=None, stateful_set=None, consumers=())).turned == ()

    def test_what_is_bad_for_another_reason_is_told_anew_and_what_is_good_again_is_not(self) -> None:
        before = [
            {"type": "Ready", "status": "True", "reason": "Consuming"},
            {"type": "Stalled", "status": "True", "reason": "ImageUnavailable"},
            {"type": "SourceReachable", "status": "False", "reason": "SourceUnavailable"},
            {"type": "ConsumersReady", "status": "False", "reason": "ImageUnavailable"},
            {"type": "CheckpointLost", "status": "False", "reason": "CheckpointsKept"},
        ]
        crashing = pods(0, 1, ready=False, trouble=Trouble("CrashLooping", "it crashed"))
        seen = observation(consumers=crashing, previous={"conditions": before})
        assert plan(seen).turned == (Event("CrashLooping", "it crashed", warning=True),)
        lost = view(shards(8), consumers=consumers(4, 4), withheld=(Condition("CheckpointLost", "clicks/3 had 500."),))
        seen = observation(view=lost, previous={"conditions": before})
        assert plan(seen).turned == (Event("CheckpointLost", "clicks/3 had 500.", warning=True),)

    def test_that_there_will_be_fewer_is_told_when_it_is_decided(self) -> None:
        fewer: dict[str, Any] = {"view": view(shards(4)), "previous": {"scaling": {"desired": 2}}}
        why = "From 2 to 1 consumer, once the last have drained. 4 shards to read, 4 for each consumer: 1 consumer."
        draining = Event("Draining", why, cause="FollowingShards")
        assert draining in plan(observation(**fewer)).turned
        unlikes: list[dict[str, Any]] = [{"stateful_set": None}, {"previous": {"scaling": {"desired": 1}}}, {"previous": {}}]
        for unlike in unlikes:
            assert draining.reason not in {event.reason for event in plan(observation(**{**fewer, **unlike})).turned}

    def test_of_nobody_wanted_nothing_is_told_where_nothing_was_decided_before(self) -> None:
        nobody = declared(scaling=Scaling(mode=ScalingMode.FIXED), replicas=0)
        assert "Draining" not in {event.reason for event in plan(observation(declared=nobody)).turned}

    def test_a_recommendation_is_told_when_it_changes(self) -> None:
        advised = declared(scaling=Scaling(recommend_only=True))
        said = "8 shards to read, 4 for each consumer: 2 consumers."
        message = f"spec.scaling.recommendOnly is true: 2 recommended (FollowingShards). {said}"
        recommended = Event("ScaleRecommended", message, cause="RecommendOnly")
        three = {"recommendedReplicas": 3, "scaling": {"desired": 2}}
        assert recommended in plan(observation(declared=advised, previous=three)).turned
        assert recommended not in plan(observation(declared=advised, previous={"recommendedReplicas": 2})).turned

    def test_a_rollout_that_is_done_is_told(self) -> None:
        before = {"state": "Progressing", "target": "now", "proven": "old"}
        done = Event("RolledOut", "2 of 2 consumers run what generation 1 declares.")
        assert done in plan(observation(previous={"rollout": before})).turned
        for unlike in ({"state": "Complete"}, {"proven": ""}):
            assert done not in plan(observation(previous={"rollout": {**before, **unlike}})).turned
        assert done not in plan(observation(previous={"rollout": before}, consumers=pods(0))).turned
        one: dict[str, Any] = {"stateful_set": OwnedSet(replicas=1), "consumers": pods(0), "view": view(shards(4))}
        done = Event("RolledOut", "1 of 1 consumer runs what generation 1 declares.")
        assert done in plan(observation(previous={"rollout": before}, **one)).turned


def test_the_coordinator_is_told_who_is_cordoned_and_since_when_there_is_the_group() -> None:
    first, second = pods(0, 1)
    planned = plan(
        observation(
            declared=replace(declared(), created="2026-01-01T00:00:00Z"), consumers=(first, replace(second, cordoned=True))
        )
    )
    (spec,) = [action.spec for action in planned.actions if isinstance(action, TellCoordinator)]
    assert (spec.cordoned, spec.created) == (frozenset({C1}), "2026-01-01T00:00:00Z")


class TestTheAnnotationThatPausesTheReconcile:
    paused = declared(pauses=Pauses(reconcile=True))

    def test_keeps_every_object_as_it_is(self) -> None:
        stale = Owned(current=False)
        seen = observation(
            declared=self.paused,
            service=stale,
            budget=stale,
            stateful_set=OwnedSet(current=False, replicas=5),
            consumers=pods(0, 1, current=False, ready=False),
            view=view(shards(40)),
        )
        assert plan(seen).actions == ()

    def test_lets_deaths_be_reported(self) -> None:
        assert plan(observation(declared=self.paused, deaths=((C0, DEAD),))).actions == (ReportDeath(C0, DEAD),)

    def test_lets_a_coordinator_that_just_started_know_of_the_group(self) -> None:
        planned = plan(observation(declared=self.paused, view=None)).actions
        assert planned == (spec(2),)

    def test_is_told_in_the_conditions(self) -> None:
        conditions = plan(observation(declared=self.paused)).status["conditions"]
        assert isinstance(conditions, list)
        found = {item["type"]: (item["status"], item["reason"]) for item in conditions}
        assert (found["Reconciling"], found["ScalingActive"]) == (("False", "ReconcilePaused"), ("False", "ReconcilePaused"))

    def test_starts_no_group_and_does_not_say_that_it_does(self) -> None:
        unread = view(shards(8, state=ShardState.NOT_ALLOC))
        seen = observation(declared=self.paused, stateful_set=None, service=None, budget=None, consumers=(), view=unread)
        planned = plan(seen)
        conditions = planned.status["conditions"]
        assert isinstance(conditions, list)
        found = {item["type"]: (item["status"], item["reason"]) for item in conditions}
        assert (planned.actions, planned.status["desiredReplicas"]) == ((), 0)
        expected = {"Ready": ("False", "ShardsUnassigned"), "Reconciling": ("False", "ReconcilePaused")}
        assert {kind: found[kind] for kind in expected} == expected

    def test_lets_no_pod_go_whose_stateful_set_somebody_took_away(self) -> None:
        planned = plan(observation(declared=self.paused, stateful_set=None, view=None)).actions
        assert planned == (spec(2),)


def test_the_coordinator_is_told_that_the_rebalance_is_paused() -> None:
    first = plan(observation(declared=declared(pauses=Pauses(rebalance=True)))).actions[0]
    assert isinstance(first, TellCoordinator)
    assert first.spec.rebalance_paused


def test_the_coordinator_is_told_of_a_declared_reset() -> None:
    reset = Reset("r1", ResetTo.LATEST)
    first = plan(observation(declared=declared(reset=reset))).actions[0]
    assert isinstance(first, TellCoordinator)
    assert first.spec.reset == reset


def test_a_consumer_that_will_not_drain_is_named_with_its_shards() -> None:
    held = (*shards(2), *shards(2, holder=C1))
    first = plan(observation(view=view(held)))
    late = plan(observation(view=view(held), memory=first.memory, now=NOW + 60))
    assert late.actions[1:] == (ApplyStatefulSet(1),)
    assert late.done[-1] == Event(
        "DrainTimedOut",
        "clicks-1 did not give up clicks/0, clicks/1 within spec.drainTimeout (60 s): it is ended, and fenced.",
        warning=True,
    )
    conditions = late.status["conditions"]
    assert isinstance(conditions, list)
    (reconciling,) = [item for item in conditions if item["type"] == "Reconciling"]
    assert (reconciling["reason"], reconciling["message"]) == (
        "DrainTimedOut",
        "clicks-1 did not give up all shards within spec.drainTimeout (60 s) and is ended.",
    )


def test_one_whose_pod_the_stateful_set_counts_no_more_is_not_named_again() -> None:
    held = (*shards(1), *shards(2, holder=C1), *shards(1, holder=ConsumerId("clicks-2")))
    seen = {"view": view(held), "consumers": (*pods(0, 1), *pods(2, deleting=True)), "stateful_set": OwnedSet(replicas=2)}
    first = plan(observation(**seen))
    late = plan(observation(**seen, memory=first.memory, now=NOW + 60))
    assert late.actions[1:] == (ApplyStatefulSet(1),)
    assert [event.message.split()[0] for event in late.done if event.reason == "DrainTimedOut"] == ["clicks-1"]


@pytest.mark.parametrize(
    ("count", "held"), [(3, "clicks/0, clicks/1, clicks/2"), (4, "clicks/0, clicks/1, clicks/2 and others")]
)
def test_of_a_consumer_that_will_not_drain_the_first_three_shards_are_named(count: int, held: str) -> None:
    seen = {"view": view(shards(count, holder=C1)), "declared": declared(scaling=Scaling(mode=ScalingMode.FIXED), replicas=1)}
    first = plan(observation(**seen))
    late = plan(observation(**seen, memory=first.memory, now=NOW + 60))
    message = f"clicks-1 did not give up {held} within spec.drainTimeout (60 s): it is ended, and fenced."
    assert late.done[-1] == Event("DrainTimedOut", message, warning=True)
    unseen = plan(observation(**{**seen, "view": None}, memory=first.memory, now=NOW + 60))
    message = "clicks-1 did not give up its shards within spec.drainTimeout (60 s): it is ended, and fenced."
    assert unseen.done[-1] == Event("DrainTimedOut", message, warning=True)


def test_authorities_that_the_namespace_does_not_have_are_published_before_the_pods_that_mount_them() -> None:
    fresh = plan(observation(trust_current=False, stateful_set=None, service=None, budget=None, consumers=()))
    assert fresh.actions == (spec(2), PublishTrust(), ApplyService(), ApplyBudget(), ApplyStatefulSet(2))


@pytest.mark.parametrize("kind", ["stateful_set", "service", "budget"])
def test_nothing_is_applied_beside_an_object_that_belongs_to_somebody_else(kind: str) -> None:
    mine: dict[str, object] = {"stateful_set": OwnedSet(current=False, replicas=2), "service": None, "budget": None}
    theirs = OwnedSet(ours=False, replicas=2) if kind == "stateful_set" else Owned(ours=False)
    assert actions(**{**mine, kind: theirs}) == ()
    old = pods(0, 1, current=False, ready=False)
    assert actions(**{kind: theirs}, consumers=old) == ()


def test_pods_that_call_another_operator_are_replaced_at_once_as_none_of_them_can_drain() -> None:
    foreign = pods(0, 1, current=False, foreign=True)
    why = "it calls an operator that does not serve its group any more"
    assert actions(consumers=foreign) == (DeletePod("clicks-0", "uid-0", why), DeletePod("clicks-1", "uid-1", why))
    assert actions(consumers=(foreign[0], replace(foreign[1], deleting=True))) == (DeletePod("clicks-0", "uid-0", why),)
    # What a paused group has read is checkpointed, so that is the time to move it.
    assert actions(consumers=foreign, declared=declared(settings=GroupSettings(paused=True))) == actions(consumers=foreign)
    # Their successors come back for what they held: while they go, nobody is told to give anything up.
    going = tuple(replace(pod, deleting=True) for pod in foreign)
    assert actions(consumers=going) == ()
    # First the template is ours, or the same pods would be made again.
    assert actions(consumers=foreign, stateful_set=OwnedSet(current=False, replicas=2))[0] == ApplyStatefulSet(2)
    assert not any(
        isinstance(each, DeletePod) for each in actions(consumers=foreign, stateful_set=OwnedSet(current=False, replicas=2))
    )


def test_a_pod_of_an_older_declaration_that_is_not_ready_is_replaced_unless_it_goes_anyway() -> None:
    ready, old = pods(0, 1), pods(2, 3, current=False, ready=False)
    going = replace(old[0], deleting=True)
    why = "it is not ready and was made from an older declaration"
    three = {"view": view(shards(12)), "stateful_set": OwnedSet(replicas=3)}
    assert actions(consumers=(*ready, *old), **three) == (DeletePod("clicks-2", "uid-2", why),)
    assert actions(consumers=(*ready, going), **three) == ()


def test_one_that_will_not_drain_is_not_named_while_it_stays_because_of_another() -> None:
    c2, c3 = ConsumerId("clicks-2"), ConsumerId("clicks-3")
    held = (*shards(2), *shards(1, holder=C1), *shards(1, holder=c2))
    since = {C1: NOW - 60, c2: NOW - 5, c3: NOW - 5}
    seen = observation(
        view=view(held), stateful_set=OwnedSet(replicas=4), consumers=pods(0, 1, 2, 3), memory=Memory(draining_since=since)
    )
    planned = plan(seen)
    assert planned.actions[1:] == (ApplyStatefulSet(3),)
    assert [event.reason for event in planned.done] == ["ScaledDown"]
