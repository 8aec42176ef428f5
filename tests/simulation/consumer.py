"""One run of a consumer: the real agent of `shardherd.spark`, and in Spark's place a loop of micro-batches that drives it.

The loop does what Spark's engine and our stream reader do: it logs the planned end of a micro-batch, reads and writes its
ranges in tasks, logs its end, and after a restart replays what was logged and not finished. Its two logs survive the process.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shardherd.consumer.ports import Coordinator
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.gauges import Gauge
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Incarnation, Leave, Offset, ShardId
from shardherd.source.reading.ranges import ShardRange
from shardherd.spark.agent import Agent
from shardherd.spark.offsets import Offsets, parse
from shardherd.spark.task_planning import plan_tasks
from tests.simulation import calls
from tests.simulation.history import History
from tests.simulation.history_entries import CANCEL_GRACE, Run
from tests.simulation.kinesis import Looks
from tests.simulation.network import Process
from tests.simulation.places import Places


@dataclass
class Location:
    """Spark's checkpoint location: the offset log's newest entry and the commit log's."""

    planned: str = ""
    finished: str = ""


class Around(calls.Around, Protocol):
    """What a consumer finds around it in the world."""

    rng: random.Random
    spec: GroupSpec
    places: Places

    @property
    def history(self) -> History: ...

    def reaches(self, source: str, target: str) -> bool: ...

    def end_of(self, shard: ShardId) -> Offset | None: ...

    def reads(self, shard: ShardId, start: Offset, stop: Offset, run: Run) -> bool: ...

    def gone(self, shard: ShardId) -> bool: ...

    def writes(self, shard: ShardId, start: Offset, stop: Offset, epoch: int, run: Run) -> None: ...

    def replays(self, ranges: Mapping[ShardId, ReadRange], ours: Collection[ShardId], run: Run) -> None: ...

    def gauges(self, consumer: ConsumerId) -> tuple[Gauge, ...]: ...

    def say(self, text: str) -> None: ...

    @property
    def healed(self) -> bool: ...

    def judge(self, check: Callable[..., None], *arguments: Any) -> None: ...


class EndOffsets:
    """Stands where EndWatcher does."""

    def __init__(self, consumer: ConsumerRun, world: Around) -> None:
        self._consumer, self._world = consumer, world
        self._watched: tuple[ShardId, ...] = ()
        self._known: Mapping[ShardId, Offset] = {}
        self._looks = Looks(consumer.process.loop.time) if world.plan.kinesis else None

    def watch(self, shards: Iterable[ShardId], stops: Mapping[ShardId, Offset] | None = None) -> None:
        assert not stops, "no group of a world reads up to a time only"
        self._watched = tuple(shards)

    async def sizes(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float]:
        return {}

    async def reached(self, shards: Collection[ShardId]) -> Mapping[ShardId, Offset]:
        known = self.known()
        return {shard: known[shard] for shard in shards if shard in known}

    def failing(self) -> bool:
        return not self._world.reaches(self._consumer.process.name, "kafka")

    def known(self) -> Mapping[ShardId, Offset]:
        if self._world.reaches(self._consumer.process.name, "kafka"):
            shards = self._world.history.shards
            ends = {shard: shards[shard].end for shard in self._watched if shards[shard].present}
            self._known = ends if self._looks is None else self._looks.known(ends)
        return self._known


class Leaving:
    """A client that tells when its consumer leaves: from then on others may write what it has left over."""

    def __init__(self, client: Coordinator, leaves: Callable[[], None]) -> None:
        self._client, self._leaves = client, leaves
        self.heartbeat, self.checkpoint = client.heartbeat, client.checkpoint

    async def leave(self, leave: Leave) -> None:
        self._leaves()
        await self._client.leave(leave)


class Silent:
    """An Observer that is not interested."""

    def heartbeat(self, result: str) -> None:
        """Nothing."""

    def checkpoint(self, result: str) -> None:
        """Nothing."""

    def began(self, ranges: Mapping[ShardId, ReadRange], asked_at: float) -> None:
        """Nothing."""

    def batch(self, ranges: Mapping[ShardId, ReadRange], seconds: float) -> None:
        """Nothing."""


class ConsumerRun:
    """One run. `ended` is called with what ended it, once it is dead."""

    def __init__(
        self,
        world: Around,
        process: Process,
        run: Run,
        location: Location,
        ended: Callable[[ConsumerRun, str], None],
        *,
        over_http: bool,
    ) -> None:
        self.world = world
        self.process = process
        self.run = run
        self.location = location
        self.hang_until = 0.0
        settings = world.spec.settings
        self.agent: Agent
        self._ended = ended
        self._engine: asyncio.Task[None] | None = None
        self._task: tuple[tuple[ShardRange, ...], Mapping[ShardId, ReadRange]] | None = None
        self.executors_until = 0.0
        """When what its executors still did at its end has ended."""
        self._trigger = world.rng.uniform(12.0, 40.0) * world.plan.time_scale
        self._settings = SessionSettings(
            group_uid=world.spec.identity.uid,
            consumer=run.consumer,
            incarnation=run.incarnation,
            heartbeat_interval=settings.heartbeat_interval,
            session_timeout=settings.session_timeout,
            coordinator_loss_limit=world.history.loss_limit,
            drain_timeout=60.0,
            ordered=settings.ordered,
        )
        self.caller = calls.Caller(process, run)
        client: Coordinator = calls.Direct(self.caller, world)
        if over_http:
            client = calls.over_http(self.caller, world, world.spec.identity)
        self._client = Leaving(client, self._leaves)
        self._tasks = 0
        self._reason = "killed"
        process.on_death = self._died
        process.loop.timeline.at(process.loop.timeline.now, process.loop, self._boot)

    @property
    def incarnation(self) -> Incarnation:
        return self.run.incarnation

    @property
    def alive(self) -> bool:
        return not self.process.dead

    def reading(self) -> list[ShardId]:
        """The shards of the micro-batch that is under way."""
        if not self.location.planned:
            return []
        shards = parse(self.location.planned, self._settings.group_uid).shards
        return [shard for shard, each in shards.items() if each.start < each.stop]

    def grants(self) -> dict[ShardId, int]:
        """The epoch of each shard that it believes to hold."""
        return {shard: grant.epoch for shard, grant in self.agent.tracker._grants.items()}

    def unsaved(self) -> frozenset[ShardId]:
        """The shards of which it has finished something that is not durable."""
        return frozenset(each.shard for each in self.agent.tracker.uncommitted())

    def holds(self) -> tuple[ShardId, ...]:
        """What its agent holds."""
        return self.agent.tracker.shards if self._engine is not None else ()

    def exit(self, reason: str) -> None:
        """The process ends."""
        self._reason = reason
        self.process.kill()

    def cut_off(self) -> None:
        """Its process is gone, or is unwound because the world is over: nothing of it may wait for an answer."""

    def _died(self) -> None:
        """Its executors may go on with the task that they are at, though not for longer than it may have been a consumer."""
        self.cut_off()
        world, run = self.world, self.run
        last = run.acknowledged + world.spec.settings.session_timeout - 1.0
        if self._task is not None and world.spec.executors and world.rng.random() < 0.7:
            until = min(world.time + world.rng.uniform(0.5, 60.0), last)
            if until > world.time:
                self.executors_until = until
                self.process.loop.timeline.at(until, None, self._outlived, *self._task)
        self._ended(self, self._reason)

    def _outlived(self, task: tuple[ShardRange, ...], ranges: Mapping[ShardId, ReadRange]) -> None:
        self.world.history.counts["tasks of executors that outlived their driver"] += 1
        self._write(task, ranges)

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.loop.timeline.at(self.process.loop.timeline.now, self.process.loop, self._terminated)

    def restart_query(self) -> None:
        """The query fails and the application starts it again, in the same process."""
        self.process.loop.timeline.at(self.process.loop.timeline.now, self.process.loop, self._query_again)

    # In the process.

    def _boot(self) -> None:
        loop = self.process.loop
        self.agent = Agent(
            self._settings, self._client, EndOffsets(self, self.world), Silent(), self._stop, self._running, loop.time
        )
        self.agent.batch_sizing.bound = 1000
        self.agent.gauges = lambda: self.world.gauges(self.run.consumer)
        loop.create_task(self.agent.run())
        self._engine = loop.create_task(self._query(self.world.rng.uniform(0.5, 4.0)))

    async def _stop(self, reason: str) -> None:
        """The agent may not read any longer: jobs are cancelled, the process ends within the grace."""
        self.run.violent = self.run.violent or reason
        rng, loop = self.world.rng, self.process.loop
        if self._engine is not None and rng.random() < 0.7:
            self._engine.cancel()
        loop.call_later(rng.uniform(0.01, CANCEL_GRACE), self.exit, f"stopped itself: {reason}")

    def _terminated(self) -> None:
        self.process.loop.create_task(self._drain())

    async def _drain(self) -> None:
        await self.agent.drain(self.process.loop.time() + 80.0)
        # Also of one that had been silent for too long before it was told to drain, and so did not leave.
        self._leaves()
        self.exit("drained")

    def _leaves(self) -> None:
        if self.agent.session.left_over:
            self.run.violent = self.run.violent or "drained with work left over"

    async def _running(self) -> bool:
        return self._tasks > 0

    def _query_again(self) -> None:
        if self._engine is None or self.agent.draining:
            return
        self.run.violent = self.run.violent or "its query failed"
        self._engine.cancel()
        self.process.loop.call_later(1.0, self._query_ended, self._engine)

    def _query_ended(self, engine: asyncio.Task[None]) -> None:
        if self._engine is engine and not self.agent.draining:
            self.agent.query_ended()
            self._engine = self.process.loop.create_task(self._query(2.0))

    async def _query(self, startup: float) -> None:
        await asyncio.sleep(startup)
        agent, location, uid = self.agent, self.location, self._settings.group_uid
        if location.planned and any(self.world.gone(shard) for shard in self.reading()):
            # The user removes the log of a query that cannot go on.
            location.planned = location.finished = ""
        start = parse(location.finished, uid) if location.finished else Offsets(uid)
        if location.planned:
            end = parse(location.planned, uid)
            ours = frozenset(await agent.replay(end))
            self.world.replays(end.shards, ours, self.run)
            kept = {shard: each for shard, each in end.shards.items() if shard in ours}
            if not await self._batch(start, end, kept, json.dumps(end.as_dict())):
                return
            start = end
        while True:
            end = await agent.latest(start, None)
            if end is start:
                await asyncio.sleep(self._trigger)
                continue
            location.planned = logged = json.dumps(end.as_dict())
            if not self.process.await_outside():
                return
            if not await self._batch(start, end, end.shards, logged):
                return
            start = end

    async def _batch(self, start: Offsets, end: Offsets, ranges: Mapping[ShardId, ReadRange], logged: str) -> bool:
        """Read and write the ranges, then log that it is finished (`logged`: its end), and tell the agent a little later.

        Whether the query goes on: it plans nothing more once its process has ended.
        """
        rng, world = self.world.rng, self.world
        tasks = plan_tasks(ranges, 2, every_slot=end.warm > start.warm)
        if any(tasks):
            for each in [each for task in tasks for each in task]:
                if not world.reads(each.shard, each.start, each.stop, self.run):
                    self.exit(f"failed: {each.shard} has no records {each.start} to {each.stop}")
                    return False
            self._tasks += 1
            try:
                for task in tasks:
                    self._task = (task, ranges)
                    await asyncio.sleep(rng.uniform(0.05, 3.0) if rng.random() < 0.9 else rng.uniform(3.0, 12.0))
                    await self._work(task, ranges)
                self._task = None
            except asyncio.CancelledError:
                if not self.process.dead:
                    self._task = None  # its job was cancelled
                raise
            finally:
                self._tasks -= 1
        self.location.finished, self.location.planned = logged, ""
        if not self.process.await_outside():
            return False
        self.process.loop.call_later(0.12, self.agent.finished, end)
        return True

    async def _work(self, task: tuple[ShardRange, ...], ranges: Mapping[ShardId, ReadRange]) -> None:
        while self.hang_until > self.world.time or not self.world.reaches(self.process.name, "kafka"):  # noqa: ASYNC110
            await asyncio.sleep(2.0 * self.world.plan.time_scale)
        self._write(task, ranges)

    def _write(self, task: tuple[ShardRange, ...], ranges: Mapping[ShardId, ReadRange]) -> None:
        for each in task:
            self.world.writes(each.shard, each.start, each.stop, ranges[each.shard].epoch, self.run)


def settings_with(spec: GroupSpec, **changes: Any) -> GroupSpec:
    """The same spec with other settings."""
    return replace(spec, settings=replace(spec.settings, **changes))
