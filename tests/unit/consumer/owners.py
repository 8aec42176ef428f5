"""Both owners of a session, driven in the same way: the agent with a played query, and a plain consumer with a played program.

In simulated time, against a coordinator that answers as the test says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from shardherd.client.consumer import AsyncConsumer
from shardherd.consumer.session import Session
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.model.errors import ConsumerStoppedError
from shardherd.core.model.nouns import ShardId
from shardherd.spark.agent import Agent
from shardherd.spark.offsets import Offsets
from tests.unit.spark.simulated import GROUP, ME, RUN, FakeCoordinator, FakeEnds, Observed, nobody_knows, simulate

RECORDS = 100
"""How many records every shard has from where it is read on."""

NO_NEWS = 0.1
"""Seconds after which who may read anything has begun."""


class Played(Protocol):
    """A consumer with something to read it with. `slept` are seconds for which its machine was suspended."""

    session: Session
    slept: float

    async def start(self) -> None:
        """Join, ready to be given shards."""
        ...

    async def begin(self) -> bool:
        """Begin to read the next that there is; False if there is nothing, or it may not."""
        ...

    async def finish(self) -> None:
        """What was begun is read to its end, and written."""
        ...

    async def drain(self, seconds: float) -> bool: ...

    async def close(self) -> None:
        """Nothing of it runs any more. Raises the defect that ended it, if one did."""
        ...

    @property
    def stopped_reading(self) -> bool:
        """Whether what was being read was stopped, or would have been."""
        ...


class PlayedDriver:
    """The agent, and a query whose micro-batches last for as long as the test likes."""

    def __init__(self, coordinator: FakeCoordinator, **settings: Any) -> None:
        loop = asyncio.get_running_loop()
        self.slept = 0.0
        self._stops: list[str] = []
        self._ends = FakeEnds()
        self._coordinator = coordinator
        self._agent = Agent(
            SessionSettings(GROUP, ME, RUN, **settings),
            coordinator,
            self._ends,
            Observed(),
            self._stop,
            nobody_knows,
            lambda: loop.time() + self.slept,
        )
        self.session = self._agent.session
        self._at = self._end = Offsets(GROUP)
        self._task: asyncio.Task[None] | None = None

    async def _stop(self, reason: str) -> None:
        self._stops.append(reason)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._agent.run())
        self._at = await self._agent.latest(Offsets(GROUP), None)
        await self._agent.latest(self._at, None)

    async def begin(self) -> bool:
        self._ends.end_offsets = {each.shard: each.position + RECORDS for each in self._coordinator.assigned.values()}
        self._end = await self._agent.latest(self._at, None)
        return self._end is not self._at

    async def finish(self) -> None:
        self._agent.finished(self._end)
        self._at = self._end

    async def drain(self, seconds: float) -> bool:
        return await self._agent.drain(asyncio.get_running_loop().time() + seconds)

    async def close(self) -> None:
        assert self._task is not None
        await asyncio.sleep(0.001)
        if self._task.done():
            self._task.result()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def stopped_reading(self) -> bool:
        return bool(self._stops)


class PlayedProgram:
    """A plain consumer, and a task that has one shard in hand for as long as the test likes."""

    def __init__(self, coordinator: FakeCoordinator, *, coordinator_loss_limit: float = 300.0, **settings: Any) -> None:
        loop = asyncio.get_running_loop()
        self.slept = 0.0
        self._consumer = AsyncConsumer(
            coordinator,
            ME,
            RUN,
            group_uid=GROUP,
            save_interval=0.0,
            loss_limit=coordinator_loss_limit,
            now=lambda: loop.time() + self.slept,
            **settings,
        )
        self.session = self._consumer.session
        self.stopped_reading = False
        self._go = asyncio.Event()
        self._taken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._consumer.__aenter__()

    async def begin(self) -> bool:
        self._go.clear()
        self._taken.clear()
        self._reading = asyncio.create_task(self._read())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NO_NEWS):
                await self._taken.wait()
        if not self._taken.is_set():
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        return self._taken.is_set()

    async def _read(self) -> None:
        try:
            async with self._consumer.take() as shard:
                self._taken.set()
                await self._go.wait()
                await shard.save_checkpoint(shard.position + RECORDS, now=False)
        except ConsumerStoppedError:
            self.stopped_reading = self._taken.is_set()

    async def finish(self) -> None:
        assert self._reading is not None
        self._go.set()
        await self._reading

    async def drain(self, seconds: float) -> bool:
        return await self._consumer.drain(seconds)

    async def close(self) -> None:
        await asyncio.sleep(0.001)
        if not self.session.over:
            self.session.end("the test is over")
        await self._consumer.__aexit__(None, None, None)


OWNERS: tuple[Callable[..., Played], ...] = (PlayedDriver, PlayedProgram)


class Scene:
    """One consumer and its coordinator."""

    def __init__(self, owner: Callable[..., Played], **settings: Any) -> None:
        self.coordinator = FakeCoordinator()
        self.consumer = owner(self.coordinator, **settings)
        self.session = self.consumer.session
        self.loop = asyncio.get_running_loop()

    async def holding(self, *shards: tuple[str, int, int]) -> None:
        """Joined, and with these shards (name, epoch, position)."""
        await self.consumer.start()
        self.coordinator.assign(*shards)
        await self.until(lambda: set(self.session.ledger.readable_epochs()) == {ShardId(name) for name, _, _ in shards})

    async def until(self, true: Callable[[], bool], within: float = 10.0) -> float:
        """Wait in simulated time; returns how long it took."""
        began = self.loop.time()
        while not true():
            assert self.loop.time() - began < within, "it never happened"
            await asyncio.sleep(within / 10_000)
        return self.loop.time() - began


def story(owner: Callable[..., Played], body: Callable[[Scene], Awaitable[None]], **settings: Any) -> None:
    """Run a scene to its end."""

    async def play() -> None:
        scene = Scene(owner, **settings)
        await body(scene)
        await scene.consumer.close()

    simulate(play)
