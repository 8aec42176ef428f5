"""What the page remembers, and how much of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec
import pytest

from shardherd.core.model.nouns import GroupIdentity, GroupView
from shardherd.page import history
from shardherd.page.history import HOUR, INTERVAL, POINTS, REBALANCES, History, Recorder
from tests.harness.played_page import WALL, Clock, group

CLICKS = GroupIdentity("shop", "clicks", "uid-1")
VIEW = group(3, 1, lag=10)[1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def past(clock: Clock) -> History:
    return History(clock.wall)


def test_a_point_has_the_lag_in_records_and_in_seconds_where_that_is_known(past: History, clock: Clock) -> None:
    past.sample({CLICKS: VIEW})
    clock.time += INTERVAL
    past.sample({CLICKS: msgspec.structs.replace(VIEW, lag_seconds=None)})
    assert past.lag(CLICKS) == [(WALL, 30, 3), (WALL + INTERVAL, 30, None)]
    assert past.since == WALL


def test_a_group_that_was_not_looked_at_yet_has_no_point(past: History) -> None:
    past.sample({CLICKS: msgspec.structs.replace(VIEW, discovered=False)})
    assert past.lag(CLICKS) == []


def test_an_hour_is_kept_and_no_more(past: History, clock: Clock) -> None:
    for _ in range(2 * POINTS + 7):
        clock.time += INTERVAL
        past.sample({CLICKS: VIEW})
    times = [point[0] for point in past.lag(CLICKS)]
    assert times == [clock.time - INTERVAL * back for back in range(POINTS - 1, -1, -1)]
    clock.time += HOUR / 2
    assert len(past.lag(CLICKS)) == POINTS // 2 + 1
    clock.time += HOUR
    assert past.lag(CLICKS) == []


def test_the_last_rebalances_are_kept_and_the_others_counted(past: History, clock: Clock) -> None:
    for number in range(REBALANCES + 5):
        clock.time = WALL + number
        past.rebalanced(CLICKS, "ConsumerJoined", number)
    found, forgotten = past.rebalances(CLICKS)
    assert (len(found), forgotten) == (REBALANCES, 5)
    assert (found[0].time, found[0].reason, found[0].moved) == (WALL + REBALANCES + 4, "ConsumerJoined", REBALANCES + 4)
    assert found[-1].moved == 5


def test_what_a_group_that_goes_has_left_is_forgotten(past: History) -> None:
    past.rebalanced(CLICKS, "ConsumerJoined", 1)
    past.sample({CLICKS: VIEW})
    past.sample({})
    assert (past.lag(CLICKS), past.rebalances(CLICKS)) == ([], ([], 0))


def test_only_so_many_groups_have_a_history(past: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "GROUPS", 2)
    groups = [GroupIdentity("shop", f"g-{number}", "") for number in range(3)]
    past.sample(dict.fromkeys(groups, VIEW))
    past.rebalanced(groups[2], "ConsumerJoined", 1)
    assert [len(past.lag(each)) for each in groups] == [1, 1, 0]
    assert past.rebalances(groups[2]) == ([], 0)
    past.sample(dict.fromkeys(groups[1:], VIEW))
    assert [len(past.lag(each)) for each in groups] == [0, 2, 1]


def test_the_past_begins_when_an_operator_begins_to_lead_however_long_it_stood_by(past: History, clock: Clock) -> None:
    clock.time += HOUR
    Recorder(past, dict).close()
    assert past.since == WALL + HOUR


def test_views_are_taken_at_intervals_also_after_one_that_failed(past: History) -> None:
    taken = threading.Semaphore(0)
    answers = [RuntimeError("busy"), {CLICKS: VIEW}, {CLICKS: VIEW}]

    def views() -> Mapping[GroupIdentity, GroupView]:
        taken.release()
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, RuntimeError):
            raise found
        assert isinstance(found, dict)
        return found

    recorder = Recorder(past, views, interval=0.001)
    for _ in range(4):
        assert taken.acquire(timeout=10)
    recorder.close()
    assert len(past.lag(CLICKS)) >= 2
