"""What is rare: names of another form, outcomes that nobody waits for, and grants that cannot be made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardherd.core.consumer.tracker import ReadRange, Tracker
from shardherd.core.group import grants
from shardherd.core.group.ownership import decode, encode
from shardherd.core.model.naming import shard_key, split
from shardherd.core.model.nouns import ConsumerId, Leave, ShardCheckpoint, ShardId
from shardherd.core.model.requests import CheckpointsCommitted
from tests.builders import Play, incarnation, info, restore, shard, spec, started, topic, with_settings
from tests.unit.spark.test_tracker import reply

A, B = ShardId("clicks/0"), ShardId("clicks/1")


def test_a_shard_whose_name_has_no_partition_is_a_topic_of_its_own() -> None:
    assert [split(ShardId(name)) for name in ("t/7", "shard-0001", "t/x", "/7")] == [
        ("t", 7),
        ("shard-0001", -1),
        ("t/x", -1),
        ("", 7),
    ]
    assert sorted((ShardId("t/10"), ShardId("t/9"), ShardId("t")), key=shard_key) == ["t", "t/9", "t/10"]


def test_a_commit_of_a_shard_that_there_is_not_changes_nothing() -> None:
    play = started(1, 1)
    before = encode(play.group.ownership)
    assert play.ask(CheckpointsCommitted({shard("9"): 5})).events == ()
    assert (encode(play.group.ownership), dict(play.group._state.positions)) == (before, {shard("0"): 0})


def test_a_change_that_no_rebalance_depends_on_asks_for_none() -> None:
    play = started(4, 2)
    before = (play.holders(), play.view.rebalances, play.view.group_epoch)
    play.change(replace(play.group.spec, service_account="another"))
    play.settle("g-0", "g-1")
    assert (play.holders(), play.view.rebalances, play.view.group_epoch) == before


def test_the_last_word_of_a_run_that_never_joined_changes_nothing() -> None:
    play = started(2, 1)
    before = encode(play.group.ownership)
    assert play.ask(Leave(ConsumerId("g-0"), incarnation("g-0", start=2))).events == ()
    assert encode(play.group.ownership) == before


def test_a_parked_heartbeat_of_a_consumer_that_expired_meanwhile_is_told_that_it_holds_nothing() -> None:
    play = started(2, 1)
    heartbeat = play.consumer("g-0").heartbeat()
    assert [each.shard for each in play.group.confirmed(heartbeat).confirmed] == [shard("0"), shard("1")]
    play.wait(60.0)
    assert play.group.confirmed(heartbeat).confirmed == ()


def test_while_the_group_is_paused_a_shard_in_transfer_waits_though_its_holder_was_started_again() -> None:
    play = started(2, 1)
    play.consumer("g-0").busy = {shard("0"), shard("1")}
    play.beat("g-1")
    play.wait(1.5)
    play.beat("g-0")
    play.change(with_settings(play.group.spec, paused=True))
    moving = next(number for number, state in play.states().items() if state == "TRANSFER")
    play.run("g-0", start=2)
    play.beat("g-0")
    assert (play.state(moving), play.shard(moving).holder) == ("TRANSFER", "g-0")
    play.change(with_settings(play.group.spec, paused=False))
    assert (play.state(moving), play.shard(moving).holder) == ("ALREADY_ALLOC", "g-1")


def test_a_start_position_that_was_committed_just_before_a_crash_is_known_after_it() -> None:
    play = Play(spec(1))
    play.hold_commits = True
    play.discover([info("0", begin=5)])
    assert not play.group.ownership.shards[shard("0")].started
    play.log, play.uncommitted, play.hold_commits = play.uncommitted, {}, False
    play.restart()
    assert play.group.ownership.shards[shard("0")].started
    play.discover([info("0", begin=5)])
    play.settle("g-0")
    assert play.confirmed("g-0")["0"].position == 5


def test_a_pattern_that_is_none_drops_no_shard_when_the_group_is_loaded() -> None:
    stored = decode(encode(started(2, 1).group.ownership))
    wrong = replace(spec(1), source=replace(spec(1).kafka, topics=(), topic_pattern="("))
    group = restore(stored, dict.fromkeys(stored.shards, 0), wrong, 1000.0)
    assert set(group.ownership.shards) == {shard("0"), shard("1")}


def test_a_shard_that_is_to_go_to_nobody_cannot_be_released() -> None:
    state = started(1, 1).group._state
    with pytest.raises(ValueError, match="shard t/0 is in TRANSFER without a next consumer"):
        grants.release(state, state.shards[shard("0")], 1000.0)


def test_a_shard_that_nobody_holds_cannot_be_taken_over_by_its_holder() -> None:
    play = Play(spec(1))
    play.discover(topic(1))
    state = play.group._state
    with pytest.raises(ValueError, match="shard t/0 has no holder that could take it over"):
        grants.regrant(state, state.shards[shard("0")], 1000.0)


def test_a_paused_tracker_hands_nothing_out() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0), paused=True))
    assert tracker.hand_out({A: 10}) == {}
    tracker.confirm(reply(2, (A, 4, 0)))
    assert tracker.hand_out({A: 10}) == {A: ReadRange(0, 10, 4)}


def test_what_was_replayed_under_a_newer_grant_is_checkpointed_under_that() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 6, 5), (B, 3, 0), since=3))
    logged = {A: ReadRange(2, 9, 4), B: ReadRange(0, 0, 3), ShardId("clicks/7"): ReadRange(0, 4, 1)}
    assert tracker.replay(logged) == {A: ReadRange(2, 9, 4)}
    assert (tracker.busy, tracker.shards, tracker.in_flight) == (True, (A, B), {A: ReadRange(2, 9, 4)})
    tracker.finish(logged)
    assert tracker.uncommitted() == (ShardCheckpoint(A, 6, 9),)
    assert tracker.standing() == {A: ReadRange(9, 9, 6), B: ReadRange(0, 0, 3)}
