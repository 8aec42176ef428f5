"""A crash at every step of a micro-batch: what Spark has logged, the sink and the coordinator are real enough to be restarted.

The stream reader and the agent are the real ones; Spark's micro-batch execution and the coordinator are models of a page each.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConfirmedShard,
    Incarnation,
    ShardId,
)
from shardherd.spark.agent import Agent
from shardherd.spark.batch_planner import Latest, ReaderSettings
from shardherd.spark.kafka_readers import ShardherdStreamReader, Slice
from shardherd.spark.offsets import parse
from shardherd.spark.options import read_options
from shardherd.spark.running_batch import Running, ranges_of
from shardherd.spark.schema import Wanted
from tests.unit.spark.simulated import GROUP, ME, FakeCoordinator, FakeEnds, Observed, SimulatedLoop, nobody_knows

T = TypeVar("T")
A, B = ShardId("clicks/0"), ShardId("clicks/1")
STEPS = (
    "latestOffset answered",
    "offset log written",
    "partitions planned",
    "half of the rows written",
    "all rows written",
    "commit log written",
    "progress told",
    "checkpoint durable",
)
"""After which of these the application dies."""


class CrashError(Exception):
    """The application is gone, with all that it had in memory."""


class Coordinator(FakeCoordinator):
    """Keeps positions, and takes checkpoints under the current epochs only."""

    positions: dict[str, int]

    def hold(self, epoch: int, *, since: int) -> None:
        """Both shards are this consumer's, under that epoch."""
        self.assign(*((shard, epoch, at) for shard, at in self.positions.items()), since=since)

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        if self.fault is not None:
            raise self.fault
        outcomes = []
        for each in request.checkpoints:
            current = self.assigned[each.shard].owner_epoch == each.owner_epoch
            if current:
                self.positions[each.shard] = each.offset
                confirmed = self.assigned[each.shard]
                self.assigned[each.shard] = ConfirmedShard(
                    confirmed.shard, confirmed.owner_epoch, confirmed.held_since_epoch, each.offset
                )
            result = CheckpointResult.OK if current else CheckpointResult.FENCED
            outcomes.append(CheckpointOutcome(each.shard, result, each.offset, each.owner_epoch))
        return CheckpointReply(tuple(outcomes))


@dataclass
class Disk:
    """Spark's own checkpoint location: the offsets and the commits, by batch."""

    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)


@dataclass
class World:
    """What outlives an application."""

    coordinator: Coordinator
    end_offsets: FakeEnds
    disk: Disk = field(default_factory=Disk)
    sink: Counter[tuple[str, int]] = field(default_factory=Counter)
    starts: int = 0


class Application:
    """One run: the agent on its loop, the stream reader, and Spark's micro-batches. Dies after `step` of batch `batch`."""

    ordered = False

    def __init__(self, world: World, step: str = "", batch: int = -1) -> None:
        world.starts += 1
        world.coordinator.fault = None
        self.world, self.disk = world, world.disk
        self.dies = (batch, step)
        self.loop = SimulatedLoop()
        self.agent = self.now(self._agent())
        self.running = self.loop.create_task(self.agent.run())
        self.reader_settings = ReaderSettings(GROUP, "kafka:9092", 1)
        self.reader = ShardherdStreamReader(read_options({"maxOffsetsPerTrigger": "20"}, batch=False), Wanted(("offset",)))
        self.reader._batch_planner = self

    async def _agent(self) -> Agent:
        settings = SessionSettings(GROUP, ME, Incarnation("pod-uid", self.world.starts))
        end_offsets, loop = self.world.end_offsets, asyncio.get_running_loop()
        self.world.coordinator._changed = asyncio.Event()
        return Agent(settings, self.world.coordinator, end_offsets, Observed(), self._stop, nobody_knows, loop.time)

    async def _stop(self, reason: str) -> None:
        raise AssertionError(reason)

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    # --- the line to the agent -------------------------------------------------------------------------------------------

    def latest(self, start: dict[str, Any], *, once: bool) -> Latest:
        offsets = parse(start, GROUP)
        end = self.now(self.agent.latest(offsets, 20))
        return Latest(None if end is offsets else end.as_dict(), {})

    def replay(self, end: dict[str, Any]) -> frozenset[ShardId]:
        return frozenset(self.now(self.agent.replay(parse(end, GROUP))))

    def prepare(self) -> None:
        self.now(self.agent.prepare_available_now())

    def close(self) -> None:
        self.running.cancel()
        self.now(asyncio.wait_for(asyncio.gather(self.running, return_exceptions=True), 1))
        self.loop.close()

    # --- Spark -----------------------------------------------------------------------------------------------------------

    def run(self, batches: int) -> None:
        """Up to so many micro-batches with records, or until there is nothing to do. Raises CrashError."""
        try:
            last = max(self.disk.offsets, default=-1)
            if last >= 0 and last not in self.disk.commits:
                start = self.disk.offsets.get(last - 1) or json.dumps(self.reader.initialOffset())
                self._execute(last, start, self.disk.offsets[last])
            idle = 0
            while batches and idle < 5:
                last = max(self.disk.offsets, default=-1)
                start = self.disk.offsets.get(last) or json.dumps(self.reader.initialOffset())
                end = json.dumps(self.reader.latestOffset(json.loads(start), ReadAllAvailable()))
                if end == start and last >= 0:
                    idle += 1
                    continue
                self._step(last + 1, "latestOffset answered")
                self.disk.offsets[last + 1] = end
                self._step(last + 1, "offset log written")
                batches -= self._execute(last + 1, start, end)
        finally:
            self.close()

    def _execute(self, batch: int, start: str, end: str) -> bool:
        slices = self.reader.partitions(json.loads(start), json.loads(end))
        assert [s.ranges for s in slices if isinstance(s, Slice)] == [
            s.ranges for s in self.reader.partitions(json.loads(start), json.loads(end)) if isinstance(s, Slice)
        ], "Spark may ask twice"
        self._step(batch, "partitions planned")
        planned = [each for s in slices if isinstance(s, Slice) for each in s.ranges]
        assert self.agent.batch is not None
        epochs = {shard: each.owner_epoch for shard, each in self.world.coordinator.assigned.items()}
        assert ranges_of(self.agent.batch, GROUP, batch, Running("run", batch)) == {
            each.shard: (each.start, each.stop, epochs[each.shard]) for each in planned
        }, "a sink is told what is really read, under the epochs of now"
        rows = [(e.shard, at) for s in slices if isinstance(s, Slice) for e in s.ranges for at in range(e.start, e.stop)]
        half = len(rows) // 2
        self.world.sink.update(rows[:half])
        self._step(batch, "half of the rows written")
        self.world.sink.update(rows[half:])
        self._step(batch, "all rows written")
        self.disk.commits.add(batch)
        self._step(batch, "commit log written")
        self.agent.event_accepted()
        self.agent.finished(parse(end, GROUP))
        self._step(batch, "progress told")
        self.now(asyncio.sleep(0.1))
        self._step(batch, "checkpoint durable")
        return bool(rows)

    def _step(self, batch: int, step: str) -> None:
        if (batch, step) == self.dies:
            self.world.coordinator.fault = CoordinatorUnavailableError("the caller is dead")  # nothing of it goes out any more
            raise CrashError


@pytest.fixture
def world() -> World:
    coordinator = Coordinator()
    coordinator.positions = {A: 0, B: 100}
    coordinator.hold(1, since=1)
    return World(coordinator, FakeEnds({A: 60, B: 160}))


def everything(world: World) -> Counter[tuple[str, int]]:
    return Counter([(A, at) for at in range(60)] + [(B, at) for at in range(100, 160)])


def missing(world: World) -> Counter[tuple[str, int]]:
    return everything(world) - world.sink


def repeated(world: World) -> Counter[tuple[str, int]]:
    return world.sink - everything(world)


BATCH = 3
"""The one that fails: warm-up and two others with records have gone before."""

FIRST_HALF = Counter((str(A), at) for at in range(20, 30))
ITS_RECORDS = FIRST_HALF + Counter((str(B), at) for at in range(120, 130))
REPEATED = {
    "half of the rows written": FIRST_HALF,
    "all rows written": ITS_RECORDS,
    # The sink has them, but the coordinator never heard of it.
    "commit log written": ITS_RECORDS,
    "progress told": ITS_RECORDS,
}
"""What is written twice after a crash: what was written and was not checkpointed. After any other step, nothing."""

PROVEN = ("commit log written", "progress told")
"""After these steps Spark's own log says that the micro-batch is finished, for as long as it is there and the shards stay."""


@pytest.mark.parametrize("location", ["with", "without"])
@pytest.mark.parametrize("step", STEPS)
def test_a_restart_loses_nothing_and_repeats_what_was_written_and_not_checkpointed(
    world: World, step: str, location: str
) -> None:
    with pytest.raises(CrashError):
        Application(world, step, BATCH).run(10)
    if location == "without":
        world.disk = Disk()
    world.coordinator.hold(2, since=1)  # the same consumer again, in time: nothing moved
    Application(world).run(10)

    assert missing(world) == Counter()
    proven = location == "with" and step in PROVEN
    assert repeated(world) == (Counter() if proven else REPEATED.get(step, Counter()))
    assert world.coordinator.positions == {A: 60, B: 160}


@pytest.mark.parametrize("step", PROVEN)
def test_what_spark_has_committed_is_checkpointed_though_nothing_comes_after_it(world: World, step: str) -> None:
    with pytest.raises(CrashError):
        Application(world, step, BATCH).run(10)
    assert world.coordinator.positions == {A: 20, B: 120}
    world.end_offsets.end_offsets = {A: 30, B: 130}
    world.coordinator.hold(2, since=1)
    Application(world).run(10)

    assert world.coordinator.positions == {A: 30, B: 130}
    assert set(world.sink.values()) == {1}


@pytest.mark.parametrize("location", ["with", "without"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("reached", [25, 40])
def test_shards_that_were_elsewhere_meanwhile_are_not_read_again_from_the_log(
    world: World, reached: int, step: str, location: str
) -> None:
    with pytest.raises(CrashError):
        Application(world, step, BATCH).run(10)
    for shard, end in (
        (A, max(reached, world.coordinator.positions[A])),
        (B, 160),
    ):  # another consumer goes on at the durable position, for a while
        world.sink.update((shard, at) for at in range(world.coordinator.positions[shard], end))
        world.coordinator.positions[shard] = end
    if location == "without":
        world.disk = Disk()
    world.coordinator.hold(3, since=3)
    Application(world).run(10)

    assert missing(world) == Counter()
    assert repeated(world) == REPEATED.get(step, Counter()), "the other one could not know of what was written"


@pytest.mark.parametrize("step", STEPS)
def test_two_crashes_at_the_same_step_lose_nothing(world: World, step: str) -> None:
    for epoch in (1, 2):
        world.coordinator.hold(epoch, since=1)
        with pytest.raises(CrashError):
            Application(world, step, BATCH if epoch == 1 else max(world.disk.offsets, default=-1) + 1).run(10)
    world.coordinator.hold(3, since=1)
    Application(world).run(10)

    assert not missing(world)
    assert world.coordinator.positions == {A: 60, B: 160}
