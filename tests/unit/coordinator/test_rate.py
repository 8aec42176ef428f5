"""A caller that calls too often is told to wait, and one that sends much waits for its turn; the others do not."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from shardherd.coordinator import limits
from shardherd.coordinator.limits import (
    BURST_SECONDS,
    LARGE_AT_ONCE,
    LINE_EVERY,
    MAX_CALLERS,
    LargeBodies,
    RateLimit,
    ServerLog,
)
from tests.harness.simulated_clock import SimulatedClock


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def limit(clock: SimulatedClock) -> RateLimit:
    """Four calls a second, and the calls of five seconds at once."""
    return RateLimit(4.0, clock)


def calls(limit: RateLimit, caller: str, count: int) -> list[float]:
    return [limit.take(caller) for _ in range(count)]


def test_calls_of_five_seconds_may_come_at_once_and_the_next_waits(limit: RateLimit) -> None:
    assert BURST_SECONDS == 5.0
    assert calls(limit, "clicks-0", 21) == [0.0] * 20 + [0.25]


def test_a_refused_call_costs_nothing(limit: RateLimit, clock: SimulatedClock) -> None:
    calls(limit, "clicks-0", 40)
    clock.advance(0.25)
    assert calls(limit, "clicks-0", 2) == [0.0, 0.25]


def test_who_keeps_to_the_limit_is_never_refused(limit: RateLimit, clock: SimulatedClock) -> None:
    for _ in range(200):
        clock.advance(0.25)
        assert limit.take("clicks-0") == 0.0


def test_each_caller_has_a_limit_of_its_own(limit: RateLimit) -> None:
    calls(limit, "clicks-0", 30)
    assert limit.take("clicks-1") == 0.0


def test_no_more_is_saved_than_the_calls_of_five_seconds(limit: RateLimit, clock: SimulatedClock) -> None:
    limit.take("clicks-0")
    clock.advance(3600)
    assert calls(limit, "clicks-0", 21)[-2:] == [0.0, 0.25]


def test_without_a_limit_nobody_waits(clock: SimulatedClock) -> None:
    assert set(calls(RateLimit(0.0, clock), "clicks-0", 1000)) == {0.0}


def test_those_who_have_not_called_for_longest_are_forgotten(limit: RateLimit) -> None:
    calls(limit, "first", 20)
    calls(limit, "second", 20)
    for number in range(MAX_CALLERS - 1):
        limit.take(f"other-{number}")
    # Only the first has been forgotten: its bucket is full again.
    assert limit.take("second") == 0.25
    assert limit.take("first") == 0.0


class Reading:
    """Large bodies under way: who is read now, and how it goes on."""

    def __init__(self) -> None:
        self.bodies = LargeBodies()
        self.now: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.go_on = asyncio.Event()

    async def begin(self, *callers: str) -> list[str]:
        """They send a body each; who is read."""
        self.tasks += [asyncio.create_task(self._read(caller)) for caller in callers]
        return await self.read_now()

    async def read_now(self) -> list[str]:
        for _ in range(10):
            await asyncio.sleep(0)
        return sorted(self.now)

    async def _read(self, caller: str) -> None:
        async with self.bodies.turn(caller):
            self.now.append(caller)
            try:
                await self.go_on.wait()
            finally:
                self.now.remove(caller)


async def test_large_bodies_of_one_caller_are_read_one_after_the_other() -> None:
    reading = Reading()
    assert await reading.begin("clicks-0", "clicks-0", "clicks-1") == ["clicks-0", "clicks-1"]
    reading.tasks[0].cancel()
    reading.tasks[2].cancel()
    await asyncio.wait(reading.tasks[::2])

    assert await reading.read_now() == ["clicks-0"]

    reading.go_on.set()
    await reading.tasks[1]
    assert reading.bodies._lines == {}


async def test_of_all_callers_a_few_large_bodies_are_read_at_a_time() -> None:
    reading = Reading()
    callers = [f"clicks-{number}" for number in range(LARGE_AT_ONCE + 1)]
    assert await reading.begin(*callers) == callers[:-1]

    reading.go_on.set()
    await asyncio.gather(*reading.tasks)

    assert reading.bodies._lines == {}


async def test_a_large_body_that_does_not_arrive_gives_its_turn_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_WITHIN", 0.01)
    reading = Reading()
    await reading.begin("clicks-0")

    with pytest.raises(TimeoutError):
        await reading.tasks[0]

    assert reading.bodies._lines == {}


def test_the_log_says_how_much_of_what_is_no_http_it_left_out_and_errors_of_ours_whole(
    clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    log, wrong, ours = ServerLog(logging.getLogger("server"), clock), BadHttpMessage("a\n  b\x00"), ValueError("ours")

    for _ in range(3):
        log.exception("Error handling request from %s", "10.0.0.1", exc_info=wrong)
    clock.advance(LINE_EVERY)
    log.exception("Error handling request from %s", "10.0.0.2", exc_info=wrong)
    clock.advance(LINE_EVERY)
    log.exception("Unhandled exception", exc_info=wrong)
    log.exception("Error handling request from %s", "10.0.0.3", exc_info=ours)

    assert [(each.levelname, each.getMessage(), each.exc_info and each.exc_info[1]) for each in caplog.records] == [
        ("WARNING", "a request from 10.0.0.1 is no HTTP: 'a b\\x00'", None),
        ("WARNING", "a request from 10.0.0.2 is no HTTP: 'a b\\x00'; 2 more since the last such line", None),
        ("WARNING", "a request from an address that is not known is no HTTP: 'a b\\x00'", None),
        ("ERROR", "Error handling request from 10.0.0.3", ours),
    ]
