"""A coordinator's runtime over the in-memory twins, in simulated time, and consumers that call it without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry

from shardherd.adapters.memory import (
    MemoryConnector,
    MemoryEvents,
    MemoryKafka,
    MemoryLeadership,
    MemoryOwnership,
    MemoryTokens,
)
from shardherd.coordinator.metrics import OperatorCounters
from shardherd.coordinator.ports import CoordinatorPorts
from shardherd.coordinator.runner import GroupRunner
from shardherd.coordinator.runtime import Runtime
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
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
    Offset,
    ShardCheckpoint,
    ShardId,
)
from shardherd.telemetry.operator_metrics import OperatorMetrics
from tests.harness.simulated_clock import SimulatedClock

IDENTITY = GroupIdentity("demo", "clicks", "6a1f2c34-0000-4000-8000-000000000001")


def spec_of(wanted: int = 1, **settings: Any) -> GroupSpec:
    source = KafkaSource("broker:9092", ("t",), "", "demo.clicks")
    return GroupSpec(IDENTITY, source, GroupSettings(**settings), wanted)


class Rig:
    """One coordinator. Several may share what they stand on: pass `beside` another one."""

    def __init__(self, beside: Rig | None = None) -> None:
        self.clock: SimulatedClock = beside.clock if beside else SimulatedClock()
        self.kafka: MemoryKafka = beside.kafka if beside else MemoryKafka()
        self.ownership: MemoryOwnership = beside.ownership if beside else MemoryOwnership()
        self.leadership = MemoryLeadership(self.clock)
        self.events = MemoryEvents()
        self.tokens = MemoryTokens()
        self.registry = CollectorRegistry()
        if beside is None:
            self.kafka.create_topic("t", 4)
        self.ports = CoordinatorPorts(
            clock=self.clock,
            leadership=self.leadership,
            ownership=self.ownership,
            connector=MemoryConnector(self.kafka),
            tokens=self.tokens,
            events=self.events,
            metrics=OperatorCounters(OperatorMetrics(self.registry)),
        )
        self.runtime = Runtime(self.ports, discovery_interval=0.01, unknown_group_grace=0.0)
        self.runtime.lead()

    @property
    def group(self) -> GroupRunner:
        return self.runtime.group(IDENTITY.namespace, IDENTITY.name)

    @property
    def view(self) -> GroupView:
        view = self.runtime.view(IDENTITY)
        assert view is not None
        return view

    def reasons(self) -> list[str]:
        """Reasons of what withholds grants."""
        return [condition.reason for condition in self.view.withheld]

    def alive(self) -> list[ConsumerId]:
        """The consumers that the group counts on."""
        return [row.consumer for row in self.view.consumers]

    def consumer(self, ordinal: int = 0) -> Consumer:
        return Consumer(self, ConsumerId(f"clicks-{ordinal}"), Incarnation(f"uid-{ordinal}", 1))

    async def serving(self, wanted: int = 1, **settings: Any) -> list[Consumer]:
        """The group, with so many consumers that hold all of its shards."""
        self.runtime.apply(spec_of(wanted, **settings))
        consumers = [self.consumer(ordinal) for ordinal in range(wanted)]

        async def beat() -> bool:
            await asyncio.gather(*(consumer.heartbeat() for consumer in consumers))
            return sum(len(consumer.held) for consumer in consumers) == 4

        for _ in range(200):
            if await beat():
                return consumers
            await asyncio.sleep(0.01)
        raise AssertionError(f"the consumers hold {[consumer.held for consumer in consumers]}")

    async def advance(self, seconds: float) -> None:
        """Let time pass, as it does for a process that runs."""
        while seconds > 0:
            step = min(0.4, seconds)
            self.clock.advance(step)
            self.runtime.beat()
            if self.group.mailbox is not None:
                # As the mailbox's own timer does it, which counts real seconds.
                self.group.mailbox._filled.set()
            await drain()
            seconds -= step

    async def serve(self, seconds: float) -> None:
        """Let time pass in which the source is looked at every 20 s or more often, and what is due after a look is done."""
        while seconds > 0:
            step = min(20.0, seconds)
            await self.advance(step)
            await self.looked()
            seconds -= step

    async def looked(self) -> None:
        """Until the source was looked at after now, and all is done that this leads to."""
        next_but_one = self.kafka.faults.entered["discover"] + 2
        await self.becomes(lambda: self.kafka.faults.entered["discover"] >= next_but_one)
        await drain()

    def insist(self) -> None:
        """The pause after a write that failed is over: what has to be stored is told again."""
        assert self.group.mailbox is not None
        for timer in tuple(self.group.mailbox._insisting):
            timer._run()
            timer.cancel()

    async def becomes(self, what: Callable[[], bool], within: float = 5.0) -> None:
        """Wait until `what` holds; within so many real seconds."""

        async def ask() -> bool:
            return what()

        await self.comes_true(ask, within)

    async def comes_true(self, what: Callable[[], Awaitable[bool]], within: float = 5.0) -> None:
        """The same for a question that must be awaited."""
        until = time.monotonic() + within
        while not await what():
            if time.monotonic() > until:
                raise AssertionError(f"it did not become true within {within:g} s")
            await asyncio.sleep(0.005)


class Consumer:
    """Holds what was confirmed, and lets go of all else at once."""

    def __init__(self, rig: Rig, name: ConsumerId, incarnation: Incarnation) -> None:
        self.rig = rig
        self.name = name
        self.incarnation = incarnation
        self.seq = 0
        self.revision = 0
        self.held: dict[ShardId, int] = {}
        self.positions: dict[ShardId, Offset] = {}

    def beat(self) -> Heartbeat:
        """The next heartbeat."""
        self.seq += 1
        held = tuple(HeldShard(shard, epoch) for shard, epoch in sorted(self.held.items()))
        return Heartbeat(self.name, self.incarnation, self.seq, self.revision, held, group_uid=IDENTITY.uid)

    async def heartbeat(self, wait: float = 0.0) -> HeartbeatReply:
        reply = await self.rig.group.heartbeat(self.beat(), wait)
        self.revision = reply.revision
        self.held = {each.shard: each.owner_epoch for each in reply.confirmed}
        self.positions = {each.shard: each.position for each in reply.confirmed}
        return reply

    async def commit(self, offset: Offset) -> set[CheckpointResult]:
        """The results of a checkpoint of all that is held."""
        wanted = tuple(ShardCheckpoint(shard, epoch, offset) for shard, epoch in self.held.items())
        reply = await self.rig.group.ask(CheckpointRequest(self.name, self.incarnation, wanted, IDENTITY.uid))
        assert isinstance(reply, CheckpointReply)
        return {outcome.result for outcome in reply.outcomes}


async def drain() -> None:
    """Let everything that can go on go on."""
    for _ in range(50):
        await asyncio.sleep(0)
