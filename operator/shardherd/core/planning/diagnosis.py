"""Why shards make no progress: those that a user should look at first, each with a reason and a message.

Called by `status`, so that `kubectl describe` answers it, and by the command line, which explains any one shard. Rows of all
shards are in the coordinator's API and in the metrics.
Every reason is one of `model.reasons`. Messages say since when, not for how long: they must not change by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from shardherd.core.model.nouns import ConsumerId, GroupView, Phase, ShardState, ShardView
from shardherd.core.model.reasons import (
    ABOVE_FLOOD,
    GROUP_HAS_LIVE_MEMBERS,
    GROUP_ID_IN_USE,
    GROUP_ID_TAKEN,
    NO_HOLDER,
    NO_PROGRESS,
    NOT_GIVEN_UP,
    OWNERSHIP_REBUILDING,
    PAUSED,
    RESETTING,
    SINK_BLOCKED,
    TOO_MANY_GROUPS,
    WAITS_FOR_PARENTS,
)
from shardherd.core.model.times import rfc3339
from shardherd.core.planning import growing, room
from shardherd.core.planning.observed import Observation
from shardherd.core.planning.traffic import Traffic

SHOWN = 5
"""Shards that the status lists."""

PATIENCE = 60.0
"""Seconds for which a position may stand still although there is something to read: several micro-batches."""

GRANTING = 10.0
"""Seconds that a grant or a transfer may take without being worth a word."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """One shard: why it stands still, and for how many seconds it has."""

    shard: str
    reason: str
    message: str
    age: float


STOPPED_FOR_ALL = frozenset(
    {PAUSED, GROUP_ID_TAKEN, TOO_MANY_GROUPS, GROUP_HAS_LIVE_MEMBERS, GROUP_ID_IN_USE, OWNERSHIP_REBUILDING, RESETTING}
)
"""What withholds grants and keeps every holder from getting on, too."""


def stuck_shards(observation: Observation, traffic: Traffic | None) -> tuple[list[dict[str, object]], int]:
    """The first shards that stand still, as the status has them, and how many there are."""
    view, written = observation.view, observation.previous.get("stuckShards")
    if view is None or not view.discovered:
        return [], 0
    known = {
        (entry.get("shard"), entry.get("reason")): entry.get("since")
        for entry in (written if isinstance(written, list) else [])
        if isinstance(entry, Mapping)
    }
    found = sorted(_found(observation, view, traffic), key=lambda stuck: ORDER.index(stuck.reason))
    rows: list[dict[str, object]] = [
        {
            "shard": stuck.shard,
            "reason": stuck.reason,
            "message": stuck.message,
            # The same time as before: ages in seconds differ from view to view.
            "since": known.get((stuck.shard, stuck.reason)) or rfc3339(observation.wall - stuck.age),
        }
        for stuck in found[:SHOWN]
    ]
    return rows, len(found)


ORDER = (NO_PROGRESS, ABOVE_FLOOD, SINK_BLOCKED, NOT_GIVEN_UP, NO_HOLDER, WAITS_FOR_PARENTS)
"""The reasons; first those that need a user to act."""


def _found(observation: Observation, view: GroupView, traffic: Traffic | None) -> Iterator[Stuck]:
    still = {} if traffic is None else traffic.still_for(observation.now, PATIENCE)
    phases: dict[ConsumerId | None, Phase | None] = {consumer.consumer: consumer.phase for consumer in view.consumers}
    known, free = growing.by_name(view), _why_nobody(view)
    paused, lacking = room.paused(view), frozenset(observation.without_executors())
    for shard in view.shards:
        if not shard.present or (view.counts_records and not shard.lag_records):
            continue
        if shard.state is ShardState.ALREADY_ALLOC and shard.shard in still:
            phase = phases.get(shard.holder)
            if phase is Phase.WAITING:
                continue  # for its trigger, or for as many records as its user wants at once
            special = _why_paused(shard, paused) or _why_without_executor(shard, lacking)
            yield Stuck(shard.shard, *_why_still(view, shard, phase, special), still[shard.shard])
        elif (why := why_not_read(view, shard, known, free)) and (
            shard.state is ShardState.WAIT or shard.state_age >= GRANTING
        ):
            yield Stuck(shard.shard, *why, shard.state_age)


def why_not_read(view: GroupView, shard: ShardView, known: growing.By | None = None, free: str = "") -> tuple[str, str] | None:
    """Why nobody reads this shard for good: a reason and a sentence. None if somebody does, and at its end.

    `known` are all of the view, by name, and `free` is why its consumers take nothing: who asks for many makes both once.
    """
    if shard.state is ShardState.TRANSFER:
        return NOT_GIVEN_UP, f"{shard.holder} has not given it up yet; {shard.next_consumer} is to have it"
    if shard.state is ShardState.NOT_ALLOC:
        return NO_HOLDER, _why_free(view, shard, free)
    if shard.state is ShardState.WAIT:
        if grown := growing.waits_for(view, shard.shard, growing.by_name(view) if known is None else known):
            return WAITS_FOR_PARENTS, grown
        return WAITS_FOR_PARENTS, "in an ordered group it waits until the shards that come before it are read to their ends"
    return None


def _why_still(view: GroupView, shard: ShardView, phase: Phase | None, special: tuple[str, str] | None) -> tuple[str, str]:
    """Why this shard's holder gets on with nothing: a reason and a sentence. What concerns the whole group comes first.

    `special` is what else is known to keep this holder.
    """
    said = f"{shard.holder} holds it and has checkpointed nothing"
    if cause := next((cause for cause in view.withheld if cause.reason in STOPPED_FOR_ALL), None):
        return NO_PROGRESS, f"{said}: {cause.message}"
    if not view.source_reachable:
        return NO_PROGRESS, f"{said}: the source does not answer: {view.source_error}"
    if special is not None:
        return special
    if phase is Phase.WRITING:
        return SINK_BLOCKED, f"{shard.holder} holds it and waits for its sink; see the log of {shard.holder}"
    return NO_PROGRESS, f"{said}; see the log of {shard.holder}"


def _why_paused(shard: ShardView, paused: Set[ConsumerId]) -> tuple[str, str] | None:
    if shard.holder not in paused:
        return None
    return ABOVE_FLOOD, f"{shard.holder} holds it and is paused: it is above its flood watermark"


def _why_without_executor(shard: ShardView, lacking: Set[ConsumerId]) -> tuple[str, str] | None:
    if shard.holder not in lacking:
        return None
    said = f"{shard.holder} holds it and has checkpointed nothing"
    return NO_PROGRESS, f"{said}, and has no executor; see the log of {shard.holder}"


def _why_free(view: GroupView, shard: ShardView, free: str) -> str:
    """Why this shard is not granted."""
    if view.stopped:
        return f"nothing is granted: {view.stopped[0].message}"
    if not view.source_reachable:
        return f"the source does not answer: {view.source_error}"
    if shard.checkpoint is None:
        return "its durable position is missing, or its start is not committed yet"
    return free or _why_nobody(view)


def _why_nobody(view: GroupView) -> str:
    """Why no consumer is given a shard that could be: the same for all of them, of which there may be 100,000."""
    if not any(consumer.ready and not consumer.draining and not consumer.cordoned for consumer in view.consumers):
        return "no consumer is ready"
    if room.nobody_takes(view):
        return "every consumer that could read it is above its high watermark"
    return "it waits for the next rebalance, for its last consumer to return (rejoinGrace), or for proof that this one is dead"
