"""A lost ownership: rebuilt from the notes of the positions and from what consumers claim, never silently begun anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd import protocol
from shardherd.core.group import rebuild
from shardherd.core.group.group import Group
from shardherd.core.group.notes import Note, of_group, outdated, parse
from shardherd.core.group.ownership import decode, encode
from shardherd.core.group.records import Clocks, ConsumerRecord, GroupRecord, InFlight, Ownership, ShardRecord
from shardherd.core.group.state import GroupEvent, State, Table
from shardherd.core.model.errors import CoordinatorUnavailableError, InvalidRequestError
from shardherd.core.model.messages import MAX_INTEGER
from shardherd.core.model.nouns import CheckpointResult, ConsumerId, Heartbeat, HeartbeatReply, HeldShard, ShardState
from shardherd.core.model.requests import ForceCheckpoint, Tick
from tests.builders import IDENTITY, Play, incarnation, info, restore, shard, shards, spec, started, topic, with_settings

SILENT = 45.0
G0, G1 = ConsumerId("g-0"), ConsumerId("g-1")


def conditions(play: Play) -> list[str]:
    return [condition.reason for condition in play.view.withheld]


def moved_one() -> tuple[Play, Ownership]:
    """A group of two shards, of which g-1 holds the second under epoch 2; and the ownership of before, when g-0 held both."""
    play = started(2, 1)
    older = decode(encode(play.group.ownership))
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    assert play.consumer("g-1").held == {shard("1"): 2}
    return play, older


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
        play, _ = moved_one()
        zombie = play.consumer("g-0")
        zombie.held = {shard("0"): 1, shard("1"): 1}
        lost(play, 2)
        play.beat(first, second)
        assert (play.shard("1").holder, play.shard("1").owner_epoch) == ("g-1", 2)
        zombie.held = {shard("0"): 1, shard("1"): 1}
        play.beat("g-0")
        assert zombie.reply is not None
        assert zombie.reply.fenced == (HeldShard(shard("1"), 1),)


@pytest.mark.parametrize(
    ("how", "proven"),
    [(how, proven) for how in ("its pod starts again", "it is a new pod") for proven in (True, False)]
    + [("it lets go of the shard", False)],
)
def test_no_name_is_given_again_what_it_claimed_while_who_was_granted_it_later_may_still_claim_it(
    how: str, proven: bool
) -> None:
    play, _ = moved_one()
    zombie = play.consumer("g-0")
    zombie.held = {shard("0"): 1, shard("1"): 1}
    lost(play, 2)
    play.beat("g-0")
    assert (play.shard("1").holder, play.shard("1").owner_epoch) == ("g-0", 1)
    if how == "it lets go of the shard":
        zombie.held = {shard("0"): 1}
        play.beat("g-0")
    else:
        if proven:
            play.die("g-0")
        play.run("g-0", start=2, pod=1 if how == "its pod starts again" else 2)
    play.beat("g-0")
    assert play.shard("1").owner_epoch == 1
    play.beat("g-1")
    assert (play.shard("1").holder, play.shard("1").owner_epoch) == ("g-1", 2)
    play.wait(SILENT + 1, ["g-0", "g-1"])
    assert (set(play.confirmed("g-0")), set(play.confirmed("g-1"))) == ({"0"}, {"1"})


@pytest.mark.parametrize("pod", [1, 2])
@pytest.mark.parametrize("ordered", [True, False])
def test_what_an_earlier_run_claimed_goes_on_once_the_time_for_claims_is_over(ordered: bool, pod: int) -> None:
    play = started(2, 1, ordered=ordered)
    lost(play, 2)
    play.beat("g-0")
    play.run("g-0", start=2, pod=pod)
    play.wait(SILENT - 1, ["g-0"])
    assert {view.owner_epoch for view in play.view.shards} == {1}
    play.wait(SILENT, ["g-0"])
    assert {name: each.owner_epoch for name, each in play.confirmed("g-0").items()} == {"0": 2, "1": 2}


def test_no_position_is_forced_while_its_holder_may_still_claim_the_shard_and_go_on_from_its_own() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "1", 40)
    play.lose()
    for _ in range(2):
        with pytest.raises(CoordinatorUnavailableError, match="who holds shard t/1 is being found out; ask again"):
            play.ask(ForceCheckpoint(shard("1"), 7))
        play.discover(topic(2))
    play.wait(SILENT + 1, ["g-0"])
    play.ask(ForceCheckpoint(shard("1"), 7))
    assert (play.log[shard("1")], play.checkpoint("g-0", "1", 60)) == (7, CheckpointResult.FENCED)


def test_a_claim_below_the_epoch_of_the_last_commit_is_refused() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    play.checkpoint("g-1", "1", 40)
    play.consumer("g-0").held = {shard("0"): 1, shard("1"): 1}
    lost(play, 2)
    play.beat("g-0")
    assert play.holders() == {"0": "g-0", "1": None}


def test_who_was_not_told_that_a_position_was_forced_cannot_claim_the_shard_and_go_on_from_its_own() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "1", 40)
    play.ask(ForceCheckpoint(shard("1"), 7))
    lost(play, 2)
    play.beat("g-0")
    assert play.holders() == {"0": "g-0", "1": None}
    assert (play.checkpoint("g-0", "1", 60), play.log[shard("1")]) == (CheckpointResult.FENCED, 7)


def test_it_cannot_claim_the_shard_either_when_the_ownership_is_lost_once_more() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "1", 40)
    play.ask(ForceCheckpoint(shard("1"), 7))
    lost(play, 2)
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


def away_while_the_ownership_was_lost(*, ordered: bool) -> Play:
    """t/0 was held by g-0, which still reads it; it was not there while it was found out who holds what, and is there again."""
    play = started(2, 2, ordered=ordered)
    assert play.holders() == {"0": "g-0", "1": "g-1"}
    play.checkpoint("g-0", "0", 40)
    play.consumer("g-0").busy = {shard("0")}
    play.lose()
    play.discover([info("1")])
    play.beat("g-0", "g-1")
    play.wait(SILENT + 1, ["g-0", "g-1"])
    assert play.holders() == {"1": "g-1"}
    play.consumer("g-0").ready = False
    play.beat("g-0")
    play.discover(topic(2))
    play.beat("g-1")
    return play


def test_nobody_else_is_given_what_a_consumer_of_an_ordered_group_still_reads() -> None:
    play = away_while_the_ownership_was_lost(ordered=True)
    play.wait(10.0, ["g-0", "g-1"])
    assert play.holders() == {"0": None, "1": "g-1"}
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert (play.holders(), play.confirmed("g-1")["0"].owner_epoch) == ({"0": "g-1", "1": "g-1"}, 2)


def test_what_a_consumer_of_an_ordered_group_still_read_is_given_away_once_another_run_has_taken_its_place() -> None:
    play = away_while_the_ownership_was_lost(ordered=True)
    play.run("g-0", start=2, ready=False)
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-1", "1": "g-1"}


def test_who_still_reads_what_others_are_given_is_fenced_in_a_group_that_is_not_ordered() -> None:
    play = away_while_the_ownership_was_lost(ordered=False)
    assert play.holders() == {"0": "g-1", "1": "g-1"}
    assert play.checkpoint("g-0", "0", 60) == CheckpointResult.FENCED


def all_away_while_the_ownership_was_lost(leader: int, **settings: Any) -> Play:
    """Both shards of a group of leader 7 were not there when this leader found nothing stored; one that is new was.

    g-1 holds that. g-0, which held t/0, has been silent since.
    """
    play = started(2, 2, initial_assignment_delay=5.0, **settings)
    play.group = restore(play.group.ownership, play.log, play.group.spec, play.now, leader_epoch=7)
    play.discover(topic(2))
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1"}
    play.checkpoint("g-0", "0", 40)
    play.checkpoint("g-1", "1", 30)
    play.group = Group.new(play.group.spec, play.now, leader_epoch=leader)
    play.discover([info("2")])
    play.wait(12.0, ["g-1"])
    assert (play.holders(), conditions(play)) == ({"2": "g-1"}, [])
    return play


@pytest.mark.parametrize("leader", [1, 7])
@pytest.mark.parametrize("ordered", [True, False])
def test_shards_that_come_back_with_notes_of_a_later_leader_are_claimed_before_they_are_given_away(
    leader: int, ordered: bool
) -> None:
    play = all_away_while_the_ownership_was_lost(leader, ordered=ordered)
    play.discover(topic(3))
    play.wait(12.0, ["g-1"])
    assert (conditions(play), play.holders()) == (["OwnershipRebuilding"], {"0": None, "1": None, "2": "g-1"})
    play.beat("g-0")
    assert (play.holders()["0"], play.consumer("g-0").held[shard("0")]) == ("g-0", 1), "nobody else reads what it still reads"
    play.wait(SILENT, ["g-0", "g-1"])
    assert (conditions(play), play.holders()["0"], play.holders()["2"]) == ([], "g-0", "g-1")
    assert play.checkpoint("g-0", "0", 60) == CheckpointResult.OK


@pytest.mark.parametrize("leader", [1, 7])
def test_shards_that_come_back_once_whoever_was_silent_has_stopped_are_given_away_at_once(leader: int) -> None:
    play = all_away_while_the_ownership_was_lost(leader)
    play.wait(SILENT, ["g-1"])
    play.discover(topic(3))
    play.wait(3.0, ["g-1"])
    assert (conditions(play), play.holders()) == ([], {"0": "g-1", "1": "g-1", "2": "g-1"})


def test_a_shard_that_is_away_for_as_long_as_claims_may_come_comes_back_above_the_epoch_that_was_claimed() -> None:
    play, _ = moved_one()
    play.lose()
    play.discover([info("0")])
    play.beat("g-0", "g-1")
    play.wait(SILENT + 1, ["g-0", "g-1"])
    assert (conditions(play), play.group.ownership.group.epoch_floor) == ([], 2)
    play.discover(topic(2))
    play.wait(12.0, ["g-0", "g-1"])
    assert play.shard("1").owner_epoch == 3


def test_a_shard_that_was_claimed_while_it_was_away_and_came_back_unclaimed_is_given_above_that_epoch() -> None:
    play, _ = moved_one()
    play.lose()
    play.discover([info("0")])
    play.beat("g-0", "g-1")
    play.die("g-1")
    play.discover(topic(2))
    play.wait(SILENT + 1, ["g-0"])
    assert (conditions(play), play.shard("1").owner_epoch, play.shard("1").holder) == ([], 3, G0)


@pytest.mark.parametrize("later", [0.0, SILENT])
def test_the_next_leader_does_not_doubt_what_was_begun_anew_before_its_shards_came_back(later: float) -> None:
    play = all_away_while_the_ownership_was_lost(1)
    play.wait(later, ["g-1"])
    play.discover(topic(3))
    group = play.group.ownership.group
    assert group.leader_epoch == 8, "above that of every note"
    taken = replace(play.group.ownership, group=replace(group, leader_epoch=group.leader_epoch + 1))
    assert not outdated(taken, play.noted)


def test_shards_that_come_back_while_claims_may_come_do_not_make_that_longer() -> None:
    play = all_away_while_the_ownership_was_lost(1)
    play.discover([info("0"), info("2")])
    play.noted[shard("1")] = str(Note(IDENTITY.uid, 9, 1))
    play.wait(SILENT - 6.0, ["g-0", "g-1"])
    play.discover(topic(3))
    assert (conditions(play), play.group.ownership.group.leader_epoch) == (["OwnershipRebuilding"], 10)
    play.wait(9.0, ["g-0", "g-1"])
    assert conditions(play) == []
    assert play.reasons().count("OwnershipLost") == 1


def test_a_shard_with_a_note_of_an_earlier_leader_makes_no_lost_group() -> None:
    play = started(2, 1)
    play.group = restore(play.group.ownership, play.log, play.group.spec, play.now, leader_epoch=7)
    play.discover(topic(2))
    play.log[shard("2")], play.noted[shard("2")] = 40, str(Note(IDENTITY.uid, 6, 3))
    play.discover(topic(3))
    assert (conditions(play), play.group.ownership.group.leader_epoch) == ([], 7)


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


@pytest.mark.parametrize("number", [rebuild.LARGEST + 1, MAX_INTEGER])
def test_a_revision_or_an_epoch_that_nobody_can_have_been_told_is_refused_and_changes_nothing(number: int) -> None:
    play = started(2, 1)
    play.restart()
    before = play.group.ownership
    heard = play.consumer("g-0").heartbeat()
    for wrong, named in (
        (structs.replace(heard, revision=number), f"has revision {number}, which no coordinator has given"),
        (structs.replace(heard, held=(HeldShard(shard("1"), number),)), f"has ownerEpoch {number} for shard 't/1'"),
        (structs.replace(heard, held=(HeldShard(shard("9"), number),)), f"has ownerEpoch {number} for shard 't/9'"),
    ):
        with pytest.raises(InvalidRequestError, match=named):
            play.ask(wrong)
    assert play.group.ownership == before


def test_after_the_largest_revision_and_epoch_that_are_believed_the_next_ones_can_be_told_and_named() -> None:
    play = started(2, 1)
    play.restart()
    claimed = structs.replace(
        play.consumer("g-0").heartbeat(), revision=rebuild.LARGEST, held=(HeldShard(shard("0"), rebuild.LARGEST),)
    )
    play.ask(claimed)
    play.run("g-0", start=2)
    play.wait(SILENT + 1, ["g-0"])
    play.settle("g-0")
    assert play.consumer("g-0").revision > rebuild.LARGEST
    assert play.confirmed("g-0")["0"].owner_epoch == rebuild.LARGEST + 1
    assert protocol.loads(HeartbeatReply, protocol.dumps(play.answer(play.consumer("g-0").heartbeat()))).confirmed


def test_leader_epochs_go_on_above_those_that_committed() -> None:
    play = started(1, 1)
    play.group = restore(play.group.ownership, play.log, play.group.spec, play.now, leader_epoch=7)
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


def test_a_child_stays_with_its_holder_though_its_parent_is_read_again() -> None:
    play = Play(spec(1, ordered=True))
    infos = [info("0", open=False), info("1", parents=["0"])]
    play.discover(infos)
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    play.settle("g-0")
    play.ask(ForceCheckpoint(shard("0"), 30))
    play.settle("g-0")
    before = play.states(), dict(play.consumer("g-0").held)
    assert before[0] == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}
    play.lose()
    play.discover(infos)
    assert play.states() == {"0": "NOT_ALLOC", "1": "WAIT"}
    assert play.checkpoint("g-0", "1", 20) is CheckpointResult.WITHHELD
    play.beat("g-0")
    assert (play.states(), play.consumer("g-0").held) == before
    play.wait(SILENT + 1, ["g-0"])
    assert (play.states(), play.consumer("g-0").held) == before
    assert play.checkpoint("g-0", "1", 20) is CheckpointResult.OK


def test_a_child_that_nobody_claims_waits_for_its_parent() -> None:
    play = Play(spec(1))
    infos = [info("0", open=False), info("1", parents=["0"])]
    play.discover(infos)
    play.settle("g-0")
    play.group = Group.new(spec(1, ordered=True), play.now, 1)
    play.discover(infos)
    play.wait(SILENT + 1, ["g-1"])
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT"}


def test_a_group_that_became_ordered_when_its_ownership_was_lost_spares_what_its_consumers_read() -> None:
    play = Play(spec(1))
    infos = [info("0", open=False), info("1", parents=["0"])]
    play.discover(infos)
    play.settle("g-0")
    play.group = Group.new(spec(1, ordered=True), play.now, 1)
    play.discover(infos)
    play.beat("g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}


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
    found = [info("0", end=90), info("1", end=30)]
    play.discover(found)
    assert play.log == {shard("0"): 90}, "nothing is begun while somebody may claim it"
    play.wait(SILENT + 1)
    play.discover(found)
    assert play.log == {shard("0"): 90, shard("1"): 0}


def made_anew_while_the_ownership_was_lost(starting: str = "Earliest", **settings: Any) -> Play:
    """t/0 was deleted with its offsets and made anew. g-0 has read on in it, from where it was in the one before, and then the
    ownership was lost: nothing that is stored tells of the shard before."""
    play = Play(spec(1, starting=starting, **settings))
    play.discover([info("0", source_id="a"), info("1", source_id="x")])
    play.settle("g-0")
    play.checkpoint("g-0", "0", 27)
    del play.log[shard("0")], play.noted[shard("0")]
    play.lose()
    play.discover(ANEW)
    return play


ANEW = (info("0", source_id="b"), info("1", source_id="x"))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("starting", ["Earliest", "Latest"])
def test_who_claims_a_shard_without_a_durable_position_does_not_go_on_from_its_own(starting: str, ordered: bool) -> None:
    play = made_anew_while_the_ownership_was_lost(starting, ordered=ordered)
    request = play.consumer("g-0").heartbeat()
    assert HeldShard(shard("0"), 1) in request.held
    play.beat("g-0")
    assert (play.holders(), set(play.consumer("g-0").held)) == ({"0": None, "1": "g-0"}, {shard("1")})
    assert play.checkpoint("g-0", "0", 37, epoch=1) is CheckpointResult.FENCED
    assert conditions(play) == ["OwnershipRebuilding", "CheckpointLost"]
    play.wait(SILENT + 1, ["g-0"])
    play.discover(ANEW)
    assert (conditions(play), play.log.get(shard("0"))) == (["CheckpointLost"], None), "nobody knows where to read on"
    play.ask(ForceCheckpoint(shard("0"), 0))
    play.settle("g-0")
    assert (play.confirmed("g-0")["0"].position, play.confirmed("g-0")["0"].owner_epoch) == (0, 2)


def test_whoever_saves_such_a_position_before_it_claims_the_shard_is_told_that_it_lost_it() -> None:
    play = made_anew_while_the_ownership_was_lost()
    assert play.checkpoint("g-0", "0", 37, epoch=1) is CheckpointResult.FENCED
    assert play.checkpoint("g-0", "1", 37, epoch=1) is CheckpointResult.WITHHELD


def test_nor_does_it_when_the_next_leader_hears_of_the_claim() -> None:
    play = made_anew_while_the_ownership_was_lost()
    play.restart()
    play.discover(ANEW)
    play.beat("g-0")
    assert (play.holders(), conditions(play)) == ({"0": None, "1": "g-0"}, ["OwnershipRebuilding", "CheckpointLost"])


def test_nor_does_it_where_a_copy_of_its_position_is_left() -> None:
    play = made_anew_while_the_ownership_was_lost()
    play.lose()
    play.copies = {shard("0"): 27}
    play.discover(ANEW)
    play.beat("g-0")
    assert play.holders() == {"0": None, "1": "g-0"}
    play.wait(SILENT + 1, ["g-0"])
    assert (conditions(play), play.checkpoint("g-0", "0", 37, epoch=1)) == (["CheckpointLost"], CheckpointResult.FENCED)


def test_what_was_refused_is_later_given_under_an_epoch_above_the_one_that_was_claimed() -> None:
    play = made_anew_while_the_ownership_was_lost()
    claimed = structs.replace(play.consumer("g-0").heartbeat(), held=(HeldShard(shard("0"), 9),))
    play.ask(claimed)
    play.run("g-0", start=2)
    play.wait(SILENT + 1, ["g-0"])
    play.ask(ForceCheckpoint(shard("0"), 0))
    play.settle("g-0")
    assert play.confirmed("g-0")["0"].owner_epoch == 10


def test_a_shard_without_a_durable_position_that_nobody_claims_is_read_from_its_beginning() -> None:
    play = made_anew_while_the_ownership_was_lost("Latest")
    play.run("g-0", start=2)
    play.wait(SILENT + 1, ["g-0"])
    play.discover(ANEW)
    play.settle("g-0")
    assert (conditions(play), play.confirmed("g-0")["0"].position) == ([], 0)


def begun_anew_without_any_trace(starting: str = "Earliest") -> Play:
    """As above, but t/0 is all that this leader is shown at first: it begins the group anew, and hears of g-0 only then."""
    play = made_anew_while_the_ownership_was_lost(starting)
    del play.log[shard("1")], play.noted[shard("1")]
    stored = Ownership(GroupRecord(IDENTITY.uid), {}, {})
    play.group = restore(stored, {}, play.group.spec, play.now, leader_epoch=7)
    play.discover(ANEW)
    return play


@pytest.mark.parametrize("granted", [True, False])
def test_nor_where_the_group_was_begun_anew_before_anybody_claimed_it(granted: bool) -> None:
    play = begun_anew_without_any_trace()
    if granted:
        play.settle("g-1")
        play.wait(12.0, ["g-1"])
        assert play.holders() == {"0": "g-1", "1": "g-1"}
    request = structs.replace(play.consumer("g-0").heartbeat(), held=(HeldShard(shard("0"), 5),), revision=99)
    play.ask(request)
    assert (conditions(play), play.holders()["0"]) == (["OwnershipRebuilding"], None)
    assert play.checkpoint("g-0", "0", 37, epoch=5) is CheckpointResult.FENCED
    play.run("g-0", start=2)
    play.wait(SILENT + 1, ["g-0"])
    play.settle("g-0")
    assert (play.log[shard("0")], play.confirmed("g-0")["0"].position) == (0, 0)
    assert play.confirmed("g-0")["0"].owner_epoch == 6


def test_where_it_was_begun_at_its_latest_record_the_holder_goes_on_as_nobody_else_would_read_what_was_before() -> None:
    play = begun_anew_without_any_trace("Latest")
    play.beat("g-0")
    assert (play.log[shard("0")], play.consumer("g-0").held[shard("0")]) == (100, 1)


@pytest.mark.parametrize("rebuilt", [True, False])
def test_which_shards_were_begun_is_forgotten_once_nobody_can_claim_them(rebuilt: bool) -> None:
    play = begun_anew_without_any_trace()
    if rebuilt:
        play.beat("g-0")
    play.wait(SILENT - 1, ["g-1"])
    play.discover([*ANEW, info("2")])
    assert play.group._state.clocks.begun == frozenset(shards("0", "1") if rebuilt else shards("0", "1", "2"))
    play.wait(SILENT, ["g-1"])
    assert play.group._state.clocks.begun == frozenset()
    play.discover([*ANEW, info("3")])
    assert play.group._state.clocks.begun == frozenset()


def test_and_not_before_the_time_for_claims_is_over_also_where_that_begins_late() -> None:
    play = begun_anew_without_any_trace()
    play.run("g-1")
    play.wait(SILENT - 5, ["g-1"])
    play.ask(structs.replace(play.consumer("g-0").heartbeat(), revision=99))
    play.wait(10, ["g-1"])
    play.ask(Tick())
    assert (conditions(play), play.group._state.clocks.begun) == (["OwnershipRebuilding"], frozenset(shards("0", "1")))


def test_whoever_holds_a_shard_of_which_nothing_was_committed_but_its_start_keeps_it() -> None:
    play = Play(spec(1, starting="Latest"))
    play.discover([info("0", end=90)])
    play.settle("g-0")
    play.lose()
    play.discover([info("0", end=120)])
    play.beat("g-0")
    assert (play.holders(), play.consumer("g-0").held) == ({"0": "g-0"}, {shard("0"): 1})
    play.wait(SILENT + 1, ["g-0"])
    assert (play.checkpoint("g-0", "0", 110), conditions(play)) == (CheckpointResult.OK, [])


def put_back(play: Play, older: Ownership) -> None:
    """Another coordinator takes over, from an ownership that was stored earlier, and has looked at the source once."""
    group = replace(older.group, leader_epoch=older.group.leader_epoch + 1, revision=older.group.revision + 1)
    play.group = restore(replace(older, group=group), dict(play.log), play.group.spec, play.now)
    play.discover(topic(len(older.shards)))


def moved_on() -> tuple[Play, Ownership]:
    """An ordered group whose four shards are held by two; and the ownership of before, when g-0 held all. Nothing is committed
    since."""
    play = started(4, 1, ordered=True)
    older = play.group.ownership
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}
    return play, older


@pytest.mark.parametrize("first", ["g-0", "g-1"])
def test_an_older_ownership_is_known_by_what_consumers_were_told_since_and_nobody_holds_what_another_does(first: str) -> None:
    play, older = moved_on()
    before = play.holders(), dict(play.consumer("g-0").held), dict(play.consumer("g-1").held)

    put_back(play, older)
    play.beat(first)
    assert conditions(play) == ["OwnershipRebuilding"]
    assert not set(play.consumer("g-0").held) & set(play.consumer("g-1").held)
    play.beat("g-0", "g-1")
    assert (play.holders(), play.consumer("g-0").held, play.consumer("g-1").held) == before

    play.wait(SILENT + 1, ["g-0", "g-1"])
    assert conditions(play) == []
    assert (play.holders(), play.consumer("g-0").held, play.consumer("g-1").held) == before
    assert [reason for reason in play.reasons() if reason.startswith("Own")] == ["OwnershipLost", "OwnershipRebuilt"]


def test_an_older_ownership_is_known_by_an_epoch_that_it_never_gave_too() -> None:
    play, older = moved_on()
    put_back(play, older)
    heartbeat = play.consumer("g-1").heartbeat()
    play.ask(structs.replace(heartbeat, revision=1))
    assert conditions(play) == ["OwnershipRebuilding"]
    assert play.held_by("g-1") == {each.removeprefix("t/") for each in play.consumer("g-1").held}


def test_what_nobody_claims_waits_for_who_may_not_have_heard_that_the_session_timeout_is_shorter() -> None:
    play = started(4, 1, ordered=True, session_timeout=180.0)
    older = play.group.ownership
    play.settle("g-0", "g-1")
    play.change(with_settings(play.group.spec, session_timeout=20.0))
    put_back(play, older)
    play.beat("g-0")
    assert (conditions(play), play.counts()) == (["OwnershipRebuilding"], {"g-0": 2})
    play.wait(178, ["g-0"])
    assert (conditions(play), play.counts()) == (["OwnershipRebuilding"], {"g-0": 2})
    play.wait(10, ["g-0"])
    assert (conditions(play), play.counts()) == ([], {"g-0": 4})


@pytest.mark.parametrize("claimed_first", [False, True])
def test_a_position_set_while_an_older_ownership_is_found_out_fences_all_who_claim_the_shard(claimed_first: bool) -> None:
    play, older = moved_one()
    put_back(play, older)
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("1"), 7))
    if claimed_first:
        play.beat("g-1", "g-0")
    else:
        play.ask(structs.replace(play.consumer("g-1").heartbeat(), held=()))
    play.hold_commits = False
    play.commit()
    play.beat("g-0", "g-1")
    assert (play.shard("1").holder, shard("1") in play.consumer("g-0").held, shard("1") in play.consumer("g-1").held) == (
        None, False, False,
    )  # fmt: skip

    play.wait(SILENT + 1, ["g-0", "g-1"])
    (row,) = [each for name in ("g-0", "g-1") for each in play.confirmed(name).values() if each.shard == shard("1")]
    assert (row.owner_epoch, row.position) == (3, 7)


def test_of_two_claims_the_later_is_right_also_while_a_commit_of_the_earlier_is_under_way() -> None:
    play, older = moved_one()
    put_back(play, older)
    play.hold_commits = True
    play.consumer("g-0").held[shard("1")] = 1
    play.checkpoint("g-0", "1", 30)
    play.beat("g-1")
    play.hold_commits = False
    play.commit()
    play.beat("g-0", "g-1")
    assert (play.shard("1").holder, play.shard("1").owner_epoch) == ("g-1", 2)
    assert play.consumer("g-0").held == {shard("0"): 1}


def test_who_was_silent_for_a_session_and_names_what_was_never_given_changes_nothing() -> None:
    play, older = moved_on()
    late = play.consumer("g-1").heartbeat()
    put_back(play, older)
    play.run("g-0", start=2)
    play.wait(SILENT + 1, ["g-0"])
    before = play.holders()
    play.ask(late)
    assert (conditions(play), play.holders()) == ([], before)


def test_what_is_named_before_the_first_look_of_an_older_ownership_without_shards_is_to_be_named_again() -> None:
    play = Play(spec(1))
    play.discover([])
    older = play.group.ownership
    play.discover(topic(2))
    play.settle("g-0")
    before = dict(play.consumer("g-0").held)
    play.group = restore(older, {}, play.group.spec, play.now)
    with pytest.raises(CoordinatorUnavailableError, match="g-0 names shards of group demo/clicks, of which nothing is known"):
        play.beat("g-0")
    play.discover(topic(2))
    play.beat("g-0")
    assert (conditions(play), play.consumer("g-0").held) == (["OwnershipRebuilding"], before)


def test_an_ownership_as_it_was_left_is_doubted_by_nobody() -> None:
    play, _ = moved_on()
    put_back(play, play.group.ownership)
    play.settle("g-0", "g-1")
    assert conditions(play) == []
    assert "OwnershipLost" not in play.reasons()


def remains(*rows: ShardRecord, **record: Any) -> State:
    """A group of g-0 and g-1 whose ownership is being rebuilt, with these shards."""
    state = State(
        spec(2),
        GroupRecord(IDENTITY.uid, **{"discovered": True, "rebuilding": True, "revision": 3, **record}),
        Clocks(claims_until=1045.0, seen=True),
    )
    for row in rows:
        state.set(Table.SHARDS, row.shard, None, row)
        state.set(Table.POSITIONS, row.shard, None, row.start)
    for name in (G0, G1):
        state.put_consumer(ConsumerRecord(name, incarnation(name)))
    state.begin()
    return state


def free(name: str, epoch: int, of: ShardState = ShardState.NOT_ALLOC) -> ShardRecord:
    return ShardRecord(shard(name), of, 0, owner_epoch=epoch)


def held(name: str, epoch: int, by: ConsumerId = G1, start: int = 1, **fields: Any) -> ShardRecord:
    run = incarnation(by, start)
    row = ShardRecord(shard(name), ShardState.ALREADY_ALLOC, 0, False, by, run, None, by, epoch, epoch)
    return row._replace(**fields)


def claims(*epochs: int | tuple[int, ...], revision: int = 0) -> Heartbeat:
    """A heartbeat of g-0 that names shards 0, 1 and so on under these epochs."""
    pairs = [(str(number), each if isinstance(each, tuple) else (each,)) for number, each in enumerate(epochs)]
    named = tuple(HeldShard(shard(name), epoch) for name, several in pairs for epoch in several)
    return Heartbeat(G0, incarnation(G0), 1, revision, named)


ROWS = (
    free("0", 4),
    free("1", 5),
    held("2", 2),
    held("3", 3),
    held("4", 2, G0),
    held("5", 2, G0, start=2),
    held("6", 2),
    free("7", 0, ShardState.WAIT),
    free("8", 0, ShardState.OVER),
    free("9", 3),
    free("10", 5, ShardState.WAIT),
)


def test_a_claim_counts_for_a_free_shard_from_its_epoch_on_and_for_a_held_one_above_it() -> None:
    state = remains(*ROWS)
    state.put_in_flight(shard("6"), InFlight(40))
    rebuild.claim(state, claims(4, 4, 3, 3, 3, 3, 3, 9, 9, (2, 3, 1), 4, 9), 1005.0)
    granted: dict[str, Any] = {"revision": 4, "since": 1005.0}
    assert list(state.shards.values()) == [
        held("0", 4, G0, **granted),
        free("1", 5),
        held("2", 3, G0, **granted),
        held("3", 3),
        held("4", 2, G0),
        held("5", 3, G0, **granted),
        held("6", 3, G0, **granted),
        held("7", 9, G0, **granted),
        free("8", 0, ShardState.OVER),
        held("9", 3, G0, **granted),
        free("10", 5, ShardState.WAIT),
    ]


def test_a_claim_of_a_shard_without_a_position_is_refused_and_its_epoch_never_given_again() -> None:
    state = remains(*ROWS)
    for row in ROWS:
        state.put_position(row.shard, None)
    rebuild.claim(state, claims(4, 4, 3, 3, 3, 3, 3, 9, 9, (2, 3, 1), 4, 9), 1005.0)
    assert list(state.shards.values()) == [
        free("0", 4)._replace(started=True),
        free("1", 5),
        free("2", 3)._replace(held_since_epoch=2, last_holder=G1, started=True, since=1005.0),
        held("3", 3),
        held("4", 2, G0),
        free("5", 3)._replace(held_since_epoch=2, last_holder=G0, started=True, since=1005.0),
        free("6", 3)._replace(held_since_epoch=2, last_holder=G1, started=True, since=1005.0),
        free("7", 9, ShardState.WAIT)._replace(started=True),
        free("8", 0, ShardState.OVER),
        free("9", 3)._replace(started=True),
        free("10", 5, ShardState.WAIT),
    ]


@pytest.mark.parametrize(("applied", "revision"), [(2, 3), (3, 3), (9, 9)])
def test_the_revision_is_never_below_one_that_a_consumer_has_applied(applied: int, revision: int) -> None:
    state = remains()
    rebuild.claim(state, claims(revision=applied), 1005.0)
    assert state.record.revision == revision


def test_nothing_is_claimed_of_a_group_that_was_not_lost() -> None:
    state = remains(*ROWS, rebuilding=False)
    rebuild.claim(state, claims(9, 9, 9, 9, revision=9), 1045.0)
    assert state.journal == []


@pytest.mark.parametrize(
    ("row", "epochs"),
    [
        (None, {1, 2, 3}),
        (free("0", 2), {2, 3}),
        (held("0", 2), {3}),
        (held("0", 2)._replace(state=ShardState.TRANSFER), set()),
        (free("0", 2, ShardState.WAIT), {2, 3}),
        (free("0", 2, ShardState.OVER), set()),
    ],
)
def test_who_names_these_epochs_may_still_claim_the_shard(row: ShardRecord | None, epochs: set[int]) -> None:
    def claimable(state: State) -> set[int]:
        return {epoch for epoch in (1, 2, 3) if rebuild.may_be_claimed(state, shard("0"), epoch)}

    rows = () if row is None else (row,)
    assert claimable(remains(*rows)) == epochs
    assert claimable(remains(*rows, discovered=False, rebuilding=False)) == epochs
    assert claimable(remains(*rows, rebuilding=False)) == set()


def test_nobody_may_claim_a_free_shard_without_a_position() -> None:
    for of in (ShardState.NOT_ALLOC, ShardState.WAIT):
        state = remains(free("0", 2, of))
        state.put_position(shard("0"), None)
        assert not any(rebuild.may_be_claimed(state, shard("0"), epoch) for epoch in (1, 2, 3)), of


def test_at_the_end_what_nobody_claimed_is_free_above_all_epochs() -> None:
    state = remains(free("0", 4), held("1", 7), free("2", 0, ShardState.WAIT), free("3", 2, ShardState.OVER))
    rebuild.end_if_due(state, 1044.9)
    assert state.journal == []
    rebuild.end_if_due(state, 1045.0)
    assert list(state.shards.values()) == [
        free("0", 7),
        held("1", 7),
        free("2", 7, ShardState.WAIT),
        free("3", 2, ShardState.OVER),
    ]
    assert (state.record.rebuilding, state.clocks.resumed_at, state.clocks.due) == (False, 1045.0, "OwnershipRebuilt")
    assert [event for event in state.journal if isinstance(event, GroupEvent)] == [
        GroupEvent("OwnershipRebuilt", "2 shards were claimed by their holders, 2 are free")
    ]
    state.begin()
    rebuild.end_if_due(state, 1050.0)
    assert state.journal == []


def test_a_single_shard_that_was_claimed_and_one_that_is_free_are_told_as_one_each() -> None:
    state = remains(free("0", 4), held("1", 7))
    rebuild.end_if_due(state, 1045.0)
    assert [event for event in state.journal if isinstance(event, GroupEvent)] == [
        GroupEvent("OwnershipRebuilt", "1 shard was claimed by its holder, 1 is free")
    ]


def test_a_group_whose_shards_are_gone_is_rebuilt_too() -> None:
    state = remains()
    rebuild.end_if_due(state, 1045.0)
    assert state.record.rebuilding is False


@pytest.mark.parametrize(
    ("notes", "before", "after"),
    [([(4, 9), (6, 1)], 1, 7), ([(4, 9), (6, 1)], 9, 9), ([], 0, 1)],
)
def test_a_group_of_which_there_is_a_trace_was_lost(notes: list[tuple[int, int]], before: int, after: int) -> None:
    state = remains(rebuilding=False, leader_epoch=before)
    written = {shard(str(number)): Note(IDENTITY.uid, *epochs) for number, epochs in enumerate(notes)}
    rebuild.begin(state, written, {shard("5"): 40}, 1005.0)
    assert (state.record.rebuilding, state.record.leader_epoch, state.clocks.claims_until) == (True, after, 1050.0)
    assert [event for event in state.journal if isinstance(event, GroupEvent)] == [
        GroupEvent(
            "OwnershipLost",
            f"who holds which shard was lost, and is found out from {len(notes)} committed positions and from the consumers; "
            "nothing is granted or committed for 45 s",
            warning=True,
        )
    ]


def test_notes_alone_are_a_trace_and_without_any_nothing_was_lost() -> None:
    state = remains(rebuilding=False)
    rebuild.begin(state, {}, {}, 1005.0)
    assert state.journal == []
    rebuild.begin(state, {shard("0"): Note(IDENTITY.uid, 1, 1)}, {}, 1005.0)
    assert state.record.rebuilding is True


@pytest.mark.parametrize(
    ("leader", "dropped", "unheard"),
    [(3, 9, set()), (3, 8, {"2"}), (2, 9, {"1"}), (3, 0, {"0", "1", "2"})],
)
def test_a_group_stored_without_shards_had_none_above_those_that_were_dropped(
    leader: int, dropped: int, unheard: set[str]
) -> None:
    state = remains(rebuilding=False, leader_epoch=leader, epoch_floor=dropped)
    notes = {shard(name): Note(IDENTITY.uid, *epochs) for name, epochs in {"0": (1, 0), "1": (2, 8), "2": (1, 9)}.items()}
    assert rebuild.unheard_of(state, notes) == {shard(name): notes[shard(name)] for name in unheard}


SAID: dict[str, Ownership] = {
    "a consumer": Ownership(GroupRecord(IDENTITY.uid), {}, {G0: ConsumerRecord(G0, incarnation("g-0"), present=False)}),
    "a shard": Ownership(GroupRecord(IDENTITY.uid), {shard("0"): free("0", 0)}, {}),
    "an epoch of the group": Ownership(GroupRecord(IDENTITY.uid, group_epoch=1), {}, {}),
    "that there were no shards": Ownership(GroupRecord(IDENTITY.uid, discovered=True), {}, {}),
    "epochs of shards that were dropped": Ownership(GroupRecord(IDENTITY.uid, epoch_floor=1), {}, {}),
    "a reset that was made": Ownership(GroupRecord(IDENTITY.uid, reset_ids=("once",)), {}, {}),
}


@pytest.mark.parametrize("said", list(SAID))
def test_an_ownership_that_says_more_than_who_leads_is_no_new_groups(said: str) -> None:
    assert not SAID[said].says_nothing
    assert Ownership(GroupRecord(IDENTITY.uid, leader_epoch=7), {}, {}).says_nothing


def test_a_heartbeat_that_names_shards_before_the_source_was_read_is_to_be_sent_again() -> None:
    with pytest.raises(CoordinatorUnavailableError) as refused:
        rebuild.check_claims(remains(discovered=False), claims(1))
    assert vars(refused.value) == {
        "message": "g-0 names shards of group demo/clicks, of which nothing is known until its source was read; ask again",
        "group": "demo/clicks",
        "shard": None,
        "consumer": "g-0",
        "expected_epoch": None,
        "actual_epoch": None,
    }
    rebuild.check_claims(remains(discovered=False), claims())
    rebuild.check_claims(remains(), claims(1))


def test_an_ownership_that_is_older_than_the_positions_is_noticed() -> None:
    play = started(2, 1)
    old = decode(encode(play.group.ownership))
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    taken = restore(old, play.log, play.group.spec, play.now, leader_epoch=1).ownership
    assert not outdated(taken, play.noted)
    play.checkpoint("g-1", "1", 40)
    assert outdated(taken, play.noted), "a grant that it never heard of"
    assert outdated(taken, {shard("0"): str(Note(IDENTITY.uid, 1, 0))}), "a leader that it never heard of"
    assert not outdated(taken, {shard("0"): str(Note("another-uid", 9, 9))})


@pytest.mark.parametrize(
    "text", ["", "1", "2 u 1 1 ", "1 u x 1 ", "1 u 1 -1 ", "set by hand", "1 u 1 1  x", "1 u 1 1  forced x"]
)
def test_a_note_that_is_none_of_ours_counts_for_nothing(text: str) -> None:
    assert parse(text) is None
    assert of_group("u", {shard("0"): text}) == {}


def test_a_note_has_its_format_group_epochs_and_source() -> None:
    assert [str(Note("u", 2, 3, "s")), str(Note("u", 2, 3))] == ["1 u 2 3 s", "1 u 2 3 "]
    assert [parse("1 u 2 3 s"), parse("1 u 2 3 ")] == [Note("u", 2, 3, "s"), Note("u", 2, 3)]


def test_a_note_says_whether_its_position_was_forced_and_what_older_versions_wrote_does_not() -> None:
    assert [str(Note("u", 2, 3, "s", forced=True)), str(Note("u", 2, 3, forced=True))] == [
        "1 u 2 3 s forced",
        "1 u 2 3  forced",
    ]
    assert [parse("1 u 2 3 s forced"), parse("1 u 2 3  forced")] == [
        Note("u", 2, 3, "s", forced=True),
        Note("u", 2, 3, forced=True),
    ]
    assert [note.lowest_claim for note in (Note("u", 2, 3), Note("u", 2, 3, forced=True))] == [3, 4]


def test_a_forced_position_whose_holder_is_not_fenced_yet_makes_no_older_ownership() -> None:
    ownership = Ownership(GroupRecord("u", leader_epoch=5), {shard("0"): free("0", 6)}, {})
    assert not outdated(ownership, {shard("0"): "1 u 4 6  forced"})


def test_what_is_noted_with_another_position_of_a_shard_does_not_say_that_it_is_forced() -> None:
    play = started(1, 1)
    play.checkpoint("g-0", "0", 40)
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 7))
    assert play.group.notes({shard("0"): 40}) == {shard("0"): str(Note(IDENTITY.uid, 0, 1))}
    play.hold_commits = False
    play.commit()
    assert parse(play.noted[shard("0")]) == Note(IDENTITY.uid, 0, 1, forced=True)
    play.beat("g-0", "g-0")
    play.checkpoint("g-0", "0", 50)
    assert parse(play.noted[shard("0")]) == Note(IDENTITY.uid, 0, 2)


def test_the_notes_of_this_very_group_are_those_with_its_uid() -> None:
    texts = {shard("0"): "1 u 2 3 ", shard("1"): "1 another 2 3 ", shard("2"): "set by hand"}
    assert of_group("u", texts) == {shard("0"): Note("u", 2, 3)}


@pytest.mark.parametrize(
    ("name", "note", "known"),
    [
        ("0", "1 u 4 6 ", True),
        ("0", "1 u 5 6 ", False),
        ("0", "1 u 4 7 ", False),
        ("9", "1 u 4 7 ", True),
        ("9", "1 u 6 7 ", False),
        ("0", "1 another 6 7 ", True),
    ],
)
def test_an_ownership_knows_earlier_leaders_and_its_own_grants(name: str, note: str, known: bool) -> None:
    ownership = Ownership(GroupRecord("u", leader_epoch=5), {shard("0"): free("0", 6)}, {})
    assert outdated(ownership, {shard("1"): "1 u 0 0 ", shard(name): note}) is not known


def test_a_note_is_read_as_it_was_written_and_fits_beside_an_offset() -> None:
    note = Note(
        "6a1f2c34-0000-4000-8000-000000000001", 2**63 - 1, 2**63 - 1, "c3b1a2d4-0000-4000-8000-000000000001", forced=True
    )
    assert parse(str(note)) == note
    assert len(str(note)) <= 400


def test_what_is_noted_is_the_grant_at_the_time_of_the_commit() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.beat("g-0", "g-0", "g-1")
    notes = play.group.notes(dict.fromkeys(shards("0", "1", "9"), 5))
    assert notes == {shard("0"): str(Note(IDENTITY.uid, 0, 1)), shard("1"): str(Note(IDENTITY.uid, 0, 2))}
