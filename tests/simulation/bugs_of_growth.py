"""Bugs that are planted into how a group keeps order while its topic grows. The table of `bugs` has these, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from shardherd.core.group import cutovers, grants, ownership
from shardherd.core.model import growths
from shardherd.core.model.nouns import ShardState

Patch = tuple[Any, str, Any]


def _cutover_too_early() -> list[Patch]:
    """It is looked up as soon as the growth is seen, while producers may not have noticed."""
    return [(cutovers, "_settled_at", lambda *_: float("-inf"))]


def _settle_time_lost_with_the_leader() -> list[Patch]:
    """A coordinator that took over takes for settled what it has not seen begin."""

    def settled_at(state: Any, each: Any) -> float:
        since = state.clocks.grown_at.get((each.topic, each.after), float("-inf"))
        return float(since + state.spec.settings.growth_settle)

    return [(cutovers, "_settled_at", settled_at)]


def _cutover_lost_with_the_leader() -> list[Patch]:
    """Who reads the ownership takes every cutover offset for 0, so that all is read up to it."""
    real = ownership._decode_keeping

    def decode(data: Any) -> Any:
        found = real(data)
        return structs.replace(found, ends=tuple((shard, 0) for shard, _ in found.ends))

    return [(ownership, "_decode_keeping", decode)]


def _grandparent_forgotten() -> list[Patch]:
    """Only the shard is looked at from which the keys came last."""
    real = growths.parents
    return [(growths, "parents", lambda known, shard: real(known, shard)[:1])]


def _child_granted_before_the_cutover() -> list[Patch]:
    """Who waits is set free once a cutover offset is found, however far it was read."""
    real = cutovers.taken

    def taken(state: Any, request: Any, now: float) -> None:
        for shard in tuple(state.by_state[ShardState.WAIT]):
            grants.wake(state, state.shards[shard], now)
        real(state, request, now)

    return [(cutovers, "taken", taken)]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    "a cutover taken too early": _cutover_too_early,
    "the time to settle lost with the leader": _settle_time_lost_with_the_leader,
    "a cutover lost with the leader": _cutover_lost_with_the_leader,
    "a grandparent forgotten": _grandparent_forgotten,
    "a child granted before the cutover is reached": _child_granted_before_the_cutover,
}
