"""How a world comes to rest after its last fault, and what keeps it from it: something not owned, or not where it should be.

Called by the world at the end of its schedule. Within which time everything must be owned again is DESIGN's promise.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardherd.core.model.naming import cell
from shardherd.core.model.nouns import ShardState
from tests.simulation import faults
from tests.simulation.filling import RECOVERY
from tests.simulation.history_entries import BrokenError
from tests.simulation.resting import staying, unlike

if TYPE_CHECKING:
    from tests.simulation.world import World

RESTARTS = 90.0
"""Seconds that everything has to come up again after the last fault: processes, the lease, and a warm-up batch."""

CONSUMING = 240.0
"""Seconds after everything is owned in which everything must be consumed."""


def settle(world: World) -> None:
    """No more faults: everything is owned within the bound, then consumed, then at rest. Raises BrokenError."""
    faults.heal(world)
    world.healed, world.healed_at = True, world.time
    interval = world.spec.settings.heartbeat_interval
    while True:
        world.until(world.time + 10.0 * world.plan.time_scale)
        why = unowned(world) or world.history.unfinished() or world.places.unfinished()
        if not why and not world.kafka.unanswered:
            counts = world.history.counts
            grants, writes = counts["grants"], counts["ownership writes"]
            world.until(world.time + 2 * interval)
            why = unowned(world) or world.history.unfinished() or unlike(world)
            if not why and (counts["grants"], counts["ownership writes"]) == (grants, writes):
                return
            why = why or "shards still move, or the ownership is written though nothing changes"
        faults.reset_lost(world)
        bound = _bound(world)
        since = world.time - max(world.healed_at, min(world.last_start, world.healed_at + 600.0 * world.plan.time_scale))
        if unowned(world):
            if since > bound:
                raise BrokenError(f"{since:.0f} s after the last fault (bound {bound:.0f} s): {why}")
        elif since > bound + CONSUMING * world.plan.time_scale:
            raise BrokenError(f"{since:.0f} s after the last fault everything is owned, but {why}")


def _bound(world: World) -> float:
    """Seconds after the last fault within which everything is owned again."""
    settings = world.spec.settings
    return (
        2 * settings.session_timeout
        + max(settings.release_timeout, settings.progress_timeout) * 2.0 ** _doublings(world)
        + settings.rejoin_grace
        + ((RECOVERY + 2 * settings.heartbeat_interval) if settings.watermarks else 0.0)
        + settings.heartbeat_interval
        + (settings.session_timeout if world.history.counts["ownerships lost"] else 0.0)
        + RESTARTS * world.plan.time_scale
        # A coordinator that took over waits anew, and what is waited for has to be read first.
        + ((2 * settings.growth_settle + CONSUMING) if world.history.grown else 0.0)
    )


def _doublings(world: World) -> int:
    leader = world.leader()
    if leader is None or world.view() is None:
        return 0
    runner = leader.runtime.group(world.spec.identity.namespace, world.spec.identity.name)
    return 0 if runner.mailbox is None else int(runner.mailbox.group._state.clocks.doublings)


def unowned(world: World) -> str:
    """What keeps the group from rest; empty if nothing does."""
    view = world.view()
    if view is None:
        return "no operator leads"
    if view.withheld:
        return f"grants are withheld: {view.withheld}"
    shards = [shard for shard in view.shards if shard.present]
    there = world.source.names()
    if {shard.shard for shard in shards} != there:
        return f"{len(shards)} shards are known, of {len(there)} that are there"
    for shard in shards:
        if shard.state not in (ShardState.ALREADY_ALLOC, ShardState.OVER):
            return f"{shard.shard} is {shard.state}, held by {shard.holder}"
    names = {consumer.consumer for consumer in view.consumers if consumer.ready and not consumer.draining}
    if names != set(world.pods.wanted):
        return f"ready consumers are {sorted(names)}, wanted {sorted(world.pods.wanted)}"
    number, stay = world.spec.settings.cells, staying(world)
    # What is shared out evenly is a shard, or a cell with all that there is of it.
    of_shards = ((shard.holder, cell(shard.shard, number) if number else shard.shard) for shard in shards)
    units = {(holder, unit) for holder, unit in of_shards if holder is not None and unit not in stay}
    held = Counter(holder for holder, _ in units)
    counts = [held[consumer.consumer] for consumer in view.consumers]
    if world.spec.settings.assignor != "Range" and max(counts) - min(counts) > 1:
        return f"uneven: {counts}"
    open_end = [shard.name for shard in world.source.present() if not shard.open and shard.durable == shard.end]
    over = {shard.shard for shard in view.shards if shard.state is ShardState.OVER}
    if left := [name for name in open_end if name not in over]:
        return f"{left} are closed and consumed, and not OVER"
    return ""
