"""What happens to topics: they are deleted and made anew, they vanish for a while, and some never come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World


def make_anew(world: World) -> bool:
    """Shards are deleted and made anew, at once or after a while; later the user resets them."""
    shards = world.source.plain()
    if not shards or world.history.rebuilding:
        return False  # the copies of positions are of the shards that bore the names before
    if world.plan.kinesis and len(shards) < len(world.history.shards):
        return False  # a stream is made anew as a whole, and with other shards than it had come to
    chosen = (
        shards
        if world.plan.kinesis or world.rng.random() < 0.3
        else world.rng.sample(shards, min(len(shards), world.rng.randint(1, 3)))
    )

    def make() -> None:
        if world.history.rebuilding:
            world.source.come_back(chosen)
        else:
            world.source.make_anew(chosen)

    if world.rng.random() < 0.4:
        world.source.vanish(chosen)
        world.timeline.after(world.rng.uniform(1.0, 90.0), make)
    else:
        world.source.make_anew(chosen)

    def put_right(left: int) -> None:
        if not world.healed:
            world.source.put_right()
            if left:
                world.timeline.after(5.0 * world.plan.time_scale, put_right, left - 1)

    world.timeline.after(world.span(150.0, 250.0), put_right, 20)
    return True


def vanish(world: World) -> bool:
    """Some shards are not there for a while. Those of a topic that was deleted, or is shrunk by making it anew, never again.

    In a stream of Kinesis closed ones go, once retention has deleted all their records.
    """
    if world.plan.kinesis:
        closed = [shard for shard in world.source.present() if not shard.open]
        if closed:
            world.source.vanish(world.rng.sample(closed, world.rng.randint(1, len(closed))), for_good=True)
        return bool(closed)
    shards = world.source.plain()
    if len(shards) < 4:
        return False
    chosen = world.rng.sample(shards, world.rng.randint(1, len(shards) // 3))
    for_good = world.rng.random() < 0.3
    world.source.vanish(chosen, for_good=for_good)
    if not for_good:
        world.timeline.after(world.rng.uniform(5.0, 200.0), world.source.come_back, chosen)
    return True


def vanish_all(world: World) -> bool:
    """No shard is there for a while, as if somebody took away the right to see the topic."""
    if world.plan.kinesis:
        return False  # who may not see the stream is refused, and not shown an empty one
    shards = world.source.present()
    world.source.vanish(shards)
    world.timeline.after(world.rng.uniform(5.0, 120.0), world.source.come_back, shards)
    return bool(shards)
