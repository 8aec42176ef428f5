"""The conditions of a group: what a user reads to know whether it works, and if not, why.

Called by `status`. Every reason is one of `model.reasons`; messages name the cause and, where there is one, the remedy. A
condition keeps its transition time while its status stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from shardherd.core.assignors import EVEN
from shardherd.core.model import reasons
from shardherd.core.model.naming import cell, split
from shardherd.core.model.nouns import GroupView, GrowthCutover, Phase, ShardState
from shardherd.core.model.reasons import ConditionType
from shardherd.core.model.times import rfc3339
from shardherd.core.model.wording import count, part, some, verb
from shardherd.core.planning import growing, room
from shardherd.core.planning.course import Course
from shardherd.core.planning.observed import Observation, ScalingMode, Trouble
from shardherd.core.planning.scaling import Scale
from shardherd.core.planning.sizing import ACTIVE

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

STALLING = frozenset(
    {
        reasons.IMAGE_UNAVAILABLE,
        reasons.CRASH_LOOPING,
        reasons.PODS_REJECTED,
        reasons.QUOTA_EXCEEDED,
        reasons.CONTAINER_CONFIG_INVALID,
    }
)
"""Reasons why consumers are not ready that do not go away by waiting."""

LASTING = frozenset({reasons.OWNERSHIP_UNREADABLE, reasons.SNAPSHOT_TOO_LARGE, reasons.TOO_MANY_GROUPS, reasons.GROUP_ID_TAKEN})
"""Reasons why the coordinator does not grant something, or anything, that do not go away by waiting."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition without its times."""

    type: str
    status: str
    reason: str
    message: str


def findings(observation: Observation, course: Course) -> tuple[Finding, ...]:
    """All conditions for this observation, Ready first."""
    rest = tuple(rule(observation, course) for rule in _RULES)
    order = (_order_preserved(observation),) if observation.declared.settings.ordered else ()
    state = tuple(rule(observation) for rule in _OF_CELLS) if observation.declared.settings.cells else ()
    full = (_room(observation),) if observation.declared.settings.watermarks else ()
    return (_ready(observation, course.scale, {finding.type: finding for finding in rest}), *rest, *order, *state, *full)


def unreadable(message: str) -> tuple[Finding, ...]:
    """What is found of a resource that cannot be read: until it is corrected its group goes on as it was declared before."""
    message = f"{message}; correct it: until then the group goes on as it was."
    return (
        Finding(ConditionType.READY, FALSE, reasons.INVALID_SPEC, message),
        Finding(ConditionType.STALLED, TRUE, reasons.INVALID_SPEC, message),
    )


def dated(
    found: Iterable[Finding], previous: Sequence[Mapping[str, object]], generation: int, wall: float
) -> list[dict[str, object]]:
    """The conditions as the resource keeps them: a transition time is now only where the status differs from before."""
    known = {condition.get("type"): condition for condition in previous}
    time = rfc3339(wall)
    conditions: list[dict[str, object]] = []
    for finding in found:
        before = known.get(finding.type, {})
        conditions.append(
            {
                "type": finding.type,
                "status": finding.status,
                "reason": finding.reason,
                "message": finding.message[:4096],
                "observedGeneration": generation,
                "lastTransitionTime": before.get("lastTransitionTime", time)
                if before.get("status") == finding.status
                else time,
            }
        )
    return conditions


def ready_consumers(observation: Observation) -> int:
    """How many consumers are ready and not about to go."""
    return sum(1 for consumer in observation.consumers if consumer.ready and not consumer.deleting)


def _ready(observation: Observation, scale: Scale, found: Mapping[str, Finding]) -> Finding:
    not_ready = partial(Finding, ConditionType.READY, FALSE)
    if observation.declared.deleting:
        return not_ready(reasons.DELETING, "The group is being deleted.")
    # The deepest cause first: without a source nothing can be granted, without grants nothing is read.
    source, view, stalled = found[ConditionType.SOURCE_REACHABLE], observation.view, found[ConditionType.STALLED]
    if stalled.reason in LASTING:
        return not_ready(stalled.reason, stalled.message)
    if source.status != TRUE or view is None:
        return not_ready(source.reason, source.message)
    if view.withheld:
        return not_ready(view.withheld[0].reason, " ".join(cause.message for cause in view.withheld))
    for cause in (found[ConditionType.STALLED], found[ConditionType.CONSUMERS_READY]):
        if cause.status != (FALSE if cause.type == ConditionType.STALLED else TRUE):
            return not_ready(cause.reason, cause.message)
    if (failing := _cells_failing(observation)).status == TRUE:
        return not_ready(failing.reason, failing.message)
    if blocked := _sink_blocked(observation):
        return not_ready(reasons.SINK_BLOCKED, blocked)
    if full := room.keeps_from_reading(view, observation.declared.settings.watermarks):
        return not_ready(*full)
    unassigned = [shard.shard for shard in view.shards if shard.state is ShardState.NOT_ALLOC and shard.present]
    if unassigned and not _nobody_wanted(scale):
        return not_ready(reasons.SHARDS_UNASSIGNED, f"{_shards(unassigned)} held by nobody yet.")
    limit = observation.declared.settings.release_timeout
    there = (shard for shard in view.shards if shard.present)
    overdue = [shard.shard for shard in there if shard.state is ShardState.TRANSFER and shard.state_age > limit]
    if overdue:
        return not_ready(reasons.TRANSFER_OVERDUE, f"{_shards(overdue)} on the way to another consumer for over {limit:g} s.")
    if view.all_over:
        return Finding(ConditionType.READY, TRUE, reasons.CONSUMING, "All shards are closed, and read to their ends.")
    if _nobody_wanted(scale):
        return Finding(ConditionType.READY, TRUE, reasons.CONSUMING, f"No consumer is wanted. {scale.decision.message}")
    reading = f"{count(scale.desired, 'consumer')} {verb(scale.desired, 'reads', 'read')}"
    return Finding(ConditionType.READY, TRUE, reasons.CONSUMING, f"{reading} {count(view.shards_in(*ACTIVE), 'shard')}.")


def _nobody_wanted(scale: Scale) -> bool:
    """Whether the group is to have no consumer: all is read, or so it is declared. Then its shards are to have no holder."""
    decision = scale.decision
    return decision.desired == 0 and (decision.recommended == 0 or decision.reason in (reasons.FIXED, reasons.EXTERNAL))


def _sink_blocked(observation: Observation) -> str:
    """Who waits for its sink for longer than reading may take, and since when; empty if nobody does."""
    assert observation.view is not None
    settings, without = observation.declared.settings, observation.without_executors()
    blocked = [
        consumer
        for consumer in observation.view.consumers
        if consumer.phase is Phase.WRITING
        and consumer.phase_age >= settings.progress_timeout
        and consumer.consumer not in without
    ]
    if not blocked:
        return ""
    # To the minute: it must not change by itself.
    since = rfc3339((observation.wall - max(consumer.phase_age for consumer in blocked)) // 60 * 60)
    names = [consumer.consumer for consumer in blocked]
    waits = verb(len(names), "has waited for its sink", "have waited for their sinks")
    keeps = verb(len(names), "It keeps its shards, and is", "They keep their shards, and are")
    return (
        f"{some(names, 3)} {waits} since {since}. {keeps} replaced after spec.sinkTimeout ({settings.sink_timeout:g} s): "
        f"see whether the sink takes records, and the log of {names[0]}."
    )


def _reconciling(observation: Observation, course: Course) -> Finding:
    scale = course.scale

    def finding(reason: str, message: str) -> Finding:
        return Finding(ConditionType.RECONCILING, TRUE, reason, message)

    current = observation.replicas
    if scale.held == reasons.RECONCILE_PAUSED:
        return Finding(ConditionType.RECONCILING, FALSE, reasons.RECONCILE_PAUSED, scale.decision.message)
    if scale.overdue:
        timeout = observation.declared.drain_timeout
        return finding(
            reasons.DRAIN_TIMED_OUT,
            f"{', '.join(scale.overdue)} did not give up all shards within spec.drainTimeout ({timeout:g} s) and "
            f"{verb(len(scale.overdue), 'is', 'are')} ended.",
        )
    if scale.held == reasons.WAITING_FOR_SHARDS and observation.stateful_set is None:
        return finding(reasons.WAITING_FOR_SHARDS, "No consumer is started before the shards are known.")
    if scale.leaving:
        given_up = verb(len(scale.leaving), "it has given up its", "they have given up their")
        return finding(reasons.DRAINING, f"{', '.join(sorted(scale.leaving))} must go: waiting until {given_up} shards.")
    if scale.replicas > current:
        return finding(reasons.SCALING_OUT, f"Going from {current} to {count(scale.desired, 'consumer')}.")
    old = [consumer.name for consumer in observation.consumers if not consumer.current]
    if old:
        roll = course.rolling
        next_ = f" {roll.draining} gives up its shards first." if roll.draining is not None else ""
        still = f"{some(old, 5)} still {verb(len(old), 'runs', 'run')} what was declared before."
        new = part(roll.updated, roll.total, "consumer", "runs", "run")
        return finding(reasons.ROLLING_OUT, f"{new} what is declared; {still}{next_}")
    if len(observation.consumers) != current or any(consumer.deleting for consumer in observation.consumers):
        return finding(reasons.STARTING, f"{part(len(observation.consumers), current, 'pod', 'exists', 'exist')}.")
    return Finding(ConditionType.RECONCILING, FALSE, reasons.SETTLED, f"{count(current, 'consumer')} as declared.")


def _stalled(observation: Observation, course: Course) -> Finding:
    stalled = partial(Finding, ConditionType.STALLED, TRUE)
    scale = course.scale
    if observation.taken:
        name = observation.declared.identity.name
        return stalled(
            reasons.NAME_TAKEN,
            f'There already is a {" and a ".join(observation.taken)} named "{name}" that belongs to something else: '
            "delete it, or name the group differently.",
        )
    if observation.rejections:
        return stalled(reasons.APPLY_REFUSED, " ".join(observation.rejections))
    kept = [] if observation.view is None else [cause for cause in observation.view.withheld if cause.reason in LASTING]
    if kept:
        return stalled(kept[0].reason, kept[0].message)
    if observation.declared.rejected:
        why = observation.declared.rejected
        return stalled(reasons.ROLLED_BACK, f"{why} All pods went back to what ran before: change spec.application.")
    trouble = _trouble(observation)
    if trouble is not None and trouble.reason in STALLING and ready_consumers(observation) < scale.desired:
        return stalled(trouble.reason, trouble.message)
    return Finding(ConditionType.STALLED, FALSE, reasons.NOT_STALLED, "Nothing is in the way.")


def _source_reachable(observation: Observation, _course: Course) -> Finding:
    finding = partial(Finding, ConditionType.SOURCE_REACHABLE)
    view = observation.view
    if view is None:
        return finding(UNKNOWN, reasons.DISCOVERING, "The coordinator has not loaded the group yet.")
    if not view.source_reachable and (view.source_error or view.discovered):
        return finding(FALSE, reasons.SOURCE_UNAVAILABLE, view.source_error or "The source does not answer.")
    if not view.discovered:
        return finding(UNKNOWN, reasons.DISCOVERING, "The source has not been read yet.")
    return finding(TRUE, reasons.DISCOVERED, f"{count(view.shards_in(*ShardState), 'shard')} found.")


def _consumers_ready(observation: Observation, course: Course) -> Finding:
    not_ready = partial(Finding, ConditionType.CONSUMERS_READY, FALSE)
    scale = course.scale
    ready = ready_consumers(observation)
    message = f"{part(ready, scale.desired, 'consumer', 'is', 'are')} ready."
    if ready >= scale.desired and (scale.held != reasons.WAITING_FOR_SHARDS or observation.stateful_set is not None):
        return Finding(ConditionType.CONSUMERS_READY, TRUE, reasons.ALL_READY, message)
    trouble, hanging = _trouble(observation), [pod.name for pod in observation.hanging()]
    # What becomes of one that hangs is known once the coordinator hears nothing of it either.
    if trouble is not None and not (hanging and trouble.reason == reasons.CONSUMER_SILENT):
        return not_ready(trouble.reason, trouble.message)
    if scale.held == reasons.WAITING_FOR_SHARDS and observation.stateful_set is None:
        return not_ready(reasons.WAITING_FOR_SHARDS, "No consumer is started before the shards are known.")
    if hanging:
        return not_ready(reasons.CONSUMER_SILENT, _silence(hanging, observation))
    return not_ready(reasons.STARTING, f"{message}{_without_executors(observation)}")


def _silence(hanging: Sequence[str], observation: Observation) -> str:
    said = f"{some(hanging, 3)} {verb(len(hanging), 'runs, but is', 'run, but are')} not ready"
    limit = f"spec.progressTimeout ({observation.declared.settings.progress_timeout:g} s)"
    pods = verb(len(hanging), "its pod is", "their pods are")
    return f"{said}, and the operator hears nothing more. If it stays so for {limit}, {pods} replaced."


def _without_executors(observation: Observation) -> str:
    """Spark makes the executors, so only its driver's log says why it could not."""
    lacking = [pod.name for pod in observation.consumers if not pod.ready and pod.name in observation.without_executors()]
    if not lacking:
        return ""
    has = verb(len(lacking), "has", "have")
    return f" {some(lacking, 3)} {has} no executor yet; if it stays so, the driver's log says why: kubectl logs {lacking[0]}"


def _balanced(observation: Observation, course: Course) -> Finding:
    finding = partial(Finding, ConditionType.BALANCED)
    view = observation.view
    if view is None or not view.discovered:
        return finding(UNKNOWN, reasons.DISCOVERING, "The shards are not known yet.")
    moving = view.shards_in(ShardState.TRANSFER)
    waiting = 0 if _nobody_wanted(course.scale) else view.shards_in(ShardState.NOT_ALLOC)
    if moving or waiting:
        return finding(FALSE, reasons.REBALANCING, f"{count(moving, 'shard')} moving, {waiting} held by nobody.")
    counts, unit = _loads(observation, view)
    if counts and max(counts) - min(counts) > 1 and observation.declared.settings.assignor in EVEN:
        return finding(FALSE, reasons.UNEVEN, f"Consumers hold between {min(counts)} and {max(counts)} {unit}s.")
    most = count(max(counts, default=0), unit)
    held = f"{min(counts)} to {most}" if counts and min(counts) != max(counts) else most
    each = "" if len(counts) == 1 else " each"
    return finding(TRUE, reasons.BALANCED, f"{count(len(counts), 'consumer')} with {held}{each}.")


def _loads(observation: Observation, view: GroupView) -> tuple[list[int], str]:
    """How many shards each consumer holds that may hold some, or cells where those are what is shared; and the noun."""
    takers = room.takers(view)
    cells = observation.declared.settings.cells
    if not cells:
        return [consumer.shards for consumer in takers], "shard"
    held = {(shard.holder, cell(shard.shard, cells)) for shard in view.shards if shard.present}
    numbers = Counter(holder for holder, _ in held)
    return [numbers[consumer.consumer] for consumer in takers], "cell"


def _scaling_active(observation: Observation, course: Course) -> Finding:
    scale = course.scale
    decision = scale.decision
    if decision.held or decision.reason in (reasons.FIXED, reasons.EXTERNAL, reasons.RECOMMEND_ONLY, reasons.SOURCE_AWAY):
        return Finding(ConditionType.SCALING_ACTIVE, FALSE, decision.reason, decision.message)
    reason = reasons.FOLLOWING_LAG if observation.declared.scaling.mode is ScalingMode.LAG else reasons.FOLLOWING_SHARDS
    return Finding(ConditionType.SCALING_ACTIVE, TRUE, reason, decision.message)


def _scaling_limited(_observation: Observation, course: Course) -> Finding:
    scale = course.scale
    if scale.decision.limit is not None:
        return Finding(ConditionType.SCALING_LIMITED, TRUE, *scale.decision.limit)
    return Finding(ConditionType.SCALING_LIMITED, FALSE, reasons.WITHIN_LIMITS, "No limit is in the way.")


def _checkpoint_lost(observation: Observation, _course: Course) -> Finding:
    withheld = observation.view.withheld if observation.view is not None else ()
    for cause in withheld:
        if cause.reason == reasons.CHECKPOINT_LOST:
            return Finding(ConditionType.CHECKPOINT_LOST, TRUE, reasons.CHECKPOINT_LOST, cause.message)
    return Finding(ConditionType.CHECKPOINT_LOST, FALSE, reasons.CHECKPOINTS_KEPT, "No durable position is missing.")


def _state_lost(observation: Observation) -> Finding:
    withheld = observation.view.withheld if observation.view is not None else ()
    for cause in withheld:
        if cause.reason == reasons.STATE_LOST:
            return Finding(ConditionType.STATE_LOST, TRUE, reasons.STATE_LOST, cause.message)
    return Finding(ConditionType.STATE_LOST, FALSE, reasons.STATE_KEPT, "No cell is known to have lost its state.")


def _cells_failing(observation: Observation) -> Finding:
    finding = partial(Finding, ConditionType.CELLS_FAILING)
    consumers = () if observation.view is None else observation.view.consumers
    failing = [(each.consumer, cell) for each in consumers for cell in each.cells_failing or ()]
    if not failing:
        return finding(FALSE, reasons.QUERIES_RUN, "No cell's query is known to fail.")
    numbers = some([str(cell.cell) for _, cell in sorted(failing, key=lambda each: each[1].cell)], 5)
    holder, first = failing[0]
    queries = verb(len(failing), "The query of cell", "The queries of the cells")
    again = verb(len(failing), "fails and is", "fail and are")
    return finding(
        TRUE,
        reasons.QUERY_FAILS,
        f"{queries} {numbers} {again} started again; the other cells are read. See the log of {holder}, "
        f"which says of cell {first.cell}: {first.error}",
    )


def _cells_fit(observation: Observation) -> Finding:
    """Whether a key is in the same cell in all topics, and stays there when they grow by a multiple."""
    finding = partial(Finding, ConditionType.CELLS_FIT)
    view, cells = observation.view, observation.declared.settings.cells
    if view is None or not view.discovered:
        return finding(UNKNOWN, reasons.DISCOVERING, "The topics are not known yet.")
    sizes = Counter(split(shard.shard)[0] for shard in view.shards if shard.present)
    wrong = [f"{topic} has {count(size, 'partition')}" for topic, size in sorted(sizes.items()) if size % cells]
    if wrong:
        return finding(
            FALSE,
            reasons.CELLS_DO_NOT_DIVIDE,
            f"spec.state.cells ({cells}) does not divide the number of partitions: {some(wrong, 3)}. A key"
            " is in another cell there than in other topics, and changes its cell when the topic grows.",
        )
    return finding(TRUE, reasons.CELLS_DIVIDE, f"{count(cells, 'cell')} of as many partitions each, in every topic.")


def _room(observation: Observation) -> Finding:
    finding = partial(Finding, ConditionType.ROOM)
    view = observation.view
    if view is None or not view.discovered:
        return finding(UNKNOWN, reasons.DISCOVERING, "The shards are not known yet.")
    enough, reason, message = room.room(view, observation.declared.settings.watermarks)
    return finding(TRUE if enough else FALSE, reason, message)


def _order_preserved(observation: Observation) -> Finding:
    growths = observation.view.growths if observation.view is not None else ()
    declared = observation.declared.settings.growth_cutover is GrowthCutover.NOW
    stopped = " Leave the producers stopped until then." if declared else ""
    for growth in growths:
        if growth.ends and not growth.keeps:
            first = ", ".join(f"{shard} below {end}" for shard, end in growth.ends[:3])
            more = f" and {len(growth.ends) - 3} more" if len(growth.ends) > 3 else ""
            return Finding(
                ConditionType.ORDER_PRESERVED,
                FALSE,
                reasons.PARTITION_GROWTH,
                f"Topic {growth.topic} grew from {growth.before} to {growth.after} partitions, and keys moved between them: "
                f"records may be read out of order until these are read: {first}{more}.{growing.lost(growth)}{stopped}",
            )
    waiting = growing.waiting(observation.view) if observation.view is not None else ""
    return Finding(ConditionType.ORDER_PRESERVED, TRUE, reasons.ORDER_KEPT, waiting or "Every shard waits for its parents.")


# kstatus goes by the first of Reconciling and Stalled that is True: what will not get better by waiting must not be waited for.
_RULES: tuple[Callable[[Observation, Course], Finding], ...] = (
    _stalled,
    _reconciling,
    _source_reachable,
    _consumers_ready,
    _balanced,
    _scaling_active,
    _scaling_limited,
    _checkpoint_lost,
)

_OF_CELLS: tuple[Callable[[Observation], Finding], ...] = (_state_lost, _cells_fit, _cells_failing)


def _trouble(observation: Observation) -> Trouble | None:
    """The first cause why consumers are missing: pods that could not be made, then pods that do not run."""
    if observation.warnings and len(observation.consumers) < observation.replicas:
        _, message = observation.warnings[-1]
        if "exceeded quota" in message:
            return Trouble(
                reasons.QUOTA_EXCEEDED, f"Pods cannot be made: {message}. Raise the quota, or declare fewer consumers."
            )
        return Trouble(reasons.PODS_REJECTED, f"Pods cannot be made: {message}")
    troubles = [consumer.trouble for consumer in observation.consumers if consumer.trouble is not None]
    return min(troubles, key=lambda trouble: trouble.reason not in STALLING, default=None)


def _shards(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Shard {shown} is" if len(names) == 1 else f"Shards {shown} are"
