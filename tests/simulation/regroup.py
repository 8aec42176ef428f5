"""A user deletes the group and makes it again under the same name: another UID, other pods, epochs that begin anew.

The committed offsets of the old group are still there afterwards, or somebody has deleted them. Old consumers that nobody sees
any more go on for a while, and must be refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import ConsumerId

if TYPE_CHECKING:
    from tests.simulation.world import World

LATE = 45.0
"""Seconds after which nothing that the old group asked for can still happen by itself."""


def make_again(world: World) -> bool:
    """Delete the group, and make it again a little later."""
    if world.asleep or world.deleted or world.spec.leaving or world.history.rebuilding or world.source.resetting:
        return False
    if world.spec.settings.paused or world.kafka.unanswered:
        return False
    world.say(f"group {world.spec.identity.uid} is deleted")
    world.deleted = True
    for operator in world.operators:
        world.timeline.at(world.time + 0.05, operator.process.loop, operator.forget, world.spec.identity)
    if world.rng.random() < 0.3 and world.pods.existing:
        name = world.rng.choice(list(world.pods.existing))
        world.pods.sleep()
        if name in world.pods.existing:
            world.pods.delete_by_force(name)
    else:
        world.pods.sleep()
    world.timeline.after(LATE + world.rng.uniform(0.0, 40.0), _again, world)
    return True


def _again(world: World) -> None:
    # A ConfigMap goes with the group that it belongs to.
    keeps_offsets = world.rng.random() < 0.5 and not world.plan.kinesis
    kept = "are still there" if keeps_offsets else "were deleted"
    number = world.history.counts["groups made again"] = world.history.counts["groups made again"] + 1
    identity = replace(world.spec.identity, uid=f"6a1f2c34-0000-4000-8000-{number + 1:012d}")
    world.say(f"group {identity.uid} is made; the offsets of the one before {kept}")
    world.history.counts[f"groups made again whose offsets {kept}"] += 1
    for run in world.pods.everyone():
        run.run.violent = run.run.violent or "its group was deleted"
    if world.rng.random() < 0.6 or world.api.stored is None:
        world.api.collect()
    world.kafka.begin_anew(keeps_offsets=keeps_offsets)
    if not keeps_offsets:
        world.network.limbo.clear()
    world.history.begin_group(identity.uid, keeps_offsets=keeps_offsets)
    for operator in world.operators:
        operator.rebalances = 0
    world.pods.proofs.clear()
    world.pods.locations.clear()  # a location has the UID of its group in its path
    world.deleted = False
    world.last_start = world.time
    world.spec = replace(world.spec, identity=identity, reset=None, leaving=frozenset[ConsumerId]())
    world.change_spec()
    world.pods.wake()
