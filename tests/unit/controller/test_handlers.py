"""What ends Kopf does not end the watching, unless it goes on. Kopf is played here; tests/integration has the real one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import pytest

from shardherd.clock import SystemClock
from shardherd.controller import handlers
from shardherd.controller.handlers import ENDS, WatchingEndedError
from shardherd.controller.served import Served

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


class PlayedNamespaces:
    """Namespaces that answer once the test lets them, or fail by `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self._error = error

    async def chosen(self) -> tuple[frozenset[str], int]:
        self.asked.set()
        await asyncio.to_thread(self.answer.wait)
        if self._error is not None:
            raise self._error
        return frozenset({"shop"}), 10

    async def groups(self, namespace: str) -> tuple[str, ...]:
        raise AssertionError("the watches tell of them")


class Recording(FakeController):
    """Notes of which groups it heard."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def saw_group(self, key: tuple[str, str], *_: Any, **__: Any) -> None:
        self.seen.append(key)

    def saw_object(self, key: tuple[str, str]) -> None:
        self.seen.append(key)

    def saw_pod(self, key: tuple[str, str], *_: Any, **__: Any) -> None:
        self.seen.append(key)

    def watches_began(self) -> None:
        """No matter."""


def choosing(
    monkeypatch: pytest.MonkeyPatch, namespaces: PlayedNamespaces
) -> tuple[PlayedKopf, Served, threading.Thread, list[BaseException]]:
    """A watch of namespaces that a selector chooses, begun in a thread, and what it ends by."""
    played, failures = PlayedKopf(), list[BaseException]()
    monkeypatch.setattr(kopf, "spawn_tasks", played.spawn_tasks)
    monkeypatch.setattr(kopf, "run_tasks", played.run_tasks)
    served = Served("team=red", namespaces, SystemClock())
    made: Any = Recording()
    login: Any = None

    def run() -> None:
        try:
            handlers.run(lambda: made, login, (), played.stop, threading.Event(), served=served)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert namespaces.asked.wait(10)
    return played, served, thread, failures


def test_nothing_is_watched_before_it_is_known_which_namespaces_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces = PlayedNamespaces()
    played, served, thread, failures = choosing(monkeypatch, namespaces)
    assert (played.runs, "shop" in served) == (0, False)
    namespaces.answer.set()
    thread.join(10)
    assert (played.runs, "shop" in served, failures) == (1, True, [])


def test_it_can_be_stopped_before_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces = PlayedNamespaces()
    played, _, thread, failures = choosing(monkeypatch, namespaces)
    played.stop.set()
    namespaces.answer.set()
    thread.join(10)
    assert (thread.is_alive(), failures) == (False, [])


def test_a_defect_in_knowing_them_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces = PlayedNamespaces(ValueError("a defect"))
    played, _, thread, failures = choosing(monkeypatch, namespaces)
    namespaces.answer.set()
    thread.join(10)
    assert (played.runs, [repr(each) for each in failures]) == (0, ["ValueError('a defect')"])


async def test_what_is_elsewhere_is_neither_kept_nor_told(monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces, controller, kept = PlayedNamespaces(), Recording(), list[tuple[str, str]]()
    namespaces.answer.set()
    served = Served("team=red", namespaces, SystemClock())
    made: Any = controller
    keeping = asyncio.create_task(served.run(made))
    await served.known.wait()

    def see(kind: str, body: Any, _: str | None) -> bool:
        kept.append((kind, body["metadata"]["namespace"]))
        return True

    heard: dict[str, Any] = {}

    def on_event(*resource: str, **_: Any) -> Callable[[Any], None]:
        return lambda handler: heard.update({resource[-1]: handler})

    monkeypatch.setattr(kopf.on, "event", on_event)
    login: Any = None
    handlers._registry(made, login, see, served)
    labels = {"shardherd.dev/consumergroup": "clicks"}
    for namespace in ("shop", "other"):
        body = {"metadata": {"namespace": namespace, "name": "clicks", "labels": labels}}
        for plural, kind in (("consumergroups", None), ("pods", "Pod"), ("services", "Service")):
            await heard[plural](event={"object": body, "type": "ADDED"}, param=kind)
    assert kept == [("ConsumerGroup", "shop"), ("Pod", "shop"), ("Service", "shop")]
    assert controller.seen == [("shop", "clicks")] * 3
    keeping.cancel()
