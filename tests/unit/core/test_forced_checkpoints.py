"""Forced checkpoints: taken in every state, whoever holds the shard; what they revive, and what they put right."""

from __future__ import annotations

import pytest

from shardherd.core.model.errors import CoordinatorUnavailableError, InvalidRequestError
from shardherd.core.model.nouns import CheckpointResult, ShardState
from shardherd.core.model.requests import ConditionsChanged, ForceCheckpoint, ForceCheckpointReply
from tests.builders import Play, info, shard, spec, started

CLOSED = info("0", open=False)


def force(play: Play, name: str, offset: int) -> str:
    """The warning of the reply."""
    reply = play.ask(ForceCheckpoint(shard(name), offset)).reply
    assert isinstance(reply, ForceCheckpointReply)
    return reply.warning


def in_state(state: ShardState) -> Play:
    """A group whose shard 0 is in this state."""
    if state is ShardState.WAIT:
        play = Play(spec(1, ordered=True))
        play.discover([info("1", open=False), info("0", parents=["1"])])
    elif state is ShardState.NOT_ALLOC:
        play = Play(spec(1))
        play.discover([info("0")])
    elif state is ShardState.TRANSFER:
        play = started(2, 1)
        play.consumer("g-0").busy = {shard("0"), shard("1")}
        play.change(spec(1, leaving=["g-0"]))
        play.beat("g-1", "g-0")
    elif state is ShardState.OVER:
        play = Play(spec(1))
        play.discover([CLOSED])
        play.settle("g-0")
        play.checkpoint("g-0", "0", 100)
    else:
        play = started(1, 1)
    assert play.state("0") == state
    return play


@pytest.mark.parametrize("state", list(ShardState))
def test_a_forced_checkpoint_succeeds_in_every_state(state: ShardState) -> None:
    play = in_state(state)
    force(play, "0", 30)
    assert (play.log[shard("0")], play.shard("0").checkpoint) == (30, 30)
    assert "CheckpointForced" in play.reasons()


def test_a_forced_checkpoint_leaves_a_waiting_shard_waiting() -> None:
    play = in_state(ShardState.WAIT)
    force(play, "0", 30)
    assert play.state("0") == "WAIT"


def test_a_forced_checkpoint_fences_the_holder_of_a_transfer_and_the_next_consumer_starts_there() -> None:
    play = in_state(ShardState.TRANSFER)
    force(play, "0", 30)
    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.FENCED
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0", "g-1")
    granted = play.confirmed("g-1")["0"]
    assert (granted.owner_epoch, granted.held_since_epoch, granted.position) == (3, 3, 30)


def test_a_forced_checkpoint_before_the_end_of_a_finished_shard_revives_it() -> None:
    play = in_state(ShardState.OVER)
    assert force(play, "0", 50) == ""
    play.beat("g-0")
    assert play.confirmed("g-0")["0"].position == 50
    assert [event.warning for event in play.events if event.reason == "ShardRevived"] == [False]


def test_a_forced_checkpoint_at_the_end_of_a_finished_shard_leaves_it_finished() -> None:
    play = in_state(ShardState.OVER)
    assert force(play, "0", 100) == ""
    assert play.state("0") == "OVER"


def finished_parent() -> Play:
    """Shard 0 is finished; its child 1 is held, its child 2 waits for 3 too, 4 is a child of 1 and finished."""
    play = Play(spec(1, ordered=True))
    infos = [CLOSED, info("3", open=False), info("1", parents=["0"], open=False)]
    infos += [info("2", parents=["0", "3"]), info("4", parents=["1"])]
    play.discover(infos)
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    play.settle("g-0")
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC", "2": "WAIT", "3": "ALREADY_ALLOC", "4": "WAIT"}
    return play


def test_reviving_a_shard_whose_descendants_were_read_is_told_as_a_warning_that_names_them() -> None:
    play = finished_parent()
    play.checkpoint("g-0", "1", 100)
    play.settle("g-0")
    warning = "descendants of t/0 were read before it, so the order of its keys can break: t/1, t/4"
    assert force(play, "0", 50) == warning
    (revived,) = [event for event in play.events if event.reason == "ShardRevived"]
    assert (revived.warning, revived.message) == (True, f"finished shard t/0 is read again from 50; {warning}")


def test_reviving_a_shard_keeps_those_waiting_that_still_wait_and_spares_those_being_read() -> None:
    play = finished_parent()
    force(play, "0", 50)
    play.checkpoint("g-0", "3", 100)
    play.settle("g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC", "2": "WAIT", "3": "OVER", "4": "WAIT"}
    play.checkpoint("g-0", "0", 100)
    play.settle("g-0")
    assert (play.state("0"), play.state("2")) == ("OVER", "ALREADY_ALLOC")


@pytest.mark.parametrize("revived", ["0", "1"])
def test_a_shard_waits_on_if_one_parent_is_finished_and_another_is_set_back_in_the_same_commit(revived: str) -> None:
    (finished,) = {"0", "1"} - {revived}
    play = Play(spec(1, ordered=True))
    play.discover([info("0", open=False), info("1", open=False), info("2", parents=["0", "1"])])
    play.settle("g-0")
    play.checkpoint("g-0", revived, 100)
    play.hold_commits = True
    play.checkpoint("g-0", finished, 100)
    play.ask(ForceCheckpoint(shard(revived), 40))
    play.commit()
    play.settle("g-0")
    assert play.states() == {revived: "ALREADY_ALLOC", finished: "OVER", "2": "WAIT"}


def test_reviving_a_shard_whose_only_child_was_not_given_out_yet_breaks_no_order() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([CLOSED, info("1", parents=["0"])])
    play.settle("g-0")
    play.consumer("g-0").ready = False
    play.beat("g-0")
    play.checkpoint("g-0", "0", 100)
    assert play.states() == {"0": "OVER", "1": "NOT_ALLOC"}
    assert force(play, "0", 50) == ""


def test_a_forced_checkpoint_that_was_durable_when_the_coordinator_crashed_revives_the_shard_after_loading() -> None:
    play = in_state(ShardState.OVER)
    play.hold_commits = True
    force(play, "0", 50)
    play.log[shard("0")] = 50
    play.uncommitted = {}
    play.restart()
    play.hold_commits = False
    play.discover([CLOSED])
    play.settle("g-0")
    assert play.confirmed("g-0")["0"].position == 50


def test_a_forced_checkpoint_waits_for_a_commit_under_way() -> None:
    play = started(1, 1)
    play.hold_commits = True
    play.checkpoint("g-0", "0", 40)
    with pytest.raises(CoordinatorUnavailableError, match="is being written; ask again") as refused:
        force(play, "0", 10)
    assert refused.value.retryable
    play.hold_commits = False
    play.commit()
    force(play, "0", 10)
    assert play.shard("0").checkpoint == 10


@pytest.mark.parametrize("offset", [4, 101])
def test_a_position_that_a_closed_shard_does_not_have_is_refused(offset: int) -> None:
    play = Play(spec(1))
    play.discover([info("0", begin=5, open=False)])
    with pytest.raises(InvalidRequestError, match=f"offset {offset} for shard t/0 does not exist: it has 5 to 100"):
        force(play, "0", offset)


def test_a_position_above_the_last_known_end_of_an_open_shard_is_taken_since_it_may_have_grown() -> None:
    play = started(1, 1)
    force(play, "0", 130)
    assert play.shard("0").checkpoint == 130


def test_a_forced_checkpoint_says_where_to_read_on_after_a_checkpoint_was_lost() -> None:
    play = started(2, 1)
    del play.log[shard("1")]
    play.restart()
    play.discover([info("0"), info("1")])
    play.settle("g-0")
    force(play, "1", 30)
    play.settle("g-0")
    assert play.view.withheld == ()
    assert play.confirmed("g-0")["1"].position == 30


def test_a_forced_checkpoint_of_every_recreated_shard_is_the_declared_reset() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a"), info("1", source_id="a")])
    play.settle("g-0")
    recreated = [info("0", source_id="b"), info("1", source_id="b")]
    play.discover(recreated)
    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.WITHHELD
    force(play, "0", 0)
    assert [condition.reason for condition in play.view.withheld] == ["SourceRecreated"]
    force(play, "1", 0)
    play.discover(recreated)
    assert play.view.withheld == ()
    play.settle("g-0")
    assert {each.position for each in play.confirmed("g-0").values()} == {0}


def test_a_forced_checkpoint_is_begun_while_commits_are_withheld_and_its_failure_fences_nobody() -> None:
    play = started(1, 1)
    play.ask(ConditionsChanged(commits=False))
    play.hold_commits = True
    force(play, "0", 10)
    play.fail_commits()
    play.ask(ConditionsChanged())
    play.hold_commits = False
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.OK
