"""What holds for workers whatever fails: everything is processed, in order, and no position passes what is not finished.

Two workers on the real session and the real core, in simulated time. Hypothesis draws what goes wrong, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.client.consumer import AsyncConsumer
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    Offset,
    ShardId,
)
from shardherd.core.model.requests import ConsumerDied, Request, Tick
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.worker.fetching import InThreads
from shardherd.worker.options import Options
from shardherd.worker.processor import AsyncCheckpoint, AsyncProcessor
from shardherd.worker.records import Records
from shardherd.worker.worker import Processing
from tests.builders import IDENTITY, Play, info, spec
from tests.harness.long import LONG
from tests.unit.spark.simulated import simulate
from tests.unit.worker.scene import AtOnce, Logs

SHARDS = 3
RECORDS = 30

EXAMPLES = 1000 if LONG else 25

HEALED = 600.0
"""Seconds after the last fault within which all is processed and durable: expiry, back-off and the save interval."""


class BrokenError(Exception):
    """What a program raises."""


@dataclass
class World:
    """The group and its records. `finished` are those that a processor has finished, whichever run it was of; `out_of_order`
    tells of each that was finished too early."""

    ordered: bool
    logs: Logs = field(default_factory=lambda: Logs(most=7))
    finished: set[tuple[ShardId, Offset]] = field(default_factory=set)
    out_of_order: list[str] = field(default_factory=list)
    away: bool = False

    def __post_init__(self) -> None:
        self.over = asyncio.Event()
        self.play = Play(spec(2, heartbeat_interval=1.0, initial_assignment_delay=0.0, ordered=self.ordered), now=0.0)
        shards = [ShardId(f"t/{number}") for number in range(SHARDS)]
        for number, shard in enumerate(shards):
            for _ in range(3):  # gaps between offsets, as transactions leave them
                self.logs.append(shard, RECORDS // 3, gap=number)
        self.play.discover([info(shard, end=self.logs.ends[shard]) for shard in shards])

    def finish(self, shard: ShardId, offset: Offset, *, in_order: bool = True) -> None:
        """A processor has finished a record; whatever is before it must have been finished, by anybody."""
        if not in_order:
            self.finished.add((shard, offset))
            return
        before = {(shard, each) for each in self.logs.offsets[shard] if each < offset}
        if not before <= self.finished:
            # Not asserted here: a worker takes whatever its program raises for a failure, and tries again.
            self.out_of_order.append(f"{shard}/{offset} is finished before {sorted(before - self.finished)}")
        self.finished.add((shard, offset))

    def ask(self, request: Request) -> Any:
        """What the group decides. No position may pass a record that nobody has finished."""
        self.play.now = asyncio.get_running_loop().time()
        decision = self.play.ask(request)
        for shard, committed in self.play.log.items():
            passed = {(shard, each) for each in self.logs.offsets[shard] if each < committed}
            assert passed <= self.finished, f"{shard} is committed up to {committed}: {sorted(passed - self.finished)}"
        return decision

    @property
    def done(self) -> bool:
        """Whether all is durable."""
        return {shard: self.play.log.get(shard, 0) for shard in self.logs.ends} == self.logs.ends

    async def time_passes(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.ask(Tick())


class Run:
    """One run of a worker, and its way to the coordinator. `dead`: as after kill -9, nothing of it gets on."""

    def __init__(
        self,
        world: World,
        name: str,
        start: int,
        faults: Iterator[str],
        make: Callable[[Run], Any],
        takes: Mapping[str, float] | None = None,
        **given: Any,
    ) -> None:
        self.world = world
        self.name, self.incarnation = ConsumerId(name), Incarnation(f"uid-{name}", start)
        self.faults = faults
        self.dead = asyncio.Event()
        options = Options(threads=2, batch_size=4, fetch_interval=1.0, revoke_timeout=5.0, **given)
        crew = AtOnce(takes)
        self.processing = Processing(lambda: make(self), InThreads(world.logs, crew), crew, options)
        self.consumer = AsyncConsumer(
            self,
            self.name,
            self.incarnation,
            group_uid=IDENTITY.uid,
            save_interval=10.0,
            drain_timeout=8.0,
            about=self.processing.about,
            now=asyncio.get_running_loop().time,
        )
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.consumer:
            await self.processing.run(self.consumer)

    @property
    def runs(self) -> bool:
        """Raises what was asserted in it: a promise is broken, and another run would not mend it."""
        if self.task.done() and not self.task.cancelled() and isinstance(error := self.task.exception(), AssertionError):
            raise error
        return not self.dead.is_set() and not self.task.done()

    async def alive(self) -> None:
        """Goes on only in who is."""
        if self.dead.is_set():
            await self.world.over.wait()
            raise BrokenError

    # The coordinator.

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        group, loop = self.world.play.group, asyncio.get_running_loop()
        await self._asked(heartbeat)
        until = loop.time() + wait
        while group.may_park(heartbeat) and loop.time() < until:
            await asyncio.sleep(0.2)
            await self._reached()
        return group.confirmed(heartbeat)

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        await asyncio.sleep(0.1)
        reply = (await self._asked(request)).reply
        assert isinstance(reply, CheckpointReply)
        return reply

    async def leave(self, leave: Leave) -> None:
        await self._asked(leave)

    async def _asked(self, request: Request) -> Any:
        await self._reached()
        return self.world.ask(request)

    async def _reached(self) -> None:
        await self.alive()
        if self.world.away:
            raise CoordinatorUnavailableError("away")


FAULTS = (
    "none",
    "raises at the end",
    "raises in between",
    "goes back",
    "goes to what is done",
    "saves each",
    "saves at once and raises",
    "hangs",
)


class _Processor(AsyncProcessor):
    """What its batches do is drawn, too."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.entered = False

    async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> Offset | None:
        assert not self.entered, "two hands on one processor"
        self.entered = True
        try:
            return await self._process(records, checkpoint, next(self.run.faults, "none"))
        finally:
            self.entered = False

    async def _process(self, records: Records, checkpoint: AsyncCheckpoint, fault: str) -> Offset | None:
        for count, record in enumerate(records):
            await asyncio.sleep(100.0 if fault == "hangs" and not count else 0.3)
            await self.run.alive()
            if count and fault == "raises in between":
                raise BrokenError
            if count and fault == "goes back":
                return record.offset
            self.run.world.finish(records.shard, record.offset)
            if fault == "saves each":
                await checkpoint.save(record.offset + 1)
            elif fault == "saves at once and raises":
                await checkpoint.save(record.offset + 1, now=True)
                raise BrokenError
        if fault == "raises at the end":
            raise BrokenError
        return checkpoint.done if fault == "goes to what is done" else None


EVENTS = ("joins", "is killed", "drains", "coordinator", "kafka")
"""What happens to the worker that is drawn with it; the last two are away, or back, for all."""

Event = tuple[str, str, float]


class Story:
    """The workers of a world, and what happens to them."""

    def __init__(
        self, world: World, faults: Sequence[str], make: Callable[[Run], Any] = lambda run: _Processor(run), **options: Any
    ) -> None:
        self.world = world
        self._make, self._options = make, options
        self.runs: list[Run] = []
        self._faults = iter(faults)

    async def __aenter__(self) -> Story:
        self._clock = asyncio.create_task(self.world.time_passes())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whatever has happened, nothing goes on, and nobody is left to be told how a task ended."""
        tasks = [self._clock, *(run.task for run in self.runs)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def running(self, name: str) -> Run | None:
        return next((run for run in self.runs if run.name == name and run.runs), None)

    async def goes(self, events: Sequence[Event]) -> None:
        """From the first worker on, until all is processed and everybody has ended."""
        await self.happens("joins", "a")
        for event, name, then in events:
            await self.happens(event, name)
            await asyncio.sleep(then)
        await self.heals()
        assert (len(self.world.finished), self.world.out_of_order) == (SHARDS * RECORDS, [])
        await self.ends()

    async def happens(self, event: str, name: str) -> None:
        run, world = self.running(name), self.world
        if event == "joins" and run is None:
            self.runs.append(Run(world, name, len(self.runs) + 1, self._faults, self._make, **self._options))
        elif event == "is killed" and run is not None:
            run.dead.set()
            world.ask(ConsumerDied(run.name, run.incarnation))
        elif event == "restarts" and run is not None:
            # Nobody says that it died: the next run of its name takes its shards over, which are nowhere else meanwhile.
            run.dead.set()
            await self.happens("joins", name)
        elif event == "drains" and run is not None:
            await run.consumer.drain(8.0)
        elif event == "coordinator":
            world.away = not world.away
        elif event == "kafka":
            world.logs.failing = None if world.logs.failing else BrokersUnavailableError("no broker")

    async def heals(self) -> None:
        """Nothing fails any more, and who has ended begins again: then all is processed."""
        world, loop = self.world, asyncio.get_running_loop()
        world.away, world.logs.failing, self._faults = False, None, iter(())
        until = loop.time() + HEALED
        while not world.done:
            assert loop.time() < until, f"not all is done: {world.play.log} of {world.logs.ends}, {world.play.holders()}"
            for name in ("a", "b"):
                await self.happens("joins", name)
            await asyncio.sleep(1.0)

    async def ends(self) -> None:
        """All drain, and what was dead goes away. Raises what a run should not have ended with."""
        for run in self.runs:
            if run.runs:
                await run.consumer.drain(60.0)
            if not run.dead.is_set():
                await run.task
        self.world.over.set()
        await asyncio.gather(*(run.task for run in self.runs), return_exceptions=True)
        assert not self._clock.done(), self._clock.result()


def happenings(most: int) -> st.SearchStrategy[list[Event]]:
    """At most so many events, each with how long nothing happens after it."""
    return st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from("ab"), st.floats(0.0, 30.0)), max_size=most)


def plays(make: Callable[[], Story], events: Sequence[Event]) -> None:
    """Go through a story that is made in a loop of simulated time."""

    async def played() -> None:
        async with make() as story:
            await story.goes(events)

    simulate(played)


def plays_one_by_one(
    make: Callable[[Run], Any], events: Sequence[Event], faults: Sequence[str], *, ordered: bool, serial: bool, in_order: bool
) -> None:
    """The same, of records that are acknowledged one by one; `serial`: one is pending at a time."""
    pending = 1 if serial else 6
    plays(
        lambda: Story(World(ordered), faults, make, max_pending=pending, in_order=in_order or serial, ack_timeout=20.0), events
    )


@settings(max_examples=EXAMPLES)
@given(
    ordered=st.booleans(),
    events=happenings(12),
    faults=st.lists(st.sampled_from(FAULTS), max_size=30),
)
def test_every_record_is_processed_in_order_and_no_position_passes_one_that_is_not(
    ordered: bool, events: list[Event], faults: list[str]
) -> None:
    plays(lambda: Story(World(ordered), faults), events)
