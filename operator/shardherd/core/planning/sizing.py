"""How many consumers a group should have, and why: one decision from one observation.

Called by `scaling`, which gets there without repeating a record. Each mode is a function; what keeps its answer from being
followed (limits, pauses, `recommendOnly`) is applied after it, the same for all. Every reason is one of `model.reasons`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardherd.core.model.naming import cell
from shardherd.core.model.nouns import GroupView, ShardState
from shardherd.core.model.reasons import (
    EXTERNAL,
    FIXED,
    FOLLOWING_SHARDS,
    IDLE,
    MAX_REPLICAS,
    MIN_REPLICAS,
    PAUSED,
    RECOMMEND_ONLY,
    RECONCILE_PAUSED,
    SCALE_IN_PAUSED,
    SCALE_OUT_PAUSED,
    WAITING_FOR_SHARDS,
)
from shardherd.core.model.times import seconds_since_1970
from shardherd.core.model.wording import count, verb
from shardherd.core.planning import catchup
from shardherd.core.planning.catchup import Wish
from shardherd.core.planning.observed import Ceiling, Observation, ScalingMode, Sizing, Trial
from shardherd.core.planning.traffic import measure

ACTIVE = (ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
"""States of shards that somebody should read now; WAIT and OVER need nobody."""

AUTOMATIC = (ScalingMode.SHARDS, ScalingMode.LAG)
"""Modes in which shardherd chooses the number."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The number of consumers to have, why, and what it would be if nothing were in the way.

    `recommended` is None where nobody asked for a recommendation or none is possible yet. `held` names why the number is left
    alone, `limit` what keeps it from being as recommended: a reason and a sentence. `sizing` is for the next observation.
    """

    desired: int
    reason: str
    message: str
    recommended: int | None = None
    held: str = ""
    limit: tuple[str, str] | None = None
    sizing: Sizing = field(default_factory=Sizing)


def decide(observation: Observation) -> Decision:
    """The decision for this observation."""
    declared, current = observation.declared, observation.replicas
    sizing = noted(observation)
    if declared.pauses.reconcile:
        # Also where somebody took the StatefulSet away and left its pods: none of them has to go.
        there = current if observation.stateful_set is not None else len(observation.consumers)
        message = "The annotation shardherd.dev/pause-reconcile is true: nothing is changed."
        return Decision(there, RECONCILE_PAUSED, message, held=RECONCILE_PAUSED, sizing=replace(sizing, goal=there))
    if declared.settings.paused and observation.stateful_set is not None:
        message = "spec.paused is true: the number of consumers is left alone."
        return Decision(current, PAUSED, message, held=PAUSED, sizing=replace(sizing, goal=current))
    if declared.scaling.mode not in AUTOMATIC:
        reason = EXTERNAL if declared.scaling.mode is ScalingMode.EXTERNAL else FIXED
        asked = Decision(declared.replicas, reason, f"spec.replicas says {declared.replicas}.")
        return _remembered(_unless_paused(observation, asked, sizing), sizing)
    view = observation.view
    if view is None or not view.discovered:
        message = "The number of shards is not known yet."
        return Decision(current, WAITING_FOR_SHARDS, message, held=WAITING_FOR_SHARDS, sizing=sizing)
    wish = _idle(observation, view, sizing) or _by_mode(observation, view, sizing)
    decision = Decision(wish.replicas, wish.reason, wish.message, wish.recommended, limit=wish.limit)
    if declared.scaling.recommend_only:
        sizing = replace(sizing, trial=None, wishes=wish.wishes)
        kept = _only_recommended(observation, decision)
        # What is said of the number that stays says nothing of the one that is recommended.
        return replace(kept, sizing=replace(sizing, goal=kept.desired, said=_said(decision), recommended=wish.recommended))
    followed = _unless_paused(observation, decision, sizing)
    if followed is decision:
        # A decision that is not followed has taught nothing.
        sizing = replace(sizing, trial=wish.trial, ceiling=wish.ceiling, wishes=wish.wishes)
    return _remembered(followed, sizing)


def noted(observation: Observation) -> Sizing:
    """What is known with this observation, before anything is decided."""
    before, view, now = observation.memory.sizing, observation.view, observation.now
    if before.goal is None:
        before = _recalled(observation)
    if view is None or not view.discovered:
        return replace(before, steady_since=None, idle_since=None)
    traffic = measure(before.traffic, view, now, _rate_before(observation.previous))
    # Consumers that keep up leave nothing to be seen, but are not idle.
    checkpoints = None if view.counts_records else sum(shard.checkpoint or 0 for shard in view.shards if shard.present)
    since = before.idle_since if before.idle_since is not None and checkpoints == before.checkpoints else now
    idle = max(since, traffic.written_at)
    steady = before.steady_since if before.steady_since is not None else now
    return replace(
        before,
        traffic=traffic,
        idle_since=idle if catchup.all_read(view) else None,
        checkpoints=checkpoints,
        steady_since=steady if _is_steady(observation, view) else None,
    )


def _is_steady(observation: Observation, view: GroupView) -> bool:
    ready = sum(1 for pod in observation.consumers if pod.ready and not pod.deleting)
    moving = view.shards_in(ShardState.TRANSFER, ShardState.NOT_ALLOC)
    return ready == observation.replicas == len(observation.consumers) and not moving and view.source_reachable


def _recalled(observation: Observation) -> Sizing:
    """What a restarted operator finds in the status."""
    sizing, previous = observation.memory.sizing, observation.previous
    goal = previous.get("desiredReplicas")
    if not isinstance(goal, int) or observation.stateful_set is None:
        goal = observation.replicas
    written = previous.get("scaling")
    known: Mapping[str, object] = written if isinstance(written, Mapping) else {}
    trial, ceiling = known.get("trial"), known.get("ceiling")
    return replace(
        sizing,
        goal=goal,
        said=(str(known.get("reason", "")), str(known.get("message", ""))) if known.get("desired") == goal else ("", ""),
        trial=Trial(int(trial["replicas"]), float(trial["perSecond"])) if isinstance(trial, Mapping) else None,
        ceiling=Ceiling(int(ceiling["replicas"]), seconds_since_1970(str(ceiling["until"])))
        if isinstance(ceiling, Mapping)
        else None,
    )


def _rate_before(previous: Mapping[str, object]) -> float | None:
    lag = previous.get("lag")
    consumer_rate = lag.get("consumerPerSecond") if isinstance(lag, Mapping) else None
    return float(consumer_rate) if isinstance(consumer_rate, int | float) and consumer_rate > 0 else None


def _idle(observation: Observation, view: GroupView, sizing: Sizing) -> Wish | None:
    """With `minReplicas: 0` no consumer is needed once all was read for a while, and one with the next record.

    Where there is none, as in a new group, none is needed at once: then the message claims no time that nobody has seen.
    """
    scaling, goal = observation.declared.scaling, sizing.goal or 0
    if scaling.min_replicas > 0 or sizing.idle_since is None or not view.source_reachable:
        return None
    if any(shard.present and not shard.open and shard.state is ShardState.NOT_ALLOC for shard in view.shards):
        # Only who holds a shard that is closed can end it, also where there is nothing to read.
        return None
    whole = observation.now - sizing.idle_since >= scaling.stabilization_window
    if goal > 0 and not whole:
        return None
    since = f", and was for {scaling.stabilization_window:g} s" if whole else ""
    message = f"All is read{since}: no consumer until the next record."
    if view.all_over:
        message = "All shards are read to their ends: no consumer."
    return Wish(0, IDLE, message, recommended=0)


def _by_mode(observation: Observation, view: GroupView, sizing: Sizing) -> Wish:
    scaling = observation.declared.scaling
    shards = view.shards_in(*ACTIVE)
    units = _units(view, observation.declared.settings.cells) if observation.declared.settings.cells else shards
    if scaling.mode is ScalingMode.SHARDS:
        wanted = -(-shards // scaling.shards_per_consumer)
        wish = _of_shards(shards, wanted, scaling.shards_per_consumer)
        return _limited(observation, wish if wanted <= units else _of_cells(shards, units))
    return catchup.wish(observation, view, sizing, units)


def _units(view: GroupView, cells: int) -> int:
    """How many cells there are to read: a consumer has at least one of them, or nothing."""
    return len({cell(shard.shard, cells) for shard in view.shards if shard.present and shard.state in ACTIVE})


def _of_cells(shards: int, units: int) -> Wish:
    message = f"{count(shards, 'shard')} to read, in {count(units, 'cell')}: {count(units, 'consumer')}, one for each."
    return Wish(units, FOLLOWING_SHARDS, message, recommended=units)


def _of_shards(shards: int, wanted: int, each: int) -> Wish:
    message = f"{count(shards, 'shard')} to read, {each} for each consumer: {count(wanted, 'consumer')}."
    return Wish(wanted, FOLLOWING_SHARDS, message, recommended=wanted)


def _limited(observation: Observation, wish: Wish) -> Wish:
    scaling, wanted = observation.declared.scaling, wish.replicas
    if wanted > scaling.max_replicas:
        message = f"The shards ask for {count(wanted, 'consumer')}; spec.scaling.maxReplicas allows {scaling.max_replicas}."
        return replace(wish, replicas=scaling.max_replicas, recommended=scaling.max_replicas, limit=(MAX_REPLICAS, message))
    if wanted < scaling.min_replicas:
        message = f"The shards ask for {count(wanted, 'consumer')}; spec.scaling.minReplicas keeps {scaling.min_replicas}."
        return replace(wish, replicas=scaling.min_replicas, recommended=scaling.min_replicas, limit=(MIN_REPLICAS, message))
    return wish


def _only_recommended(observation: Observation, decision: Decision) -> Decision:
    scaling, current = observation.declared.scaling, observation.replicas
    kept = min(max(current, scaling.min_replicas), scaling.max_replicas)
    message = f"spec.scaling.recommendOnly is true: {decision.recommended} recommended ({decision.reason}). {decision.message}"
    return replace(decision, desired=kept, reason=RECOMMEND_ONLY, message=message)


def _unless_paused(observation: Observation, decision: Decision, sizing: Sizing) -> Decision:
    pauses = observation.declared.pauses
    before = observation.replicas if sizing.goal is None else sizing.goal
    if pauses.scale_in and decision.desired < before:
        kept = f"The annotation shardherd.dev/pause-scale-in keeps {count(before, 'consumer')}"
        message = f"{kept}; {decision.desired} would be enough."
        return replace(decision, desired=before, reason=SCALE_IN_PAUSED, message=message, limit=(SCALE_IN_PAUSED, message))
    if pauses.scale_out and decision.desired > before:
        kept = f"The annotation shardherd.dev/pause-scale-out keeps {count(before, 'consumer')}"
        message = f"{kept}; {decision.desired} {verb(decision.desired, 'is', 'are')} wanted."
        return replace(decision, desired=before, reason=SCALE_OUT_PAUSED, message=message, limit=(SCALE_OUT_PAUSED, message))
    return decision


def _remembered(decision: Decision, sizing: Sizing) -> Decision:
    return replace(decision, sizing=replace(sizing, goal=decision.desired, said=_said(decision), recommended=None))


def _said(decision: Decision) -> tuple[str, str]:
    return decision.reason, decision.message
