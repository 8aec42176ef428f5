"""What a world at rest must look like: memory, store, source, picture and consumers all say the same, and shares are right.

Asked by `rest` once everything is owned and consumed. Answers with what does not fit yet; what never comes to fit within the
bound is a broken promise.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from shardherd.core import assignors
from shardherd.core.group import cells
from shardherd.core.group.group import Group
from shardherd.core.group.notes import parse
from shardherd.core.group.records import EndReason, Ownership, ShardRecord
from shardherd.core.group.state import State
from shardherd.core.model.naming import cell, consumer_key, shard_key
from shardherd.core.model.nouns import ConsumerId, GroupView, ShardId, ShardState, ShardView

if TYPE_CHECKING:
    from tests.simulation.operator import OperatorRun
    from tests.simulation.world import World


def unlike(world: World) -> str:
    """What is not as it must be at rest; empty if everything is."""
    leader, stored = world.leader(), world.history.stored
    if leader is None or stored is None:
        return "no operator leads"
    runner = leader.runtime.group(world.spec.identity.namespace, world.spec.identity.name)
    if runner.mailbox is None or not leader.runtime.ready:
        return "the group is not served"
    group = runner.mailbox.group
    view = group.view(leader.process.now(), leader.process.wall())
    return (
        _memory(group, stored)
        or _positions(world, group, stored)
        or indexes(group._state)
        or picture(view, stored)
        or _shards(world, group, view, stored, leader.process.now())
        or _consumers(world, group, view, stored, leader.process.now())
        or _events(world, leader, view)
        or share(world.spec.settings.assignor, stored, _movable(world, stored), world.spec.settings.cells)
    )


def staying(world: World) -> frozenset[int]:
    """The cells that nobody can move: their holder has read something of them that is away, and can be saved nowhere."""
    stored, number = world.history.stored, world.spec.settings.cells
    if stored is None or not number:
        return frozenset()
    away = [row for name, row in stored.shards.items() if row.holder is not None and name not in world.source.names()]
    runs = {pod.name: pod.run for pod in world.pods.existing.values() if pod.run is not None and pod.run.alive}
    return frozenset(cell(row.shard, number) for row in away if row.holder in runs and row.shard in runs[row.holder].unsaved())


def _movable(world: World, stored: Ownership) -> frozenset[ShardId]:
    """The shards that are there, without those of cells that stay where they are."""
    number, stay = world.spec.settings.cells, staying(world)
    return frozenset(name for name in world.source.names() & stored.shards.keys() if not stay or cell(name, number) not in stay)


def _memory(group: Group, stored: Ownership) -> str:
    memory = group.ownership
    if memory.group != stored.group:
        return f"in memory the group is {memory.group}, stored is {stored.group}"
    for name, row in memory.shards.items():
        # What was restored is started once its position was found durable; that is written with the next change.
        if name not in stored.shards or row._replace(since=0.0, started=True) != stored.shards[name]._replace(
            since=0.0, started=True
        ):
            return f"in memory {name} is {row}, stored is {stored.shards.get(name)}"
    if memory.shards.keys() != stored.shards.keys() or memory.consumers != stored.consumers:
        return f"in memory consumers are {memory.consumers}, stored are {stored.consumers}"
    return ""


def _positions(world: World, group: Group, stored: Ownership) -> str:
    # Nobody looks after the positions of shards that are gone.
    there = world.source.names()
    committed = {name: offset for name, offset in world.kafka.committed.items() if name in there}
    memory = {name: offset for name, offset in group._state.positions.items() if name in there}
    if memory != committed:
        return f"in memory positions are {memory}, committed are {committed}"
    state = group._state
    if state.in_flight or state.clocks.copies or state.clocks.unset:
        return f"commits are under way that nobody waits for: {state.in_flight}, {state.clocks.copies}, {state.clocks.unset}"
    for name in committed:
        note = parse(world.kafka.notes.get(name, ""))
        row = stored.shards[name]
        if note is None or note.uid != stored.group.uid or note.source_id != row.source_id:
            return f"the note of {name} is {note}, stored is {row}"
        if note.leader_epoch > stored.group.leader_epoch or note.owner_epoch > row.owner_epoch:
            return f"the note of {name} is {note}, of the future of {row}"
    above = {name: copy for name, copy in world.api.copies.copies.offsets.items() if copy > committed.get(name, copy)}
    return f"copies are above the durable positions: {above}" if above else ""


def indexes(state: State) -> str:
    """What the indexes of a group's state say that its rows do not."""
    fresh = State(state.spec, state.record, state.clocks, state.assignors)
    for row in state.shards.values():
        fresh.put_shard(row)
    for consumer, session in state.sessions.items():
        fresh.put_session(consumer, session)
    for name in ("by_state", "held", "under", "moving", "incoming", "children"):
        found, expected = _full(getattr(state, name)), _full(getattr(fresh, name))
        if found != expected:
            return f"the index {name} says {found}, the rows say {expected}"
    if set(state.below_low) != set(fresh.below_low):
        return f"the index below_low says {set(state.below_low)}, the rows say {set(fresh.below_low)}"
    return ""


def _full(index: dict[Any, Any]) -> dict[Any, frozenset[ShardId]]:
    return {key: frozenset(shards) for key, shards in index.items() if shards}


def picture(view: GroupView, stored: Ownership) -> str:
    """Where a picture of a group differs from what is stored of it."""
    if (view.revision, view.group_epoch) != (stored.group.revision, stored.group.group_epoch):
        return f"the picture has revision {view.revision} and epoch {view.group_epoch}, stored is {stored.group}"
    shown = {each.shard: (each.state, each.holder, each.next_consumer, each.owner_epoch) for each in view.shards}
    kept = {name: (row.state, row.holder, row.next_consumer, row.owner_epoch) for name, row in stored.shards.items()}
    if shown != kept or [each.shard for each in view.shards] != sorted(kept, key=shard_key):
        return f"the picture shows shards {shown}, stored are {kept}"
    if view.last_reset != stored.group.last_reset:
        return f"the picture shows as the last reset {view.last_reset}, stored is {stored.group.last_reset}"
    present = {name: record for name, record in stored.consumers.items() if record.present}
    away = {each.shard for each in view.shards if not each.present}
    held = [row.holder for row in stored.shards.values() if row.shard not in away]
    counts = {name: held.count(name) for name in present}
    if {each.consumer: each.shards for each in view.consumers} != counts:
        return f"the picture shows consumers {view.consumers}, stored are {counts}"
    if [each.consumer for each in view.consumers] != sorted(present, key=consumer_key):
        return f"the picture shows consumers in another order: {view.consumers}"
    if wrong := [each for each in view.consumers if each.incarnation != present[each.consumer].incarnation or each.draining]:
        return f"the picture shows {wrong}, stored are {present}"
    return _over(view, stored)


def _over(view: GroupView, stored: Ownership) -> str:
    """Which runs are over and which pods superseded, as the picture has it."""
    everyone = sorted(stored.consumers.values(), key=lambda each: consumer_key(each.consumer))
    ended = [each for each in everyone if each.ended == each.incarnation and each.end_reason in EndReason.EXPIRED]
    silent = [each for each in everyone if not each.present and not each.has_ended(each.incarnation)]
    expected = (
        tuple((each.consumer, each.incarnation) for each in ended),
        tuple((each.consumer, uid) for each in everyone for uid in each.superseded[-4:]),
        tuple((each.consumer, each.incarnation) for each in silent),
    )
    shown = (view.expired, view.superseded, view.silent)
    return "" if shown == expected else f"the picture shows as over {shown}, stored are {expected}"


def never_started(shown: ShardView, row: ShardRecord) -> str:
    """Whether what is there has a position further than its beginning, and no start of it is stored."""
    if shown.present and not row.started and shown.checkpoint != (shown.begin or 0):
        return f"{shown.shard} has the position {shown.checkpoint}, and was never started"
    return ""


def _shards(world: World, group: Group, view: GroupView, stored: Ownership, now: float) -> str:
    if not view.source_reachable or view.source_error or not view.discovered or view.withheld:
        return f"the picture shows trouble: {view.source_error}, {view.withheld}, discovered: {view.discovered}"
    for each in view.shards:
        actual = world.history.shards[each.shard]
        shown = (each.checkpoint, each.begin, each.end, each.open, each.lag_records, each.present)
        truth: tuple[object, ...] = (actual.durable, actual.begin, actual.end, actual.open, 0, True)
        if world.plan.kinesis:
            # Nothing counts its records, and of an open one nobody knows the end.
            truth = (actual.durable, actual.begin, None if actual.open else actual.end, actual.open, None, True)
        if not actual.present:
            # What the broker does with the position of a shard that is gone, nobody looks at.
            truth = (each.checkpoint, None, None, True, None, False)
        if shown != truth:
            return f"{each.shard} is shown as (checkpoint, begin, end, open, lag, present) {shown}, and is {truth}"
        if problem := never_started(each, stored.shards[each.shard]):
            return problem
        if group.shard_view(each.shard, now) != each:
            return f"{each.shard} is shown alone as {group.shard_view(each.shard, now)}, among all as {each}"
    grown = [each for each in view.growths if each.ends]
    return f"all is read, and these are said not to be: {grown}" if grown else ""


def _consumers(world: World, group: Group, view: GroupView, stored: Ownership, now: float) -> str:
    held: dict[ConsumerId, dict[ShardId, int]] = {name: {} for name in world.pods.wanted}
    # Of a shard that is gone nobody holds anything, whoever is noted as its holder until it is there again.
    there = world.source.names()
    for name, row in stored.shards.items():
        if row.holder is not None and name in there:
            held.setdefault(row.holder, {})[name] = row.owner_epoch
    for pod in world.pods.existing.values():
        if pod.run is None or not pod.run.alive:
            return f"{pod.name} does not run"
        grants = {name: epoch for name, epoch in pod.run.grants().items() if name in there}
        if grants != held[pod.name]:
            return f"{pod.name} believes that it holds {grants}, stored is {held[pod.name]}"
        session = group._state.sessions.get(pod.name)
        if session is None or session.named & there != held[pod.name].keys():
            return f"{pod.name} holds {held[pod.name]}, and its heartbeats say {session}"
    for each in view.consumers:
        silent = world.time - max((at for (name, _), at in world._heard.items() if name == each.consumer), default=0.0)
        if abs(each.heartbeat_age - silent) > 1.0 + 0.02 * silent:
            return f"{each.consumer} was heard {silent:.1f} s ago, and is shown as heard {each.heartbeat_age:.1f} s ago"
        if not each.ready or each.cordoned:
            return f"{each.consumer} is shown as {each}"
    deadline = group.next_deadline()
    timeout = world.spec.settings.session_timeout
    if deadline is None or deadline > now + 1.02 * timeout:
        return f"the next deadline is {deadline}, it is {now}, and a session ends after {timeout:g} s"
    return ""


def _events(world: World, leader: OperatorRun, view: GroupView) -> str:
    """Whether the figures agree with the events that were recorded."""
    events = world.history.events
    if not view.rebalances == events[leader.name, "Rebalanced"] == leader.rebalances:
        return (
            f"{view.rebalances} rebalances are shown, {events[leader.name, 'Rebalanced']} were told of, and"
            f" {leader.rebalances} were counted"
        )
    last = view.last_rebalance
    if (last is None) != (view.rebalances == 0):
        return f"the last of {view.rebalances} rebalances is {last}"
    if last is not None:
        when, age = world.history.rebalanced_at.get(leader.name, 0.0), leader.process.wall() - last.time
        begun, until = world._stood.get(leader.name, (0.0, 0.0))
        # What it tells of when it goes on may be of before it stood still.
        stood = until - begun if until <= when <= until + 10.0 else 0.0
        if not -1.0 <= age - (world.time - when) + 0.02 * age <= 60.0 + stood + 0.04 * age:
            return f"the last rebalance was told of {world.time - when:.1f} s ago, and is shown as {age:.1f} s ago"
    return ""


def share(assignor: str, stored: Ownership, present: Collection[ShardId], number: int = 0) -> str:
    """What the group's assignor would still change; it is asked by itself, from what is stored of the shards that are there."""
    rows = [stored.shards[name] for name in sorted(stored.shards, key=shard_key) if name in present]
    current = {row.shard: row.holder for row in rows if row.state is ShardState.ALREADY_ALLOC and row.holder is not None}
    consumers = sorted((name for name, each in stored.consumers.items() if each.present), key=consumer_key)
    if not current or not consumers:
        return ""
    problem = assignors.Problem.of(list(current), consumers, current)
    if number:
        problem, _ = cells.together(problem, number)
        split = [
            shard
            for shard in current
            if len({current[each] for each in current if cell(each, number) == cell(shard, number)}) > 1
        ]
        if split:
            return f"{split} are in cells of several consumers"
    moved = int((assignors.target(assignor, problem) != problem.current).sum())
    return f"{assignor} would still move {moved} shards of {stored.shards}" if moved else ""
