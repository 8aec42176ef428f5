"""Checkpoints: exactly the current grant, never back, and no change of hands while a commit is under way."""

from __future__ import annotations

import pytest

from shardherd.core.model.errors import InvalidRequestError, UnknownShardError
from shardherd.core.model.nouns import CheckpointOutcome, CheckpointReply, CheckpointRequest, CheckpointResult, ShardCheckpoint
from shardherd.core.model.requests import CheckpointsCommitted, ConditionsChanged, ForceCheckpoint, ForceCheckpointReply
from tests.builders import Play, info, shard, spec, started, topic


def test_a_checkpoint_under_the_current_grant_is_durable_before_it_is_acknowledged() -> None:
    play = started(1, 1)
    play.hold_commits = True
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.OK
    assert play.shard("0").checkpoint == 0
    play.commit()
    assert (play.shard("0").checkpoint, play.shard("0").lag_records) == (40, 60)


def test_one_request_gets_one_outcome_for_each_checkpoint_in_its_order() -> None:
    play = started(2, 2)
    consumer = play.consumer("g-0")
    asked = (ShardCheckpoint(shard("0"), 1, 7), ShardCheckpoint(shard("1"), 1, 7), ShardCheckpoint(shard("9"), 1, 7))
    reply = play.ask(CheckpointRequest(consumer.name, consumer.incarnation, asked)).reply
    assert reply == CheckpointReply(
        (
            CheckpointOutcome(shard("0"), CheckpointResult.OK, 7, 1, 1, consumer.name),
            CheckpointOutcome(shard("1"), CheckpointResult.FENCED, 7, 1, 1, play.consumer("g-1").name),
            CheckpointOutcome(shard("9"), CheckpointResult.FENCED, 7, 1, 0, None),
        )
    )


@pytest.mark.parametrize("epoch", [0, 2, 99])
def test_another_epoch_is_fenced(epoch: int) -> None:
    play = started(1, 1)
    assert play.checkpoint("g-0", "0", 40, epoch=epoch) is CheckpointResult.FENCED
    assert play.shard("0").checkpoint == 0


def test_the_former_holder_is_fenced() -> None:
    play = started(2, 2)
    play.wait(45, ["g-0"])
    assert play.checkpoint("g-1", "1", 40) is CheckpointResult.FENCED


def test_a_checkpoint_never_goes_back() -> None:
    play = started(1, 1)
    play.checkpoint("g-0", "0", 40)
    assert play.checkpoint("g-0", "0", 30) is CheckpointResult.UNCHANGED
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.UNCHANGED
    assert play.shard("0").checkpoint == 40


def test_of_two_positions_in_one_request_the_higher_is_committed() -> None:
    play = started(1, 1)
    consumer = play.consumer("g-0")
    asked = (ShardCheckpoint(shard("0"), 1, 9), ShardCheckpoint(shard("0"), 1, 7))
    assert play.ask(CheckpointRequest(consumer.name, consumer.incarnation, asked)).positions == {shard("0"): 9}


def test_a_negative_offset_is_refused() -> None:
    play = started(1, 1)
    with pytest.raises(InvalidRequestError, match="offset -1"):
        play.checkpoint("g-0", "0", -1)


def test_a_second_checkpoint_waits_for_the_outcome_of_the_first() -> None:
    play = started(1, 1)
    play.hold_commits = True
    play.checkpoint("g-0", "0", 40)
    assert play.checkpoint("g-0", "0", 50) is CheckpointResult.WITHHELD
    play.fail_commits()
    assert play.shard("0").checkpoint == 0
    assert play.checkpoint("g-0", "0", 50) is CheckpointResult.OK


def test_a_shard_with_a_commit_under_way_does_not_change_hands() -> None:
    play = started(2, 2)
    play.hold_commits = True
    play.checkpoint("g-1", "1", 40)
    play.die("g-1")
    assert play.shard("1").holder == "g-1"
    play.commit()
    play.beat("g-0")
    assert play.confirmed("g-0")["1"].position == 40


def test_a_shard_that_nobody_holds_is_granted_once_the_forced_commit_is_done() -> None:
    play = Play(spec(2))
    play.discover(topic(2))
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 40))
    play.settle("g-0", "g-1")
    assert play.holders()["0"] is None
    play.commit()
    play.settle("g-0", "g-1")
    holder = play.holders()["0"]
    assert holder is not None
    assert play.confirmed(holder)["0"].position == 40


def test_a_release_waits_for_the_commit_and_the_grant_carries_its_position() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.consumer("g-0").busy = {shard("1")}
    play.beat("g-0")
    play.hold_commits = True
    play.checkpoint("g-0", "1", 60)
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0")
    assert play.shard("1").holder == "g-0"
    play.commit()
    play.beat("g-1")
    assert play.confirmed("g-1")["1"].position == 60


def test_a_takeover_by_a_newer_run_waits_for_the_commit() -> None:
    play = started(1, 1)
    play.hold_commits = True
    play.checkpoint("g-0", "0", 60)
    play.run("g-0", start=2)
    play.beat("g-0")
    assert play.confirmed("g-0") == {}
    play.commit()
    play.beat("g-0")
    assert (play.confirmed("g-0")["0"].owner_epoch, play.confirmed("g-0")["0"].position) == (2, 60)


def test_a_failed_commit_releases_the_shard_too() -> None:
    play = started(2, 2)
    play.hold_commits = True
    play.checkpoint("g-1", "1", 40)
    play.die("g-1")
    play.fail_commits()
    play.beat("g-0")
    assert play.confirmed("g-0")["1"].position == 0


def test_nothing_is_committed_while_commits_are_withheld() -> None:
    play = started(1, 1)
    play.ask(ConditionsChanged(commits=False))
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.WITHHELD
    play.ask(ConditionsChanged())
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.OK


def test_a_forced_checkpoint_fences_the_holder_which_reads_on_from_there() -> None:
    play = started(1, 1)
    play.checkpoint("g-0", "0", 40)
    assert play.ask(ForceCheckpoint(shard("0"), 10)).reply == ForceCheckpointReply()
    assert play.checkpoint("g-0", "0", 50) is CheckpointResult.FENCED
    play.beat("g-0")
    granted = play.confirmed("g-0")["0"]
    assert (granted.owner_epoch, granted.held_since_epoch, granted.position) == (2, 2, 10)


def test_a_forced_checkpoint_that_was_not_written_fences_nobody() -> None:
    play = started(1, 1)
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 10))
    play.uncommitted = {}
    play.ask(CheckpointsCommitted({shard("0"): 0}))
    play.hold_commits = False
    assert play.checkpoint("g-0", "0", 50) is CheckpointResult.OK


def test_a_forced_checkpoint_before_the_end_of_a_finished_shard_revives_it_with_a_warning() -> None:
    play = Play(spec(1))
    play.discover([info("0", open=False), info("1", parents=["0"])])
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    assert play.state("0") == "OVER"
    reply = play.ask(ForceCheckpoint(shard("0"), 50)).reply
    assert isinstance(reply, ForceCheckpointReply)
    assert "t/1" in reply.warning
    play.beat("g-0")
    assert play.confirmed("g-0")["0"].position == 50


def test_a_forced_checkpoint_at_the_end_of_a_closed_shard_finishes_it() -> None:
    play = Play(spec(1))
    play.discover([info("0", open=False)])
    play.settle("g-0")
    play.ask(ForceCheckpoint(shard("0"), 100))
    assert play.state("0") == "OVER"


def test_forcing_an_unknown_shard_or_a_negative_offset_is_refused() -> None:
    play = started(1, 1)
    with pytest.raises(UnknownShardError, match="t/7"):
        play.ask(ForceCheckpoint(shard("7"), 1))
    with pytest.raises(InvalidRequestError, match="-1"):
        play.ask(ForceCheckpoint(shard("0"), -1))
