"""An event loop whose time is a number, and a coordinator that answers as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConfirmedShard,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    ShardId,
)
from shardherd.source.kafka.leader_epochs import EndOffsets
from shardherd.spark.agent import Agent

T = TypeVar("T")
GROUP = "group-uid"
ME = ConsumerId("clicks-0")
RUN = Incarnation("pod-uid", 1)


async def nobody_knows() -> bool:
    """Whether a task runs of a Spark that cannot be asked: it may."""
    return True


class _Jumping(selectors.DefaultSelector):
    """Never waits: the time that it should have waited is added to the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.turns = 0
        """How often the loop went round."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits for something that nobody will do")
        self.time += timeout
        self.turns += 1
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.time


def simulate(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in simulated time."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(story())
    finally:
        loop.run_until_complete(_end(asyncio.all_tasks(loop)))
        loop.close()


async def _end(left: Iterable[asyncio.Task[Any]]) -> None:
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@dataclass
class FakeCoordinator:
    """Confirms `assigned`; a change of it (through `assign`) ends parked heartbeats. `fault` is raised instead of answering."""

    assigned: dict[str, ConfirmedShard] = field(default_factory=dict)
    revision: int = 1
    paused: bool = False
    ordered: bool = False
    source_ids: dict[str, str] = field(default_factory=dict)
    """Of which shard of the source each position is."""
    fault: ShardherdError | None = None
    outcome: CheckpointResult = CheckpointResult.OK
    checkpoint_time: float = 0.0
    heartbeats: list[Heartbeat] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    checkpoints: list[tuple[str, int, int]] = field(default_factory=list)
    leaves: int = 0
    stopped: bool | None = None
    """Whether who left last said that nothing of it goes on; None before anybody left."""
    groups: set[str] = field(default_factory=set)
    """What checkpoints and leaves named as their group."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def assign(self, *shards: tuple[str, int, int], since: int | None = None) -> None:
        """Shards as (name, epoch, position)."""
        self.assigned = {name: ConfirmedShard(ShardId(name), e, since or e, at) for name, e, at in shards}
        self.revision += 1
        self._changed.set()

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        self.heartbeats.append(heartbeat)
        if self.fault is not None:
            raise self.fault
        if heartbeat.revision == self.revision:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait)
        if self.fault is not None:
            raise self.fault
        self.answered.append(asyncio.get_running_loop().time())
        confirmed = (replace(each, source_id=self.source_ids.get(each.shard, UNSET)) for each in self.assigned.values())
        return HeartbeatReply(self.revision, tuple(confirmed), paused=self.paused, ordered=self.ordered)

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        if self.fault is not None:
            raise self.fault
        await asyncio.sleep(self.checkpoint_time)
        self.groups.add(request.group_uid)
        self.checkpoints += [(each.shard, each.owner_epoch, each.offset) for each in request.checkpoints]
        outcomes = [CheckpointOutcome(c.shard, self.outcome, c.offset, c.owner_epoch) for c in request.checkpoints]
        return CheckpointReply(tuple(outcomes))

    async def leave(self, leave: Leave) -> None:
        self.groups.add(leave.group_uid)
        if self.fault is not None:
            raise self.fault
        self.leaves += 1
        self.stopped = leave.stopped

    @property
    def named(self) -> list[tuple[str, int]]:
        """What the last heartbeat named."""
        return [(each.shard, each.owner_epoch) for each in self.heartbeats[-1].held]


@dataclass
class FakeEnds:
    end_offsets: dict[ShardId, int] = field(default_factory=dict)
    watched: Mapping[ShardId, int] = field(default_factory=dict)
    stops: Mapping[ShardId, int] = field(default_factory=dict)
    size: float = 100.0
    away: bool = False
    leaders: dict[ShardId, int] = field(default_factory=dict)
    """Under which epoch each shard is led."""
    reach: dict[ShardId, int] | None = None
    """How far shards reach now, if that is not what is known as the ends of micro-batches."""
    asked: list[set[ShardId]] = field(default_factory=list)
    """Of which shards that was asked."""
    answers: asyncio.Event | None = None
    """When that is answered, if it takes a while."""

    def watch(self, shards: Mapping[ShardId, int], stops: Mapping[ShardId, int] | None = None) -> None:
        self.watched, self.stops = dict(shards), dict(stops or {})

    async def sizes(self, positions: Mapping[ShardId, int]) -> Mapping[ShardId, float]:
        return dict.fromkeys(positions, self.size)

    async def reached(self, shards: Collection[ShardId]) -> Mapping[ShardId, int]:
        self.asked.append(set(shards))
        if self.answers is not None:
            await self.answers.wait()
        reach = self.end_offsets if self.reach is None else self.reach
        return EndOffsets({shard: self._stopped(shard, reach[shard]) for shard in shards if shard in reach}, self.leaders)

    def failing(self) -> bool:
        return self.away

    def known(self) -> Mapping[ShardId, int]:
        ends = self.end_offsets
        return EndOffsets({shard: self._stopped(shard, ends[shard]) for shard in self.watched if shard in ends}, self.leaders)

    def _stopped(self, shard: ShardId, end: int) -> int:
        return min(end, self.stops.get(shard, end))


@dataclass
class Observed:
    heartbeats: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    records: int = 0
    begun: list[int] = field(default_factory=list)

    def heartbeat(self, result: str) -> None:
        self.heartbeats.append(result)

    def checkpoint(self, result: str) -> None:
        self.checkpoints.append(result)

    def began(self, ranges: Mapping[ShardId, ReadRange], asked_at: float) -> None:
        self.begun.append(sum(each.stop - each.start for each in ranges.values()))

    def batch(self, ranges: Mapping[ShardId, ReadRange], seconds: float) -> None:
        self.records += sum(each.stop - each.start for each in ranges.values())


class Scene:
    """An agent with everything around it faked. Make it inside `simulate`; `run` starts it."""

    def __init__(self, **settings: Any) -> None:
        self.coordinator = FakeCoordinator()
        self.end_offsets = FakeEnds()
        self.observed = Observed()
        self.stopped: list[str] = []
        self.tasks = False
        """Whether Spark runs a task."""
        self.loop = asyncio.get_running_loop()
        self.slept = 0.0
        """Seconds for which the machine was suspended: its clock went on, the timers of the loop did not."""
        self.agent = Agent(
            SessionSettings(GROUP, ME, RUN, **settings),
            self.coordinator,
            self.end_offsets,
            self.observed,
            self._stop,
            self._running,
            lambda: self.loop.time() + self.slept,
        )
        self._task: asyncio.Task[None] | None = None

    async def _stop(self, reason: str) -> None:
        self.stopped.append(reason)

    async def _running(self) -> bool:
        return self.tasks

    def run(self) -> None:
        self._task = self.loop.create_task(self.agent.run())

    async def close(self) -> None:
        """Let what is under way settle, then end the agent; raises what it raised."""
        await asyncio.sleep(0.001)
        assert self._task is not None
        if self._task.done():
            self._task.result()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, true: Callable[[], bool], within: float = 10.0) -> float:
        """Wait in simulated time; returns how long it took."""
        began = self.loop.time()
        while not true():
            assert self.loop.time() - began < within, "it never happened"
            await asyncio.sleep(within / 10_000)
        return self.loop.time() - began


def story(body: Callable[[Scene], Awaitable[None]], **settings: Any) -> None:
    """Run a scene: the agent is started, and ended after the body."""

    async def play() -> None:
        scene = Scene(**settings)
        scene.run()
        try:
            await body(scene)
        finally:
            await scene.close()

    simulate(play)
