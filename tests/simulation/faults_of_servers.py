"""What can happen to messages, to the API server and to Kafka: loss, delay, refusal, and what administrators delete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.faults_of_processes import any_consumer
from tests.simulation.network import Weather

if TYPE_CHECKING:
    from tests.simulation.world import World


Fault = Callable[["World"], bool]
"""Begins it. False: it could not, since there is nothing that it could happen to."""


def change_weather(weather: Weather) -> Fault:
    def fault(world: World) -> bool:
        world.network.weather = weather

        def clear() -> None:
            if world.network.weather is weather:
                world.network.weather = Weather()

        world.timeline.after(world.span(30.0, 150.0), clear)
        return True

    return fault


be_late = change_weather(Weather(delay=8.0))


def slow_commits(world: World) -> bool:
    """Commits take seconds; perhaps a consumer dies during one of them."""
    queue = world.network.armed.setdefault(world.plan.commits, deque())
    queue.extend(["slow"] * world.rng.randint(2, 6))
    if world.rng.random() < 0.5:
        return True

    def wait(left: int) -> None:
        leader = world.leader()
        run = any_consumer(world)
        if leader is None or run is None or not left or world.healed:
            return
        if world.network.under_way(leader.process, "commit"):
            run.exit("crashed during a slow commit")
        else:
            world.timeline.after(0.5, wait, left - 1)

    wait(200)
    return True


def touch_ownership(world: World) -> bool:
    world.api.touch()
    return True


def arm_commit(fate: str) -> Fault:
    """What happens to the next commits of positions."""

    def fault(world: World) -> bool:
        server, operation = world.plan.commits
        return arm(server, (operation,), fate)(world)

    return fault


def arm(server: str, operations: tuple[str, ...], fate: str) -> Fault:
    def fault(world: World) -> bool:
        for operation in operations:
            world.network.armed.setdefault((server, operation), deque()).extend([fate] * world.rng.randint(1, 3))
        return True

    return fault


def refuse(server: str) -> Fault:
    def fault(world: World) -> bool:
        world.network.down[server] = True
        world.timeline.after(world.span(3.0, 60.0), world.network.down.pop, server, None)
        return True

    return fault


def delete_ownership(world: World) -> bool:
    """Somebody deletes the ConfigMap. Mostly the leader, which would write it anew, crashes before it has a reason to."""
    if world.asleep or world.api.stored is None or _traces_gone(world):
        return False  # positions that are gone too are no more than their copies, which may not be there yet
    world.api.delete()
    leader = world.leader()
    if leader is not None and world.rng.random() < 0.7:
        world.timeline.after(world.rng.uniform(0.0, 6.0), leader.process.kill)
    return True


def put_back_ownership(world: World) -> bool:
    """Somebody writes back what the ConfigMap held some time ago. Mostly the leader crashes before it writes again."""
    if world.asleep or _traces_gone(world):
        return False  # as of one that is deleted: what was granted since is found out from notes of positions
    if not world.api.put_back(world.rng):
        return False
    leader = world.leader()
    if leader is not None and world.rng.random() < 0.7:
        world.timeline.after(world.rng.uniform(0.0, 6.0), leader.process.kill)
    return True


def _traces_gone(world: World) -> bool:
    """Whether some position is gone too, or is one of a shard that bore the name before."""
    shards = world.history.shards.values()
    lost = any(shard.durable is None and shard.highest is not None for shard in shards)
    return lost or bool(world.history.sightings.others(world.history.stored))


def limit_ownership(world: World) -> bool:
    """For a while the ConfigMap takes little more than what is in it, or no more."""
    if world.api.stored is None:
        return False
    limit = world.api.limit = len(world.api.stored.data) + world.rng.choice((0, 0, 40, 400))

    def lift() -> None:
        if world.api.limit == limit:
            world.api.limit = None

    world.timeline.after(world.span(10.0, 100.0), lift)
    return True


def delete_offsets(world: World) -> bool:
    """Somebody deletes some of the group's offsets with a tool for administrators."""
    if world.history.rebuilding or world.spec.settings.cells:
        # In cells they are a mirror, which the state's own log puts right.
        return False
    known = sorted(world.kafka.committed)
    if world.plan.kinesis:
        world.say("the positions are deleted")
        world.kafka.table.delete()
        return bool(known)
    for shard in world.rng.sample(known, min(len(known), 3)):
        world.say(f"the offset of {shard} is deleted")
        world.kafka.forget(shard)
    return bool(known)
