"""What keeps a world from rest: something is not owned, not where it should be, or not known.

Asked while the world settles; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardherd.core.model import ShardState

if TYPE_CHECKING:
    from tests.simulation.world import World


def unowned(world: World) -> str:
    """What keeps the group from rest; empty if nothing does."""
    view = world.view()
    if view is None:
        return "no operator leads"
    if view.withheld:
        return f"grants are withheld: {view.withheld}"
    if len(view.shards) != len(world.ledger.shards):
        return f"{len(view.shards)} of {len(world.ledger.shards)} shards are known"
    for shard in view.shards:
        if shard.state not in (ShardState.ALREADY_ALLOC, ShardState.OVER):
            return f"{shard.shard} is {shard.state}, held by {shard.holder}"
    names = {consumer.consumer for consumer in view.consumers if consumer.ready and not consumer.draining}
    if names != set(world.pods.wanted):
        return f"ready consumers are {sorted(names)}, wanted {sorted(world.pods.wanted)}"
    counts = [consumer.shards for consumer in view.consumers]
    if world.spec.settings.assignor != "Range" and max(counts) - min(counts) > 1:
        return f"uneven: {counts}"
    open_end = [book.name for book in world.ledger.shards.values() if not book.open and book.durable == book.end]
    over = {shard.shard for shard in view.shards if shard.state is ShardState.OVER}
    if left := [name for name in open_end if name not in over]:
        return f"{left} are closed and consumed, and not OVER"
    return ""
