"""What users and the source do in the middle of everything: positions, shards, scale, order. Each begins its change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import ConsumerId, Reset, ResetTo, ShardState
from tests.simulation.faults_of_processes import any_consumer
from tests.simulation.faults_of_servers import be_late
from tests.simulation.history import applying
from tests.simulation.history_entries import Grown, Shard
from tests.simulation.plan import SETTLE

if TYPE_CHECKING:
    from tests.simulation.consumer import ConsumerRun
    from tests.simulation.world import World


Fault = Callable[["World"], bool]
"""Begins it. False: it could not, since there is nothing that it could happen to."""


def force_position(world: World) -> bool:
    """A user sets a position back, if possible of a shard that is being read; its consumer may fail soon after."""
    shards = [shard for shard in world.source.present() if shard.durable]
    if world.leader() is None or not shards or world.spec.settings.cells:
        # A position of a cell is not set by itself.
        return False
    if world.rng.random() < 0.4:
        _force_finished(world)
        return True

    def force(run: ConsumerRun | None) -> None:
        shard = world.rng.choice(run.reading()) if run is not None else world.rng.choice(shards).name
        leader = world.leader()
        if leader is None or not world.history.shards[shard].present:
            return
        actual = world.history.shards[shard]
        target = world.rng.randint(actual.begin, actual.durable or actual.begin)
        world.timeline.at(world.time, leader.process.loop, leader.force, shard, target)
        if run is not None and world.rng.random() < 0.4:
            world.timeline.after(world.rng.uniform(0.0, 2.0), run.exit, "crashed after a reset")
        elif world.rng.random() < 0.5:
            be_late(world)
        elif run is not None:
            world.timeline.after(world.rng.uniform(0.0, 2.0), run.restart_query)

    _with_a_reader(world, force)
    return True


def _with_a_reader(world: World, then: Callable[[ConsumerRun | None], None]) -> None:
    """Do it to some consumer once one reads; without any if none does within 100 s."""

    def wait(left: int) -> None:
        if world.healed:
            return
        reading = [run for run in world.pods.runs() if run.alive and run.reading()]
        if not reading and left:
            world.timeline.after(0.5 * world.plan.time_scale, wait, left - 1)
            return
        then(world.rng.choice(reading) if reading else None)

    wait(200)


def _force_finished(world: World) -> None:
    """A user sets back a shard that is closed and consumed; one is closed for it if there is none. The broker may refuse it."""
    closed = [shard for shard in world.source.present() if not shard.open]
    if not closed and not (_SPLIT if world.plan.kinesis else _CLOSE)(world):
        return

    def wait(left: int) -> None:
        if world.healed:
            return
        view, leader = world.view(), world.leader()
        over = [] if view is None else [each.shard for each in view.shards if each.state is ShardState.OVER]
        shards = world.history.shards
        consumed = [shard for shard in over if shards[shard].present and shards[shard].end > shards[shard].begin]
        if leader is None or not consumed:
            if left:
                world.timeline.after(4.0 * world.plan.time_scale, wait, left - 1)
            return
        shard = world.rng.choice(consumed)
        target = world.rng.randint(shards[shard].begin, shards[shard].end - 1)
        if target % 2:
            world.network.armed.setdefault(world.plan.commits, deque()).append("refused")
        world.timeline.at(world.time, leader.process.loop, leader.force, shard, target)

    wait(20)


def reset_positions(world: World) -> bool:
    """A user pauses the group, declares a reset, and goes on once it is made; the leader may crash in the middle of it."""
    shards, rng = {shard.name: shard for shard in world.source.present()}, world.rng
    if not shards:
        return False
    to = rng.choice(list(ResetTo))
    some = tuple(rng.sample(sorted(shards), min(len(shards), rng.randint(1, 3))))
    by_name = to is ResetTo.OFFSETS
    reset = Reset(
        f"reset-at-{world.time:.3f}",
        to,
        timestamp=0.0 if to is ResetTo.TIMESTAMP else None,
        offsets=tuple((shard, rng.randint(shards[shard].begin, shards[shard].end)) for shard in some) if by_name else (),
        shards=() if by_name or rng.random() < 0.2 else some,
        dry_run=rng.random() < 0.1,
    )
    if world.spec.settings.cells:
        # Their state goes as a whole, or not at all.
        every = tuple((name, rng.randint(shard.begin, shard.end)) for name, shard in shards.items()) if by_name else ()
        reset = replace(reset, offsets=every, shards=(), discard_state=True)
    world.change_spec(paused=True)

    def declare() -> None:
        if world.healed:
            return
        if rng.random() < 0.6:
            world.network.armed.setdefault(world.plan.commits, deque()).append(rng.choice(("slow", "late", "unanswered")))
        world.change_spec(reset=reset)
        wait(240, crashes=rng.random() < 0.5)

    def wait(left: int, *, crashes: bool) -> None:
        if world.healed:
            return
        stored, leader = world.history.stored, world.leader()
        report = stored.group.reset if stored is not None else None
        begun = applying(stored) is not None
        if begun and crashes and leader is not None:
            world.history.counts["resets whose leader crashed"] += 1
            leader.process.kill()
            crashes = False
        if not left or (not begun and report is not None and report.id == reset.id):
            world.change_spec(paused=False)
            return
        world.timeline.after(0.5 * world.plan.time_scale, lambda: wait(left - 1, crashes=crashes))

    world.timeline.after(rng.uniform(0.0, 30.0), declare)
    return True


def change_lineage(parents: int, children: int) -> Fault:
    what = "shards merged" if parents > 1 else "a shard split" if children else "a shard closed"

    def possible(world: World) -> list[Shard]:
        shards = [shard for shard in world.source.present() if shard.open]
        return shards if len(shards) > parents and len(world.history.shards) <= 36 else []

    def change(world: World) -> None:
        if world.healed or not (shards := possible(world)):
            return
        _note_rebalance(world, what)
        chosen = world.rng.sample(shards, parents)
        for shard in chosen:
            shard.end += world.rng.choice((0, 20, 100))  # mostly something is left to be read
            shard.open = False
            world.say(f"{shard.name} is closed at {shard.end}")
        names = tuple(shard.name for shard in chosen)
        for _ in range(children):
            name = world.source.name(len(world.history.shards))
            world.source.add(name, names)
            world.history.shards[name].end += world.rng.randint(0, 40)
            world.say(f"{name} appears, a child of {names}")

    def fault(world: World) -> bool:
        # In a stream of Kinesis others come after one that is closed.
        if not possible(world) or (not children and world.plan.kinesis):
            return False
        _perhaps_in_a_rebalance(world, lambda: change(world))
        return True

    return fault


def _note_rebalance(world: World, what: str) -> None:
    """Count it if shards are moving just now."""
    if world.history.moving_since is not None:
        world.history.counts[f"{what} in the middle of a rebalance"] += 1


def _perhaps_in_a_rebalance(world: World, change: Callable[[], None]) -> None:
    """Do it at once; or when a consumer that is drained in the middle of a slow micro-batch cannot give its shards up yet."""
    if world.rng.random() < 0.7:
        change()
        return

    def drain(run: ConsumerRun | None) -> None:
        if run is not None:
            run.hang_until = world.time + world.span(20.0, 60.0)
            world.pods.delete(run.run.consumer)
        world.timeline.after(1.0, change)

    _with_a_reader(world, drain)


_CLOSE = change_lineage(1, 0)
_SPLIT = change_lineage(1, 2)


def add_shards(world: World) -> bool:
    def add() -> None:
        if world.healed or len(world.history.shards) > 34:
            return
        _note_rebalance(world, "shards appeared")
        for _ in range(world.rng.randint(1, 3)):
            world.source.add(world.source.name(len(world.history.shards)))

    if len(world.history.shards) > 34 or world.plan.kinesis:
        return False  # a stream of Kinesis gets shards from others only
    _perhaps_in_a_rebalance(world, add)
    return True


def grow_topic(world: World) -> bool:
    """The topic gets twice as many shards; producers notice that one after the other, within the time that users declare."""

    def grow(left: int) -> None:
        shards, stored, rng = world.history.shards, world.history.stored, world.rng
        if world.healed or 2 * len(shards) > 34:
            return
        if stored is None or not shards.keys() <= stored.shards.keys():
            # A group that never saw the smaller topic waits for nothing.
            if left:
                world.timeline.after(10.0, grow, left - 1)
            return
        before = [*shards]
        _note_rebalance(world, "a topic grew")
        grown = Grown(len(before), 2 * len(before), world.time + SETTLE * rng.choice((0.0, rng.random(), 0.95)))
        world.history.grown.append(grown)
        for number in range(grown.before, grown.after):
            name = world.source.name(number)
            world.source.add(name)
            shards[name].end += rng.randint(0, 40)
        world.say(f"the topic grows to {grown.after} shards, and all producers have noticed at {grown.noticed:.3f}")
        world.history.counts["growths of a topic"] += 1

        def noticed() -> None:
            for name in before:
                more = rng.choice((0, 10, 60))
                if shards[name].open:
                    shards[name].end += more
            grown.ends = {name: shards[name].end for name in before}

        world.timeline.at(grown.noticed, None, noticed)

    grow(20)
    return True


def scale_out(world: World) -> bool:
    # A group that is deleted has no pods: one that was added would be a pod of it, and still be there beside those of the next.
    if len(world.pods.wanted) >= 5 or world.spec.leaving or world.asleep or world.deleted:
        return False
    world.pods.add(ConsumerId(f"g-{len(world.pods.wanted)}"))
    world.change_spec(wanted=len(world.pods.wanted))
    return True


def scale_in(world: World) -> bool:
    if len(world.pods.wanted) <= 2 or world.spec.leaving:
        return False
    name = ConsumerId(f"g-{len(world.pods.wanted) - 1}")
    world.change_spec(wanted=len(world.pods.wanted) - 1, leaving=frozenset({name}))

    def gone(left: int) -> None:
        view = world.view()
        held = {each.consumer: each.shards for each in view.consumers} if view is not None else {name: 1}
        if held.get(name, 0) and left:
            world.timeline.after(10.0 * world.plan.time_scale, gone, left - 1)
            return
        world.pods.wanted.pop(name, None)
        world.pods.delete(name)
        world.timeline.after(5.0, lambda: world.change_spec(leaving=frozenset()))

    world.timeline.after(10.0, gone, 30)
    return True


def drain_pod(world: World) -> bool:
    run = any_consumer(world)
    if run is not None:
        world.pods.delete(run.run.consumer)
    return run is not None


def pause_group(world: World) -> bool:
    world.change_spec(paused=True)
    world.timeline.after(world.span(10.0, 120.0), lambda: world.change_spec(paused=False))
    return True


def drop_order(world: World) -> bool:
    if not world.spec.settings.ordered:
        return False  # what is read already stays unordered, and the history's promise is that of ordered shards
    world.history.unorder()
    world.change_spec(ordered=False)
    return True


def change_assignor(world: World) -> bool:
    world.change_spec(assignor=world.rng.choice(("Sticky", "RoundRobin", "Range")))
    return True
