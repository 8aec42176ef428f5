"""Durable positions that are gone, or cannot be right: the shard stays put and is read by nobody until it is said where."""

from __future__ import annotations

from shardherd.core.model.nouns import CheckpointResult, ShardId
from shardherd.core.model.requests import ForceCheckpoint, ShardsDiscovered
from tests.builders import Play, info, restore, shard, started, topic


def lost(play: Play) -> list[str]:
    """What is said to be lost, shard by shard."""
    return [condition.message.partition(":")[0] for condition in play.view.withheld if condition.reason == "CheckpointLost"]


def restarted(play: Play, copies: dict[ShardId, int]) -> None:
    """Another coordinator takes over, and finds these copies of positions."""
    play.group = restore(play.group.ownership, dict(play.log), play.group.spec, play.now, copies=copies)
    play.discover(topic(2))
    play.settle("g-0")


def test_a_position_below_its_copy_is_lost() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    restarted(play, {shard("0"): 41, shard("1"): 0})
    assert lost(play) == ["t/0"]
    assert set(play.confirmed("g-0")) == {"1"}


def test_a_position_at_or_above_its_copy_is_not_lost() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    play.checkpoint("g-0", "1", 40)
    restarted(play, {shard("0"): 40, shard("1"): 39})
    assert lost(play) == []
    assert set(play.confirmed("g-0")) == {"0", "1"}


def test_a_position_that_is_restored_at_the_source_is_found_at_the_next_look() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    play.log[shard("0")] = 10
    del play.log[shard("1")]
    restarted(play, {shard("0"): 40})
    assert lost(play) == ["t/0, t/1"]
    play.log |= {shard("0"): 40, shard("1"): 7}
    play.discover(topic(2))
    play.settle("g-0")
    assert lost(play) == []
    assert {name: each.position for name, each in play.confirmed("g-0").items()} == {"0": 40, "1": 7}


def test_a_forced_checkpoint_below_the_copy_is_believed_all_the_same() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    play.log[shard("0")] = 10
    restarted(play, {shard("0"): 40, shard("1"): 3})
    assert lost(play) == ["t/0, t/1"]
    play.ask(ForceCheckpoint(shard("0"), 20))
    play.discover(topic(2))
    play.settle("g-0")
    assert lost(play) == ["t/1"]
    assert {name: each.position for name, each in play.confirmed("g-0").items()} == {"0": 20}


def test_a_shard_that_was_left_out_of_the_balance_while_it_was_lost_counts_again_when_it_is_found() -> None:
    play = started(2, 1)
    play.log = {}
    restarted(play, {shard("0"): 0})
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 0}
    play.log |= {shard("0"): 5, shard("1"): 7}
    play.discover(topic(2))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 1, "g-1": 1}


def test_a_position_that_is_below_its_copy_is_looked_up_again_and_again() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    play.log[shard("0")] = 10
    restarted(play, {shard("0"): 40})
    assert play.group.unread(topic(2)) == (shard("0"),)
    play.log[shard("0")] = 39
    play.discover(topic(2))
    assert lost(play) == ["t/0"]


def test_a_lost_shard_does_not_change_hands_when_its_holder_restarts() -> None:
    play = started(2, 1)
    restarted(play, {shard("0"): 41})
    play.run("g-0", start=2)
    play.settle("g-0")
    assert set(play.confirmed("g-0")) == {"1"}


def test_what_its_holder_read_beyond_a_lost_position_counts() -> None:
    play = started(1, 1)
    play.discover([info("0", begin=20)])
    assert lost(play) == ["t/0"]
    play.beat("g-0")
    assert play.confirmed("g-0") == {}
    assert play.checkpoint("g-0", "0", 30, epoch=1) is CheckpointResult.OK
    play.settle("g-0")
    assert lost(play) == []
    assert (play.confirmed("g-0")["0"].position, play.confirmed("g-0")["0"].held_since_epoch) == (30, 1)


def test_a_look_at_the_source_that_began_before_its_holder_got_beyond_a_lost_position_does_not_bring_it_back() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    restarted(play, {shard("0"): 41})
    late = ShardsDiscovered(topic(2), {shard("0"): 40}, {}, play.copies)
    assert play.checkpoint("g-0", "0", 50, epoch=1) is CheckpointResult.OK
    play.ask(late)
    assert (lost(play), play.shard("0").checkpoint) == ([], 50)


def test_a_lost_position_that_stays_lost_is_no_reason_for_new_epochs() -> None:
    play = started(1, 1)
    play.discover([info("0", begin=20)])
    play.settle("g-0")
    assert play.shard("0").owner_epoch == 1


def test_a_shard_that_the_source_has_no_more_is_not_checkpointed_so_that_others_can_be() -> None:
    play = started(2, 1)
    play.discover(topic(1))
    assert play.checkpoint("g-0", "1", 40) is CheckpointResult.WITHHELD
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.OK
    assert play.group.refreshable() == {shard("0"): 40}


def test_a_lost_position_of_a_shard_that_the_source_has_no_more_is_nothing_to_do_about() -> None:
    play = started(2, 1)
    play.log = {}
    restarted(play, {shard("0"): 0})
    assert lost(play) == ["t/0, t/1"]
    play.discover(topic(2)[1:])
    assert lost(play) == ["t/1"]
