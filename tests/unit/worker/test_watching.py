"""A call that blocks the event loop of a program's coroutines is told of, and where it is."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from shardherd.worker.crew import ThreadCrew
from shardherd.worker.watching import watch


async def test_a_loop_that_is_blocked_is_told_of_and_again_after_twice_as_long_with_the_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crew, begun, goes_on, told_twice = ThreadCrew("crew"), threading.Event(), threading.Event(), asyncio.Event()

    async def blocks() -> None:
        begun.set()
        goes_on.wait(10)

    def fields() -> dict[str, str]:
        if len(caplog.messages) == 1:
            told_twice.set()
        return {"consumer": "clicks-0"}

    call = crew.spawn(blocks)
    assert await asyncio.to_thread(begun.wait, 10)
    watching = asyncio.create_task(watch(crew, fields, look=0.001, long=0.01))
    try:
        await asyncio.wait_for(told_twice.wait(), 10)
        goes_on.set()
        await asyncio.wait_for(call.ended, 10)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        crew.close()
    for seconds, message in zip(("0.01", "0.02"), caplog.messages, strict=False):
        assert message.startswith(
            f"the event loop of the program's coroutines has stood still for {seconds} s: a call blocks it, and all shards"
            " whose processor or output has coroutines wait for it; make such a call by asyncio.to_thread. It is at\n"
        )
        assert "in blocks\n    goes_on.wait(10)" in message


async def test_a_loop_that_turns_and_one_that_is_not_there_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    crew = ThreadCrew("crew")

    async def waits() -> None:
        await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch(crew, dict, look=0.001))
    try:
        await asyncio.sleep(0.01)
        await asyncio.wait_for(crew.spawn(waits).ended, 10)
    finally:
        watching.cancel()
        crew.close()
    assert caplog.messages == []
