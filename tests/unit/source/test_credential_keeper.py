"""When a credential that expires is fetched, and what is said when it cannot be."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credential_keeper import LEAST_AGE, PAUSE, RENEW_AT, Fresh, Keeper
from tests.harness.simulated_clock import SimulatedClock


class Endpoint:
    """Gives numbered tokens, good for 100 s, unless it is away."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False
        self.seconds = 100.0

    def fetch(self) -> Fresh[str]:
        self.asked += 1
        if self.away:
            raise CredentialsError("nobody answers")
        return Fresh(f"token-{self.asked}", self.seconds)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def started() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def keeper(endpoint: Endpoint, clock: SimulatedClock, started: list[Callable[[], None]]) -> Keeper[str]:
    return Keeper(endpoint.fetch, monotonic=clock.now, start=started.append)


def test_nothing_is_fetched_until_somebody_wants_to_connect_and_then_once_for_all(
    keeper: Keeper[str], endpoint: Endpoint, started: list[Callable[[], None]]
) -> None:
    called: list[str] = []
    with pytest.raises(CredentialsError, match="were not fetched yet"):
        keeper.current()

    assert not keeper.ready(lambda: called.append("first"))
    assert not keeper.ready(lambda: called.append("second"))
    assert (endpoint.asked, len(started), called) == (0, 1, [])
    keeper.step()

    assert called == ["first", "second"]
    assert keeper.ready(lambda: called.append("never"))
    assert keeper.current() == "token-1"
    assert (endpoint.asked, len(started)) == (1, 1)


def test_it_is_renewed_well_before_it_expires(keeper: Keeper[str], endpoint: Endpoint, clock: SimulatedClock) -> None:
    keeper.step()

    clock.advance(100 * RENEW_AT[0] - 1)
    keeper.step()
    assert keeper.current() == "token-1"
    clock.advance(100 * (RENEW_AT[1] - RENEW_AT[0]) + 1)
    keeper.step()

    assert keeper.current() == "token-2"


def test_processes_that_began_together_do_not_renew_together(clock: SimulatedClock) -> None:
    keepers = [Keeper(Endpoint().fetch, monotonic=clock.now) for _ in range(50)]
    for each in keepers:
        each.step()

    renewals = sorted(each._due for each in keepers)

    assert renewals[-1] - renewals[0] > 5
    assert all(100 * RENEW_AT[0] <= each - clock.now() <= 100 * RENEW_AT[1] for each in renewals)


def test_while_it_cannot_be_renewed_it_is_used_to_its_end_and_then_the_cause_is_said(
    keeper: Keeper[str], endpoint: Endpoint, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.step()
    endpoint.away = True
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            clock.advance(0.99)
            keeper.step()
        assert keeper.current() == "token-1"
        clock.advance(1)
        with pytest.raises(CredentialsError, match="nobody answers"):
            keeper.current()

        endpoint.away = False
        clock.advance(PAUSE[1] * 1.2)
        keeper.step()

    assert keeper.current().startswith("token-")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], "once, not at every try"
    assert "good for" in caplog.messages[0]


def test_an_endpoint_that_is_away_is_asked_more_and_more_seldom_and_nobody_waits_for_it(
    keeper: Keeper[str], endpoint: Endpoint, clock: SimulatedClock
) -> None:
    endpoint.away = True
    pauses = []
    for _ in range(8):
        keeper.step()
        pauses.append(keeper._due - clock.now())
        assert keeper.ready(lambda: None), "the cause is known, and said at once"
        clock.advance(pauses[-1])

    assert endpoint.asked == 8
    assert all(0.8 * want <= pause <= 1.2 * want for want, pause in zip((1, 2, 4, 8, 15, 15, 15, 15), pauses, strict=True))
    assert not keeper.ready(lambda: None), "it is due"


def test_a_token_that_the_brokers_refuse_is_fetched_anew_but_no_new_one(
    keeper: Keeper[str], endpoint: Endpoint, clock: SimulatedClock
) -> None:
    keeper.step()
    keeper.refused()
    keeper.step()
    assert endpoint.asked == 1, "many connections are refused at once"

    clock.advance(LEAST_AGE)
    keeper.refused()
    keeper.step()

    assert keeper.current() == "token-2"


def test_what_has_expired_when_it_comes_is_refused(keeper: Keeper[str], endpoint: Endpoint) -> None:
    endpoint.seconds = 0.0
    keeper.step()

    with pytest.raises(CredentialsError, match="have expired already: compare the clocks"):
        keeper.current()


def test_the_thread_renews_by_itself_tells_those_who_wait_and_ends_when_it_is_closed() -> None:
    endpoint, called, renewed = Endpoint(), threading.Event(), threading.Event()
    endpoint.seconds = 0.05
    threads: list[threading.Thread] = []

    def fetch() -> Fresh[str]:
        if endpoint.asked == 3:
            renewed.set()
        return endpoint.fetch()

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    keeper = Keeper(fetch, start=start)
    assert not keeper.ready(called.set)
    assert called.wait(10)
    assert renewed.wait(10)

    keeper.close()

    threads[0].join(10)
    assert not threads[0].is_alive()
    assert keeper.ready(lambda: None), "after the end nobody waits"
    assert len(threads) == 1


def test_after_a_suspension_nobody_waits_for_a_sleep_to_end(endpoint: Endpoint, clock: SimulatedClock) -> None:
    """The clock has gone on meanwhile, and the thread still sleeps."""
    first, second = threading.Event(), threading.Event()
    keeper = Keeper(endpoint.fetch, monotonic=clock.now)
    keeper.ready(first.set)
    assert first.wait(10)

    clock.advance(1000)
    assert not keeper.ready(second.set)

    assert second.wait(10)
    assert keeper.current() == "token-2"
    keeper.close()


def test_no_credential_is_in_what_python_shows() -> None:
    keeper = Keeper(lambda: Fresh("hunter2", 100.0))
    keeper.step()

    assert "hunter2" not in repr(vars(keeper))
