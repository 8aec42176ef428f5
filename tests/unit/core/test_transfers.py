"""Transfers: release only on proof, to the next consumer or back to the holder."""

from __future__ import annotations

from shardherd.core.model.nouns import CheckpointResult, Heartbeat, HeldShard
from tests.builders import Play, shard, started, topic


def transferring() -> Play:
    """Shards 0 and 1 of g-0; 1 is on its way to g-1."""
    play = started(2, 1)
    play.beat("g-1")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "TRANSFER"}
    return play


def test_a_reply_never_confirms_a_shard_in_transfer() -> None:
    play = transferring()
    play.beat("g-0", "g-1")
    assert set(play.confirmed("g-0")) == {"0"}
    assert set(play.confirmed("g-1")) == set()


def test_the_holders_heartbeat_without_the_shard_gives_it_to_the_next_consumer_under_a_new_epoch() -> None:
    play = transferring()
    play.beat("g-0", "g-0", "g-1")
    granted = play.confirmed("g-1")["1"]
    assert (play.shard("1").holder, granted.owner_epoch, granted.held_since_epoch) == ("g-1", 2, 2)


def test_holder_may_checkpoint_in_transfer() -> None:
    play = transferring()
    play.consumer("g-0").busy = {shard("1")}
    play.beat("g-0")
    assert play.checkpoint("g-0", "1", 40) is CheckpointResult.OK
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0", "g-1")
    assert play.confirmed("g-1")["1"].position == 40


def test_a_shard_that_could_not_be_given_up_yet_stays_in_transfer() -> None:
    play = transferring()
    play.consumer("g-0").busy = {shard("1")}
    play.beat("g-0", "g-0", "g-0")
    assert play.state("1") == "TRANSFER"


def test_a_heartbeat_that_has_not_applied_the_revocation_does_not_release() -> None:
    play = transferring()
    consumer = play.consumer("g-0")
    stale = Heartbeat(consumer.name, consumer.incarnation, consumer.seq + 1, consumer.revision, ())
    play.ask(stale)
    assert play.state("1") == "TRANSFER"


def test_any_epoch_of_a_shard_that_is_named_keeps_it() -> None:
    play = transferring()
    play.beat("g-0")
    consumer = play.consumer("g-0")
    named = (HeldShard(shard("0"), 1), HeldShard(shard("1"), 99))
    reply = play.answer(Heartbeat(consumer.name, consumer.incarnation, consumer.seq + 1, consumer.revision, named))
    assert reply.fenced == (HeldShard(shard("1"), 99),)
    assert play.state("1") == "TRANSFER"


def test_a_heartbeat_that_was_overtaken_changes_nothing() -> None:
    play = started(2, 1)
    overtaken = play.consumer("g-0").heartbeat()
    play.beat("g-0")
    before = play.view
    reply = play.answer(overtaken)
    assert {each.shard for each in reply.confirmed} == {shard("0"), shard("1")}
    assert play.view == before


def test_the_holder_keeps_the_shard_under_its_epoch_when_the_next_consumer_dies() -> None:
    play = transferring()
    play.consumer("g-0").busy = {shard("1")}
    play.beat("g-0")
    play.die("g-1")
    play.beat("g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}
    assert play.confirmed("g-0")["1"].owner_epoch == 1


def test_a_holder_that_let_go_before_it_was_given_the_shard_back_gets_a_new_epoch() -> None:
    play = transferring()
    play.beat("g-0")
    play.die("g-1")
    release = play.consumer("g-0").heartbeat()
    play.consumers["g-0"].revision = play.answer(release).revision
    play.beat("g-0")
    granted = play.confirmed("g-0")["1"]
    assert (granted.owner_epoch, granted.held_since_epoch) == (2, 1)


def test_the_holder_keeps_the_shard_when_the_next_consumer_starts_anew_and_is_cold() -> None:
    play = transferring()
    play.run("g-1", start=2, ready=False)
    play.beat("g-1", "g-0")
    assert play.holders() == {"0": "g-0", "1": "g-0"}
    assert set(play.confirmed("g-0")) == {"0", "1"}


def test_the_holder_keeps_the_shard_when_a_next_consumer_that_a_new_coordinator_waited_for_is_cold() -> None:
    play = transferring()
    play.restart()
    play.discover(topic(2))
    play.consumer("g-0").busy = {shard("1")}
    play.consumer("g-1").ready = False
    play.wait(7.0, ["g-0"])
    assert play.state("1") == "TRANSFER"
    play.beat("g-1", "g-0")
    assert set(play.confirmed("g-0")) == {"0", "1"}


def test_a_dead_next_consumer_is_replaced_by_another_without_the_holder_hearing_of_it() -> None:
    play = started(2, 1)
    play.beat("g-1", "g-2")
    play.wait(1)
    play.beat("g-0")
    heard = play.group.assignment_revision(play.consumer("g-0").name)
    assert play.shard("1").next_consumer == "g-1"
    play.die("g-1")
    assert (play.state("1"), play.shard("1").next_consumer) == ("TRANSFER", "g-2")
    assert play.group.assignment_revision(play.consumer("g-0").name) == heard


def test_a_transfer_is_not_called_off_for_a_better_target() -> None:
    play = started(4, 1)
    play.beat("g-1")
    revoked = {name for name, state in play.states().items() if state == "TRANSFER"}
    play.beat("g-2")
    play.wait(1)
    assert {name for name, state in play.states().items() if state == "TRANSFER"} >= revoked


def test_holder_dead_in_transfer_frees_the_shard_for_the_next_consumer() -> None:
    play = transferring()
    play.die("g-0")
    assert play.holders() == {"0": "g-1", "1": "g-1"}
    assert play.shard("1").owner_epoch == 2


def test_a_parked_heartbeat_is_woken_when_its_assignment_changes_and_only_then() -> None:
    play = started(2, 1)
    heartbeat = play.consumer("g-0").heartbeat()
    play.ask(heartbeat)
    assert play.group.may_park(heartbeat)
    woken = play.ask(play.consumer("g-1").heartbeat()).woken
    assert woken == {"g-0"}
    assert not play.group.may_park(heartbeat)
    assert {each.shard for each in play.group.confirmed(heartbeat).confirmed} == {shard("0")}
