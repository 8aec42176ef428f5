"""A group at work: two workers as processes, the coordinator that leads, and what produces for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from shardherd.core.model.nouns import GroupView, ShardState
from tests.integration.coordinator.rig import Coordinator, Rig, becomes
from tests.integration.coordinator.workers import ReadSequences, Workers


class Load(Protocol):
    """Writes a sequence for each key, round after round, until it is `over`."""

    keys: list[str]
    rounds: int
    """How many were written."""
    over: bool

    def write(self) -> None: ...
    def close(self) -> None: ...


async def more_rounds(load: Load, count: int = 5, within: float = 60.0) -> None:
    """Until it has written so many more."""
    before = load.rounds
    await becomes(lambda: load.rounds > before + count, within)


class Scene:
    """A group of two workers, and what produces for it. Whoever makes one ends it."""

    def __init__(self, rig: Rig, workers: Workers) -> None:
        self.rig, self.spec, self.workers = rig, workers.spec, workers
        self.read = ReadSequences(workers.notes)
        self._loads: list[Load] = []
        self._producing: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for ordinal in range(2):
            await self.workers.start(ordinal)

    @property
    def view(self) -> GroupView:
        """What the coordinator that leads now says."""
        return self.workers.coordinator.view(self.spec.identity)

    def waiting(self) -> int:
        """How many shards wait for others to be read."""
        return self.view.shards_in(ShardState.WAIT)

    def load(self, load: Load) -> Load:
        self._loads.append(load)
        self._producing.append(asyncio.create_task(asyncio.to_thread(load.write)))
        return load

    async def stop_producing(self) -> None:
        """Until all that was produced is acknowledged."""
        for load in self._loads:
            load.over = True
        await asyncio.gather(*self._producing)

    async def replace_worker(self, ordinal: int) -> None:
        """Kill one with SIGKILL, and start its container again."""
        await self.workers.kill(f"{self.spec.identity.name}-{ordinal}")
        await self.workers.start(ordinal)

    async def replace_leader(self) -> Coordinator:
        """Let another coordinator lead, until it knows the group. Returns the one before, which knows nothing of it."""
        former = self.workers.coordinator
        again = await self.rig.coordinator()
        again.server.coordination.apply(self.spec)
        self.workers.follow(again)
        views = again.server.coordination
        await becomes(lambda: (view := views.view(self.spec.identity)) is not None and view.discovered)
        return former

    async def caught_up(self) -> None:
        """Until all that was produced is read, and nothing produces."""
        await self.stop_producing()
        wanted = {key: load.rounds for load in self._loads for key in load.keys}
        await becomes(lambda: all(set(self.read.of[key]) >= set(range(count)) for key, count in wanted.items()))

    async def end(self) -> None:
        """End the workers and what produces, however far they are."""
        for load in self._loads:
            load.over = True
        await asyncio.to_thread(self.workers.close)
        ended = await asyncio.gather(*self._producing, return_exceptions=True)
        for load in self._loads:
            with suppress(TimeoutError):
                await asyncio.to_thread(load.close)
        failed = [each for each in ended if each is not None]
        assert failed == []
