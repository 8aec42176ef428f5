"""What ends Kopf does not end the watching, unless it goes on. Kopf is played here; tests/integration has the real one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import pytest

from shardherd.controller import handlers
from shardherd.controller.handlers import ENDS, WatchingEndedError

Run = Callable[[], Awaitable[None]]


class FakeController:
    """Counts how often it was started, and notes whether it was stopped each time."""

    def __init__(self, run: Run | None = None) -> None:
        self.started = self.stopped = 0
        self._run = run

    async def run(self) -> None:
        self.started += 1
        try:
            if self._run is not None:
                await self._run()
            await asyncio.Event().wait()
        finally:
            self.stopped += 1


class PlayedKopf:
    """Runs once for each of `ends`: its first task ends by that, or without an error. After the last it is told to end.

    As with Kopf's own, another task of it goes on at first when it is cancelled, and Kopf waits for all.
    """

    def __init__(self, *ends: BaseException | None) -> None:
        self.runs = 0
        self.stop = threading.Event()
        self._ends = list(ends)
        self._watcher: asyncio.Task[None]

    async def spawn_tasks(self, *, stop_flag: asyncio.Event, **_: Any) -> list[asyncio.Task[Any]]:
        self.runs += 1
        stopping = self._ends == []
        self._watcher = asyncio.create_task(self._watch(stubborn=not stopping))
        if not stopping:
            return [asyncio.create_task(self._fail(self._ends.pop(0)))]
        self.stop.set()
        return [asyncio.create_task(self._await(stop_flag))]

    async def run_tasks(self, tasks: list[asyncio.Task[Any]], **_: Any) -> None:
        await asyncio.wait(tasks)
        if not self._watcher.done():
            self._watcher.cancel()
            await asyncio.wait({self._watcher})

    async def _watch(self, *, stubborn: bool) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if stubborn:
                await asyncio.Event().wait()
            raise

    async def _fail(self, end: BaseException | None) -> None:
        await asyncio.sleep(0)
        if end is not None:
            raise end

    async def _await(self, stop_flag: asyncio.Event) -> None:
        await stop_flag.wait()


def watch(monkeypatch: pytest.MonkeyPatch, controller: FakeController, *ends: BaseException | None) -> int:
    """Run with a Kopf that ends by these, one after the other, and then is told to end; how often it was run."""
    played = PlayedKopf(*ends)
    monkeypatch.setattr(kopf, "spawn_tasks", played.spawn_tasks)
    monkeypatch.setattr(kopf, "run_tasks", played.run_tasks)
    monkeypatch.setattr(handlers, "PAUSE", 0.01)
    login: Any = None
    made: Any = controller
    handlers.run(lambda: made, login, (), played.stop, threading.Event())
    return played.runs


def test_what_ends_kopf_does_not_end_the_watching(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    controller = FakeController()
    assert watch(monkeypatch, controller, RuntimeError("410 Gone"), None) == 3
    assert (controller.started, controller.stopped) == (3, 3)
    assert caplog.messages == [
        "watching ended by RuntimeError('410 Gone'); it begins anew",
        "watching ended by None; it begins anew",
    ]


def test_what_ends_kopf_again_and_again_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController()
    with pytest.raises(WatchingEndedError, match=r"ended 5 times within 120 s, at last by RuntimeError\('4'\)"):
        watch(monkeypatch, controller, *(RuntimeError(str(number)) for number in range(ENDS)))
    assert (controller.started, controller.stopped) == (ENDS, ENDS)


def test_what_ends_the_controller_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise ValueError("a defect")

    controller = FakeController(fail)
    with pytest.raises(ValueError, match="a defect"):
        watch(monkeypatch, controller)
    assert (controller.started, controller.stopped) == (1, 1)
