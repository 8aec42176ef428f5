"""Shards that the source does not have any more: nobody is told to read them, and after a while they are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.core.group.state import GroupEvent
from shardherd.core.model.nouns import (
    CheckpointResult,
    ConsumerId,
    Growth,
    Incarnation,
    Leave,
    Reset,
    ResetState,
    ResetTo,
    ShardInfo,
    ShardState,
)
from shardherd.core.model.requests import ConditionsChanged, ForceCheckpoint, ResetDue, ShardsDiscovered
from tests.builders import IDENTITY, Play, holding, info, shard, shards, spec, started, topic, with_settings

HOUR = 3600.0
BEATING = ("g-0", "g-1")
DAY = 24 * HOUR
"""So long nobody has to read anything in these groups."""


def begun(count: int, consumers: int, **settings: Any) -> Play:
    return started(count, consumers, progress_timeout=DAY, **settings)


def looked(play: Play, infos: tuple[ShardInfo, ...], seconds: float, *beating: str) -> None:
    """So many seconds pass in which the source shows this again and again, and these consumers beat."""
    for _ in range(int(seconds // 30)):
        play.wait(30.0, beating)
        play.discover(infos)


def names(play: Play) -> set[str]:
    """All shards that the group knows of, by partition."""
    return set(play.states())


# Away for a while.


def test_whoever_holds_a_shard_that_is_gone_is_woken_and_not_told_to_read_it() -> None:
    play = holding(A="0123", B="4567")

    result = play.discover(topic(8)[1:])

    assert ConsumerId("A") in result.woken
    play.beat("A")
    assert set(play.confirmed("A")) == set("123")
    assert play.consumers["A"].held.keys() == set(shards("1", "2", "3"))


def test_who_holds_nothing_of_what_is_gone_is_left_alone() -> None:
    play = holding(A="0123", B="4567")
    result = play.discover(topic(8)[:7])
    assert result.woken == {ConsumerId("B")}


def test_that_shards_are_gone_is_told_once_and_is_a_new_epoch_of_the_group() -> None:
    play = holding(A="0123", B="4567")
    epoch = play.view.group_epoch

    play.discover(topic(8)[2:])
    play.discover(topic(8)[2:])

    events = [each for each in play.events if each.reason == "ShardsGone"]
    message = "the source has 2 shards no more: t/0, t/1; they are not read"
    assert events == [GroupEvent("ShardsGone", message, shards=shards("0", "1"), warning=True)]
    assert play.view.group_epoch == epoch + 1


def test_a_shard_that_comes_back_before_its_holder_heard_of_it_is_held_as_before() -> None:
    play = holding(A="0123", B="4567", settings={"assignor": "Range"})
    before = play.confirmed("A")

    play.discover(topic(8)[1:])
    play.discover(topic(8))
    play.beat("A")

    assert play.confirmed("A") == before


def test_a_shard_that_comes_back_is_granted_anew_at_its_checkpoint() -> None:
    play = begun(4, 1)
    play.checkpoint("g-0", "0", 40)
    play.discover(topic(4)[1:])
    play.settle("g-0")

    result = play.discover(topic(4))
    assert result.woken == {ConsumerId("g-0")}
    play.settle("g-0")

    again = play.confirmed("g-0")["0"]
    assert (again.owner_epoch, again.held_since_epoch, again.position) == (2, 1, 40)


def test_nobody_is_given_a_shard_that_is_gone_again_and_again() -> None:
    play = begun(4, 1)
    play.discover(topic(4)[1:])
    play.settle("g-0")
    epoch = play.shard("0").owner_epoch
    play.wait(60.0, ["g-0"])
    assert play.shard("0").owner_epoch == epoch


def test_only_what_is_there_is_counted() -> None:
    play = holding(A="0123", B="4567")
    play.discover((*topic(3), *topic(8)[4:]))
    assert play.counts() == {"A": 3, "B": 4}
    assert play.view.shards_in(*ShardState) == 7


def test_what_is_away_may_be_released_later_than_its_time() -> None:
    play = begun(4, 1, release_timeout=30.0, session_timeout=45.0)
    play.consumer("g-0").busy = set(shards("0", "1", "2", "3"))
    play.settle("g-0", "g-1")
    asked = sorted(name for name, state in play.states().items() if state == "TRANSFER")
    assert len(asked) == 2
    there = tuple(each for each in topic(4) if each.shard not in shards(*asked))

    play.consumer("g-0").busy = set(shards(*asked))
    play.discover(there)
    looked(play, there, 300.0, "g-0", "g-1")

    assert (play.events_of("ReleaseTimeout"), play.counts()) == (0, {"g-0": 1, "g-1": 1})
    assert {play.state(name) for name in asked} == {"TRANSFER"}


# Shards that are there, and of which nobody can say how far they reach.


def test_a_shard_without_a_leader_is_as_it_was() -> None:
    play = holding(A="0123", B="4567")
    before = play.view

    result = play.discover(topic(8)[1:], unlooked="0")

    assert (result.woken, result.events) == (frozenset(), ())
    assert play.view == before


def test_a_new_coordinator_takes_a_shard_without_a_leader_for_one_that_is_there() -> None:
    play = holding(A="0123", B="4567")
    play.restart()
    play.discover(topic(8)[1:], unlooked="0")
    play.settle("A", "B")

    assert play.counts() == {"A": 4, "B": 4}
    assert set(play.confirmed("A")) == set("0123")
    seen = play.shard("0")
    assert (seen.present, seen.end, seen.lag_records, play.view.discovered) == (True, None, None, True)
    assert play.checkpoint("A", "0", 30) is CheckpointResult.OK


def test_growth_members_and_balance_of_the_others_go_on_beside_a_shard_without_a_leader() -> None:
    play = holding(A="0123")
    play.restart()
    play.discover(topic(8)[1:], unlooked="0")
    play.settle("A", "B")
    assert sorted(play.counts().values()) == [4, 4]
    play.discover(topic(8))
    play.settle("A", "B")
    assert (sorted(play.counts().values()), set(play.states().values())) == ([4, 4], {"ALREADY_ALLOC"})


def test_a_shard_without_a_leader_is_given_to_nobody_before_it_was_looked_at() -> None:
    play = holding(A="0123", B="4567")
    play.restart()
    play.discover(topic(8)[1:], unlooked="0")
    play.die("A")
    play.settle("B")
    assert (play.state("0"), play.counts()) == ("NOT_ALLOC", {"B": 7})
    play.discover(topic(8))
    play.settle("B")
    assert play.counts() == {"B": 8}


def test_children_wait_for_a_parent_without_a_leader() -> None:
    parent = info("0", end=10, open=False)
    child = info("1", parents=["0"])
    play = Play(spec(1, ordered=True, progress_timeout=DAY))
    play.discover([parent, child])
    play.settle("g-0")
    play.restart()
    play.discover([child], unlooked="0")
    play.settle("g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT"}


def its_child_waits(restarted: bool, unlooked: str = "", kept_out: str = "") -> None:
    """A parent that had no leader when the group first looked. At the next look it is still `unlooked` at, or `kept_out`."""
    parent, child, other = info("0", end=10, open=False), info("1", parents=["0"]), info("2")
    play = Play(spec(1, ordered=True, progress_timeout=DAY))
    play.discover([child, other], unlooked="0")
    play.settle("g-0")
    assert play.states() == {"1": "WAIT", "2": "ALREADY_ALLOC"}

    if restarted:
        play.restart()
    play.discover([child, other], unlooked, kept_out)
    play.settle("g-0")
    assert play.states() == {"1": "WAIT", "2": "ALREADY_ALLOC"}

    play.discover([parent, child, other])
    play.settle("g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT", "2": "ALREADY_ALLOC"}


@pytest.mark.parametrize("restarted", [False, True])
def test_children_wait_for_a_parent_that_never_had_a_leader_while_anybody_looked(restarted: bool) -> None:
    its_child_waits(restarted, unlooked="0")


@pytest.mark.parametrize("restarted", [False, True])
def test_children_wait_for_a_parent_that_must_stay_out_of_the_group(restarted: bool) -> None:
    its_child_waits(restarted, kept_out="0")


def test_children_wait_no_more_for_a_parent_that_goes_while_it_must_stay_out_of_the_group() -> None:
    child, other = info("1", parents=["0"]), info("2")
    play = Play(spec(1, ordered=True, progress_timeout=DAY))
    play.discover([child, other], unlooked="0")
    play.discover([child, other], kept_out="0")
    play.discover([child, other])
    play.settle("g-0")
    assert play.states() == {"1": "ALREADY_ALLOC", "2": "ALREADY_ALLOC"}


def test_children_wait_no_more_for_a_parent_that_goes_before_anybody_could_look_at_it() -> None:
    child, other = info("1", parents=["0"]), info("2")
    play = Play(spec(1, ordered=True, progress_timeout=DAY))
    play.discover([child, other], unlooked="0")
    play.settle("g-0")
    play.discover([child, other])
    play.settle("g-0")
    assert play.states() == {"1": "ALREADY_ALLOC", "2": "ALREADY_ALLOC"}


def test_a_shard_that_nobody_could_look_at_yet_hides_none_that_is_gone() -> None:
    play = holding(A="0123", B="4567")
    play.discover(topic(8)[1:], unlooked="9")
    assert [each.shards for each in play.events if each.reason == "ShardsGone"] == [shards("0")]


def test_a_reset_waits_for_a_shard_without_a_leader() -> None:
    play = holding(A="0123", B="4567", settings={"paused": True})
    play.restart()
    play.discover(topic(8)[1:], unlooked="0")
    play.change(play.with_reset(Reset("r", ResetTo.LATEST)))
    waits = play.group.reset_due
    report = play.group.reset_report
    assert report is not None
    assert (report.state, report.message) == (
        ResetState.WAITING,
        "Nothing was changed yet: t/0 cannot be looked at: start the broker.",
    )

    play.discover(topic(8))
    assert (waits, play.group.reset_due) == (None, ResetDue("r"))


def test_a_reset_that_was_decided_is_not_made_before_a_shard_without_a_leader_is_set() -> None:
    play = holding(A="0123", B="4567", settings={"paused": True})
    play.hold_commits = True
    play.change(play.with_reset(Reset("r", ResetTo.LATEST)))
    play.ask(ResetDue("r"))
    play.uncommitted = {}
    play.hold_commits = False
    play.restart()
    play.discover(topic(8)[1:], unlooked="0")
    waits = play.group.reset_due

    play.discover(topic(8))
    assert (waits, play.group.reset_due) == (None, ResetDue("r"))
    play.ask(ResetDue("r"))
    assert {play.shard(str(number)).checkpoint for number in range(8)} == {100}


# Away for long.


def test_what_is_away_for_an_hour_is_forgotten() -> None:
    play = begun(4, 2)
    play.checkpoint("g-0", "0", 40)
    left = topic(4)[1:]
    play.discover(left)

    looked(play, left, HOUR - 30.0, *BEATING)
    assert names(play) == set("0123")
    looked(play, left, 60.0, *BEATING)

    assert names(play) == set("123")
    assert shard("0") not in play.group._state.positions
    assert (sum(play.counts().values()), play.events_of("ShardsForgotten")) == (3, 1)
    assert play.group.ownership.group.epoch_floor == 1


def test_fifty_topics_that_came_and_went_leave_nothing() -> None:
    play = begun(3, 2)
    for number in range(50):
        play.discover((*topic(3), *topic(1, name=f"u{number}")))
        play.settle(*BEATING)
        play.discover(topic(3))
    assert (sorted(play.counts().values()), play.view.shards_in(*ShardState)) == ([1, 2], 3)

    looked(play, topic(3), HOUR + 60.0, *BEATING)

    assert (names(play), len(play.group._state.positions)) == (set("012"), 3)
    assert sorted(play.counts().values()) == [1, 2]


def test_epochs_of_what_was_forgotten_are_not_given_out_again() -> None:
    play = begun(2, 1)
    for _ in range(3):
        play.ask(ForceCheckpoint(shard("1"), 10))
    before = play.shard("1").owner_epoch
    play.checkpoint("g-0", "1", 60)
    looked(play, topic(1), HOUR + 60.0, "g-0")
    assert names(play) == {"0"}

    play.discover(topic(2))
    play.settle("g-0")

    again = play.confirmed("g-0")["1"]
    assert (again.owner_epoch > before, again.position) == (True, 10)


def test_the_offsets_that_were_kept_say_where_a_forgotten_shard_is_read_on() -> None:
    play = begun(2, 1)
    play.settle("g-0")
    assert play.checkpoint("g-0", "1", 60) is CheckpointResult.OK
    looked(play, topic(1), HOUR + 60.0, "g-0")
    play.discover(topic(2))
    play.settle("g-0")
    assert play.confirmed("g-0")["1"].position == 60


LEFT = info("0", source_id="a")
"""What is left of two topics."""


def read_and_then_forgotten() -> Play:
    """Shard 1 was read up to 60, and has been gone for long enough."""
    play = Play(spec(1, progress_timeout=DAY))
    play.discover([LEFT, info("1", source_id="b")])
    play.settle("g-0")
    play.checkpoint("g-0", "1", 60)
    looked(play, (LEFT,), HOUR + 60.0, "g-0")
    return play


def test_a_topic_made_anew_after_its_offsets_were_forgotten_too_is_a_new_one() -> None:
    play = read_and_then_forgotten()
    del play.log[shard("1")], play.noted[shard("1")]

    play.discover([LEFT, info("1", source_id="c")])
    play.settle("g-0")

    assert (play.confirmed("g-0")["1"].position, play.view.withheld) == (0, ())


def test_a_topic_made_anew_whose_offsets_are_kept_is_still_told_from_the_one_before() -> None:
    play = read_and_then_forgotten()

    play.discover([LEFT, info("1", source_id="c")])

    assert [condition.reason for condition in play.view.withheld] == ["SourceRecreated"]


def test_nothing_is_forgotten_within_a_session_timeout() -> None:
    play = begun(2, 1, session_timeout=7200.0)
    looked(play, topic(1), 7200.0 - 30.0, "g-0")
    assert names(play) == set("01")
    looked(play, topic(1), 90.0, "g-0")
    assert names(play) == {"0"}


@pytest.mark.parametrize("happens", ["another coordinator", "no answer"])
def test_the_hour_begins_anew(happens: str) -> None:
    play = begun(2, 1)
    looked(play, topic(1), HOUR - 60.0, "g-0")
    if happens == "another coordinator":
        play.restart()
    else:
        play.ask(ConditionsChanged(source_reachable=False, source_error="no broker answers"))
        play.ask(ConditionsChanged())
    looked(play, topic(1), HOUR - 30.0, "g-0")
    assert names(play) == set("01")
    looked(play, topic(1), 90.0, "g-0")
    assert names(play) == {"0"}


def test_what_comes_back_in_time_has_its_hour_anew() -> None:
    play = begun(2, 1)
    looked(play, topic(1), HOUR - 60.0, "g-0")
    play.discover(topic(2))
    looked(play, topic(1), HOUR - 60.0, "g-0")
    assert names(play) == set("01")


def test_a_holder_that_cannot_save_what_it_has_read_is_cut_off_first() -> None:
    play = begun(2, 1)
    play.consumer("g-0").busy = {shard("1")}
    play.discover(topic(1))
    looked(play, topic(1), HOUR - 60.0, "g-0")
    assert play.checkpoint("g-0", "1", 60) is CheckpointResult.WITHHELD
    looked(play, topic(1), 150.0, "g-0")
    assert (play.shard("1").owner_epoch, play.checkpoint("g-0", "1", 60)) == (2, CheckpointResult.FENCED)
    assert names(play) == set("01")

    play.consumer("g-0").busy = set()
    looked(play, topic(1), 60.0, "g-0")

    assert names(play) == {"0"}


def test_a_cell_of_which_something_is_away_and_cannot_be_saved_moves_once_that_is_forgotten() -> None:
    play = begun(4, 1, cells=2)
    play.consumer("g-0").busy = {shard("3")}
    play.discover(topic(3))
    play.settle("g-0", "g-1")
    assert play.holders() == dict.fromkeys("0123", "g-0"), "one cell cannot move, and the other one need not"

    looked(play, topic(3), HOUR, "g-0", "g-1")
    play.consumer("g-0").busy = set()
    looked(play, topic(3), 60.0, "g-0", "g-1")
    play.settle("g-0", "g-1")

    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0"}


def test_a_holder_that_was_cut_off_reads_on_from_its_checkpoint_if_the_shard_comes_back() -> None:
    play = begun(2, 1)
    play.checkpoint("g-0", "1", 30)
    play.consumer("g-0").busy = {shard("1")}
    looked(play, topic(1), HOUR + 60.0, "g-0")
    play.discover(topic(2))
    play.beat("g-0")
    again = play.confirmed("g-0")["1"]
    assert (again.owner_epoch, again.held_since_epoch, again.position) == (2, 2, 30)


def test_what_a_silent_consumer_of_an_ordered_group_may_still_read_is_not_forgotten() -> None:
    play = begun(2, 1, ordered=True, session_timeout=HOUR)
    play.consumer("g-0").busy = {shard("1")}
    play.discover(topic(1))
    play.beat("g-0")
    looked(play, topic(1), HOUR - 60.0, "g-0")
    play.leave("g-0", stopped=False)
    looked(play, topic(1), HOUR - 90.0)
    assert names(play) == set("01")
    looked(play, topic(1), 180.0)
    assert names(play) == {"0"}


def test_nothing_is_forgotten_while_a_reset_is_being_made() -> None:
    play = begun(2, 1, paused=False)
    play.change(with_settings(play.group.spec, paused=True))
    play.hold_commits = True
    play.change(play.with_reset(Reset("r", ResetTo.LATEST)))
    play.ask(ResetDue("r"))
    looked(play, topic(1), HOUR + 60.0, "g-0")
    assert names(play) == set("01")
    play.hold_commits = False
    play.commit()
    looked(play, topic(1), 60.0, "g-0")
    assert names(play) == {"0"}


def test_a_parent_is_forgotten_before_its_children_and_they_need_not_wait_for_it() -> None:
    family = (info("0", end=10), info("1", open=False, parents=["0"]), info("2", parents=["1"]))
    play = Play(spec(1, ordered=True, progress_timeout=DAY))
    play.discover((*family, info("3")))
    play.settle("g-0")
    left = (family[2], info("3"))
    looked(play, left, HOUR + 30.0, "g-0")
    assert names(play) == {"1", "2", "3"}
    looked(play, left, 60.0, "g-0")
    assert play.states() == {"2": "ALREADY_ALLOC", "3": "ALREADY_ALLOC"}


def test_what_grew_is_not_out_of_order_for_what_was_forgotten() -> None:
    play = Play(spec(1, ordered=True, progress_timeout=DAY))
    play.discover(topic(2))
    play.settle("g-0")
    play.discover(topic(3))
    assert play.view.growths == (Growth("t", 2, 3, ((shard("0"), 100), (shard("1"), 100))),)
    looked(play, topic(3)[1:], HOUR + 60.0, "g-0")
    assert play.group.ownership.group.growths == (Growth("t", 2, 3, ((shard("1"), 100),)),)


def test_what_could_not_be_stored_is_not_forgotten() -> None:
    play = begun(2, 1)
    looked(play, topic(1), HOUR - 30.0, "g-0")
    before = play.group.ownership
    play.wait(60.0, ["g-0"])
    held = play.group.ownership

    decision = play.group.decide(ShardsDiscovered(topic(1)), play.now)
    assert (decision.persist, names(play)) == (True, {"0"})
    play.group.roll_back()

    assert (names(play), play.group.ownership.shards) == (set("01"), held.shards)
    assert before.shards == held.shards
    assert play.group._state.positions[shard("1")] == 0


def test_who_is_not_in_the_group_any_more_keeps_nothing_from_being_forgotten() -> None:
    play = begun(2, 1)
    play.ask(Leave(ConsumerId("g-0"), Incarnation("uid-g-0-1", 1), IDENTITY.uid, stopped=True))
    looked(play, topic(1), HOUR + 60.0)
    assert play.states() == {"0": "NOT_ALLOC"}
