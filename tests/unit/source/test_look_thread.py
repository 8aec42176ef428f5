"""The thread that looks at a source again and again."""

from __future__ import annotations

import queue
import threading

import pytest

from shardherd.source import look_thread
from shardherd.source.look_thread import LookThread


def test_it_looks_as_often_as_each_look_asks_for_and_else_when_it_is_woken() -> None:
    looks: queue.Queue[int] = queue.Queue()
    waits = iter((0.0, 0.001, None, None))

    def look() -> float | None:
        looks.put(1)
        return next(waits)

    thread = LookThread(look)
    thread.start()
    try:
        assert [looks.get(timeout=5) for _ in range(3)] == [1, 1, 1]
        with pytest.raises(queue.Empty):
            looks.get(timeout=0.05)
        thread.wake()
        assert looks.get(timeout=5) == 1
    finally:
        thread.close()


def test_it_is_woken_although_the_wake_comes_while_it_looks() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def look() -> None:
        begun.release()
        go_on.wait(5)

    thread = LookThread(look)
    thread.start()
    try:
        assert begun.acquire(timeout=5)
        thread.wake()
        go_on.set()
        assert begun.acquire(timeout=5), "it looks again at once"
    finally:
        thread.close()


def test_a_look_that_fails_is_tried_again_and_its_error_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(look_thread, "RETRY_DELAY", 0.001)
    again = threading.Event()
    errors = iter((KeyError("a defect"),))

    def look() -> None:
        if error := next(errors, None):
            raise error
        again.set()

    thread = LookThread(look)
    thread.start()
    try:
        assert again.wait(5)
    finally:
        thread.close()
    assert "a failure of ours" in caplog.text
    assert "a defect" in caplog.text


def test_it_ends_while_it_rests_after_a_failure() -> None:
    failed = threading.Event()

    def look() -> None:
        failed.set()
        raise KeyError("a defect")

    thread = LookThread(look)
    thread.start()
    assert failed.wait(5)
    thread.close()
    assert not thread._thread.is_alive()
