"""A worker's processing in simulated time: on the real consumer and its session, with records from memory and no threads.

What a program does takes as long as its coroutines sleep; a Fetch takes as long as the scene says. Functions run at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shardherd.client.consumer import AsyncConsumer
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding.record_rows import Rows, rows_of
from shardherd.worker.crew import ThreadCrew
from shardherd.worker.dead_letters import DeadLetters
from shardherd.worker.fetched import Part
from shardherd.worker.fetching import InThreads
from shardherd.worker.listener import AnyListener
from shardherd.worker.options import Options
from shardherd.worker.processor import AnyProcessor, AsyncCheckpoint, AsyncProcessor
from shardherd.worker.records import Record, Records
from shardherd.worker.stream import Wanted
from shardherd.worker.worker import Processing
from tests.harness.loop_crew import LoopCrew
from tests.unit.spark.simulated import GROUP, ME, RUN, FakeCoordinator, simulate

FETCH = 0.01
"""Seconds that a Fetch takes in simulated time."""

A, B = ShardId("t/0"), ShardId("t/1")


def rows(offsets: Sequence[Offset]) -> Rows:
    """Records of these offsets: the value is the offset as text, the time is the offset in milliseconds."""
    nothing = [None] * len(offsets)
    times = [at * 1000 for at in offsets]
    return rows_of(A, offsets, times, [0] * len(offsets), nothing, [str(at).encode() for at in offsets], [()] * len(offsets))


def part(shard: ShardId, asked: Offset, offsets: Sequence[Offset], next_: Offset, end: Offset, size: int = 0) -> Part:
    """What a Fetch from `asked` on brought."""
    return Part(shard, asked, next_, end, size, lambda: [rows(offsets)] if offsets else [])


class Logs:
    """A Kafka in memory: of every shard the offsets of its records, each of `size` bytes, and its end.

    `most` records come of a shard at a time.
    """

    def __init__(self, most: int = 1000) -> None:
        self.size = 100
        self.offsets: dict[ShardId, list[Offset]] = {}
        self.ends: dict[ShardId, Offset] = {}
        self.most = most
        self.failing: Exception | None = None
        self.asked: list[tuple[bool, dict[ShardId, Wanted]]] = []
        self.connected = self.closed = False

    def append(self, shard: ShardId, count: int, *, gap: int = 0) -> None:
        """So many records, and then offsets without any."""
        first = self.ends.get(shard, 0)
        self.offsets.setdefault(shard, []).extend(range(first, first + count))
        self.ends[shard] = first + count + gap

    def connect(self) -> None:
        self.connected = True

    def fetch(self, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]:
        if self.failing is not None:
            raise self.failing
        self.asked.append((behind, dict(wanted)))
        return [self._part(shard, each) for shard, each in wanted.items()]

    def close(self) -> None:
        self.closed = True

    def _part(self, shard: ShardId, wanted: Wanted) -> Part:
        most = min(self.most, max(1, wanted.most // self.size))
        offsets = [at for at in self.offsets.get(shard, []) if at >= wanted.position]
        found, end = offsets[:most], self.ends.get(shard, 0)
        next_ = end if len(found) == len(offsets) else found[-1] + 1
        return part(shard, wanted.position, found, max(next_, wanted.position), end, self.size * len(found))


def in_threads(logs: Logs) -> InThreads:
    """What a worker of real threads fetches."""
    return InThreads(logs, ThreadCrew("fetching"))


class AtOnce(LoopCrew):
    """A crew without threads: functions run when they are called, Fetches after FETCH seconds, coroutines on the same loop.

    `takes`: seconds until a function runs whose name has this in it, as one that hangs for so long, and does its work then.
    """

    def __init__(self, takes: Mapping[str, float] | None = None) -> None:
        slow = {"fetch": FETCH, **(takes or {})}
        super().__init__(lambda work: next((seconds for name, seconds in slow.items() if name in repr(work)), 0.0))


class Program:
    """What the processors of a test do, and what they have seen: in `seen` every record that was finished, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        """initialize, process with its batch, and shutdown, as they begin."""
        self.seen: dict[ShardId, list[Offset]] = {}
        self.made = 0
        self.at_once = 0
        self.most_at_once = 0
        self.takes = 0.0
        """Seconds for each record."""
        self.results: list[Any] = []
        """What the next calls of `process` return, or raise; then None."""
        self.save: Callable[[Records, AsyncCheckpoint], Awaitable[None]] | None = None
        self.failing: dict[str, list[Exception]] = {}
        """What the next calls of initialize or shutdown raise."""
        self.long: dict[str, float] = {}
        """Seconds that initialize or shutdown take."""
        self.most_in: dict[str, int] = {}
        """How many were at most in initialize or shutdown at once."""
        self._in: Counter[str] = Counter()

    def __call__(self) -> AnyProcessor:
        self.made += 1
        return Recorder(self, self.made)

    async def takes_long(self, what: str) -> None:
        """In initialize or shutdown."""
        self._in[what] += 1
        self.most_in[what] = max(self.most_in.get(what, 0), self._in[what])
        try:
            await asyncio.sleep(self.long.get(what, 0.0))
        finally:
            self._in[what] -= 1

    def batches(self, shard: ShardId) -> list[tuple[Offset, Offset]]:
        """Every batch that a processor got of a shard."""
        return [call[2:] for call in self.calls if call[:2] == ("process", shard)]


class Recorder(AsyncProcessor):
    """A processor that does what its program says. It notices when it is called twice at once."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.number = number
        self.entered = False

    async def initialize(self, shard: ShardId) -> None:
        self.program.calls.append(("initialize", shard))
        await self.program.takes_long("initialize")
        if errors := self.program.failing.get("initialize"):
            raise errors.pop(0)

    async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> Offset | None:
        program = self.program
        assert not self.entered, "two hands on one processor"
        self.entered = True
        program.at_once += 1
        program.most_at_once = max(program.most_at_once, program.at_once)
        try:
            program.calls.append(("process", records.shard, records.position, records.next))
            result = program.results.pop(0) if program.results else None
            for record in records:
                await self._one(records.shard, record)
            if program.save is not None:
                await program.save(records, checkpoint)
            if isinstance(result, Exception):
                raise result
            return result
        finally:
            self.entered = False
            program.at_once -= 1

    async def shutdown(self, checkpoint: AsyncCheckpoint) -> None:
        self.program.calls.append(("shutdown", checkpoint.shard, checkpoint.done))
        await self.program.takes_long("shutdown")
        if errors := self.program.failing.get("shutdown"):
            raise errors.pop(0)
        await super().shutdown(checkpoint)

    async def _one(self, shard: ShardId, record: Record) -> None:
        if self.program.takes:
            await asyncio.sleep(self.program.takes)
        self.program.seen.setdefault(shard, []).append(record.offset)


class Scene:
    """A worker with everything around it played. Make it inside `simulate`."""

    def __init__(
        self,
        coordinator: Any = None,
        *,
        run: Any = RUN,
        group_uid: str = GROUP,
        factory: Callable[[], AnyProcessor] | None = None,
        graveyard: DeadLetters | None = None,
        listener: AnyListener | None = None,
        takes: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.coordinator = FakeCoordinator() if coordinator is None else coordinator
        self.logs = Logs()
        self.program = Program()
        self.options = Options(**{"fetch_interval": 0.5, **options})
        crew = AtOnce(takes)
        fetcher = InThreads(self.logs, crew)
        self.processing = Processing(factory or self.program, fetcher, crew, self.options, graveyard, listener)
        self.consumer = AsyncConsumer(
            self.coordinator,
            ME,
            run,
            group_uid=group_uid,
            save_interval=self.options.save_interval,
            drain_timeout=10.0 if self.options.drain_timeout is None else self.options.drain_timeout,
            about=self.processing.about,
            heard=self.processing.counts.hear,
            now=self.loop.time,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Scene:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with self.consumer:
            await self.processing.run(self.consumer)

    async def ended(self) -> None:
        """Wait until the worker has; raises what it raised."""
        assert self._task is not None
        await self._task

    async def until(self, true: Callable[[], bool], within: float = 100.0) -> float:
        """Wait in simulated time; returns how long it took."""
        began = self.loop.time()
        while not true():
            assert self.loop.time() - began < within, "it never happened"
            await asyncio.sleep(0.01)
        return self.loop.time() - began


def story(body: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
    """Play a scene: the worker has joined, and is ended after the body."""

    async def play() -> None:
        async with Scene(**options) as scene:
            await body(scene)

    simulate(play)
