"""A lost ownership: rebuilt from the notes of the positions and from what consumers claim, never silently begun anew."""

from __future__ import annotations

import pytest

from shardherd.core.errors import CoordinatorUnavailableError
from shardherd.core.group import Group
from shardherd.core.model import CheckpointResult, HeldShard
from shardherd.core.notes import Note, of_group, outdated, parse
from shardherd.core.ownership import decode, encode
from tests.builders import IDENTITY, Play, info, shard, shards, spec, started, topic

SILENT = 45.0


def conditions(play: Play) -> list[str]:
    return [condition.reason for condition in play.view.withheld]


def lost(play: Play, count: int) -> None:
    """The ownership is gone, another coordinator takes over, and has looked at the source once."""
    play.lose()
    play.discover(topic(count))


def test_a_new_group_is_not_taken_for_one_that_was_lost() -> None:
    play = Play(spec(1))
    play.discover(topic(2))
    play.settle("g-0")
    assert play.reasons().count("OwnershipLost") == 0
    assert play.counts() == {"g-0": 2}


def test_positions_that_a_group_of_the_same_name_left_make_no_lost_group() -> None:
    play = Play(spec(1))
    play.log = {shard("0"): 40}
    play.noted = {shard("0"): str(Note("uid-of-the-deleted-group", 7, 9))}
    play.discover(topic(1))
    play.settle("g-0")
    assert (conditions(play), play.confirmed("g-0")["0"].position) == ([], 40)


def test_those_who_claim_keep_what_they_hold_under_the_same_epochs_and_nothing_moves() -> None:
    play = started(4, 2)
    play.die("g-1")
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    before = play.holders(), dict(play.consumer("g-0").held), dict(play.consumer("g-1").held)
    lost(play, 4)
    assert conditions(play) == ["OwnershipRebuilding"]
    play.beat("g-0", "g-1")
    assert (play.holders(), play.consumer("g-0").held, play.consumer("g-1").held) == before
    play.wait(SILENT + 1, ["g-0", "g-1"])
    assert conditions(play) == []
    assert (play.holders(), play.consumer("g-0").held, play.consumer("g-1").held) == before
    assert [reason for reason in play.reasons() if reason.startswith("Own")] == ["OwnershipLost", "OwnershipRebuilt"]


def test_nothing_unclaimed_is_granted_for_one_session_timeout_and_then_above_all_epochs_found() -> None:
    play = started(4, 1)
    play.checkpoint("g-0", "1", 40)
    lost(play, 4)
    play.run("g-0", start=2)
    play.wait(SILENT - 1, ["g-0"])
    assert set(play.holders().values()) == {None}
    play.wait(4, ["g-0"])
    assert {name: each.owner_epoch for name, each in play.confirmed("g-0").items()} == dict.fromkeys("0123", 2)
    assert play.confirmed("g-0")["1"].position == 40


def test_an_epoch_that_one_consumer_claims_is_above_what_all_others_are_given_later() -> None:
    play = started(2, 1)
    play.discover(topic(2))
    for _ in range(5):
        play.consumer("g-0").held = {shard("0"): play.shard("0").owner_epoch}
        play.beat("g-0")
    assert play.shard("1").owner_epoch > 3
    claimed = dict(play.consumer("g-0").held)
    play.consumer("g-0").held = {shard("1"): claimed[shard("1")]}
    lost(play, 2)
    play.beat("g-0")
    play.wait(SILENT + 1, ["g-0"])
    assert play.shard("0").owner_epoch == claimed[shard("1")] + 1


def test_of_two_claims_the_higher_epoch_is_right_whichever_comes_first() -> None:
    for first, second in (("g-0", "g-1"), ("g-1", "g-0")):
        play = started(2, 1)
        zombie = play.consumer("g-0")
        play.beat("g-1")
        play.beat("g-0", "g-0", "g-1")
        assert play.consumer("g-1").held == {shard("1"): 2}
        zombie.held = {shard("0"): 1, shard("1"): 1}
        lost(play, 2)
        play.beat(first, second)
        assert (play.shard("1").holder, play.shard("1").owner_epoch) == ("g-1", 2)
        zombie.held = {shard("0"): 1, shard("1"): 1}
        play.beat("g-0")
        assert zombie.reply is not None
        assert zombie.reply.fenced == (HeldShard(shard("1"), 1),)


def test_a_claim_below_the_epoch_of_the_last_commit_is_refused() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    play.checkpoint("g-1", "1", 40)
    play.consumer("g-0").held = {shard("0"): 1, shard("1"): 1}
    lost(play, 2)
    play.beat("g-0")
    assert play.holders() == {"0": "g-0", "1": None}


def test_a_consumer_that_names_one_shard_under_two_epochs_holds_the_later_one() -> None:
    play = started(1, 1)
    lost(play, 1)
    consumer = play.consumer("g-0")
    request = consumer.heartbeat()
    named = (HeldShard(shard("0"), 1), HeldShard(shard("0"), 3))
    play.ask(type(request)(request.consumer, request.incarnation, request.seq, request.revision, named))
    assert (play.shard("0").holder, play.shard("0").owner_epoch) == ("g-0", 3)


def test_no_checkpoint_is_taken_while_claims_may_come_and_all_are_afterwards() -> None:
    play = started(2, 1)
    lost(play, 2)
    play.beat("g-0")
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.WITHHELD
    play.wait(SILENT + 1, ["g-0"])
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.OK


def test_a_holder_whose_checkpoint_comes_before_its_claim_is_not_told_that_it_lost_the_shard() -> None:
    play = started(2, 1)
    play.lose()
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.WITHHELD
    play.discover(topic(2))
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.WITHHELD
    play.beat("g-0")
    play.wait(SILENT + 1, ["g-0"])
    assert play.checkpoint("g-0", "0", 40) is CheckpointResult.OK
    assert play.confirmed("g-0")["0"].owner_epoch == 1


def test_who_has_lost_a_shard_for_good_is_told_so_while_others_may_still_claim() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    play.checkpoint("g-1", "1", 40)
    lost(play, 2)
    assert play.checkpoint("g-0", "1", 41, epoch=1) is CheckpointResult.FENCED, "committed since, under a later epoch"
    play.beat("g-1")
    assert play.checkpoint("g-0", "1", 41, epoch=2) is CheckpointResult.FENCED, "claimed by another under the same epoch"
    assert play.checkpoint("g-0", "1", 41, epoch=3) is CheckpointResult.WITHHELD, "it may claim a later one"


def test_nobody_is_told_to_give_anything_up_before_the_source_was_read() -> None:
    play = started(2, 1)
    play.lose()
    with pytest.raises(CoordinatorUnavailableError, match="nothing is known until its source was read; ask again"):
        play.beat("g-0")
    play.beat("g-1")
    play.discover(topic(2))
    play.beat("g-0")
    assert set(play.confirmed("g-0")) == {"0", "1"}


def test_the_time_for_claims_starts_again_when_the_coordinator_does() -> None:
    play = started(2, 2)
    lost(play, 2)
    play.wait(30, ["g-0"])
    play.restart()
    play.discover(topic(2))
    play.wait(40, ["g-0"])
    assert (conditions(play), play.holders()["1"]) == (["OwnershipRebuilding"], None)
    play.beat("g-1")
    play.wait(6, ["g-0", "g-1"])
    assert conditions(play) == []
    assert play.counts() == {"g-0": 1, "g-1": 1}


def test_revisions_go_on_above_those_that_consumers_have_applied() -> None:
    play = started(4, 2)
    applied = play.consumer("g-0").revision
    assert applied > 2
    lost(play, 4)
    play.beat("g-0")
    assert play.consumer("g-0").revision > applied


def test_leader_epochs_go_on_above_those_that_committed() -> None:
    play = started(1, 1)
    play.group = Group.restore(play.group.ownership, play.log, play.group.spec, play.now, leader_epoch=7)
    play.discover(topic(1))
    play.settle("g-0")
    play.checkpoint("g-0", "0", 40)
    lost(play, 1)
    assert play.group.ownership.group.leader_epoch == 8


def test_a_finished_parent_stays_finished_and_its_children_are_claimed() -> None:
    play = Play(spec(1, ordered=True))
    infos = [info("0", open=False), info("1", parents=["0"], open=False), info("2", parents=["1"])]
    play.discover(infos)
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    play.settle("g-0")
    play.checkpoint("g-0", "1", 30)
    play.lose()
    play.discover(infos)
    assert play.states() == {"0": "NOT_ALLOC", "1": "NOT_ALLOC", "2": "WAIT"}
    play.beat("g-0")
    assert play.states() == {"0": "NOT_ALLOC", "1": "ALREADY_ALLOC", "2": "WAIT"}
    play.wait(SILENT + 1, ["g-0"])
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC", "2": "WAIT"}


def test_a_shard_that_waits_for_its_parent_cannot_be_claimed() -> None:
    play = Play(spec(1))
    infos = [info("0", open=False), info("1", parents=["0"])]
    play.discover(infos)
    play.settle("g-0")
    play.group = Group.new(spec(1, ordered=True), play.now, 1)
    play.discover(infos)
    play.beat("g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT"}


def test_positions_that_only_their_copies_remember_are_lost_and_not_begun_anew() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    play.log = {shard("0"): 30}
    play.noted = {}
    play.copies = {shard("0"): 40, shard("1"): 10}
    lost(play, 2)
    play.wait(SILENT + 1, ["g-1"])
    assert conditions(play) == ["CheckpointLost"]
    assert play.holders() == {"0": None, "1": None}


def test_a_topic_that_was_recreated_meanwhile_is_noticed() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a")])
    play.settle("g-0")
    play.checkpoint("g-0", "0", 40)
    play.lose()
    play.discover([info("0", source_id="b")])
    assert conditions(play) == ["OwnershipRebuilding", "SourceRecreated"]


def test_latest_does_not_skip_what_a_lost_group_had_not_seen() -> None:
    play = Play(spec(1, starting="Latest"))
    play.discover([info("0", end=90)])
    play.lose()
    play.discover([info("0", end=90), info("1", end=30)])
    assert play.log == {shard("0"): 90, shard("1"): 0}


def test_an_ownership_that_is_older_than_the_positions_is_noticed() -> None:
    play = started(2, 1)
    old = decode(encode(play.group.ownership))
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    taken = Group.restore(old, play.log, play.group.spec, play.now, leader_epoch=1).ownership
    assert not outdated(taken, play.noted)
    play.checkpoint("g-1", "1", 40)
    assert outdated(taken, play.noted), "a grant that it never heard of"
    assert outdated(taken, {shard("0"): str(Note(IDENTITY.uid, 1, 0))}), "a leader that it never heard of"
    assert not outdated(taken, {shard("0"): str(Note("another-uid", 9, 9))})


@pytest.mark.parametrize("text", ["", "1", "2 u 1 1 ", "1 u x 1 ", "1 u 1 -1 ", "set by hand", "1 u 1 1  x"])
def test_a_note_that_is_none_of_ours_counts_for_nothing(text: str) -> None:
    assert parse(text) is None
    assert of_group("u", {shard("0"): text}) == {}


def test_a_note_is_read_as_it_was_written_and_fits_beside_an_offset() -> None:
    note = Note("6a1f2c34-0000-4000-8000-000000000001", 2**63 - 1, 2**63 - 1, "c3b1a2d4-0000-4000-8000-000000000001")
    assert parse(str(note)) == note
    assert len(str(note)) <= 400


def test_what_is_noted_is_the_grant_at_the_time_of_the_commit() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    notes = play.group.notes(shards("0", "1", "9"))
    assert notes == {shard("0"): str(Note(IDENTITY.uid, 0, 1)), shard("1"): str(Note(IDENTITY.uid, 0, 2))}
