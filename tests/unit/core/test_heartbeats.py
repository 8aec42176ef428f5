"""Heartbeats to the last field: what is remembered of one, what its reply says, and what it gives or takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.group import heartbeats
from shardherd.core.group.records import InFlight, Session, ShardRecord
from shardherd.core.group.state import Put, State, Table
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ConfirmedShard, ConsumerId, Heartbeat, HeartbeatReply, HeldShard, ShardId, ShardState
from shardherd.core.model.requests import ForceCheckpoint
from tests.builders import Play, copied, incarnation, info, shard, shards, spec, started, topic, with_settings
from tests.unit.core.tables import HELD, MOVING, NOW, A, B, C, having

RUN = incarnation(A)


def beat(play: Play, seq: int, **fields: Any) -> HeartbeatReply:
    """A heartbeat of g-0's first run."""
    fields.setdefault("revision", 0)
    return play.answer(Heartbeat(A, RUN, seq, **fields))


# What is remembered.


def test_what_a_heartbeat_says_is_remembered_until_the_next_one_says_otherwise() -> None:
    play = Play(spec(2))
    play.discover(topic(1))
    session = play.group._state.sessions

    beat(play, 3, ready=False, progress=5)
    assert session[A] == Session(1000.0, seq=3, progress=5, progress_at=1000.0)
    play.now = 1001.0
    beat(play, 4, progress=5, held=(HeldShard(shard("0"), 1), HeldShard(shard("7"), 2)))
    assert session[A] == Session(1001.0, seq=4, named=frozenset(shards("0", "7")), ready=True, progress=5, progress_at=1000.0)
    play.now = 1002.0
    beat(play, 5, progress=4, draining=True, revision=play.group._state.record.revision)
    assert session[A] == Session(
        1002.0, seq=5, revision=play.group._state.record.revision, ready=True, draining=True, progress=4, progress_at=1002.0
    )
    play.now = 1003.0
    beat(play, 6, progress=4, revision=play.group._state.record.revision + 1)
    assert session[A] == Session(1003.0, seq=6, ready=True, draining=True, progress=4, progress_at=1002.0), "it drains for good"
    beat(play, 6, progress=9)
    assert session[A].progress == 4, "it was overtaken"


def test_the_first_heartbeat_that_a_new_coordinator_hears_is_progress_whatever_its_number() -> None:
    play = started(1, 1)
    play.restart()
    assert play.group._state.sessions[A] == Session(play.now, heard=False, progress_at=play.now)
    play.now += 5.0
    beat(play, 1)
    assert play.group._state.sessions[A] == Session(play.now, seq=1, ready=True, progress_at=play.now)


def test_what_is_claimed_after_the_ownership_was_lost_is_held_from_then_on() -> None:
    play = started(1, 1)
    play.lose()
    play.discover(topic(1))
    play.now += 7.0
    play.beat("g-0")
    row = play.group.ownership.shards[shard("0")]
    assert (row.holder, row.incarnation, row.owner_epoch, row.since) == (A, RUN, 1, play.now)


def test_where_it_runs_is_written_only_when_it_changes() -> None:
    play = started(1, 1)
    assert not play.ask(play.consumer("g-0").heartbeat()).persist
    play.consumer("g-0").zone, play.consumer("g-0").capacity = "a", 3
    assert play.ask(play.consumer("g-0").heartbeat()).persist
    record = play.group.ownership.consumers[A]
    assert (record.zone, record.capacity) == ("a", 3)
    play.consumer("g-0").capacity = 2
    assert play.ask(play.consumer("g-0").heartbeat()).persist
    assert play.group.ownership.consumers[A] == replace(record, capacity=2)


@pytest.mark.parametrize(
    ("assignor", "ready", "capacity", "reason"),
    [
        ("Weighted", True, 2, "CapacityChanged"),
        ("Weighted", False, 2, "ConsumerNotReady"),
        ("Weighted", True, 1, ""),
        ("Sticky", True, 2, ""),
    ],
)
def test_a_capacity_asks_for_a_rebalance_when_it_changes_and_is_looked_at(
    assignor: str, ready: bool, capacity: int, reason: str
) -> None:
    play = started(2, 1, assignor=assignor)
    request = structs.replace(play.consumer("g-0").heartbeat(), ready=ready, capacity=capacity, zone="a")
    state = copied(play.group._state)
    state.begin()
    heartbeats.heartbeat(state, request, play.now)
    assert state.clocks.due == reason


REASONS: list[tuple[str, Mapping[str, Any], str]] = [
    ("a known one that says nothing new", {}, ""),
    ("a known one that drains", {"draining": True}, "ConsumerDraining"),
    ("a known one that is not ready any more", {"ready": False}, "ConsumerNotReady"),
    ("one that joins warm", {"consumer": B, "incarnation": incarnation(B)}, "ConsumerJoined"),
    ("one that joins cold", {"consumer": B, "incarnation": incarnation(B), "ready": False}, ""),
]


@pytest.mark.parametrize(("fields", "reason"), [row[1:] for row in REASONS], ids=[row[0] for row in REASONS])
def test_a_heartbeat_asks_for_a_rebalance_only_when_somebody_may_be_given_more_or_less(
    fields: Mapping[str, Any], reason: str
) -> None:
    state = started(2, 1).group._state
    state.begin()
    heartbeats.heartbeat(state, structs.replace(Heartbeat(A, RUN, 99, 0), **fields), 2000.0)
    assert state.clocks.due == reason


def test_one_that_was_cold_joins_when_it_is_warm() -> None:
    play = started(2, 1)
    play.consumer("g-1").ready = False
    play.beat("g-1")
    heartbeats.heartbeat(play.group._state, Heartbeat(B, incarnation(B), 2, 0), play.now)
    assert play.group._state.clocks.due == "ConsumerJoined"


def test_one_that_drains_asks_once() -> None:
    state = started(2, 1).group._state
    heartbeats.heartbeat(state, Heartbeat(A, RUN, 98, 0, draining=True), 2000.0)
    state.put_clocks(due="")
    heartbeats.heartbeat(state, Heartbeat(A, RUN, 99, 0, draining=True), 2000.0)
    assert state.clocks.due == ""


def test_the_first_heartbeat_after_a_restart_is_no_join_that_would_be_gathered() -> None:
    play = started(2, 1)
    play.restart()
    play.group._state.put_clocks(due="")
    heartbeats.heartbeat(play.group._state, Heartbeat(A, RUN, 1, 0), play.now)
    assert play.group._state.clocks.due == "Restored"


# What the reply says.


def test_a_reply_says_what_the_consumer_may_read_and_how_the_group_is_set() -> None:
    play = started(2, 1, ordered=True, heartbeat_interval=4.0, session_timeout=50.0)
    play.checkpoint("g-0", "1", 40)
    play.ask(ForceCheckpoint(shard("0"), 10))
    play.change(with_settings(play.group.spec, paused=True))
    stale = (HeldShard(shard("0"), 1), HeldShard(shard("7"), 1))
    assert beat(play, 99, held=(*stale, HeldShard(shard("1"), 1))) == HeartbeatReply(
        revision=play.group._state.record.revision,
        confirmed=(ConfirmedShard(shard("0"), 2, 2, 10), ConfirmedShard(shard("1"), 1, 1, 40)),
        fenced=stale,
        paused=True,
        ordered=True,
        heartbeat_interval=Seconds(4.0),
        session_timeout=Seconds(50.0),
    )


def current(name: str, **fields: Any) -> ShardRecord:
    """A shard held by A's current run, under epoch 4."""
    return HELD._replace(shard=shard(name), incarnation=incarnation(A, 2), **fields)


def test_only_what_may_be_read_is_confirmed_whatever_else_is_held_beside_it() -> None:
    rows = [
        current("9"),
        current("0", state=ShardState.TRANSFER, next_consumer=B),
        current("1"),
        current("2"),
        current("3"),
        HELD._replace(shard=shard("4")),
        current("5")._replace(holder=B, incarnation=incarnation(B, 2)),
        current("6", held_since_epoch=2, source_id=""),
    ]
    positions = {row.shard: 7 for row in rows if row.shard != shard("2")}
    state = having(
        *rows, infos=tuple(info(row.shard, begin=8 if row.shard == shard("3") else 0) for row in rows), positions=positions
    )
    state.put_clocks(recreated=(shard("1"),))
    expected = (ConfirmedShard(shard("6"), 4, 2, 7), ConfirmedShard(shard("9"), 4, 3, 7, source_id="a"))
    assert heartbeats.confirmed(state, A) == expected
    state.put_consumer(replace(state.consumers[A], present=False))
    assert heartbeats.confirmed(state, A) == ()
    assert heartbeats.confirmed(state, ConsumerId("g-9")) == ()


@pytest.mark.parametrize(
    ("row", "stale"),
    [
        (current("0"), False),
        (current("0", state=ShardState.TRANSFER, next_consumer=B), False),
        (current("0", owner_epoch=5), True),
        (HELD, True),
        (current("0", holder=B), True),
        (current("1"), True),
    ],
    ids=["the grant", "the grant in transfer", "another epoch", "another run", "another consumer", "another shard"],
)
def test_a_pair_that_is_not_the_current_grant_is_fenced(row: ShardRecord, stale: bool) -> None:
    pair = HeldShard(shard("0"), 4)
    request = Heartbeat(A, incarnation(A, 2), 1, 0, held=(pair,))
    assert heartbeats.fenced(having(row, infos=()), request) == ((pair,) if stale else ())


# What a heartbeat leaves out.


def listening(*rows: ShardRecord, named: tuple[str, ...] = (), revision: int = 7, **kwargs: Any) -> State:
    """All positions are known; A was heard, has applied this revision and names these shards."""
    positions = kwargs.pop("positions", {row.shard: 40 for row in rows})
    state = having(*rows, infos=tuple(info(row.shard) for row in rows), positions=positions)
    state.put_session(A, Session(1.0, seq=1, revision=revision, named=frozenset(shards(*named)), ready=True, **kwargs))
    state.put_session(B, Session(1.0, seq=1, ready=True))
    state.begin()
    return state


def written(state: State) -> list[ShardId]:
    """The shards whose rows changed, in order."""
    return [event.key for event in state.journal if isinstance(event, Put) and event.table is Table.SHARDS]


SPARED = [
    current("0", state=ShardState.TRANSFER, next_consumer=B),
    current("1", revision=8),
    current("2"),
    current("3"),
    current("4"),
    current("5"),
    current("6"),
]
"""In transfer, given after what was applied, recreated, with a commit under way, without a position, with a lost one, named."""


def sparing(*rows: ShardRecord, **kwargs: Any) -> State:
    positions = {row.shard: 40 for row in (*SPARED, *rows) if row.shard != shard("4")} | {shard("5"): 0}
    state = listening(*SPARED, *rows, named=("6",), positions=positions, **kwargs)
    state.put_infos(dict(state.infos) | {shard("5"): info("5", begin=3)})
    state.put_clocks(recreated=(shard("2"),))
    state.put_in_flight(shard("3"), InFlight(50))
    state.begin()
    return state


def test_what_a_consumer_was_told_to_hold_and_does_not_name_it_gets_under_a_new_epoch() -> None:
    state = sparing(current("10"), current("9", revision=7))
    heartbeats.replace_dropped(state, A, NOW)
    assert written(state) == [shard("9"), shard("10")]
    assert state.shards[shard("10")] == current("10", owner_epoch=5, revision=8, since=NOW)
    assert state.shards[shard("9")] == current("9", owner_epoch=5, revision=8, since=NOW)
    assert state.clocks.due == ""


def test_one_that_drains_loses_it() -> None:
    state = sparing(current("10"), current("9"), draining=True)
    heartbeats.replace_dropped(state, A, NOW)
    assert written(state) == [shard("9"), shard("10")]
    freed = current("10", state=ShardState.NOT_ALLOC, holder=None, since=NOW)._replace(incarnation=None)
    assert state.shards[shard("10")] == freed
    assert state.clocks.due == "ConsumerDraining"


def test_one_that_drains_and_is_waited_for_keeps_it_as_it_is() -> None:
    state = sparing(current("9"), draining=True)
    state.put_spec(with_settings(spec(3), rejoin_grace=20.0))
    state.begin()
    heartbeats.replace_dropped(state, A, NOW)
    assert state.journal == []


def test_what_a_holder_has_released_goes_to_its_next_consumer_in_order_and_nothing_keeps_it() -> None:
    moving = MOVING._replace(incarnation=incarnation(A, 2))
    rows = [moving._replace(shard=shard(name)) for name in ("10", "9", "8", "7")]
    rows[2] = rows[2]._replace(revision=8)
    state = listening(*rows, named=("7",))
    heartbeats.release_moving(state, (C, A), NOW)
    assert written(state) == [shard("9"), shard("10")]
    assert state.shards[shard("9")] == rows[1]._replace(
        state=ShardState.ALREADY_ALLOC,
        holder=B,
        incarnation=incarnation(B, 2),
        next_consumer=None,
        last_holder=B,
        owner_epoch=5,
        held_since_epoch=5,
        revision=8,
        since=NOW,
    )


def test_a_holder_that_is_not_heard_has_released_nothing() -> None:
    moving = MOVING._replace(incarnation=incarnation(A, 2))
    state = listening(moving)
    assert heartbeats.released(state, moving)
    assert heartbeats.released(state, moving._replace(revision=7))
    unlike = [
        moving._replace(revision=8),
        moving._replace(incarnation=incarnation(A)),
        moving._replace(holder=None, incarnation=None),
        moving._replace(incarnation=None),
        moving._replace(holder=None),
    ]
    assert [heartbeats.released(state, row) for row in unlike] == [False] * 5
    state.put_session(A, structs.replace(state.sessions[A], heard=False))
    assert not heartbeats.released(state, moving)
    state.put_session(A, None)
    assert not heartbeats.released(state, moving)


# Refusals.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seq": 0}, "heartbeat of g-0 has seq 0 and revision 0; seq starts at 1, revision at 0"),
        ({"revision": -1}, "heartbeat of g-0 has seq 1 and revision -1; seq starts at 1, revision at 0"),
        (
            {"capacity": 0},
            "heartbeat of g-0 has capacity 0 and zone ''; a capacity is 1 to 1000000, a zone has at most 63 characters: see "
            "SHARDHERD_CAPACITY and SHARDHERD_ZONE of its pod",
        ),
        (
            {"zone": "z" * 81},
            f"heartbeat of g-0 has capacity 1 and zone '{'z' * 80}'; a capacity is 1 to 1000000, a zone has at most 63 "
            "characters: see SHARDHERD_CAPACITY and SHARDHERD_ZONE of its pod",
        ),
    ],
)
def test_a_heartbeat_that_cannot_be_is_refused_by_what_is_wrong_with_it(fields: Mapping[str, Any], message: str) -> None:
    play = Play(spec(1))
    play.discover(topic(1))
    with pytest.raises(InvalidRequestError) as refused:
        play.ask(structs.replace(Heartbeat(A, RUN, 1, 0), **fields))
    assert (refused.value.message, refused.value.group, refused.value.consumer) == (message, "demo/clicks", "g-0")


def test_the_largest_place_that_can_be_is_taken() -> None:
    play = Play(spec(1))
    play.discover(topic(1))
    beat(play, 1, capacity=1_000_000, zone="z" * 63)
    assert play.group.ownership.consumers[A].capacity == 1_000_000
