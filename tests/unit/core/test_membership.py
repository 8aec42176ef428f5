"""Who is a member, and what a rebalance costs: the checklist's R1 to R11 in simulated time, and cordon.

R1 also holds after every step of the simulation and of the property tests. R6, R8 and R9 are tests by the names that the
checklist gives: in test_liveness, test_balance and test_liveness.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from msgspec import structs

from shardherd.core.group.views import SUPERSEDED
from shardherd.core.model.errors import StaleIncarnationError
from shardherd.core.model.nouns import CheckpointResult, ConsumerId, Heartbeat, Incarnation, ShardState
from shardherd.core.model.requests import Tick
from tests.builders import Play, info, moved, shard, spec, started, topic, with_settings


def rebalances(play: Play) -> list[str]:
    """Why each rebalance so far was made."""
    return [event.cause for event in play.events if event.reason == "Rebalanced"]


def confirmed_by(play: Play, *names: str) -> list[str]:
    """Every shard that one of these was told to read, as often as it was told."""
    return sorted(shard for name in names for shard in play.confirmed(name))


# R1: one shard, one consumer.


def test_r1_at_no_moment_of_a_transfer_are_two_consumers_told_to_read_a_shard() -> None:
    play = started(4, 1)
    play.consumer("g-0").busy = {view.shard for view in play.view.shards}
    for _ in range(5):
        play.beat("g-1", "g-0")
        confirmed = confirmed_by(play, "g-0", "g-1")
        assert len(confirmed) == len(set(confirmed))
    play.consumer("g-0").busy = set()
    for _ in range(5):
        play.beat("g-0", "g-1")
        confirmed = confirmed_by(play, "g-0", "g-1")
        assert len(confirmed) == len(set(confirmed))
    assert play.counts() == {"g-0": 2, "g-1": 2}


# R2: what triggers a rebalance, and that nothing else does.


def test_r2_a_join_triggers_a_rebalance() -> None:
    play = started(4, 1)
    before = len(rebalances(play))
    play.settle("g-0", "g-1")
    assert rebalances(play)[before:] == ["ConsumerJoined"]


def test_r2_leaving_triggers_a_rebalance() -> None:
    play = started(4, 2)
    before = len(rebalances(play))
    play.leave("g-1")
    play.settle("g-0")
    assert rebalances(play)[before:] == ["ConsumerLeft"]


def test_r2_a_crash_triggers_a_rebalance() -> None:
    play = started(4, 2)
    before = len(rebalances(play))
    play.die("g-1")
    play.settle("g-0")
    assert rebalances(play)[before:] == ["ConsumerDied"]


def test_r2_a_consumer_that_does_not_get_on_triggers_a_rebalance() -> None:
    play = started(4, 2)
    play.discover(topic(4))
    before = len(rebalances(play))
    for _ in range(102):
        play.consumer("g-0").progress += 1
        play.beat(*play.counts())
        play.wait(3)
    assert rebalances(play)[before:] == ["ProgressTimeout"]


def test_r2_a_new_topic_in_the_subscription_triggers_a_rebalance() -> None:
    play = started(2, 2)
    before = len(rebalances(play))
    play.discover([*topic(2), *topic(2, name="u")])
    play.settle("g-0", "g-1")
    assert rebalances(play)[before:] == ["ShardsAppeared"]


def test_r2_a_new_partition_triggers_a_rebalance() -> None:
    play = started(2, 2)
    before = len(rebalances(play))
    play.discover(topic(3))
    play.settle("g-0", "g-1")
    assert rebalances(play)[before:] == ["ShardsAppeared"]


def test_r2_nothing_else_triggers_one() -> None:
    play = started(4, 2)
    before, holders = len(rebalances(play)), play.holders()
    play.discover(topic(4, end=1000))
    for name in ("g-0", "g-1"):
        for number in play.held_by(name):
            assert play.checkpoint(name, number, 50) is CheckpointResult.OK
    play.wait(200, ["g-0", "g-1"])
    play.change(with_settings(play.group.spec, session_timeout=60.0))
    play.settle("g-0", "g-1")
    assert rebalances(play)[before:] == []
    assert play.holders() == holders


# R3: the others hear of it in the replies to their heartbeats; the coordinator computes.


def test_r3_the_others_hear_of_a_join_in_their_heartbeats() -> None:
    play = started(4, 2)
    play.beat("g-2")
    assert len(play.confirmed("g-0")) + len(play.confirmed("g-1")) == 4
    play.beat("g-0", "g-1")
    assert len(play.confirmed("g-0")) + len(play.confirmed("g-1")) == 3
    play.beat("g-0", "g-1", "g-2")
    assert [len(play.confirmed(name)) for name in ("g-0", "g-1", "g-2")].count(1) == 2


# R4: a clean stop is told, a crash shows by the timeout alone, and who looks dead is fenced.


def test_r4_a_clean_stop_moves_the_shards_at_once() -> None:
    play = started(4, 2)
    play.leave("g-1")
    play.beat("g-0")
    assert len(play.confirmed("g-0")) == 4


def test_r4_silence_moves_them_after_the_session_timeout_only() -> None:
    play = started(4, 2)
    play.wait(44, ["g-0"])
    assert len(play.confirmed("g-0")) == 2
    play.wait(4, ["g-0"])
    assert len(play.confirmed("g-0")) == 4


def test_r4_whoever_leaves_and_whoever_falls_silent_leave_the_same_behind() -> None:
    left, silent = started(4, 2), started(4, 2)
    left.leave("g-1")
    for play in (left, silent):
        play.wait(48, ["g-0"])
    assert left.view.shards == tuple(
        structs.replace(view, state_age=mine.state_age) for view, mine in zip(silent.view.shards, left.view.shards, strict=True)
    )
    assert left.confirmed("g-0") == silent.confirmed("g-0")
    assert left.counts() == silent.counts() == {"g-0": 4}


def test_r4_a_live_consumer_that_looked_dead_is_fenced() -> None:
    play = started(4, 2)
    mine = sorted(play.held_by("g-1"))
    play.wait(48, ["g-0"])
    assert [play.checkpoint("g-1", number, 50) for number in mine] == [CheckpointResult.FENCED] * 2
    play.beat("g-1")
    reply = play.consumers["g-1"].reply
    assert reply is not None
    assert [pair.shard for pair in reply.fenced] == [f"t/{number}" for number in mine]


# R5: what an eager rebalance would cost, and ours.


def test_r5_a_join_interrupts_only_what_moves() -> None:
    play = started(12, 3)
    before = play.holders()
    read = {name: set(play.confirmed(name)) for name in ("g-0", "g-1", "g-2")}
    interrupted: set[str] = set()
    play.beat("g-3")
    for _ in range(4):
        for name in ("g-0", "g-1", "g-2", "g-3"):
            play.beat(name)
            interrupted |= read.get(name, set()) - set(play.confirmed(name))
    eager = set(before)
    assert interrupted == moved(before, play.holders())
    assert (len(interrupted), len(eager)) == (3, 12)


# R6 and R7, and D7: static membership, by choice, and its price.


def test_r7_static_membership_notices_a_real_death_later() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    play.die("g-1")
    play.wait(42, ["g-0"])
    assert play.counts() == {"g-0": 2}
    assert len(play.held_by("g-1")) == 2
    play.wait(6, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_r7_a_second_process_of_one_name_never_shares_its_shards() -> None:
    play = started(4, 2)
    first = play.consumers["g-1"]
    play.run("g-1", pod=2)
    play.beat("g-1")
    second = play.consumers["g-1"]
    play.consumers["g-1"] = first
    with pytest.raises(StaleIncarnationError, match="has taken its name over"):
        play.beat("g-1")
    assert second.reply is not None
    assert len(second.reply.confirmed) == 2


def test_r7_a_live_pod_that_a_late_request_of_an_earlier_one_superseded_is_shown_as_such() -> None:
    play = started(4, 2)
    live = play.consumers["g-1"].incarnation
    before = play.view.superseded

    play.run("g-1", pod=2)
    play.beat("g-1")

    assert (before, play.view.superseded) == ((), ((ConsumerId("g-1"), live.pod_uid),))


def test_r7_of_the_superseded_pods_of_a_name_the_newest_few_are_shown() -> None:
    play = started(4, 1)
    uids = []
    for pod in range(2, 8):
        uids.append(play.consumers["g-0"].incarnation.pod_uid)
        play.run("g-0", pod=pod)
        play.beat("g-0")

    assert play.view.superseded == tuple((ConsumerId("g-0"), uid) for uid in uids[-SUPERSEDED:])


def test_d7_a_container_that_is_restarted_in_place_within_the_grace_moves_nothing() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    before = play.holders()
    play.die("g-1")
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    assert (play.holders(), play.view.moves) == (before, 0)


def test_d7_a_consumer_that_drains_to_be_replaced_within_the_grace_moves_nothing() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    before = play.holders()
    play.consumer("g-1").draining = True
    play.settle("g-0", "g-1")
    assert play.holders() == before
    play.leave("g-1")
    play.settle("g-0")
    assert play.holders() == before
    play.run("g-1", pod=2)
    play.settle("g-0", "g-1")
    assert (play.holders(), play.view.moves) == (before, 0)
    assert {each.owner_epoch for each in play.confirmed("g-1").values()} == {2}


def test_d7_one_that_drains_and_has_let_go_of_a_shard_is_not_told_to_take_it_again() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    before = play.holders()
    consumer = play.consumer("g-1")
    consumer.draining = True
    play.beat("g-1")
    epochs = dict(consumer.held)
    consumer.held.clear()
    play.beat("g-1")
    assert (play.holders(), consumer.held) == (before, epochs)


def test_d7_one_that_drains_and_does_not_return_is_waited_for_no_longer_than_the_grace() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    play.consumer("g-1").draining = True
    play.beat("g-1")
    play.leave("g-1")
    play.wait(44, ["g-0"])
    assert play.counts() == {"g-0": 2}
    play.wait(3, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_d7_one_that_is_to_be_removed_is_not_waited_for() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    play.change(spec(1, leaving=["g-1"], rejoin_grace=45.0))
    play.consumer("g-1").draining = True
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 0}


def test_d7_one_that_drains_is_given_nothing_more() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    play.consumer("g-1").draining = True
    play.settle("g-0", "g-1")
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 6, "g-1": 2}


def test_d7_a_pod_that_is_replaced_within_the_grace_moves_nothing() -> None:
    play = started(4, 2, rejoin_grace=45.0)
    before = play.holders()
    play.die("g-1")
    play.run("g-1", pod=2)
    play.settle("g-0", "g-1")
    assert (play.holders(), play.view.moves) == (before, 0)


def test_d7_without_a_grace_a_pod_that_is_gone_moves_its_shards_at_once_and_again_when_it_is_back() -> None:
    play = started(4, 2)
    play.die("g-1")
    assert play.counts() == {"g-0": 4}
    play.run("g-1", pod=2)
    play.settle("g-0", "g-1")
    assert (play.counts(), play.view.moves) == ({"g-0": 2, "g-1": 2}, 4)


# R8: only what moves is revoked; additions need no second round.


def test_r8_additions_alone_revoke_nothing() -> None:
    play = started(4, 2)
    play.discover(topic(6))
    assert "TRANSFER" not in play.states().values()
    play.beat("g-0", "g-1")
    assert play.counts() == {"g-0": 3, "g-1": 3}


# R10: a group changes its assignor by an edit.


def test_r10_a_group_changes_its_assignor_without_a_stop() -> None:
    play = started(4, 2)
    play.change(with_settings(play.group.spec, assignor="Range"))
    play.beat("g-0", "g-1")
    untouched = set(play.confirmed("g-0")) | set(play.confirmed("g-1"))
    assert untouched == {"0", "3"}
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-0", "2": "g-1", "3": "g-1"}


# R11: rebalances are counted, with their reasons, and needless ones are not made.


def test_r11_rebalances_and_moves_are_counted_with_their_reason() -> None:
    play = started(4, 1)
    before = play.view
    play.settle("g-0", "g-1")
    after = play.view
    assert (after.rebalances - before.rebalances, after.moves - before.moves) == (1, 2)
    assert after.last_rebalance is not None
    assert (after.last_rebalance.reason, after.last_rebalance.moved) == ("ConsumerJoined", 2)


def test_r11_a_join_with_nothing_to_gain_makes_none() -> None:
    play = started(2, 2)
    before = play.view
    play.settle("g-0", "g-1", "g-2")
    assert (play.view.rebalances, play.view.moves) == (before.rebalances, before.moves)


# Cordon: a consumer that stays and holds nothing.


def cordoned(play: Play, *names: str) -> None:
    play.change(spec(play.group.spec.wanted, cordoned=names))


def test_a_cordoned_consumer_gives_its_shards_up_and_stays() -> None:
    play = started(9, 3)
    cordoned(play, "g-1")
    play.settle("g-0", "g-1", "g-2")
    assert sorted(play.counts().items())[1] == ("g-1", 0)
    assert sorted(play.counts().values()) == [0, 4, 5]
    assert [(view.consumer, view.cordoned) for view in play.view.consumers] == [("g-0", False), ("g-1", True), ("g-2", False)]


def test_a_cordoned_consumer_finishes_what_it_reads_before_it_gives_it_up() -> None:
    play = started(2, 2)
    (mine,) = play.held_by("g-1")
    play.consumer("g-1").busy = {view.shard for view in play.view.shards}
    cordoned(play, "g-1")
    play.beat("g-0", "g-1")
    assert play.state(mine) is ShardState.TRANSFER
    assert play.checkpoint("g-1", mine, 70) is CheckpointResult.OK
    play.consumer("g-1").busy = set()
    play.settle("g-1", "g-0")
    assert play.confirmed("g-0")[mine].position == 70


def test_a_consumer_that_is_not_cordoned_any_more_gets_its_share_again() -> None:
    play = started(9, 3)
    cordoned(play, "g-1")
    play.settle("g-0", "g-1", "g-2")
    cordoned(play)
    play.settle("g-0", "g-1", "g-2")
    assert play.counts() == {"g-0": 3, "g-1": 3, "g-2": 3}


def test_new_shards_pass_a_cordoned_consumer_by() -> None:
    play = started(2, 2)
    cordoned(play, "g-0")
    play.settle("g-0", "g-1")
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 0, "g-1": 8}


def test_the_first_assignment_does_not_wait_for_a_cordoned_consumer() -> None:
    play = Play(spec(3, cordoned=["g-2"]))
    play.discover(topic(4))
    play.beat("g-2", "g-0")
    assert play.counts() == {"g-0": 0, "g-2": 0}
    play.beat("g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2, "g-2": 0}


def test_while_nobody_else_may_take_them_a_cordoned_consumer_keeps_its_shards() -> None:
    play = started(3, 1)
    cordoned(play, "g-0")
    play.settle("g-0")
    assert play.states() == dict.fromkeys("012", "ALREADY_ALLOC")
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 0, "g-1": 3}


def test_a_transfer_to_a_consumer_that_is_cordoned_meanwhile_goes_elsewhere() -> None:
    play = started(4, 1)
    play.consumer("g-0").busy = {view.shard for view in play.view.shards}
    play.beat("g-1")
    play.beat("g-0")
    cordoned(play, "g-1")
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 0}


# Drain: nothing new, and what is held goes as its batch is done.


def test_a_draining_consumer_gives_each_shard_up_when_its_batch_is_done() -> None:
    play = started(4, 2)
    first, second = sorted(play.held_by("g-1"))
    consumer = play.consumer("g-1")
    consumer.busy, consumer.draining = {view.shard for view in play.view.shards}, True
    play.beat("g-1", "g-0")
    assert {first: play.state(first), second: play.state(second)} == dict.fromkeys((first, second), ShardState.TRANSFER)
    consumer.busy = {view.shard for view in play.view.shards if view.shard == f"t/{second}"}
    play.beat("g-1", "g-1")
    assert (play.shard(first).holder, play.shard(second).holder) == ("g-0", "g-1")
    consumer.busy = set()
    play.beat("g-1", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 0}


def test_a_draining_consumer_gets_nothing_new() -> None:
    play = started(4, 2)
    play.consumer("g-1").draining = True
    play.settle("g-1", "g-0")
    play.discover(topic(10))
    play.leave("g-0")
    play.settle("g-1")
    assert play.counts() == {"g-1": 0}


# Pause.


def test_a_paused_group_still_expires_and_grants_nothing_until_it_goes_on() -> None:
    play = started(4, 2)
    play.change(with_settings(play.group.spec, paused=True))
    play.wait(48, ["g-0"])
    assert sorted(play.states().values()) == ["ALREADY_ALLOC", "ALREADY_ALLOC", "NOT_ALLOC", "NOT_ALLOC"]
    play.change(with_settings(play.group.spec, paused=False))
    play.settle("g-0")
    assert play.counts() == {"g-0": 4}


def test_a_paused_consumer_is_told_so_and_may_checkpoint_what_it_read() -> None:
    play = started(2, 1)
    play.change(with_settings(play.group.spec, paused=True))
    play.beat("g-0")
    reply = play.consumers["g-0"].reply
    assert reply is not None
    assert (reply.paused, len(reply.confirmed)) == (True, 2)
    assert play.checkpoint("g-0", "0", 50) is CheckpointResult.OK


def test_nobody_is_expired_for_getting_on_with_nothing_while_paused() -> None:
    play = started(2, 1)
    play.discover(topic(2))
    play.change(with_settings(play.group.spec, paused=True))
    play.wait(900, ["g-0"])
    assert play.counts() == {"g-0": 2}
    play.change(with_settings(play.group.spec, paused=False))
    play.wait(290, ["g-0"])
    assert play.counts() == {"g-0": 2}


def test_a_shard_that_closes_while_paused_is_over_at_its_end() -> None:
    play = started(2, 1)
    play.change(with_settings(play.group.spec, paused=True))
    play.discover([info("0", end=100, open=False), info("1")])
    assert play.checkpoint("g-0", "0", 100) is CheckpointResult.OK
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


# A paused rebalance: nothing is moved for the sake of balance.


def paused(play: Play, *, cordoned: Iterable[str] = (), rebalance_paused: bool = True) -> None:
    play.change(replace(spec(play.group.spec.wanted, cordoned=cordoned), rebalance_paused=rebalance_paused))


def test_while_the_rebalance_is_paused_a_new_consumer_gets_nothing_that_somebody_holds() -> None:
    play = started(6, 2)
    paused(play)
    play.settle("g-0", "g-1", "g-2")
    assert play.counts() == {"g-0": 3, "g-1": 3, "g-2": 0}
    paused(play, rebalance_paused=False)
    play.settle("g-0", "g-1", "g-2")
    assert play.counts() == {"g-0": 2, "g-1": 2, "g-2": 2}


def test_while_the_rebalance_is_paused_shards_that_nobody_holds_are_given_out() -> None:
    play = started(4, 2)
    paused(play)
    play.settle("g-0", "g-1", "g-2")
    play.discover(topic(8))
    play.settle("g-0", "g-1", "g-2")
    assert play.counts() == {"g-0": 3, "g-1": 3, "g-2": 2}


def test_while_the_rebalance_is_paused_a_cordoned_consumer_still_gives_its_shards_up() -> None:
    play = started(6, 2)
    paused(play, cordoned=["g-1"])
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 6, "g-1": 0}


def test_a_new_leader_gives_everyone_a_whole_session_timeout_also_who_is_asked_to_release() -> None:
    play = started(4, 1, session_timeout=45.0, release_timeout=10.0, progress_timeout=10.0)
    play.beat("g-1")
    assert {row.state for row in play.view.shards} == {ShardState.ALREADY_ALLOC, ShardState.TRANSFER}

    play.restart()
    play.discover(topic(4, end=1000))
    play.wait(44.0, beating=["g-1"])
    assert play.counts().keys() == {"g-0", "g-1"}, "g-0 has not spoken yet, and may be on its way"
    play.wait(2.0, beating=["g-1"])
    assert play.counts().keys() == {"g-1"}


def test_who_speaks_to_a_new_leader_for_the_first_time_must_get_on_from_then_on() -> None:
    play = started(2, 1, session_timeout=45.0, progress_timeout=10.0)
    play.restart()
    play.discover(topic(2, end=1000))
    play.wait(20.0)
    assert play.counts().keys() == {"g-0"}
    play.consumer("g-0").ready = False
    play.beat("g-0")
    play.wait(9.0)
    assert play.counts().keys() == {"g-0"}
    play.wait(2.0)
    assert (play.counts(), play.reasons()[-1]) == ({}, "ProgressTimeout")


def test_who_saves_what_it_has_done_gets_on_before_that_is_durable() -> None:
    play = started(2, 1, session_timeout=300.0, progress_timeout=10.0)
    play.discover(topic(2, end=1000))
    play.hold_commits = True
    play.wait(9.0)
    assert play.checkpoint("g-0", "0", 500) == CheckpointResult.OK
    play.wait(9.0)
    assert (play.counts(), play.uncommitted) == ({"g-0": 2}, {shard("0"): 500})
    assert play.checkpoint("g-0", "0", 600) == CheckpointResult.WITHHELD, "a commit of it is under way"
    play.wait(2.0)
    assert (play.counts(), play.reasons()[-1]) == ({}, "ProgressTimeout")


# A heartbeat that was taken back, as it could not be stored.


def taken_back(play: Play, heartbeat: Heartbeat) -> None:
    play.group.decide(heartbeat, play.now)
    play.group.roll_back()
    play.group.note_life(heartbeat, play.now)


def test_whose_heartbeat_was_taken_back_is_silent_from_then_on_and_nothing_else_of_it_counts() -> None:
    play = started(2, 2)
    timeout = play.group.spec.settings.session_timeout
    play.beat("g-0", "g-1")
    held = play.counts()
    play.now += timeout - 1.0
    taken_back(play, structs.replace(play.consumer("g-0").heartbeat(), ready=False, draining=True, held=()))
    seen = {each.consumer: (each.ready, each.draining, each.heartbeat_age) for each in play.view.consumers}
    assert seen == {"g-0": (True, False, 0.0), "g-1": (True, False, timeout - 1.0)}
    assert play.counts() == held
    play.now += timeout - 1.0
    play.ask(Tick())
    assert [each.consumer for each in play.view.consumers] == ["g-0"]
    play.now += 2.0
    play.ask(Tick())
    assert play.view.consumers == ()


def test_what_another_run_said_or_what_was_overtaken_tells_of_no_life() -> None:
    play = started(2, 2)
    play.beat("g-0", "g-1")
    said = play.consumer("g-0").heartbeat()
    play.now += 10.0
    for unheard in (structs.replace(said, incarnation=Incarnation("uid-another", 1)), structs.replace(said, seq=0)):
        play.group.note_life(unheard, play.now)
    play.group.note_life(structs.replace(said, consumer=ConsumerId("g-7")), play.now)
    play.group.note_life(structs.replace(said, seq=1000), play.now - 20.0)
    assert {each.consumer: each.heartbeat_age for each in play.view.consumers} == {"g-0": 10.0, "g-1": 10.0}
