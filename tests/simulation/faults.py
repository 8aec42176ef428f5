"""What can happen to a world: each fault of a schedule, what users change, and how everything is healed at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from shardherd.core.model import ConsumerId, ShardId
from tests.simulation.network import Weather

if TYPE_CHECKING:
    from tests.simulation.consumer import ConsumerRun
    from tests.simulation.operator import OperatorRun
    from tests.simulation.world import World

Fault = Callable[["World"], bool]
"""Begins it. False: it could not, since there is nothing that it could happen to."""


def happen(world: World, kind: str) -> bool:
    """Begin a fault or a change by its name in the plan."""
    return _KINDS[kind](world)


def heal(world: World) -> None:
    """No more faults: what stands still goes on, what is cut is joined, what nobody sees is gone."""
    world.say("--- all is healed")
    network = world.network
    network.cut.clear()
    network.armed.clear()
    network.down.clear()
    network.weather = Weather()
    for run in world.zombies:
        run.exit("its node is gone")
    for pod in list(world.pods.values()):
        if pod.run is not None:
            pod.run.hang_until = 0.0
            pod.run.process.die_at_await = 0
            _go_on(world, pod.run.process.loop)
    for operator in world.operators:
        operator.process.die_at_await = 0
        _go_on(world, operator.process.loop)
        world.add_endpoint(operator)
    world.nothing_stands_still()
    world.change_spec(paused=False)


def reset_lost(world: World) -> None:
    """A user sets positions that were lost to what they were, and asks again where he does not know what became of it."""
    leader = world.leader()
    if leader is None:
        return
    for shard, offset in sorted(world.kafka.unanswered.items()):
        world.timeline.at(world.time, leader.process.loop, leader.force, shard, offset)
    for book in world.ledger.shards.values():
        if book.durable is None and book.highest is not None:
            world.timeline.at(world.time, leader.process.loop, leader.force, book.name, book.highest)


def _go_on(world: World, loop: object) -> None:
    for process in world._processes():
        if process.loop is loop:
            process.loop.resume()


def _consumer(world: World) -> ConsumerRun | None:
    running = [pod.run for pod in world.pods.values() if pod.run is not None and pod.run.alive]
    return world.rng.choice(running) if running else None


def _operator(world: World) -> OperatorRun | None:
    leader = world.leader()
    if leader is not None:
        return leader
    return world.rng.choice(world.operators) if world.operators else None


def _crash(world: World) -> bool:
    run = _consumer(world)
    if run is not None:
        run.exit("crashed")
    return run is not None


def _crash_at_await(world: World) -> bool:
    run = _consumer(world)
    if run is not None:
        run.process.die_at_await = world.rng.randint(1, 12)
    return run is not None


def _crash_again(world: World) -> bool:
    name = world.rng.choice(list(world.pods)) if world.pods else None

    def again(left: int) -> None:
        pod = world.pods.get(name) if name is not None else None
        if pod is not None and pod.run is not None and pod.run.alive:
            pod.run.exit("crashed again")
        if left and not world.healed:
            world.timeline.after(world.rng.uniform(8.0, 30.0), again, left - 1)

    again(world.rng.randint(2, 4))
    return name is not None


def _still(low: float, high: float) -> Fault:
    def fault(world: World) -> bool:
        run = _consumer(world)
        if run is not None:
            world.stand_still(run.process, world.rng.uniform(low, high))
        return run is not None

    return fault


def _hang(world: World) -> bool:
    run = _consumer(world)
    if run is not None:
        run.hang_until = world.time + world.rng.uniform(20.0, 300.0)
    return run is not None


def _cut(world: World, links: list[tuple[str, str]], seconds: float) -> None:
    world.say(f"cut for {seconds:.0f} s: {links}")
    world.network.cut.update(links)

    def join() -> None:
        world.network.cut.difference_update(links)

    world.timeline.after(seconds, join)


def _cut_consumer(both: bool) -> Fault:
    def fault(world: World) -> bool:
        run = _consumer(world)
        if run is None:
            return False
        name = run.process.name
        others = [operator.name for operator in world.operators]
        inward, outward = [(other, name) for other in others], [(name, other) for other in others]
        links = [*inward, *outward] if both else world.rng.choice((inward, outward))
        if world.rng.random() < 0.3:
            links += [(name, "kafka"), ("kafka", name)]
        _cut(world, links, world.rng.uniform(10.0, 260.0))
        return True

    return fault


def _delete_by_force(world: World) -> bool:
    run = _consumer(world)
    if run is None:
        return False
    name = run.process.name
    if world.rng.random() < 0.7:
        links = [(name, operator.name) for operator in world.operators]
        links += [(operator.name, name) for operator in world.operators]
        _cut(world, links, world.rng.uniform(20.0, 160.0))
        for seconds in (3.0, 30.0, 60.0):
            world.timeline.after(seconds, world.produce, run.holds())
    if world.rng.random() < 0.3:
        world.stand_still(run.process, world.rng.uniform(2.0, 100.0))
    world.delete_by_force(run.run.consumer)
    return True


def _query_fails(world: World) -> bool:
    run = _consumer(world)
    if run is not None:
        run.restart_query()
    return run is not None


def _operator_crashes(world: World) -> bool:
    operator = _operator(world)
    if operator is not None:
        operator.process.kill()
    return operator is not None


def _operator_crashes_at_await(world: World) -> bool:
    operator = _operator(world)
    if operator is not None:
        operator.process.die_at_await = world.rng.randint(1, 30)
    return operator is not None


def _operator_still(low: float, high: float) -> Fault:
    def fault(world: World) -> bool:
        operator = _operator(world)
        if operator is not None:
            world.stand_still(operator.process, world.rng.uniform(low, high))
        return operator is not None

    return fault


def _two_leaders(world: World) -> bool:
    """The leader stands still, mostly in the middle of a commit or a write, until another one has taken over."""
    operator = world.leader()
    if operator is None:
        return False
    if len(world.operators) < 2:
        object.__setattr__(world.plan, "operators", 2)
        world.start_operator()
    seconds = world.rng.uniform(26.0, 120.0)
    server, operation = world.rng.choice((("kafka", "commit"), ("kafka", "commit"), ("kube", "save"), ("", "")))

    def wait(left: int) -> None:
        if operator.process.dead:
            return
        if not server or world.network.under_way(operator.process, operation) or not left:
            world.stand_still(operator.process, seconds)
        else:
            world.timeline.after(0.01, wait, left - 1)

    wait(1500)
    return True


def _crash_in_commit(world: World) -> bool:
    """The commit is still on its way when the next leader takes the offsets over."""
    operator = world.leader()
    if operator is None:
        return False
    world.network.armed.setdefault(("kafka", "commit"), deque()).append("limbo")

    def wait(left: int) -> None:
        if operator.process.dead or not left:
            return
        if world.network.limbo:
            operator.process.kill()
        else:
            world.timeline.after(0.25, wait, left - 1)

    wait(400)
    return True


def _cut_operator(world: World) -> bool:
    operator = _operator(world)
    if operator is None:
        return False
    server = world.rng.choice(("kube", "kafka"))
    links = world.rng.choice(([(operator.name, server)], [(server, operator.name)]))
    _cut(world, links, world.rng.uniform(5.0, 90.0))
    return True


def _weather(weather: Weather) -> Fault:
    def fault(world: World) -> bool:
        world.network.weather = weather

        def clear() -> None:
            if world.network.weather is weather:
                world.network.weather = Weather()

        world.timeline.after(world.rng.uniform(30.0, 150.0), clear)
        return True

    return fault


_late = _weather(Weather(delay=8.0))


def _slow_commits(world: World) -> bool:
    """Commits take seconds; perhaps a consumer dies during one of them."""
    queue = world.network.armed.setdefault(("kafka", "commit"), deque())
    queue.extend(["slow"] * world.rng.randint(2, 6))
    if world.rng.random() < 0.5:
        return True

    def wait(left: int) -> None:
        leader = world.leader()
        run = _consumer(world)
        if leader is None or run is None or not left:
            return
        if world.network.under_way(leader.process, "commit"):
            run.exit("crashed during a slow commit")
        else:
            world.timeline.after(0.5, wait, left - 1)

    wait(200)
    return True


def _clock_jumps(world: World) -> bool:
    jump = world.rng.choice((-3600.0, 3600.0, 120.0))
    if world.rng.random() < 0.6:
        processes = [operator.process for operator in world.operators]
    else:
        processes = [world.rng.choice(world._processes())]
    for process in processes:
        process.wall_offset += jump
    return True


def _write_conflict(world: World) -> bool:
    world.api.touch()
    return True


def _armed(server: str, operations: tuple[str, ...], fate: str) -> Fault:
    def fault(world: World) -> bool:
        for operation in operations:
            world.network.armed.setdefault((server, operation), deque()).extend([fate] * world.rng.randint(1, 3))
        return True

    return fault


def _down(server: str) -> Fault:
    def fault(world: World) -> bool:
        world.network.down[server] = True
        world.timeline.after(world.rng.uniform(3.0, 60.0), world.network.down.pop, server, None)
        return True

    return fault


def _offsets_expire(world: World) -> bool:
    known = sorted(world.kafka.committed)
    for shard in world.rng.sample(known, min(len(known), 3)):
        world.say(f"the offset of {shard} expires")
        world.kafka.forget(shard)
    return bool(known)


def _force(world: World) -> bool:
    """A user sets a position back, if possible of a shard that is being read; its consumer may fail soon after."""
    books = [book for book in world.ledger.shards.values() if book.durable]
    if world.leader() is None or not books:
        return False

    def wait(left: int) -> None:
        reading = [run for run in world.runs() if run.alive and run.reading()]
        if not reading and left:
            world.timeline.after(0.5, wait, left - 1)
            return
        run = world.rng.choice(reading) if reading else None
        shard = world.rng.choice(run.reading()) if run is not None else world.rng.choice(books).name
        leader = world.leader()
        if leader is None:
            return
        target = world.rng.randint(0, world.ledger.shards[shard].durable or 0)
        world.timeline.at(world.time, leader.process.loop, leader.force, shard, target)
        if run is not None and world.rng.random() < 0.4:
            world.timeline.after(world.rng.uniform(0.0, 2.0), run.exit, "crashed after a reset")
        elif world.rng.random() < 0.5:
            _late(world)
        elif run is not None:
            world.timeline.after(world.rng.uniform(0.0, 2.0), run.restart_query)

    wait(200)
    return True


def _lineage(parents: int, children: int) -> Fault:
    def fault(world: World) -> bool:
        books = [book for book in world.ledger.shards.values() if book.open]
        if len(books) < parents + 1 or len(world.ledger.shards) > 36:
            return False
        chosen = world.rng.sample(books, parents)
        for book in chosen:
            book.end += world.rng.choice((0, 20, 100))  # mostly something is left to be read
            book.open = False
            world.say(f"{book.name} is closed at {book.end}")
        names = tuple(book.name for book in chosen)
        for _ in range(children):
            name = ShardId(f"t/{len(world.ledger.shards)}")
            world.add_shard(name, names)
            world.ledger.shards[name].end = world.rng.randint(0, 40)
            world.say(f"{name} appears, a child of {names}")
        return True

    return fault


def _appear(world: World) -> bool:
    if len(world.ledger.shards) > 34:
        return False
    for _ in range(world.rng.randint(1, 3)):
        world.add_shard(ShardId(f"t/{len(world.ledger.shards)}"))
    return True


def _scale_out(world: World) -> bool:
    if len(world.wanted) >= 5 or world.spec.leaving:
        return False
    world.add_pod(ConsumerId(f"g-{len(world.wanted)}"))
    world.change_spec(wanted=len(world.wanted))
    return True


def _scale_in(world: World) -> bool:
    if len(world.wanted) <= 2 or world.spec.leaving:
        return False
    name = ConsumerId(f"g-{len(world.wanted) - 1}")
    world.change_spec(wanted=len(world.wanted) - 1, leaving=frozenset({name}))

    def gone(left: int) -> None:
        view = world.view()
        held = {each.consumer: each.shards for each in view.consumers} if view is not None else {name: 1}
        if held.get(name, 0) and left:
            world.timeline.after(10.0, gone, left - 1)
            return
        world.wanted.pop(name, None)
        world.delete_pod(name)
        world.timeline.after(5.0, lambda: world.change_spec(leaving=frozenset()))

    world.timeline.after(10.0, gone, 30)
    return True


def _drain(world: World) -> bool:
    run = _consumer(world)
    if run is not None:
        world.delete_pod(run.run.consumer)
    return run is not None


def _pause_group(world: World) -> bool:
    world.change_spec(paused=True)
    world.timeline.after(world.rng.uniform(10.0, 120.0), lambda: world.change_spec(paused=False))
    return True


def _order(world: World) -> bool:
    if not world.spec.settings.ordered:
        return False  # what is read already stays unordered, and the ledger's promise is that of ordered shards
    world.ledger.unorder()
    world.change_spec(ordered=False)
    return True


def _assignor(world: World) -> bool:
    world.change_spec(assignor=world.rng.choice(("Sticky", "RoundRobin", "Range")))
    return True


_KINDS: dict[str, Fault] = {
    "consumer crashes": _crash,
    "consumer crashes at an await": _crash_at_await,
    "consumer crashes again and again": _crash_again,
    "consumer stands still": _still(1.0, 60.0),
    "consumer stands still for minutes": _still(60.0, 600.0),
    "consumer hangs in a micro-batch": _hang,
    "consumer is cut off one way": _cut_consumer(both=False),
    "consumer is cut off": _cut_consumer(both=True),
    "consumer is deleted by force": _delete_by_force,
    "query fails in a micro-batch": _query_fails,
    "operator crashes": _operator_crashes,
    "operator crashes at an await": _operator_crashes_at_await,
    "operator stands still": _operator_still(1.0, 600.0),
    "two leaders": _two_leaders,
    "operator is cut off one way": _cut_operator,
    "messages are lost": _weather(Weather(loss=0.2)),
    "messages are doubled and reordered": _weather(Weather(double=0.3, delay=2.0)),
    "messages are late": _late,
    "clock jumps": _clock_jumps,
    "write conflict": _write_conflict,
    "reply to a write is lost": _armed("kube", ("save",), "unanswered"),
    "API server refuses": _down("kube"),
    "commits are slow": _slow_commits,
    "commit lands late": _armed("kafka", ("commit",), "late"),
    "operator crashes in a commit": _crash_in_commit,
    "reply to a commit is lost": _armed("kafka", ("commit",), "unanswered"),
    "Kafka refuses": _down("kafka"),
    "offsets expire": _offsets_expire,
    "position is set by force": _force,
    "shard splits": _lineage(1, 2),
    "shards merge": _lineage(2, 1),
    "shard closes": _lineage(1, 0),
    "shards appear": _appear,
    "scale out": _scale_out,
    "scale in": _scale_in,
    "pod is drained": _drain,
    "group is paused": _pause_group,
    "order changes": _order,
    "assignor changes": _assignor,
}
