"""What is due when, to the second, and who has expired by then."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shardherd.core.group import timers
from shardherd.core.group.records import ConsumerRecord, EndReason, Session
from shardherd.core.group.state import State
from shardherd.core.model.nouns import ConsumerId, ShardState
from tests.builders import incarnation, shard, spec, topic, with_settings
from tests.unit.core.tables import HELD, A, B, C, events, having

SETTINGS: dict[str, Any] = {"session_timeout": 50.0, "release_timeout": 30.0, "progress_timeout": 200.0}


def waiting(**settings: Any) -> State:
    """A and B were heard at 100.0 and got on at 90.0; A is to release shards 1 and 2 since 95.0 and 97.0, B lags since 80.0."""
    rows = [
        HELD._replace(
            shard=shard(name),
            state=ShardState.TRANSFER,
            incarnation=incarnation(A, 2),
            next_consumer=B,
            since=since,
            revision=2,
        )
        for name, since in (("1", 95.0), ("2", 97.0))
    ]
    state = having(*rows, HELD._replace(holder=B, last_holder=B, incarnation=incarnation(B, 2)), infos=topic(4))
    state.put_spec(with_settings(spec(3), **(SETTINGS | settings)))
    for name in (A, B):
        state.put_session(name, Session(100.0, seq=1, revision=7, named=frozenset(row.shard for row in rows), progress_at=90.0))
    state.put_lagging(B, 80.0)
    state.put_lagging(C, 80.0)
    state.begin()
    return state


def due(state: State) -> list[float]:
    return sorted(timers._deadlines(state))


def test_sessions_releases_and_progress_are_due_each_from_its_own_beginning() -> None:
    state = waiting()
    assert due(state) == [95.0 + 30.0, 150.0, 150.0, 90.0 + 200.0]
    assert timers.next_deadline(state) == 125.0
    state.put_clocks(ticked_at=125.0)
    assert timers.next_deadline(state) == 150.0
    state.put_clocks(ticked_at=290.0)
    assert timers.next_deadline(state) is None


def test_a_release_is_due_of_the_oldest_shard_that_is_not_released_yet() -> None:
    state = waiting()
    state.put_session(A, replace(state.sessions[A], named=frozenset({shard("2")})))
    assert due(state) == [97.0 + 30.0, 150.0, 150.0, 290.0]
    state.put_session(A, replace(state.sessions[A], named=frozenset()))
    assert due(state) == [150.0, 150.0, 290.0]


def test_of_who_is_not_there_no_release_and_no_progress_is_due() -> None:
    state = waiting()
    moving = HELD._replace(
        shard=shard("3"), state=ShardState.TRANSFER, holder=B, incarnation=incarnation(B, 2), next_consumer=A, since=92.0
    )
    state.put_shard(moving)
    state.put_session(A, None)
    state.put_session(B, replace(state.sessions[B], named=frozenset({shard("3")})))
    assert due(state) == [92.0 + 30.0, 150.0, 290.0]


def test_what_gets_on_or_could_not_for_a_while_is_due_later() -> None:
    state = waiting()
    state.put_clocks(resumed_at=98.0)
    assert due(state) == [98.0 + 30.0, 150.0, 150.0, 98.0 + 200.0]
    state.put_session(A, replace(state.sessions[A], progress_at=99.0))
    assert due(state) == [99.0 + 30.0, 150.0, 150.0, 298.0]
    state.put_lagging(B, 120.0)
    assert due(state)[-1] == 120.0 + 200.0


def test_of_who_has_not_been_heard_since_a_takeover_only_the_session_is_due() -> None:
    state = waiting()
    for name in (A, B):
        state.put_session(name, Session(100.0, heard=False, progress_at=100.0))

    assert due(state) == [150.0, 150.0]


def test_each_expiry_doubles_what_is_due() -> None:
    state = waiting()
    state.put_clocks(doublings=3)
    assert due(state) == [150.0, 150.0, 95.0 + 8 * 30.0, 90.0 + 8 * 200.0]


@pytest.mark.parametrize("clocks", [{"source_reachable": False}, {"commits": False}])
def test_neither_clock_runs_while_nobody_can_get_on(clocks: dict[str, bool]) -> None:
    state = waiting()
    state.put_clocks(**clocks)
    assert due(state) == [150.0, 150.0]


def test_neither_clock_runs_while_the_ownership_is_rebuilt_and_then_its_end_is_due() -> None:
    state = waiting()
    state.put_record(rebuilding=True)
    state.put_clocks(claims_until=133.0)
    assert due(state) == [133.0, 150.0, 150.0]


def test_while_the_group_is_paused_only_releases_are_due() -> None:
    assert due(waiting(paused=True)) == [125.0, 150.0, 150.0]


def test_a_rebalance_is_looked_at_when_what_it_waits_for_is_over() -> None:
    state = waiting()
    state.put_clocks(gather_until=111.0, settle_until=112.0, assign_at=113.0)
    assert due(state) == [125.0, 150.0, 150.0, 290.0]
    state.put_clocks(due="ConsumerJoined")
    assert due(state) == [111.0, 112.0, 113.0, 125.0, 150.0, 150.0, 290.0]
    state.put_clocks(assign_at=None)
    assert due(state) == [111.0, 112.0, 125.0, 150.0, 150.0, 290.0]


def test_the_shards_of_a_run_that_is_over_are_looked_at_when_they_may_move() -> None:
    state = waiting(ordered=True, rejoin_grace=20.0)
    state.put_shard(HELD._replace(shard=shard("5"), holder=C, incarnation=incarnation(C)))
    state.put_consumer(ConsumerRecord(C, incarnation(C), present=False))
    state.put_heard(C, incarnation(C), 60.0)
    assert due(state) == [60.0 + 20.0, 60.0 + 50.0, 125.0, 150.0, 150.0, 290.0]


# Ticks.


def expired(at: float, **settings: Any) -> tuple[list[str], State]:
    """The events of this tick."""
    state = waiting(**settings)
    timers.tick(state, at)
    assert state.clocks.ticked_at == at
    return [f"{each.consumer} {each.reason}" for each in events(state)], state


@pytest.mark.parametrize(
    ("at", "settings", "reasons"),
    [
        (124.9, {}, []),
        (125.0, {}, ["g-0 ReleaseTimeout"]),
        (149.9, {"release_timeout": 500.0}, []),
        (150.0, {"release_timeout": 500.0}, ["g-0 SessionTimeout", "g-1 SessionTimeout"]),
        (289.9, {"release_timeout": 500.0, "session_timeout": 500.0}, []),
        (290.0, {"release_timeout": 500.0, "session_timeout": 500.0}, ["g-1 ProgressTimeout"]),
        (289.9, {"session_timeout": 500.0}, ["g-0 ReleaseTimeout"]),
        (290.0, {}, ["g-0 SessionTimeout", "g-1 SessionTimeout"]),
    ],
)
def test_a_consumer_expires_at_the_very_moment_that_something_of_it_is_due(
    at: float, settings: dict[str, float], reasons: list[str]
) -> None:
    assert expired(at, **settings)[0] == reasons


def test_one_that_owes_two_things_ends_once_and_gives_the_others_more_time() -> None:
    state = waiting(session_timeout=900.0)
    state.put_lagging(A, 80.0)
    timers.tick(state, 489.9)
    assert [f"{each.consumer} {each.reason}" for each in events(state)] == ["g-0 ReleaseTimeout"]
    assert timers.next_deadline(state) == 90.0 + 2 * 200.0
    timers.tick(state, 490.0)
    assert [f"{each.consumer} {each.reason}" for each in events(state)] == ["g-0 ReleaseTimeout", "g-1 ProgressTimeout"]
    assert (state.clocks.expiries, state.clocks.doublings) == (2, 2)


def test_one_that_has_read_everything_since_the_last_look_does_not_expire_for_want_of_progress() -> None:
    state = having(HELD._replace(incarnation=incarnation(A, 2)), positions={shard("0"): 100})
    state.put_spec(with_settings(spec(3), **SETTINGS))
    state.put_session(A, Session(300.0, seq=1, progress_at=90.0))
    state.put_lagging(A, 80.0)
    state.begin()

    timers.tick(state, 290.0)

    assert (events(state), state.lagging, A in state.sessions) == ([], {}, True)


def test_several_expire_in_natural_order() -> None:
    names = [ConsumerId(f"g-{number}") for number in (10, 9, 2)]
    rows = [
        HELD._replace(
            shard=shard(str(at)),
            state=ShardState.TRANSFER,
            holder=name,
            incarnation=incarnation(name),
            next_consumer=A,
        )
        for at, name in enumerate(names)
    ]
    for settings in ({"session_timeout": 1.0}, {"session_timeout": 900.0, "release_timeout": 1.0}):
        state = having(infos=topic(3))
        state.put_spec(with_settings(spec(3), **settings))
        for name in names:
            state.put_consumer(ConsumerRecord(name, incarnation(name)))
            state.put_session(name, Session(100.0, seq=1))
        for row in rows:
            state.put_shard(row)
        state.begin()
        timers.tick(state, 500.0)
        assert [each.consumer for each in events(state)] == ["g-2", "g-9", "g-10"]


def test_deadlines_are_doubled_six_times_at_most() -> None:
    state = waiting()
    state.put_clocks(doublings=5, expiries=9)
    timers._end(state, A, EndReason.PROGRESS_TIMEOUT)
    assert (state.clocks.doublings, state.clocks.expiries) == (6, 10)
    timers._end(state, B, EndReason.PROGRESS_TIMEOUT)
    assert (state.clocks.doublings, state.clocks.expiries) == (6, 11)


def test_the_time_for_claims_ends_by_a_tick() -> None:
    state = waiting()
    state.put_record(rebuilding=True)
    state.put_clocks(claims_until=133.0)
    timers.tick(state, 132.9)
    assert state.record.rebuilding
    timers.tick(state, 133.0)
    assert not state.record.rebuilding
