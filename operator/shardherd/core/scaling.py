"""How many consumers a group should have, and how to get there without repeating a record.

Called by `plan`, `conditions` and `status`, which all see the same `Scale`. Growing happens at once. To shrink, the highest
ordinals are told to leave first, and the StatefulSet follows once they hold nothing, or have had `drainTimeout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardherd.core.model import ConsumerId, ShardState
from shardherd.core.observed import Memory, Observation, ScalingMode

ACTIVE = (ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
"""States of shards that somebody should read now; WAIT and OVER need nobody."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What to do about the number of consumers.

    `desired` is the goal, `replicas` what the StatefulSet should say now (more than `desired` while consumers drain), `leaving`
    who has to go. `wanted_by_shards` is the number before the limits, None where it is not known or not asked. `held` says why
    the number is left alone, empty if it is not.
    """

    desired: int
    replicas: int
    leaving: frozenset[ConsumerId] = frozenset()
    wanted_by_shards: int | None = None
    held: str = ""


SETTLE = 0.5
"""Seconds that the coordinator has to take notice of who is leaving before its picture is believed."""

PAUSED = "Paused"
WAITING_FOR_SHARDS = "WaitingForShards"


def scale(observation: Observation) -> Scale:
    """The scale decision for this observation."""
    declared = observation.declared
    current = observation.replicas
    if declared.settings.paused and observation.stateful_set is not None:
        return Scale(current, current, _from(observation, current), held=PAUSED)
    if declared.scaling.mode is not ScalingMode.SHARDS:
        return _towards(observation, declared.replicas, None)
    view = observation.view
    if view is None or not view.discovered:
        # Whoever is above the limit goes whatever the number of shards is; it is not given any in the meantime.
        limit = min(current, declared.scaling.max_replicas)
        return Scale(current, current, _from(observation, limit), held=WAITING_FOR_SHARDS)
    wanted = -(-view.shards_in(*ACTIVE) // declared.scaling.shards_per_consumer)
    limited = min(max(wanted, declared.scaling.min_replicas), declared.scaling.max_replicas)
    return _towards(observation, limited, wanted)


def _towards(observation: Observation, desired: int, wanted: int | None) -> Scale:
    surplus = range(desired, observation.replicas)
    staying = [ordinal for ordinal in surplus if not _may_go(observation, observation.name_of(ordinal))]
    return Scale(desired, max(staying, default=desired - 1) + 1, _from(observation, desired), wanted)


def _from(observation: Observation, first: int) -> frozenset[ConsumerId]:
    """The consumers from this ordinal on, also those whose pods the StatefulSet counts no more and that have not ended yet.

    Until its pod is gone a consumer that drained would take shards again if it were not told to leave any longer.
    """
    present = max((pod.ordinal + 1 for pod in observation.consumers), default=0)
    return frozenset(observation.name_of(ordinal) for ordinal in range(first, max(observation.replicas, present)))


def _may_go(observation: Observation, consumer: ConsumerId) -> bool:
    since = observation.memory.draining_since.get(consumer)
    if since is None or observation.now - since < SETTLE:
        # A consumer that holds nothing now may be granted a shard before the coordinator has heard.
        return False
    return not observation.holds(consumer) or observation.now - since >= observation.declared.drain_timeout


def remember(observation: Observation, scale: Scale) -> Memory:
    """What the next observation has to know of this one, once its actions were carried out."""
    known = observation.memory
    expired = observation.view.expired if observation.view is not None else ()
    return Memory(
        draining_since={name: known.draining_since.get(name, observation.now) for name in sorted(scale.leaving)},
        expired_since={
            incarnation: known.expired_since.get(incarnation, observation.now)
            for _, incarnation in expired
            if not observation.is_dead(incarnation)
        },
    )
