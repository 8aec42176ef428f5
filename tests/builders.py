"""Builders of the core's values, and a group that is played with in simulated time.

`Play` is a real `Group` whose commits succeed at once (unless they are held back) and whose consumers behave well: each `beat`
names what the consumer holds, applies the reply, and gives up what the reply does not confirm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardherd.core.group.decisions import Decision
from shardherd.core.group.group import Group
from shardherd.core.group.notes import text
from shardherd.core.group.ownership import decode, encode
from shardherd.core.group.records import ConsumerRecord, GroupRecord, Ownership, ShardRecord
from shardherd.core.group.state import GroupEvent, Put, State, Table
from shardherd.core.model.gauges import Gauge
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConfirmedShard,
    ConsumerId,
    GroupIdentity,
    GroupSettings,
    GroupSpec,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    HeldShard,
    Incarnation,
    KafkaSource,
    Leave,
    Offset,
    Phase,
    Reset,
    ShardCheckpoint,
    ShardId,
    ShardInfo,
    ShardState,
    ShardView,
)
from shardherd.core.model.requests import (
    CheckpointsCommitted,
    CheckpointsFailed,
    ConsumerDied,
    Request,
    SettingsChanged,
    ShardsDiscovered,
    Tick,
)

IDENTITY = GroupIdentity("demo", "clicks", "6a1f2c34-0000-4000-8000-000000000001")


def shard(name: str) -> ShardId:
    """A shard's name: `0` means `t/0`."""
    return ShardId(name if "/" in name else f"t/{name}")


def shards(*names: str) -> tuple[ShardId, ...]:
    return tuple(shard(name) for name in names)


def info(
    name: str, begin: int = 0, end: int = 100, *, open: bool = True, parents: Iterable[str] = (), source_id: str = ""
) -> ShardInfo:
    return ShardInfo(shard(name), begin, end, open, shards(*parents), source_id)


def topic(count: int, end: int = 100, name: str = "t") -> tuple[ShardInfo, ...]:
    """A topic of so many open shards."""
    return tuple(info(f"{name}/{number}", end=end) for number in range(count))


def spec(
    wanted: int = 1,
    *,
    leaving: Iterable[str] = (),
    cordoned: Iterable[str] = (),
    starting: str = "Earliest",
    executors: bool = False,
    **settings: Any,
) -> GroupSpec:
    source = KafkaSource("broker:9092", ("t",), "", "demo.clicks", starting)
    goes, stays = (frozenset(ConsumerId(name) for name in names) for names in (leaving, cordoned))
    return GroupSpec(IDENTITY, source, GroupSettings(**settings), wanted, goes, cordoned=stays, executors=executors)


def incarnation(name: str, start: int = 1, pod: int = 1) -> Incarnation:
    return Incarnation(f"uid-{name}-{pod}", start)


@dataclass
class Consumer:
    """A consumer that behaves well.

    Change `ready`, `draining`, `busy` (shards that it cannot give up yet), `zone`, `capacity`, `state_lost`, `gauges` and what
    it is about at will.
    """

    name: ConsumerId
    incarnation: Incarnation
    seq: int = 0
    revision: int = 0
    held: dict[ShardId, int] = field(default_factory=dict)
    reply: HeartbeatReply | None = None
    ready: bool = True
    draining: bool = False
    busy: set[ShardId] = field(default_factory=set)
    progress: int = 0
    zone: str = ""
    capacity: int = 1
    phase: Phase | None = None
    phase_age: float = 0.0
    goes_on_in: float = 0.0
    state_lost: tuple[int, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    given_up: dict[ShardId, int] = field(default_factory=dict)
    """Epochs that it gave up, and does not take again, as `core.consumer.ledger`."""

    def heartbeat(self) -> Heartbeat:
        """The next heartbeat."""
        self.seq += 1
        held = tuple(HeldShard(shard, epoch) for shard, epoch in sorted(self.held.items()))
        return Heartbeat(
            self.name,
            self.incarnation,
            self.seq,
            self.revision,
            held,
            self.ready,
            self.draining,
            self.progress,
            IDENTITY.uid,
            self.zone,
            self.capacity,
            self.phase,
            Seconds(self.phase_age),
            Seconds(self.goes_on_in),
            self.state_lost,
            self.gauges,
        )

    def apply(self, reply: HeartbeatReply) -> None:
        """Start what is new, give up what is missing unless it is busy."""
        self.reply = reply
        self.revision = reply.revision
        confirmed = {each.shard: each.owner_epoch for each in reply.confirmed}
        kept = {shard: epoch for shard, epoch in self.held.items() if shard in self.busy and shard not in confirmed}
        taken = {
            shard: epoch
            for shard, epoch in confirmed.items()
            if self.held.get(shard) == epoch or epoch > self.given_up.get(shard, 0)
        }
        self.given_up |= {shard: epoch for shard, epoch in self.held.items() if shard not in taken | kept}
        self.held = taken | kept


class Play:
    """A group in simulated time. `now` moves only by `wait`."""

    def __init__(self, spec: GroupSpec, group: Group | None = None, now: float = 1000.0) -> None:
        self.now = now
        self.group = group or Group.new(spec, now)
        self.consumers: dict[str, Consumer] = {}
        self.events: list[GroupEvent] = []
        self.log: dict[ShardId, Offset] = {}
        """What is durable, as the offsets' store has it."""
        self.noted: dict[ShardId, str] = {}
        self.copies: dict[ShardId, Offset] = {}
        self.hold_commits = False
        self.uncommitted: dict[ShardId, Offset] = {}

    # The group's inputs.

    def ask(self, request: Request) -> Decision:
        """Decide, and make positions durable."""
        decision = self.group.decide(request, self.now)
        self.group.commit()
        self.events.extend(decision.events)
        self.uncommitted.update(decision.positions)
        if self.uncommitted and not self.hold_commits:
            self.commit()
        return decision

    def commit(self) -> None:
        """All commits under way succeed."""
        offsets, self.uncommitted = self.uncommitted, {}
        self.log.update(offsets)
        self.noted.update(self.group.notes(offsets))
        self.ask(CheckpointsCommitted(offsets))

    def fail_commits(self) -> None:
        """All commits under way fail."""
        offsets, self.uncommitted = self.uncommitted, {}
        self.ask(CheckpointsFailed(frozenset(offsets)))

    def discover(self, infos: Sequence[ShardInfo], unlooked: Iterable[str] = (), kept_out: Iterable[str] = ()) -> Decision:
        there, out = frozenset(shards(*unlooked)), frozenset(shards(*kept_out))
        fresh = self.group.unread(infos)
        unread = [shard for shard in fresh if shard in self.log]
        noted = (*unread, *there) if fresh else ()
        notes = {shard: self.noted[shard] for shard in noted if shard in self.noted}
        changes = bool(self.group.unread(infos)) or self.group.changed_by(tuple(infos), out)
        durable = {shard: self.log[shard] for shard in unread}
        decision = self.ask(ShardsDiscovered(tuple(infos), durable, notes, self.copies, there, out))
        same = [isinstance(event, Put) and event.before == event.after for event in decision.entries]
        assert changes or same == [True], "it was said to change nothing"
        return decision

    def change(self, spec: GroupSpec) -> Decision:
        return self.ask(SettingsChanged(spec))

    def wait(self, seconds: float, beating: Iterable[str] = ()) -> None:
        """Let time pass: due ticks, and a heartbeat of each named consumer every three seconds."""
        until = self.now + seconds
        next_beat = self.now + 3.0
        while True:
            deadline = self.group.next_deadline()
            at = min(until, next_beat, deadline if deadline is not None else until)
            self.now = max(self.now, at)
            if deadline is not None and deadline <= self.now:
                self.ask(Tick())
            if next_beat <= self.now:
                self.beat(*beating)
                next_beat += 3.0
            if self.now >= until:
                return

    def restart(self, spec: GroupSpec | None = None) -> None:
        """Another coordinator takes over, from what was stored; with another spec, if one is given."""
        stored = decode(encode(self.group.ownership))
        leader = stored.group.leader_epoch + 1
        self.group = restore(stored, dict(self.log), spec or self.group.spec, self.now, leader_epoch=leader)

    def lose(self) -> None:
        """Another coordinator takes over, and nothing is stored any more."""
        self.group = Group.new(self.group.spec, self.now, leader_epoch=1)

    # Consumers.

    def consumer(self, name: str) -> Consumer:
        if name not in self.consumers:
            self.consumers[name] = Consumer(ConsumerId(name), incarnation(name))
        return self.consumers[name]

    def run(self, name: str, start: int = 1, pod: int = 1, *, ready: bool = True) -> Consumer:
        """A new run of this consumer: it holds nothing and has applied nothing."""
        self.consumers[name] = Consumer(ConsumerId(name), incarnation(name, start, pod), ready=ready)
        return self.consumers[name]

    def answer(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """The reply to a heartbeat that comes in."""
        self.ask(heartbeat)
        return self.group.confirmed(heartbeat)

    def beat(self, *names: str) -> None:
        """One heartbeat of each."""
        for name in names:
            consumer = self.consumer(name)
            consumer.apply(self.answer(consumer.heartbeat()))

    def settle(self, *names: str) -> None:
        """Heartbeats until nothing changes any more."""
        for _ in range(6):
            self.beat(*names)
        self.wait(1.5)
        for _ in range(6):
            self.beat(*names)

    def die(self, name: str) -> Decision:
        """Proof of this consumer's death."""
        return self.ask(ConsumerDied(ConsumerId(name), self.consumers[name].incarnation))

    def leave(self, name: str, *, stopped: bool = True) -> Decision:
        """This consumer leaves; with `stopped` it says that it writes nothing more."""
        return self.ask(Leave(ConsumerId(name), self.consumers[name].incarnation, IDENTITY.uid, stopped))

    def checkpoint(self, name: str, shard_name: str, offset: Offset, epoch: int | None = None) -> CheckpointResult:
        """What becomes of a consumer's checkpoint, under the epoch that it holds unless another is given."""
        consumer = self.consumer(name)
        of = shard(shard_name)
        under = consumer.held.get(of, 0) if epoch is None else epoch
        request = CheckpointRequest(consumer.name, consumer.incarnation, (ShardCheckpoint(of, under, offset),), IDENTITY.uid)
        reply = self.ask(request).reply
        assert isinstance(reply, CheckpointReply)
        return reply.outcomes[0].result

    # What is seen.

    @property
    def view(self) -> GroupView:
        return self.group.view(self.now)

    def shard(self, name: str) -> ShardView:
        return next(view for view in self.view.shards if view.shard == shard(name))

    def state(self, name: str) -> ShardState:
        return self.shard(name).state

    def states(self) -> dict[str, str]:
        """State of every shard of topic t, by partition."""
        return {view.shard.removeprefix("t/"): str(view.state) for view in self.view.shards}

    def holders(self) -> dict[str, str | None]:
        """Holder of every shard of topic t, by partition."""
        return {view.shard.removeprefix("t/"): view.holder for view in self.view.shards}

    def held_by(self, name: str) -> set[str]:
        """What the group says that a consumer holds, by partition."""
        return {number for number, holder in self.holders().items() if holder == name}

    def counts(self) -> dict[str, int]:
        """How many shards each consumer holds."""
        return {view.consumer: view.shards for view in self.view.consumers}

    def confirmed(self, name: str) -> dict[str, ConfirmedShard]:
        """The last reply's confirmed shards of a consumer, by partition."""
        reply = self.consumers[name].reply
        assert reply is not None
        return {each.shard.removeprefix("t/"): each for each in reply.confirmed}

    def reasons(self) -> list[str]:
        """The reasons of the events, in order."""
        return [event.reason for event in self.events]

    def events_of(self, reason: str) -> int:
        """How many events had this reason."""
        return self.reasons().count(reason)

    def with_reset(self, reset: Reset) -> GroupSpec:
        """The spec with a declared reset."""
        return replace(self.group.spec, reset=reset)


def restore(
    stored: Ownership,
    durable: Mapping[ShardId, Offset],
    spec: GroupSpec,
    now: float,
    *,
    leader_epoch: int | None = None,
    copies: Mapping[ShardId, Offset] | None = None,
    notes: Mapping[ShardId, str] | None = None,
) -> Group:
    """The group that a coordinator makes of what was stored; without `notes` every position has one that is its own."""
    if leader_epoch is not None:
        stored = replace(stored, group=replace(stored.group, leader_epoch=leader_epoch))
    own = dict.fromkeys(durable, text(stored.group.uid, 0, 0, ""))
    return Group.restore(stored, durable, spec, now, copies=copies or {}, notes=own if notes is None else notes)


def copied(state: State) -> State:
    """An independent state with the same rows."""
    twin = State(state.spec, state.record, state.clocks, state.assignors)
    for table in Table:
        setattr(twin, table.value, dict(getattr(state, table.value)))
    twin._tables = twin._by_table()
    twin.by_state = {name: dict(shards) for name, shards in state.by_state.items()}
    twin.held = {consumer: dict(shards) for consumer, shards in state.held.items()}
    twin.under = {key: dict(shards) for key, shards in state.under.items()}
    twin.moving = {consumer: dict(shards) for consumer, shards in state.moving.items()}
    twin.incoming = {consumer: dict(shards) for consumer, shards in state.incoming.items()}
    twin.children = dict(state.children)
    twin.below_low = dict(state.below_low)
    twin._order, twin._interned = state._order, state._interned
    twin.restored_at = state.restored_at
    return twin


def copy_of(group: Group) -> Group:
    """An independent group with the same state."""
    return Group(copied(group._state))


def started(count: int, consumers: int, **settings: Any) -> Play:
    """A group of so many shards, held by consumers g-0, g-1 and so on, at rest."""
    play = Play(spec(consumers, **settings))
    play.discover(topic(count))
    names = [f"g-{number}" for number in range(consumers)]
    play.settle(*names)
    return play


def moved(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> set[str]:
    """The shards whose holder differs."""
    return {name for name in before if before[name] != after.get(name)}


def with_topics(spec: GroupSpec, *topics: str) -> GroupSpec:
    """The spec with other topics."""
    return replace(spec, source=replace(spec.kafka, topics=topics))


def with_settings(spec: GroupSpec, **settings: Any) -> GroupSpec:
    """The same spec with other settings."""
    return replace(spec, settings=replace(spec.settings, **settings))


def holding(wanted: int | None = None, /, *, settings: Mapping[str, Any] | None = None, **held: str) -> Play:
    """A group whose consumers hold what is said, in one figure a shard: `holding(A="012", B="345")`. All are alive and warm."""
    rows = {
        shard(number): ShardRecord(
            shard(number),
            ShardState.ALREADY_ALLOC,
            0,
            started=True,
            holder=ConsumerId(name),
            incarnation=incarnation(name),
            last_holder=ConsumerId(name),
            owner_epoch=1,
            held_since_epoch=1,
        )
        for name, numbers in held.items()
        for number in numbers
    }
    members = {ConsumerId(name): ConsumerRecord(ConsumerId(name), incarnation(name)) for name in held}
    ownership = Ownership(GroupRecord(IDENTITY.uid, discovered=True), rows, members)
    wanted = len(held) if wanted is None else wanted
    group = restore(ownership, dict.fromkeys(rows, 0), spec(wanted, **(settings or {})), 1000.0)
    play = Play(group.spec, group)
    play.log = dict.fromkeys(rows, 0)
    for name in held:
        play.consumer(name).held = {name_of: 1 for name_of, row in rows.items() if row.holder == name}
    play.discover(tuple(info(name_of) for name_of in rows))
    play.settle(*held)
    return play
