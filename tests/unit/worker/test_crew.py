"""Where a program's code runs: threads that are used again, a loop for coroutines, and what comes of exceptions."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from functools import partial

import pytest

from shardherd.worker.crew import CancelledInCrewError, Raised, ThreadCrew


async def test_functions_run_at_once_each_in_a_thread_of_its_own_and_threads_are_used_again() -> None:
    crew, both, before = ThreadCrew("crew"), threading.Barrier(2), threading.active_count()

    def meet() -> str:
        both.wait(5)
        return threading.current_thread().name

    names = set(await asyncio.gather(crew.call(meet).ended, crew.call(meet).ended))
    assert names == {"crew-1", "crew-2"}
    assert await crew.call(lambda: threading.current_thread().name).ended in names
    assert threading.active_count() <= before + 2


async def test_an_exception_comes_back_also_one_that_a_future_cannot_carry() -> None:
    crew = ThreadCrew("crew")

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(KeyError, match="k"):
        await crew.call(lambda: fail(KeyError("k"))).ended
    for error in (StopIteration("s"), SystemExit(3)):
        with pytest.raises(Raised) as raised:
            await crew.call(lambda error=error: fail(error)).ended  # type: ignore[misc]
        assert raised.value.__cause__ is error


async def test_coroutines_share_a_loop_that_is_not_ours_and_can_be_cancelled() -> None:
    crew = ThreadCrew("crew")

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def forever() -> None:
        await asyncio.Event().wait()

    one, two = await crew.spawn(where).ended, await crew.spawn(where).ended
    assert one is two is not asyncio.get_running_loop()
    call = crew.spawn(forever)
    call.cancel()
    with pytest.raises(CancelledInCrewError):
        await call.ended


async def test_a_coroutine_that_cannot_be_called_as_it_is_fails() -> None:
    async def takes_two(one: int, two: int) -> None: ...

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'two'"):
        await asyncio.wait_for(ThreadCrew("crew").spawn(partial(takes_two, 1)).ended, 5)


async def test_an_idle_thread_keeps_nothing_of_its_last_work() -> None:
    class Records:
        pass

    crew, records = ThreadCrew("crew"), Records()
    alive = weakref.ref(records)

    def process(batch: Records = records) -> None:
        del batch

    call = crew.call(process)
    await call.ended
    process.__defaults__ = None
    del records, call
    await crew.call(lambda: None).ended
    gc.collect()
    assert alive() is None


def test_what_ends_after_the_loop_is_over_is_told_to_nobody() -> None:
    crew, go_on, ended = ThreadCrew("crew"), threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(5)
        ended.set()

    async def begin() -> None:
        crew.call(work)

    asyncio.run(begin())
    go_on.set()
    assert ended.wait(5)


async def test_a_coroutine_that_raises_what_ends_a_process_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    crew, go_on = ThreadCrew("crew"), asyncio.Event()

    async def waits() -> str:
        await go_on.wait()
        return "went on"

    async def ends() -> None:
        raise SystemExit(3)

    async def sets() -> None:
        go_on.set()

    waiting = crew.spawn(waits)
    with pytest.raises(Raised, match="SystemExit: 3"):
        await asyncio.wait_for(crew.spawn(ends).ended, 5)
    await asyncio.wait_for(crew.spawn(sets).ended, 5)
    assert await asyncio.wait_for(waiting.ended, 5) == "went on"
    assert [record.message for record in caplog.records if record.name == "shardherd.worker.crew"] == [
        "a coroutine of the program has raised what ends a process; the others go on"
    ]


HANGS = """
import asyncio, time
from shardherd.worker.crew import ThreadCrew

async def hangs():
    await asyncio.to_thread(time.sleep, 600)

async def main():
    crew = ThreadCrew("crew")
    call = crew.spawn(hangs)
    await asyncio.wait({call.ended}, timeout=0.5)
    call.cancel()
    await asyncio.wait({call.ended})
    crew.close()

asyncio.run(main())
"""


def test_what_a_coroutine_has_given_to_a_thread_keeps_no_process_from_ending() -> None:
    assert subprocess.run([sys.executable, "-c", HANGS], timeout=60, check=False).returncode == 0


async def test_functions_that_coroutines_give_to_threads_run_at_once_in_threads_that_are_used_again_and_end() -> None:
    crew, both = ThreadCrew("crew"), threading.Barrier(2)

    def meet() -> str:
        both.wait(5)
        return threading.current_thread().name

    def fail() -> None:
        raise KeyError("k")

    async def given() -> tuple[set[str], set[str], str]:
        at_once = set(await asyncio.gather(asyncio.to_thread(meet), asyncio.to_thread(meet)))
        later = {await asyncio.to_thread(lambda: threading.current_thread().name) for _ in range(5)}
        try:
            await asyncio.to_thread(fail)
        except KeyError as error:
            return at_once, later, repr(error)
        return at_once, later, ""

    at_once, later, failed = await asyncio.wait_for(crew.spawn(given).ended, 10)
    assert (at_once, later <= at_once, failed) == ({"crew-to-thread-1", "crew-to-thread-2"}, True, "KeyError('k')")
    threads = [each for each in threading.enumerate() if each.name in at_once]
    crew.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, 5)
    assert [thread.is_alive() for thread in threads] == [False, False]


async def test_what_a_future_cannot_carry_ends_a_coroutine_that_has_given_it_to_a_thread() -> None:
    crew = ThreadCrew("crew")

    async def given() -> None:
        await asyncio.to_thread(next, iter(()))

    with pytest.raises(Raised) as raised:
        await asyncio.wait_for(crew.spawn(given).ended, 10)
    assert isinstance(raised.value.__cause__, StopIteration)
    crew.close()


async def test_a_crew_that_is_closed_leaves_no_thread_and_cancels_its_coroutines() -> None:
    crew, working, go_on = ThreadCrew("closing"), threading.Event(), threading.Event()

    def work() -> None:
        working.set()
        go_on.wait(5)

    busy, cancelled = crew.call(work), threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await crew.call(lambda: None).ended
    crew.spawn(forever)
    await crew.spawn(_nothing).ended
    assert working.wait(5)
    threads = [each for each in threading.enumerate() if each.name.startswith("closing-")]
    assert len(threads) == 3

    crew.close()
    go_on.set()
    await busy.ended
    for each in threads:
        each.join(5)
    assert (cancelled.is_set(), [each.is_alive() for each in threads]) == (True, [False, False, False])


async def _nothing() -> None: ...
