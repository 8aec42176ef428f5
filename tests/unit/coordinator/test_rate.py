"""A caller that calls too often is told to wait; the others are not, and neither is one that keeps to the limit."""

from __future__ import annotations

import pytest

from shardherd.adapters.memory.clock import SimulatedClock
from shardherd.coordinator.limits import BURST_SECONDS, MAX_CALLERS, RateLimit


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
