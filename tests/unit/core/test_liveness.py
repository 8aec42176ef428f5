"""Incarnations, expiry, proof of death: who is a consumer, and when what it held may move."""

from __future__ import annotations

import pytest

from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.model.errors import InvalidRequestError, StaleIncarnationError
from shardherd.core.model.nouns import ConsumerId, Heartbeat, HeldShard, Incarnation
from shardherd.core.model.requests import ClockGap, ConditionsChanged, ConsumerDied
from tests.builders import Play, incarnation, info, shard, spec, started, topic, with_settings

SILENT = 45.0


def refused(play: Play, name: str, start: int = 1, pod: int = 1) -> str:
    """Why a heartbeat of this incarnation is refused."""
    with pytest.raises(StaleIncarnationError) as error:
        play.ask(Heartbeat(ConsumerId(name), incarnation(name, start, pod), 1, 0))
    assert (error.value.code, error.value.consumer, error.value.group) == ("StaleIncarnation", name, "demo/clicks")
    return error.value.message


def test_a_silent_consumer_expires_after_the_session_timeout_and_not_before() -> None:
    play = started(4, 2)
    play.wait(SILENT - 2, ["g-0"])
    assert play.counts() == {"g-0": 2, "g-1": 2}
    play.wait(2, ["g-0"])
    assert play.counts() == {"g-0": 4}
    assert "SessionTimeout" in play.reasons()


def test_an_expired_consumer_may_come_back_and_is_told_what_it_lost() -> None:
    play = started(4, 2)
    held = play.consumer("g-1").held
    play.wait(SILENT, ["g-0"])
    play.beat("g-1")
    reply = play.consumers["g-1"].reply
    assert reply is not None
    assert reply.fenced == tuple(HeldShard(name, epoch) for name, epoch in sorted(held.items()))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_proof_of_death_moves_the_shards_of_an_unordered_group_at_once() -> None:
    play = started(4, 2)
    play.die("g-1")
    assert play.counts() == {"g-0": 4}
    assert "over (Died)" in refused(play, "g-1")


def test_proof_of_an_earlier_start_changes_nothing() -> None:
    play = started(4, 2)
    play.run("g-1", start=2)
    play.beat("g-1")
    play.ask(ConsumerDied(ConsumerId("g-1"), incarnation("g-1", 1)))
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_proof_of_a_start_that_was_never_seen_proves_the_earlier_ones() -> None:
    play = started(4, 2)
    play.ask(ConsumerDied(ConsumerId("g-1"), incarnation("g-1", 7)))
    assert play.counts() == {"g-0": 4}
    assert "over (Died)" in refused(play, "g-1", start=7)
    play.run("g-1", start=8)
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_proof_of_a_stranger_changes_nothing() -> None:
    play = started(2, 1)
    before = play.view
    play.ask(ConsumerDied(ConsumerId("g-9"), incarnation("g-9")))
    play.ask(ConsumerDied(ConsumerId("g-0"), incarnation("g-0", 1, pod=5)))
    assert play.view == before


def test_a_later_start_takes_the_shards_of_its_name_over_under_new_epochs() -> None:
    play = started(2, 1)
    play.run("g-0", start=2)
    play.beat("g-0")
    assert {(each.owner_epoch, each.held_since_epoch) for each in play.confirmed("g-0").values()} == {(2, 1)}
    assert "start 2 of the same pod has taken over" in refused(play, "g-0", start=1)


def test_a_later_start_has_released_what_the_earlier_one_was_asked_for() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.run("g-0", start=2)
    play.beat("g-0")
    assert play.holders() == {"0": "g-0", "1": "g-1"}


def test_another_pod_takes_over_at_once_in_an_unordered_group_and_the_old_one_is_refused_for_ever() -> None:
    play = started(2, 1)
    play.run("g-0", pod=2)
    play.beat("g-0")
    assert {each.owner_epoch for each in play.confirmed("g-0").values()} == {2}
    for _ in range(2):
        assert "has taken its name over" in refused(play, "g-0", pod=1)
        play.run("g-0", pod=3)
        play.beat("g-0")
        play.restart()
    assert "has taken its name over" in refused(play, "g-0", start=9, pod=2)


def test_a_checkpoint_of_a_superseded_run_is_refused() -> None:
    play = started(2, 1)
    old = play.consumer("g-0")
    play.run("g-0", start=2)
    play.beat("g-0")
    play.consumers["g-0"] = old
    with pytest.raises(StaleIncarnationError):
        play.checkpoint("g-0", "0", 50)


def test_an_ordered_group_waits_for_the_timeout_when_another_pod_takes_a_name() -> None:
    play = started(2, 1, ordered=True)
    play.run("g-0", pod=2)
    play.wait(SILENT - 5, ["g-0"])
    assert play.confirmed("g-0") == {}
    assert play.held_by("g-0") == {"0", "1"}
    play.wait(6, ["g-0"])
    assert {each.owner_epoch for each in play.confirmed("g-0").values()} == {2}


def test_an_ordered_group_moves_at_the_proof_of_the_superseded_pod() -> None:
    play = started(2, 1, ordered=True)
    play.run("g-0", pod=2)
    play.beat("g-0")
    assert play.confirmed("g-0") == {}
    play.ask(ConsumerDied(ConsumerId("g-0"), incarnation("g-0", 1, pod=1)))
    play.beat("g-0")
    assert set(play.confirmed("g-0")) == {"0", "1"}


def test_an_ordered_group_moves_at_once_when_a_pod_died_before_another_took_its_name() -> None:
    play = started(2, 1, ordered=True)
    play.die("g-0")
    play.run("g-0", pod=2)
    play.beat("g-0")
    assert set(play.confirmed("g-0")) == {"0", "1"}


def test_an_ordered_group_still_waits_after_a_restart_of_the_coordinator() -> None:
    play = started(2, 1, ordered=True)
    play.run("g-0", pod=2)
    play.beat("g-0")
    play.restart()
    play.wait(SILENT - 5, ["g-0"])
    assert play.confirmed("g-0") == {}
    play.wait(8, ["g-0"])
    assert set(play.confirmed("g-0")) == {"0", "1"}


def shorten(play: Play, seconds: float) -> None:
    play.change(with_settings(play.group.spec, session_timeout=seconds))


def test_whoever_lives_has_a_whole_session_timeout_to_hear_that_it_is_shorter() -> None:
    play = started(4, 2, heartbeat_interval=20.0, session_timeout=60.0)
    play.wait(19)
    play.change(with_settings(play.group.spec, heartbeat_interval=1.0, session_timeout=5.0))
    play.wait(4)
    play.beat("g-0", "g-1")
    play.wait(4)
    play.beat("g-0")
    assert "SessionTimeout" not in play.reasons()
    play.wait(1)
    assert play.counts() == {"g-0": 4}


def test_a_longer_session_timeout_holds_at_once() -> None:
    play = started(4, 2)
    play.wait(SILENT - 1, ["g-0"])
    play.change(with_settings(play.group.spec, session_timeout=2 * SILENT))
    play.wait(SILENT, ["g-0"])
    assert play.counts() == {"g-0": 2, "g-1": 2}
    play.wait(2, ["g-0"])
    assert play.counts() == {"g-0": 4}


@pytest.mark.parametrize("first", [180.0, 60.0])
def test_an_ordered_group_moves_no_shard_of_who_may_not_have_heard_that_the_session_timeout_is_shorter(first: float) -> None:
    play = started(4, 2, ordered=True, session_timeout=first)
    play.change(with_settings(play.group.spec, session_timeout=180.0))
    play.settle("g-0", "g-1")
    play.wait(3, ["g-0"])
    shorten(play, 20.0)
    play.wait(176, ["g-0"])
    assert play.held_by("g-1") == {"1", "3"}
    play.wait(2, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_an_ordered_group_remembers_a_longer_session_timeout_over_a_restart_of_the_coordinator() -> None:
    play = started(4, 2, ordered=True, session_timeout=180.0)
    play.restart(with_settings(play.group.spec, session_timeout=20.0))
    play.discover(topic(4))
    shorten(play, 30.0)
    shorten(play, 20.0)
    play.wait(10, ["g-0"])
    play.restart()
    play.discover(topic(4))
    play.wait(178, ["g-0"])
    assert play.held_by("g-1") == {"1", "3"}
    play.wait(3, ["g-0"])
    assert play.counts() == {"g-0": 4}


@pytest.mark.parametrize("restart", [False, True])
def test_a_shorter_session_timeout_holds_for_all_once_nobody_can_go_by_the_longer_one(restart: bool) -> None:
    play = started(4, 2, ordered=True, session_timeout=180.0)
    shorten(play, 20.0)
    play.wait(180, ["g-0", "g-1"])
    if restart:
        play.restart()
        play.discover(topic(4))
    play.wait(22, ["g-0"])
    assert play.counts() == {"g-0": 4}


@pytest.mark.parametrize("restart", [False, True])
def test_a_group_that_becomes_ordered_moves_no_shard_of_who_may_not_have_heard_of_it(restart: bool) -> None:
    play = started(4, 2, coordinator_loss_limit=120.0)
    cut_off = SessionSettings("uid", ConsumerId("g-1"), incarnation("g-1"), coordinator_loss_limit=120.0)
    play.wait(30, ["g-0"])
    ordered = with_settings(play.group.spec, ordered=True)
    if restart:
        play.restart(ordered)
        play.discover(topic(4))
    else:
        play.change(ordered)
    play.wait(cut_off.silence_limit - 35, ["g-0"])
    assert (play.held_by("g-1"), play.counts()["g-0"]) == ({"1", "3"}, 2)
    play.wait(40, ["g-0"])
    assert play.counts() == {"g-0": 4}
    play.die("g-1")
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    play.wait(120, ["g-0", "g-1"])
    play.wait(SILENT + 1, ["g-0"])
    assert play.counts() == {"g-0": 4}, "all have heard of it by now"


def test_it_is_stored_that_a_group_was_not_ordered_for_a_while_though_no_coordinator_saw_it_edited() -> None:
    play = started(4, 2, ordered=True, coordinator_loss_limit=120.0)
    play.restart(with_settings(play.group.spec, ordered=False))
    play.discover(topic(4))
    play.wait(10, ["g-0", "g-1"])
    play.restart(with_settings(play.group.spec, ordered=True))
    play.discover(topic(4))
    play.wait(110, ["g-0"])
    assert play.held_by("g-1") == {"1", "3"}
    play.wait(15, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_leaving_frees_the_shards_and_a_late_heartbeat_does_not_bring_the_consumer_back() -> None:
    play = started(4, 2)
    play.leave("g-1")
    assert play.counts() == {"g-0": 4}
    assert "over (Left)" in refused(play, "g-1")
    play.leave("g-1")
    assert play.counts() == {"g-0": 4}


def test_killed_consumer_back_within_timeout_moves_nothing() -> None:
    play = started(4, 2, rejoin_grace=SILENT)
    before = play.holders()
    play.die("g-1")
    play.wait(20, ["g-0"])
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    assert play.holders() == before
    assert play.view.moves == 0


def test_without_a_grace_a_restart_moves_twice() -> None:
    play = started(4, 2)
    play.die("g-1")
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    assert play.view.moves == 4


def test_a_killed_consumer_that_does_not_come_back_loses_its_shards_after_the_grace() -> None:
    play = started(4, 2, rejoin_grace=20.0)
    play.die("g-1")
    play.wait(17, ["g-0"])
    assert play.held_by("g-1") != set()
    play.wait(4, ["g-0"])
    assert play.counts() == {"g-0": 4}


def hung(play: Play, name: str, seconds: float) -> None:
    """Time passes in which this consumer beats without getting on, while the others do get on."""
    for _ in range(round(seconds / 3)):
        for other in play.consumers.values():
            other.progress += other.name != name
        play.beat(*(name for name in play.consumers if name in play.counts()))
        play.wait(3)


def test_hung_processing_with_live_heartbeat_expires() -> None:
    play = started(4, 2)
    play.discover(topic(4))
    hung(play, "g-1", 294)
    assert play.counts() == {"g-0": 2, "g-1": 2}
    hung(play, "g-1", 12)
    assert play.counts() == {"g-0": 4}
    assert play.view.expired == ((ConsumerId("g-1"), incarnation("g-1")),)
    assert "over (ProgressTimeout)" in refused(play, "g-1")
    play.run("g-1", pod=2)
    play.beat("g-1")
    assert not play.view.expired


def test_a_consumer_with_nothing_to_read_need_not_get_on() -> None:
    play = Play(spec(1))
    play.discover(topic(2, end=0))
    play.settle("g-0")
    play.discover(topic(2, end=0))
    play.wait(900, ["g-0"])
    play.discover(topic(2, end=5))
    play.wait(290, ["g-0"])
    assert play.counts() == {"g-0": 2}
    play.wait(12)
    assert play.counts() == {}


def test_neither_clock_runs_while_the_source_cannot_be_reached() -> None:
    play = started(4, 2)
    play.discover(topic(4))
    play.ask(ConditionsChanged(source_reachable=False, source_error="no route"))
    play.wait(900, ["g-0", "g-1"])
    assert play.counts() == {"g-0": 2, "g-1": 2}
    assert (play.view.source_reachable, play.view.source_error) == (False, "no route")
    play.ask(ConditionsChanged())
    play.wait(290, ["g-0", "g-1"])
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_a_holder_that_does_not_release_in_time_is_expired_and_the_next_deadline_is_twice_as_long() -> None:
    play = started(2, 1)
    play.consumer("g-0").busy = {shard("1")}
    play.wait(59, ["g-0", "g-1"])
    play.beat("g-0")
    assert play.state("1") == "TRANSFER"
    play.wait(5, ["g-1"])
    assert play.holders() == {"0": "g-1", "1": "g-1"}
    assert "ReleaseTimeout" in play.reasons()

    play.run("g-0", pod=2)
    play.settle("g-1")
    play.consumer("g-1").busy = {shard("0"), shard("1")}
    play.beat("g-0", "g-1")
    play.wait(117, ["g-0", "g-1"])
    assert play.counts() == {"g-0": 0, "g-1": 2}
    play.wait(6, ["g-0"])
    assert play.counts() == {"g-0": 2}


def test_the_release_clock_does_not_run_while_the_holder_gets_on() -> None:
    play = started(2, 1)
    play.consumer("g-0").busy = {shard("1")}
    play.beat("g-1")
    for _ in range(60):
        play.consumer("g-0").progress += 1
        play.beat("g-0", "g-1")
        play.wait(3)
    assert play.state("1") == "TRANSFER"


def test_an_ordered_group_moves_an_expired_consumers_shards_only_when_it_must_have_stopped() -> None:
    play = started(4, 2, ordered=True)
    play.discover(topic(4))
    play.consumer("g-1")
    hung(play, "g-1", 306)
    assert play.view.expired
    assert play.held_by("g-1") != set()
    play.wait(SILENT, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_a_coordinator_that_did_not_run_expires_nobody_for_it() -> None:
    play = started(4, 2)
    play.now += 600
    play.ask(ClockGap(600))
    play.wait(40, ["g-0"])
    assert play.counts() == {"g-0": 2, "g-1": 2}
    play.wait(6, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_after_a_restart_everybody_gets_a_whole_session_timeout_and_nothing_moves() -> None:
    play = started(6, 3)
    before = play.holders()
    play.wait(40, ["g-0"])
    play.restart()
    play.discover(topic(6))
    play.wait(SILENT - 1, ["g-0", "g-1"])
    assert play.holders() == before
    play.wait(2, ["g-0", "g-1"])
    assert play.counts() == {"g-0": 3, "g-1": 3}


def test_a_transfer_survives_a_restart() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.restart()
    play.discover(topic(2))
    play.beat("g-0", "g-0")
    assert play.holders() == {"0": "g-0", "1": "g-1"}


def test_a_revision_that_was_never_given_out_counts_for_nothing() -> None:
    play = started(2, 1)
    play.beat("g-1")
    consumer = play.consumer("g-0")
    heartbeat = Heartbeat(consumer.name, consumer.incarnation, consumer.seq + 1, 10_000, ())
    assert play.answer(heartbeat).revision == play.group._state.record.revision
    assert play.state("1") == "TRANSFER"
    assert not play.group.may_park(heartbeat)


@pytest.mark.parametrize(("seq", "revision", "start"), [(0, 0, 1), (1, -1, 1), (1, 0, 0)])
def test_a_malformed_heartbeat_is_refused_and_changes_nothing(seq: int, revision: int, start: int) -> None:
    play = Play(spec(1))
    play.discover([info("0")])
    before = play.view
    with pytest.raises(InvalidRequestError):
        play.ask(Heartbeat(ConsumerId("g-0"), Incarnation("uid", start), seq, revision))
    assert play.view == before
