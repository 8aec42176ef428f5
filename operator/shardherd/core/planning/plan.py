"""What to do about a group: a pure function from an observation to actions, a status and events.

`controller.reconcile` calls `plan` and carries the result out. `POLICIES` is the whole of it: a reader scans the list top to
bottom, and each policy says in a few lines when it acts. Nothing here reads or writes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from shardherd.core.model import event_reasons
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Incarnation
from shardherd.core.model.reasons import CONSUMING, DRAIN_TIMED_OUT, RECOMMEND_ONLY, STARTING, WAITING_FOR_SHARDS, ConditionType
from shardherd.core.model.wording import count, part, some
from shardherd.core.planning.conditions import Finding, findings
from shardherd.core.planning.course import Course
from shardherd.core.planning.observed import ConsumerPod, Memory, Observation
from shardherd.core.planning.rollout import COMPLETE, PROGRESSING, Rolling
from shardherd.core.planning.scaling import Scale, remember
from shardherd.core.planning.sizing import Decision
from shardherd.core.planning.status import status

REPLACE_AFTER = 20.0
"""Seconds that an expired incarnation has to end by itself before its pod is replaced: its agent ends it after one reply."""


@dataclass(frozen=True, slots=True)
class TellCoordinator:
    """Give the coordinator this spec."""

    spec: GroupSpec


@dataclass(frozen=True, slots=True)
class ReportDeath:
    """Tell the coordinator that it is proven that this incarnation will never act again."""

    consumer: ConsumerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PublishTrust:
    """Bring the authorities by which consumers believe the coordinator to the group's namespace."""


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Apply the headless Service."""


@dataclass(frozen=True, slots=True)
class ApplyBudget:
    """Apply the PodDisruptionBudget."""


@dataclass(frozen=True, slots=True)
class ApplyStatefulSet:
    """Apply the StatefulSet with so many replicas."""

    replicas: int


@dataclass(frozen=True, slots=True)
class RollBack:
    """Apply the StatefulSet as it was declared before, with so many replicas, and note what is given up and why."""

    replicas: int
    why: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete this very pod, gracefully; `why` is for the log."""

    name: str
    uid: str
    why: str


Action = TellCoordinator | ReportDeath | PublishTrust | ApplyService | ApplyBudget | ApplyStatefulSet | RollBack | DeletePod


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell the user, as a Kubernetes Event on the group. `cause` is why a number changed, for the metrics."""

    reason: str
    message: str
    warning: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order: the actions, what to tell of them, the status (if it changed), what to tell of that.

    `course` is what all of it follows from. `proven` is the hash of the last declaration that all consumers ran.
    `memory` is for the next observation.
    """

    course: Course

    actions: tuple[Action, ...]
    done: tuple[Event, ...]
    status: Mapping[str, object]
    turned: tuple[Event, ...]
    proven: str
    memory: Memory

    @property
    def decision(self) -> Decision:
        """About the number of consumers."""
        return self.course.scale.decision


def plan(observation: Observation) -> Plan:
    """The plan for this observation. A group that is being deleted is left to its owner references."""
    course = Course.of(observation)
    found = findings(observation, course)
    actions: tuple[Action, ...] = ()
    if not observation.declared.deleting:
        policies = WHILE_PAUSED if observation.declared.pauses.reconcile else POLICIES
        actions = tuple(action for policy in policies for action in policy(observation, course))
    return Plan(
        course=course,
        actions=actions,
        done=(
            *_scale_events(observation, course.scale, actions),
            *_superseded_events(observation),
            *_rollout_events(observation, course),
        ),
        status=status(observation, course, found),
        turned=_turned(observation, course, found),
        proven=course.rolling.proven,
        memory=remember(observation, course.scale, course.rolling.draining),
    )


def after_rejections(planned: Plan, observation: Observation) -> Plan:
    """The same plan with another status: `observation` adds what was refused while it was carried out."""
    found = findings(observation, planned.course)
    return replace(
        planned,
        status=status(observation, planned.course, found),
        turned=_turned(observation, planned.course, found),
    )


def _tell_coordinator(observation: Observation, course: Course) -> Iterable[Action]:
    """Always: the wanted consumers, those that leave, and the settings. The coordinator sees whether anything changed."""
    declared = observation.declared
    if declared.pauses.reconcile and observation.view is not None:
        return
    yield TellCoordinator(
        GroupSpec(
            identity=declared.identity,
            source=declared.source,
            settings=declared.settings,
            wanted=course.scale.desired,
            leaving=course.scale.leaving,
            service_account=declared.service_account,
            created=declared.created,
            cordoned=frozenset(pod.name for pod in observation.consumers if pod.cordoned) | course.rolling.emptied,
            rebalance_paused=declared.pauses.rebalance,
            reset=declared.reset,
            # Also while pods from before a change of the declaration still have some.
            executors=declared.executors > 0 or any(not executor.ended for executor in observation.executors),
        )
    )


def _report_deaths(observation: Observation, _course: Course) -> Iterable[Action]:
    """Proof of death moves shards at once."""
    for consumer, incarnation in observation.deaths:
        yield ReportDeath(consumer, incarnation)


def _delete_executors_of_the_dead(observation: Observation, _course: Course) -> Iterable[Action]:
    """Spark does not delete executors whose driver died; their label says which driver that was."""
    for executor in observation.executors:
        if observation.is_dead(executor.incarnation) and not executor.deleting:
            yield DeletePod(executor.name, executor.uid, "its driver is dead")


def _publish_trust(observation: Observation, _course: Course) -> Iterable[Action]:
    """Before the pods, which mount it; and again whenever there is another authority."""
    if not observation.trust_current:
        yield PublishTrust()


def _delete_ended_executors(observation: Observation, _course: Course) -> Iterable[Action]:
    """What Spark gave back. In an ordered group it leaves them to us: their end is part of the proof that a driver is dead."""
    if not observation.declared.executors_vary:
        return
    for executor in observation.executors:
        if executor.ended and not executor.deleting and not observation.is_dead(executor.incarnation):
            yield DeletePod(executor.name, executor.uid, "it has ended")


def _apply_service(observation: Observation, _course: Course) -> Iterable[Action]:
    """Before the pods, which find each other by it."""
    if not observation.taken and (observation.service is None or not observation.service.current):
        yield ApplyService()


def _apply_budget(observation: Observation, _course: Course) -> Iterable[Action]:
    if not observation.taken and (observation.budget is None or not observation.budget.current):
        yield ApplyBudget()


def _apply_stateful_set(observation: Observation, course: Course) -> Iterable[Action]:
    """When there is none and consumers are wanted, when it is not as declared, and to change the number of consumers."""
    existing = observation.stateful_set
    if observation.taken or (existing is None and bool(course.scale.held)) or course.rolling.back:
        return
    if existing is None or not existing.current or existing.replicas != course.scale.replicas:
        yield ApplyStatefulSet(course.scale.replicas)


def _replace_expired(observation: Observation, _course: Course) -> Iterable[Action]:
    """An expired incarnation that did not end by itself: no heartbeat of it is accepted any more."""
    pods = {pod.uid: pod for pod in observation.consumers}
    for incarnation, since in observation.memory.expired_since.items():
        pod = pods.get(incarnation.pod_uid)
        still_expired = observation.view is not None and any(known == incarnation for _, known in observation.view.expired)
        if pod is None or pod.deleting or not still_expired or observation.is_dead(incarnation):
            continue
        if observation.now - since >= REPLACE_AFTER:
            yield DeletePod(pod.name, pod.uid, "it was expired and did not end")


def _replace_hanging(observation: Observation, _course: Course) -> Iterable[Action]:
    """Its shards are read by others already; it would end by itself, and be started again, if it could."""
    for pod in observation.hanging():
        since = observation.memory.hanging_since.get(pod.uid, observation.now)
        if observation.now - since >= observation.declared.settings.progress_timeout:
            yield DeletePod(pod.name, pod.uid, "it stayed silent for spec.progressTimeout, and is not ready")


def _replace_superseded(observation: Observation, _course: Course) -> Iterable[Action]:
    """A pod that the coordinator refuses for ever: a request of an earlier pod of its name, late, was heard after its own."""
    for pod in _superseded(observation):
        yield DeletePod(pod.name, pod.uid, "another pod of its name was heard after it, so the coordinator refuses it")


def _superseded(observation: Observation) -> Iterable[ConsumerPod]:
    refused = frozenset(observation.view.superseded) if observation.view is not None else frozenset()
    return (pod for pod in observation.consumers if (pod.name, pod.uid) in refused and not pod.deleting)


def _roll_back(_observation: Observation, course: Course) -> Iterable[Action]:
    """A new declaration did not run in time: every pod goes back to the one that did."""
    if course.rolling.back:
        yield RollBack(course.scale.replicas, course.rolling.why)


def _replace_outdated(observation: Observation, course: Course) -> Iterable[Action]:
    """Pods made from an older declaration: those that are not ready at once, the others as the rollout says.

    At once, too, those that call another operator: none of them can drain, or checkpoint what it reads meanwhile.
    """
    existing = observation.stateful_set
    if existing is None or not existing.current or observation.taken or course.rolling.back:
        return
    stuck = [
        pod
        for pod in observation.consumers
        if pod.ordinal < course.scale.desired and not pod.current and not pod.deleting and (pod.foreign or not pod.ready)
    ]
    for pod in stuck:
        why = "it calls an operator that does not serve its group any more"
        yield DeletePod(pod.name, pod.uid, why if pod.foreign else "it is not ready and was made from an older declaration")
    if course.rolling.replace is not None:
        yield DeletePod(course.rolling.replace.name, course.rolling.replace.uid, "it was made from an older declaration")


Policy = Callable[[Observation, Course], Iterable[Action]]

POLICIES: tuple[Policy, ...] = (
    _tell_coordinator,
    _report_deaths,
    _delete_executors_of_the_dead,
    _publish_trust,
    _delete_ended_executors,
    _apply_service,
    _apply_budget,
    _apply_stateful_set,
    _roll_back,
    _replace_expired,
    _replace_hanging,
    _replace_superseded,
    _replace_outdated,
)

WHILE_PAUSED: tuple[Policy, ...] = (_tell_coordinator, _report_deaths, _publish_trust)
"""What goes on while the annotation pauses the reconcile: nothing that changes an object of the group. A coordinator that has
just started has to know of the group, a death stays a death, and consumers have to believe the coordinator.
"""

_WORTH_AN_EVENT = frozenset(
    {
        ConditionType.READY,
        ConditionType.STALLED,
        ConditionType.SOURCE_REACHABLE,
        ConditionType.CONSUMERS_READY,
        ConditionType.CHECKPOINT_LOST,
    }
)
_ABNORMAL = frozenset({ConditionType.STALLED, ConditionType.CHECKPOINT_LOST})


def _scale_events(observation: Observation, scaled: Scale, actions: Iterable[Action]) -> Iterable[Event]:
    """The number of consumers changes, or somebody goes who did not give up its shards."""
    for action in actions:
        if not isinstance(action, ApplyStatefulSet) or action.replicas == observation.replicas:
            continue
        reason = event_reasons.SCALED_UP if action.replicas > observation.replicas else event_reasons.SCALED_DOWN
        moved = f"From {observation.replicas} to {count(action.replicas, 'consumer')}"
        yield Event(reason, f"{moved}. {scaled.decision.message}", cause=scaled.decision.reason)
        timeout = observation.declared.drain_timeout
        going = {observation.name_of(ordinal) for ordinal in range(action.replicas, observation.replicas)}
        for name in scaled.overdue:
            if name in going:
                held = f"{name} did not give up {_held_by(observation, name)} within spec.drainTimeout ({timeout:g} s)"
                yield Event(DRAIN_TIMED_OUT, f"{held}: it is ended, and fenced.", warning=True)


def _superseded_events(observation: Observation) -> Iterable[Event]:
    if observation.declared.deleting or observation.declared.pauses.reconcile:
        return
    for pod in _superseded(observation):
        refused = f"Pod {pod.name} (UID {pod.uid}) is refused by the coordinator: another pod of its name was heard after it"
        yield Event(event_reasons.POD_SUPERSEDED, f"{refused}. It is deleted, and made anew.", warning=True)


def _held_by(observation: Observation, consumer: ConsumerId) -> str:
    view = observation.view
    names = [] if view is None else [shard.shard for shard in view.shards if shard.present and shard.holder == consumer]
    return some(names, 3) if names else "its shards"


def _decision_events(observation: Observation, scaled: Scale) -> Iterable[Event]:
    """Fewer consumers are decided long before they are gone, and a recommendation is never followed."""
    before, decision = observation.previous.get("scaling"), scaled.decision
    known = before if isinstance(before, Mapping) else {}
    if decision.reason == RECOMMEND_ONLY and decision.recommended != observation.previous.get("recommendedReplicas"):
        yield Event(event_reasons.SCALE_RECOMMENDED, decision.message, cause=RECOMMEND_ONLY)
    elif observation.stateful_set is not None and decision.desired < int(known.get("desired", 0)):
        fewer = f"From {known['desired']} to {count(decision.desired, 'consumer')}, once the last have drained"
        message = f"{fewer}. {decision.message}"
        yield Event(event_reasons.DRAINING, message, cause=decision.reason)


def _rollout_events(observation: Observation, course: Course) -> Iterable[Event]:
    """A rollout goes back. That it is done follows from the conditions that turned."""
    if course.rolling.back and not observation.declared.pauses.reconcile:
        yield Event(event_reasons.ROLLED_BACK, f"{course.rolling.why} All pods go back to what ran before.", warning=True)


def _rolled_out(observation: Observation, now: Rolling) -> Iterable[Event]:
    before = observation.previous.get("rollout")
    if not isinstance(before, Mapping) or before.get("state") != PROGRESSING or not before.get("proven"):
        return
    if now.state == COMPLETE:
        new = part(now.updated, now.total, "consumer", "runs", "run")
        yield Event(event_reasons.ROLLED_OUT, f"{new} what generation {observation.declared.generation} declares.")


def _condition_events(observation: Observation, found: Iterable[Finding]) -> Iterable[Event]:
    """Conditions that turned bad, or are bad for another reason now, and Ready when it turned True."""
    before = observation.previous.get("conditions")
    known = {condition["type"]: condition for condition in before} if isinstance(before, list) else {}
    for finding in found:
        old = known.get(finding.type, {})
        if finding.type not in _WORTH_AN_EVENT or (finding.status, finding.reason) == (old.get("status"), old.get("reason")):
            continue
        bad = finding.status == ("True" if finding.type in _ABNORMAL else "False")
        # Ready repeats the reason of another condition; only its turning True is news of its own.
        if finding.type == ConditionType.READY and finding.reason == CONSUMING:
            yield Event(event_reasons.READY, finding.message)
        elif finding.type != ConditionType.READY and bad and finding.reason not in (STARTING, WAITING_FOR_SHARDS):
            yield Event(finding.reason, finding.message, warning=True)


def _turned(observation: Observation, course: Course, found: Iterable[Finding]) -> tuple[Event, ...]:
    """What turned since the status was written last. Two conditions may turn for one cause, which gets one Event."""
    turned = (
        *_decision_events(observation, course.scale),
        *_rolled_out(observation, course.rolling),
        *_condition_events(observation, found),
    )
    return tuple(dict.fromkeys(turned))
