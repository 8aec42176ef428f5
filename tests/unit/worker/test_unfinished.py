"""Methods of a program that return what is still to be done, which nobody does, as if they had done it. In simulated time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from shardherd.worker import (
    Ack,
    AsyncCheckpoint,
    AsyncProcessor,
    Checkpoint,
    Listener,
    Output,
    Outputs,
    Processor,
    Record,
    RecordProcessor,
    Records,
)
from tests.unit.worker.scene import A, Scene, story

REMEDY = (
    "which nobody awaits or iterates: make it a plain function, which returns when its work is done, or `async def`, which a"
    " lambda or a decorator around it hides"
)


class Unfinished:
    """Methods that are decorated so that they look like functions: each returns `work()` in place of having done it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_wrong = True

    def work(self) -> Any:
        if not self.is_wrong:
            return None

        async def coroutine() -> None:
            pass

        return coroutine() if self.kind == "coroutine" else (each for each in [0])


def of_initialize(unfinished: Unfinished) -> dict[str, Any]:
    class Wrong(Processor):
        def initialize(self, shard: Any) -> Any:
            return unfinished.work()

        def process(self, records: Records, checkpoint: Checkpoint) -> None:
            pass

    return {"factory": Wrong}


def of_process(unfinished: Unfinished) -> dict[str, Any]:
    class Wrong(Processor):
        def process(self, records: Records, checkpoint: Checkpoint) -> Any:
            return unfinished.work()

    return {"factory": Wrong}


def of_records(unfinished: Unfinished) -> dict[str, Any]:
    class Wrong(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> Any:
            if not unfinished.is_wrong:
                ack()
            return unfinished.work()

    return {"factory": Wrong}


def of_on_assigned(unfinished: Unfinished) -> dict[str, Any]:
    class Wrong(Listener):
        def on_assigned(self, shard: Any, position: int) -> Any:
            return unfinished.work()

    return {"listener": Wrong()}


def of_open(unfinished: Unfinished) -> dict[str, Any]:
    class Wrong(Output):
        def open(self, shard: Any) -> Any:
            return unfinished.work()

        def write(self, records: Any) -> None:
            pass

    class Clicks(Outputs):
        outputs = (Wrong,)

    return {"factory": Clicks}


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("initialize", of_initialize),
        ("process", of_process),
        ("process", of_records),
        ("on_assigned", of_on_assigned),
        ("open of Wrong", of_open),
    ],
    ids=["initialize", "process", "process of a record", "on_assigned", "open"],
)
def test_it_fails_and_is_named_until_its_work_is_done(
    method: str, wrong: Callable[[Unfinished], dict[str, Any]], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished = Unfinished(kind)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await asyncio.sleep(5.0)
        assert scene.coordinator.checkpoints == []
        unfinished.is_wrong = False
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])

    story(body, **wrong(unfinished), save_interval=0.1)
    warnings = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert f"what {method} returned is a {kind}, {REMEDY}" in warnings[0]


def test_a_callback_that_hides_a_coroutine_fails_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    async def saved(position: int, error: Exception | None) -> None:
        called.append(position)

    class Saves(AsyncProcessor):
        async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> None:
            await checkpoint.save(callback=lambda position, error: saved(position, error))
            await checkpoint.save(callback=saved)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: called == [3])
        assert scene.processing.counts.failures == {"callback": 1}

    story(body, factory=Saves, save_interval=0.1)
    errors = [str(line.exc_info[1]) for line in caplog.records if line.levelno == logging.ERROR and line.exc_info is not None]
    assert errors[0] == f"what the callback returned is a coroutine, {REMEDY}"


def test_a_future_is_no_such_thing_as_somebody_does_its_work() -> None:
    futures: list[asyncio.Future[None]] = []

    class Sends(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> asyncio.Future[None]:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda _: ack())
            futures.append(future)
            return future

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(futures) == 3)
        for future in futures:
            future.set_result(None)
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert scene.processing.counts.failures == {}

    story(body, factory=Sends, save_interval=0.1)
