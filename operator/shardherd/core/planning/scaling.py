"""How to get to the number of consumers that `sizing` decides, without repeating a record.

Called by `plan`, `conditions` and `status`, which all see the same `Scale`. Growing happens at once. To shrink, the highest
ordinals leave first, and the StatefulSet follows once they hold nothing, or have had `drainTimeout`: what they
still hold then is reported, and fenced when their pods end.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardherd.core.model.nouns import ConsumerId
from shardherd.core.model.reasons import WAITING_FOR_SHARDS
from shardherd.core.planning.observed import Memory, Observation
from shardherd.core.planning.sizing import Decision, decide


@dataclass(frozen=True, slots=True)
class Scale:
    """What to do about the number of consumers.

    `replicas` is what the StatefulSet should say now (more than `decision.desired` while consumers drain), `leaving` who has to
    go, `overdue` who of them had `drainTimeout` and did not give up its shards.
    """

    decision: Decision
    replicas: int
    leaving: frozenset[ConsumerId] = frozenset()
    overdue: tuple[ConsumerId, ...] = ()

    @property
    def desired(self) -> int:
        """How many consumers there should be."""
        return self.decision.desired

    @property
    def held(self) -> str:
        """Why the number is left alone; empty if it is not."""
        return self.decision.held


SETTLE = 0.5
"""Seconds after which the coordinator's views are sure to know the consumers that leave."""


def scale(observation: Observation) -> Scale:
    """The scale decision for this observation, and its next step."""
    decision = decide(observation)
    current, desired = observation.replicas, decision.desired
    if decision.held == WAITING_FOR_SHARDS:
        # Consumers above the limit leave whatever the number of shards is; they are granted none in the meantime.
        limit = min(current, observation.declared.scaling.max_replicas)
        return Scale(decision, current, _from(observation, limit))
    leaving = _from(observation, desired)
    if decision.held:
        return Scale(decision, current, leaving)
    staying = [ordinal for ordinal in range(desired, current) if not _may_go(observation, observation.name_of(ordinal))]
    overdue = tuple(name for name in sorted(leaving) if _overdue(observation, name))
    return Scale(decision, max(staying, default=desired - 1) + 1, leaving, overdue)


def _from(observation: Observation, first: int) -> frozenset[ConsumerId]:
    """The consumers from this ordinal on, also those whose pods the StatefulSet counts no more and that have not ended yet.

    Until its pod is gone a consumer that drained would take shards again if it were not in `leaving` any longer.
    """
    present = max((pod.ordinal + 1 for pod in observation.consumers), default=0)
    return frozenset(observation.name_of(ordinal) for ordinal in range(first, max(observation.replicas, present)))


def _may_go(observation: Observation, consumer: ConsumerId) -> bool:
    since = observation.memory.draining_since.get(consumer)
    if since is None or observation.now - since < SETTLE:
        # A consumer that holds nothing now may be granted a shard before the coordinator has heard.
        return False
    return not observation.holds(consumer) or _overdue(observation, consumer)


def _overdue(observation: Observation, consumer: ConsumerId) -> bool:
    """Whether a consumer that has to go had its time, and holds shards still."""
    since = observation.memory.draining_since.get(consumer)
    late = since is not None and observation.now - since >= observation.declared.drain_timeout
    return late and observation.holds(consumer)


def remember(observation: Observation, scale: Scale, rolling: ConsumerId | None = None) -> Memory:
    """What the next observation has to know of this one, once its actions were carried out. `rolling` has yet to drain."""
    known = observation.memory
    expired = observation.view.expired if observation.view is not None else ()
    return Memory(
        draining_since={name: known.draining_since.get(name, observation.now) for name in sorted(scale.leaving)},
        expired_since={
            incarnation: known.expired_since.get(incarnation, observation.now)
            for _, incarnation in expired
            if not observation.is_dead(incarnation)
        },
        hanging_since={pod.uid: known.hanging_since.get(pod.uid, observation.now) for pod in observation.hanging()},
        sizing=scale.decision.sizing,
        rolling=None if rolling is None else _since(known.rolling, rolling, observation.now),
    )


def _since(known: tuple[ConsumerId, float] | None, name: ConsumerId, now: float) -> tuple[ConsumerId, float]:
    return known if known is not None and known[0] == name else (name, now)
