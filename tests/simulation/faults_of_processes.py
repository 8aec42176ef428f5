"""What can happen to consumers and operators: they crash, stand still, hang, and are cut off. Each begins its fault."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.consumer import ConsumerRun
    from tests.simulation.operator import OperatorRun
    from tests.simulation.world import World


Fault = Callable[["World"], bool]
"""Begins it. False: it could not, since there is nothing that it could happen to."""


def any_consumer(world: World) -> ConsumerRun | None:
    running = [pod.run for pod in world.pods.existing.values() if pod.run is not None and pod.run.alive]
    return world.rng.choice(running) if running else None


def any_operator(world: World) -> OperatorRun | None:
    leader = world.leader()
    if leader is not None:
        return leader
    return world.rng.choice(world.operators) if world.operators else None


def crash(world: World) -> bool:
    run = any_consumer(world)
    if run is not None:
        run.exit("crashed")
    return run is not None


def crash_at_await(world: World) -> bool:
    run = any_consumer(world)
    if run is not None:
        run.process.die_at_await = world.rng.randint(1, 12)
    return run is not None


def crash_again(world: World) -> bool:
    name = world.rng.choice(list(world.pods.existing)) if world.pods.existing else None

    def again(left: int) -> None:
        pod = world.pods.existing.get(name) if name is not None else None
        if pod is not None and pod.run is not None and pod.run.alive:
            pod.run.exit("crashed again")
        if left and not world.healed:
            world.timeline.after(world.rng.uniform(8.0, 30.0), again, left - 1)

    again(world.rng.randint(2, 4))
    return name is not None


def stand_still(anyone: Callable[[World], ConsumerRun | OperatorRun | None], low: float, high: float) -> Fault:
    def fault(world: World) -> bool:
        found = anyone(world)
        if found is not None:
            world.stand_still(found.process, world.span(low, high))
        return found is not None

    return fault


def hang(world: World) -> bool:
    run = any_consumer(world)
    if run is not None:
        run.hang_until = world.time + world.span(20.0, 300.0)
    return run is not None


def _cut(world: World, links: list[tuple[str, str]], seconds: float) -> None:
    world.say(f"cut for {seconds:.0f} s: {links}")
    world.network.cut.update(links)

    def join() -> None:
        world.network.cut.difference_update(links)

    world.timeline.after(seconds, join)


def cut_consumer(both: bool) -> Fault:
    def fault(world: World) -> bool:
        run = any_consumer(world)
        if run is None:
            return False
        name = run.process.name
        others = [operator.name for operator in world.operators]
        inward, outward = [(other, name) for other in others], [(name, other) for other in others]
        links = [*inward, *outward] if both else world.rng.choice((inward, outward))
        if world.rng.random() < 0.3:
            links += [(name, "kafka"), ("kafka", name)]
        _cut(world, links, world.span(10.0, 260.0))
        return True

    return fault


def delete_by_force(world: World) -> bool:
    run = any_consumer(world)
    if run is None:
        return False
    name = run.process.name
    if world.rng.random() < 0.7:
        links = [(name, operator.name) for operator in world.operators]
        links += [(operator.name, name) for operator in world.operators]
        _cut(world, links, world.span(20.0, 160.0))
        for seconds in (3.0, 30.0, 60.0):
            world.timeline.after(seconds, world.source.write, run.holds())
    if world.rng.random() < 0.3:
        world.stand_still(run.process, world.span(2.0, 100.0))
    world.pods.delete_by_force(run.run.consumer)
    return True


def fail_query(world: World) -> bool:
    run = any_consumer(world)
    if run is not None:
        run.restart_query()
    return run is not None


def crash_operator(world: World) -> bool:
    operator = any_operator(world)
    if operator is not None:
        operator.process.kill()
    return operator is not None


def crash_operator_at_await(world: World) -> bool:
    operator = any_operator(world)
    if operator is not None:
        operator.process.die_at_await = world.rng.randint(1, 30)
    return operator is not None


def make_two_leaders(world: World) -> bool:
    """The leader stands still, mostly in the middle of a commit or a write, until another one has taken over."""
    operator = world.leader()
    if operator is None:
        return False
    if len(world.operators) < 2:
        object.__setattr__(world.plan, "operators", 2)
        world.start_operator()
    seconds = world.span(26.0, 120.0)
    server, operation = world.rng.choice((world.plan.commits, world.plan.commits, ("kube", "save"), ("", "")))

    def wait(left: int) -> None:
        if operator.process.dead or world.healed:
            return
        if not server or world.network.under_way(operator.process, operation) or not left:
            world.stand_still(operator.process, seconds)
        else:
            world.timeline.after(0.02, wait, left - 1)

    wait(750)
    return True


def crash_in_commit(world: World) -> bool:
    """The commit is still on its way when the next leader takes the offsets over; perhaps a consumer crashes too."""
    operator = world.leader()
    if operator is None:
        return False
    world.network.armed.setdefault(world.plan.commits, deque()).append("limbo")

    def wait(left: int) -> None:
        if operator.process.dead or not left or world.healed:
            return
        if world.network.limbo:
            operator.process.kill()
            run = any_consumer(world)
            if run is not None and world.rng.random() < 0.5:
                # Perhaps the one whose positions these are: its next run is told where to go on.
                run.exit("crashed with the operator")
        else:
            world.timeline.after(0.25, wait, left - 1)

    wait(400)
    return True


def cut_operator(world: World) -> bool:
    operator = any_operator(world)
    if operator is None:
        return False
    server = world.rng.choice(("kube", "kafka"))
    links = world.rng.choice(([(operator.name, server)], [(server, operator.name)]))
    _cut(world, links, world.span(5.0, 90.0))
    return True


def jump_clocks(world: World) -> bool:
    jump = world.rng.choice((-3600.0, 3600.0, 120.0))
    if world.rng.random() < 0.6:
        processes = [operator.process for operator in world.operators]
    else:
        everyone = world._processes()
        processes = [world.rng.choice(everyone)] if everyone else []
    for process in processes:
        process.wall_offset += jump
    return bool(processes)
