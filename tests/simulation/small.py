"""The smallest group worth exploring: two consumers and two shards over the real core, and every single thing that can happen.

Each step is one thing that one party does, or one message that arrives. A step breaks a promise by raising BrokenError. What
is tried in which order is `exhaustive`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardherd.core.consumer.tracker import ReadRange, Tracker
from shardherd.core.group.group import Group
from shardherd.core.model.errors import ShardherdError, StaleIncarnationError
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    GroupIdentity,
    GroupSettings,
    GroupSpec,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    KafkaSource,
    Offset,
    ShardId,
    ShardInfo,
    ShardState,
)
from shardherd.core.model.requests import CheckpointsCommitted, CheckpointsFailed, ConsumerDied, Request, ShardsDiscovered, Tick
from tests.builders import copy_of
from tests.simulation.history_entries import BrokenError

SHARDS = (ShardId("t/0"), ShardId("t/1"))
NAMES = (ConsumerId("g-0"), ConsumerId("g-1"))
END = 1
SESSION = 9.0


@dataclass
class Consumer:
    """One name: its run, its ledger, and what is on the way to and from it."""

    start: int = 1
    tracker: Tracker = field(default_factory=Tracker)
    alive: bool = True
    seq: int = 0
    sent: Heartbeat | None = None
    answer: tuple[int, HeartbeatReply] | None = None
    batch: dict[ShardId, ReadRange] | None = None
    proof: Incarnation | None = None

    def twin(self) -> Consumer:
        ledger = self.tracker
        tracker = Tracker.__new__(Tracker)
        tracker.__dict__.update(ledger.__dict__)
        tracker._grants = {
            shard: type(grant)(grant.epoch, grant.held_since, grant.position, grant.done, grant.durable, grant.revoked)
            for shard, grant in ledger._grants.items()
        }
        tracker._in_flight = dict(ledger._in_flight)
        tracker._given_up = dict(ledger._given_up)
        return Consumer(self.start, tracker, self.alive, self.seq, self.sent, self.answer, self.batch, self.proof)


@dataclass
class Committing:
    """A commit that the group has asked for, and who waits for it."""

    offsets: dict[ShardId, Offset]
    who: int
    start: int
    request: CheckpointRequest
    reply: CheckpointReply


@dataclass
class Small:
    """One state of everything."""

    group: Group
    consumers: list[Consumer]
    durable: dict[ShardId, Offset]
    written: dict[ShardId, Offset]
    grants: dict[tuple[ShardId, int], tuple[ConsumerId, Incarnation]]
    committing: Committing | None = None
    now: float = 1000.0
    crashes: int = 1
    pauses: int = 1
    delays: int = 0
    """How many more messages may be late."""
    known: object = None
    """The group's part of the key, as long as the group is the same."""
    shared: bool = False

    def twin(self) -> Small:
        """A state that shares everything with this one until it is changed."""
        other = Small.__new__(Small)
        other.__dict__.update(self.__dict__)
        other.consumers = list(self.consumers)
        other.shared = True
        return other

    def mine(self, at: int) -> Consumer:
        """The consumer, to be changed."""
        consumer = self.consumers[at] = self.consumers[at].twin()
        return consumer

    # What the group is told.

    def ask(self, request: Request) -> Any:
        if self.shared:
            self.group, self.grants, self.shared = copy_of(self.group), dict(self.grants), False
        self.known = None
        before = self.group._state.shards.copy()
        decision = self.group.decide(request, self.now)
        self.group.commit()
        for shard, row in self.group._state.shards.items():
            was = before.get(shard)
            if was is row:
                continue
            if was is not None and row.owner_epoch < was.owner_epoch:
                raise BrokenError(f"{shard}: the epoch went back from {was.owner_epoch} to {row.owner_epoch}")
            if row.holder is not None and row.incarnation is not None:
                owner = (row.holder, row.incarnation)
                if self.grants.setdefault((shard, row.owner_epoch), owner) != owner:
                    raise BrokenError(f"{shard}: epoch {row.owner_epoch} was granted twice")
            if was is not None and shard in self.group._state.in_flight and was.owner_epoch != row.owner_epoch:
                raise BrokenError(f"{shard} changed hands while a commit of it was under way")
        return decision

    def run_of(self, at: int) -> Incarnation:
        return Incarnation(f"uid-{at}", self.consumers[at].start)

    # Steps.

    def steps(self) -> Iterator[tuple[str, Callable[[Small], None]]]:
        """What can happen next: a name, and how it happens to a copy."""
        for at, consumer in enumerate(self.consumers):
            name = NAMES[at]
            if consumer.alive:
                yield f"{name} exchanges a heartbeat", partial(Small.exchange, at=at)
                if self.delays:
                    yield f"{name} sends a heartbeat that is late", partial(Small.send_late, at=at)
                    yield f"{name} sends a heartbeat, its answer is late", partial(Small.answer_late, at=at)
                if consumer.answer is not None:
                    yield f"the answer reaches {name}", partial(Small.confirm, at=at)
                if consumer.batch is None:
                    yield f"{name} begins a batch", partial(Small.begin, at=at)
                else:
                    yield f"{name} ends its batch", partial(Small.finish, at=at)
                if self.committing is None and consumer.tracker.uncommitted():
                    yield f"{name} sends a checkpoint", partial(Small.checkpoint, at=at)
                if self.crashes:
                    yield f"{name} crashes", partial(Small.crash, at=at)
                if self.pauses:
                    yield f"{name} stands still for a session timeout", partial(Small.pause, at=at)
            if consumer.sent is not None:
                yield f"a heartbeat of {name} arrives", partial(Small.arrive, at=at)
            if not consumer.alive:
                yield f"{name} starts again", partial(Small.start, at=at)
            if consumer.proof is not None:
                yield f"the death of {name} is proven", partial(Small.prove, at=at)
        if self.committing is not None:
            yield "the commit is done", partial(Small.committed, answered=True)
            yield "the commit is done, its answer is lost", partial(Small.committed, answered=False)
            yield "the commit fails", Small.failed

    def exchange(self, at: int) -> None:
        late = self.consumers[at].sent
        self.beat(at)
        self.arrive(at)
        if self.consumers[at].answer is not None:
            self.confirm(at)
        self.mine(at).sent = late

    def send_late(self, at: int) -> None:
        self.delays -= 1
        self.beat(at)

    def answer_late(self, at: int) -> None:
        self.delays -= 1
        late = self.consumers[at].sent
        self.beat(at)
        self.arrive(at)
        self.mine(at).sent = late

    def beat(self, at: int) -> None:
        consumer = self.mine(at)
        consumer.seq += 1
        tracker = consumer.tracker
        consumer.sent = Heartbeat(NAMES[at], self.run_of(at), consumer.seq, tracker.revision, tracker.held())
        consumer.answer = None

    def arrive(self, at: int) -> None:
        consumer = self.mine(at)
        sent = consumer.sent
        assert sent is not None
        consumer.sent = None
        try:
            self.ask(sent)
            reply = self.group.confirmed(sent)
        except StaleIncarnationError:
            if sent.incarnation == self.run_of(at) and consumer.alive:
                self.crash(at, by_fault=False)
            return
        for each in reply.confirmed:
            row = self.group._state.shards[each.shard]
            if row.state is not ShardState.ALREADY_ALLOC or row.holder != NAMES[at] or row.owner_epoch != each.owner_epoch:
                raise BrokenError(f"{NAMES[at]} is told to read {each}, but it is {row}")
            if each.position > self.durable[each.shard]:
                raise BrokenError(f"{NAMES[at]} is told position {each.position} of {each.shard}, durable is {self.durable}")
        if sent.incarnation == self.run_of(at) and sent.seq == consumer.seq:
            consumer.answer = (sent.seq, reply)

    def confirm(self, at: int) -> None:
        consumer = self.mine(at)
        assert consumer.answer is not None
        consumer.tracker.confirm(consumer.answer[1])
        consumer.answer = None
        consumer.tracker.release()

    def begin(self, at: int) -> None:
        consumer = self.mine(at)
        consumer.tracker.abandon()
        handed = consumer.tracker.hand_out({shard: min(END, at + 1) for shard, at in consumer.tracker.positions().items()})
        consumer.batch = {shard: each for shard, each in handed.items() if each.start < each.stop} or None
        for shard, each in (consumer.batch or {}).items():
            if each.start > self.written[shard]:
                raise BrokenError(f"{NAMES[at]} reads {shard} from {each.start}, but only {self.written[shard]} are written")

    def finish(self, at: int) -> None:
        consumer = self.mine(at)
        for shard, each in (consumer.batch or {}).items():
            self.written = {**self.written, shard: max(self.written[shard], each.stop)}
        consumer.tracker.finish(consumer.batch or {})
        consumer.batch = None
        consumer.tracker.release()

    def checkpoint(self, at: int) -> None:
        consumer = self.mine(at)
        request = CheckpointRequest(NAMES[at], self.run_of(at), consumer.tracker.uncommitted())
        try:
            decision = self.ask(request)
        except ShardherdError:
            self.crash(at, by_fault=False)
            return
        for outcome in decision.reply.outcomes:
            owner = (NAMES[at], self.run_of(at))
            if outcome.result is CheckpointResult.OK and self.grants.get((outcome.shard, outcome.expected_epoch)) != owner:
                raise BrokenError(f"a checkpoint of {outcome.shard} by {NAMES[at]} was accepted, which holds it no longer")
        if decision.positions:
            self.committing = Committing(dict(decision.positions), at, consumer.start, request, decision.reply)
        else:
            consumer.tracker.acknowledge(request.checkpoints, decision.reply)
            consumer.tracker.release()

    def committed(self, *, answered: bool) -> None:
        committing = self.committing
        assert committing is not None
        self.committing = None
        for shard, offset in committing.offsets.items():
            if offset < self.durable[shard]:
                raise BrokenError(f"{shard}: the durable position went back from {self.durable[shard]} to {offset}")
            if offset > self.written[shard]:
                raise BrokenError(f"{shard}: position {offset} is durable, but only {self.written[shard]} are written")
            self.durable = {**self.durable, shard: offset}
        self.ask(CheckpointsCommitted(committing.offsets))
        consumer = self.mine(committing.who)
        if answered and consumer.alive and consumer.start == committing.start:
            consumer.tracker.acknowledge(committing.request.checkpoints, committing.reply)
            consumer.tracker.release()

    def failed(self) -> None:
        committing = self.committing
        assert committing is not None
        self.committing = None
        self.ask(CheckpointsFailed(frozenset(committing.offsets)))

    def crash(self, at: int, *, by_fault: bool = True) -> None:
        consumer = self.mine(at)
        self.crashes -= by_fault
        consumer.proof = self.run_of(at)
        consumer.alive = False
        consumer.tracker, consumer.batch, consumer.answer = Tracker(), None, None

    def start(self, at: int) -> None:
        consumer = self.mine(at)
        consumer.alive = True
        consumer.start += 1
        consumer.seq = 0

    def prove(self, at: int) -> None:
        consumer = self.mine(at)
        assert consumer.proof is not None
        self.ask(ConsumerDied(NAMES[at], consumer.proof))
        consumer.proof = None

    def pause(self, at: int) -> None:
        """One stands still while the other one, if it runs, is heard as ever; then it goes on, and knows nothing of it."""
        self.pauses -= 1
        self.now += SESSION - 1.0
        other = 1 - at
        if self.consumers[other].alive:
            self.exchange(other)
        self.now += 1.0
        self.ask(Tick())


def at_rest() -> Small:
    """Both consumers hold one shard each, everything that was asked for has happened."""
    settings = GroupSettings(
        heartbeat_interval=1.0,
        session_timeout=SESSION,
        release_timeout=600.0,
        progress_timeout=600.0,
        initial_assignment_delay=0.0,
    )
    spec = GroupSpec(GroupIdentity("demo", "clicks", "uid"), KafkaSource("broker:9092", ("t",), "", "demo.clicks"), settings, 2)
    now = 1000.0
    small = Small(Group.new(spec, now), [Consumer(), Consumer()], dict.fromkeys(SHARDS, 0), dict.fromkeys(SHARDS, 0), {})
    small.ask(ShardsDiscovered(tuple(ShardInfo(shard, 0, END) for shard in SHARDS)))
    small.ask(CheckpointsCommitted(dict.fromkeys(SHARDS, 0)))
    for _ in range(3):
        for at in range(2):
            small.beat(at)
            small.arrive(at)
            small.confirm(at)
        small.now += 2.0
    return small
