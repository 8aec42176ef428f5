"""The group as its runtime sees it: what a result asks for, what a restored group remembers, and when it wants to be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.assignors import ASSIGNORS
from shardherd.core.group.decisions import Decision, decision_of, only_postpone
from shardherd.core.group.group import Group
from shardherd.core.group.records import Clocks, ConsumerRecord, GroupRecord, InFlight, Ownership, Session
from shardherd.core.group.state import Entry, GroupEvent, Put, Table
from shardherd.core.model.errors import StaleIncarnationError
from shardherd.core.model.event_reasons import SHARDS_APPEARED
from shardherd.core.model.nouns import ConsumerId, Heartbeat, Leave, Offset, ShardId, ShardState, Weights
from shardherd.core.model.requests import (
    CheckpointsCommitted,
    ClockGap,
    ConditionsChanged,
    ForceCheckpoint,
    SettingsChanged,
    ShardsDiscovered,
    Tick,
)
from tests.builders import (
    IDENTITY,
    Play,
    copy_of,
    incarnation,
    info,
    restore,
    shard,
    shards,
    spec,
    started,
    topic,
    with_settings,
)
from tests.unit.core.tables import FREE, HELD, A, B, C

# A group that was stored.

STORED = Ownership(
    GroupRecord(IDENTITY.uid, leader_epoch=3, group_epoch=5, revision=7, discovered=True, epoch_floor=2),
    {
        shard("0"): HELD._replace(revision=6),
        shard("1"): FREE._replace(shard=shard("1"), started=False),
        shard("2"): FREE._replace(shard=shard("2"), started=False),
        shard("u/0"): FREE._replace(shard=shard("u/0"), owner_epoch=9),
        shard("u/1"): FREE._replace(shard=shard("u/1"), owner_epoch=8),
    },
    {A: ConsumerRecord(A, incarnation(A), zone="a"), B: ConsumerRecord(B, incarnation(B), present=False)},
)
DURABLE = {shard("0"): 40, shard("1"): 5, shard("u/0"): 7}


def restored(stored: Ownership = STORED, **kwargs: Any) -> Group:
    settings = with_settings(spec(1), heartbeat_interval=4.0, session_timeout=50.0)
    return restore(stored, DURABLE, settings, 100.0, **kwargs)


def test_a_restored_group_is_what_was_stored_and_every_clock_of_it_begins_now() -> None:
    state = restored(copies={shard("0"): 41, shard("1"): 5, shard("2"): 30})._state
    assert state.record == replace(STORED.group, epoch_floor=9, session_timeout=50.0)
    assert state.shards == {
        shard("0"): HELD._replace(revision=6, since=100.0),
        shard("1"): FREE._replace(shard=shard("1"), since=100.0),
        shard("2"): FREE._replace(shard=shard("2"), started=False, since=100.0),
    }
    assert state.positions == {shard("0"): 40, shard("1"): 5}
    assert state.consumers == STORED.consumers
    assert state.sessions == {A: Session(last_heard=100.0, heard=False, progress_at=100.0)}
    assert state.clocks == Clocks(
        due="Restored",
        settle_until=108.0,
        resumed_at=100.0,
        copies={shard("0"): 41},
        claims_until=150.0,
        lowered_at=100.0,
    )
    assert (state.touched_all, state.restored_at, state.assignors) == (7, 100.0, ASSIGNORS)
    assert state.held == {A: {shard("0"): None}}


def test_a_restored_group_has_the_stored_leader_epoch_and_the_assignors_that_it_is_given() -> None:
    assignors = {"Mine": ASSIGNORS["Range"]}
    state = Group.restore(STORED, DURABLE, spec(1), 100.0, copies={}, notes={}, assignors=assignors)._state
    assert (state.record.leader_epoch, set(state.assignors), state.clocks.copies) == (STORED.group.leader_epoch, {"Mine"}, {})
    low = replace(STORED, group=replace(STORED.group, epoch_floor=12))
    assert restored(low)._state.record.epoch_floor == 12
    assert restored(replace(STORED, shards={}))._state.record.epoch_floor == 2


def test_a_new_group_is_empty_and_knows_when_it_began() -> None:
    state = Group.new(spec(2), 100.0)._state
    assert (state.spec, state.record, state.clocks) == (spec(2), GroupRecord(IDENTITY.uid), Clocks(resumed_at=100.0))
    assert (state.restored_at, state.assignors, state.shards, state.touched_all) == (100.0, ASSIGNORS, {}, 0)
    other = Group.new(spec(2), 100.0, 4, {"Mine": ASSIGNORS["Range"]})._state
    assert (other.record.leader_epoch, set(other.assignors)) == (4, {"Mine"})


def test_a_pattern_names_the_shards_that_are_kept_and_a_shard_of_another_form_is_never_dropped() -> None:
    source = replace(spec(1).kafka, topics=(), topic_pattern="u.*")
    rows = dict(STORED.shards) | {ShardId("v"): FREE._replace(shard=ShardId("v"))}
    found = restore(replace(STORED, shards=rows), {}, replace(spec(1), source=source), 100.0)
    assert set(found.ownership.shards) == {shard("u/0"), shard("u/1"), ShardId("v")}


# What a decision asks for.


def asked(decision: Decision) -> tuple[bool, dict[ShardId, Offset], frozenset[ConsumerId]]:
    return decision.persist, dict(decision.positions), decision.woken


def test_a_first_look_asks_for_the_start_positions_to_be_committed_and_the_shards_to_be_stored() -> None:
    play = Play(spec(1))
    play.hold_commits = True
    decision = play.group.decide(ShardsDiscovered((info("0", begin=3), info("1"))), play.now)
    assert asked(decision) == (True, {shard("0"): 3, shard("1"): 0}, frozenset())
    assert decision.events == tuple(event for event in decision.entries if isinstance(event, GroupEvent)) != ()
    assert decision.reply is None


def test_what_is_only_remembered_is_not_stored_and_wakes_nobody() -> None:
    play = started(2, 2)
    play.hold_commits = True
    assert asked(play.ask(ShardsDiscovered(topic(2, end=200)))) == (False, {}, frozenset())
    assert asked(play.ask(Tick())) == (False, {}, frozenset())
    play.checkpoint("g-0", "0", 40)
    assert asked(play.ask(CheckpointsCommitted(play.uncommitted))) == (False, {}, frozenset())
    play.uncommitted = {}
    assert asked(play.ask(play.consumer("g-0").heartbeat())) == (False, {}, frozenset())


def test_the_same_look_again_changes_nothing_in_a_group_that_is_at_rest() -> None:
    play = started(2, 2)
    play.discover(topic(2))
    assert play.group.changed_by(topic(2)), "that look told who has something to read"
    play.discover(topic(2))
    assert not play.group.changed_by(topic(2))

    play.wait(6.0, ["g-0", "g-1"])
    assert not play.group.changed_by(topic(2)), "heartbeats have nothing to do with it"
    assert play.group.changed_by(topic(2, end=200)), "records were written"
    assert play.group.changed_by(topic(3)), "the topic grew"
    assert play.group.changed_by(topic(1)), "the topic was made anew with less"


def test_nor_does_it_once_nobody_can_claim_the_shards_that_it_began() -> None:
    play = Play(spec(1))
    play.wait(3.0)
    play.discover(topic(2))
    play.settle("g-0")
    for _ in range(2):
        play.discover(topic(2))
    play.wait(play.group.spec.settings.session_timeout - 3.0, ["g-0"])
    assert play.group._state.clocks.begun == frozenset(shards("0", "1"))
    assert not play.group.changed_by(topic(2))
    play.discover(topic(2))
    assert not play.group.changed_by(topic(2))


def test_a_look_that_showed_something_new_is_taken_once_more() -> None:
    play = started(2, 2)
    play.discover(topic(2))
    play.discover(topic(2))
    play.discover(topic(2, end=200))
    assert play.group.changed_by(topic(2, end=200))
    play.discover(topic(2, end=200))
    assert not play.group.changed_by(topic(2, end=200))


def test_a_group_whose_declaration_changed_takes_the_next_look() -> None:
    play = started(2, 2)
    play.discover(topic(2))
    play.discover(topic(2))
    result = play.ask(SettingsChanged(replace(play.group.spec, created="2026-01-01T00:00:00Z")))
    assert [event.key for event in result.entries if isinstance(event, Put)] == ["spec"]
    assert play.group.changed_by(topic(2))


def test_a_group_in_which_something_changed_takes_the_next_look_whatever_it_shows() -> None:
    play = started(2, 2)
    play.discover(topic(2))
    play.discover(topic(2))
    play.checkpoint("g-0", "0", 100)
    assert play.group.changed_by(topic(2)), "its holder has read all by now"
    play.discover(topic(2))
    play.discover(topic(2))
    assert not play.group.changed_by(topic(2))
    play.group.decide(Tick(), play.now)
    play.group.roll_back()
    assert play.group.changed_by(topic(2)), "what was taken back may have hidden something"


def test_a_group_that_was_just_made_takes_the_first_look_also_if_there_is_nothing_to_see() -> None:
    play = Play(spec(1))
    play.ask(ConditionsChanged(withheld=()))
    assert play.group.changed_by(())
    play.discover(())
    play.discover(())
    assert not play.group.changed_by(())


def test_the_same_look_again_changes_nothing_in_a_group_that_waits_for_its_first_consumer() -> None:
    play = Play(spec(1))
    play.discover(topic(2))
    play.discover(topic(2))
    assert play.group._state.clocks.due == SHARDS_APPEARED
    assert not play.group.changed_by(topic(2))
    play.settle("g-0")
    assert play.holders() == {"0": "g-0", "1": "g-0"}


def test_a_group_that_waits_for_something_takes_every_look() -> None:
    moving = started(2, 1)
    moving.discover(topic(2))
    moving.discover(topic(2))
    assert not moving.group.changed_by(topic(2))
    moving.beat("g-1")
    moving.wait(2.0)
    moving.discover(topic(2))
    moving.discover(topic(2))
    assert moving.group.changed_by(topic(2)), "a shard is in transfer"
    weighing = started(2, 1, assignor="Weighted")
    weighing.discover(topic(2))
    weighing.discover(topic(2))
    assert weighing.group.changed_by(topic(2)), "how fast shards grow is seen by looking when they do not"


def test_a_commit_that_begins_and_one_whose_outcome_comes_in_are_told_apart() -> None:
    play = started(2, 2)
    play.hold_commits = True
    assert asked(play.ask(ForceCheckpoint(shard("0"), 7))) == (False, {shard("0"): 7}, frozenset())
    persist, commit, woken = asked(play.ask(CheckpointsCommitted({shard("0"): 7})))
    assert (persist, commit, woken) == (True, {}, frozenset({A})), "its holder is fenced"


def test_only_who_is_to_be_told_something_is_woken_and_all_are_when_the_settings_change() -> None:
    play = started(4, 2)
    joined = asked(play.ask(Heartbeat(C, incarnation(C), 1, 0)))
    assert joined == (True, {}, frozenset(view.holder for view in play.view.shards if view.next_consumer == C))
    assert len(joined[2]) == 1
    changed = play.ask(SettingsChanged(with_settings(play.group.spec, heartbeat_interval=5.0)))
    assert asked(changed) == (True, {}, frozenset({A, B, C}))


def test_who_loses_its_shards_as_the_settings_change_is_woken_also_if_it_is_no_consumer_any_more() -> None:
    play = started(4, 2, ordered=True, session_timeout=45.0, progress_timeout=10.0)
    for name in ("1", "3"):
        play.checkpoint("g-1", name, 1000)
    play.discover(topic(4, end=1000))
    play.wait(10.5, beating=["g-1"])
    assert (play.reasons()[-1], play.counts(), play.held_by("g-0")) == ("ProgressTimeout", {"g-1": 2}, {"0", "2"})

    changed = play.change(with_settings(play.group.spec, ordered=False))

    assert changed.woken == {A, B}


def test_a_commit_that_ended_in_the_request_that_began_it_is_not_asked_for() -> None:
    begun = [Put(Table.IN_FLIGHT, shard(name), None, InFlight(5)) for name in ("0", "1")]
    events = (*begun, Put(Table.IN_FLIGHT, shard("0"), InFlight(5), None), Put(Table.IN_FLIGHT, shard("2"), InFlight(5), None))
    assert decision_of(restored()._state, events, None) == Decision(events, positions={shard("1"): 5})


# When it wants to be asked.


def test_time_that_did_not_count_is_added_to_every_deadline_and_taken_from_every_age() -> None:
    play = started(1, 1)
    play.ask(Tick())
    before, age = play.group.next_deadline(), play.view.shards[0].state_age
    assert before is not None
    play.now += 600.0
    play.ask(ClockGap(600.0))
    assert play.group.next_deadline() == before + 600.0
    play.ask(ClockGap(50.0))
    assert play.group.next_deadline() == before + 650.0
    view = play.group.view(play.now + 50.0)
    assert (view.shards[0].state_age, view.consumers[0].heartbeat_age) == (
        age,
        1000.0 - 1000.0 + play.now - 600.0 - heard(play),
    )
    one = play.group.shard_view(shard("0"), play.now + 50.0)
    assert one == view.shards[0]
    assert play.group.shard_view(shard("9"), play.now) is None


def heard(play: Play) -> float:
    return play.group._state.sessions[A].last_heard


def test_a_gap_counts_from_the_request_that_tells_of_it() -> None:
    play = started(2, 1, initial_assignment_delay=10.0)
    play.leave("g-0")
    play.change(spec(2))
    play.run("g-0", start=2)
    play.beat("g-0")
    play.now += 600.0
    play.ask(ClockGap(600.0))
    assert play.counts() == {"g-0": 0}, "the delay of the first assignment did not run"
    play.now += 20.0
    play.ask(ClockGap(5.0))
    assert play.counts() == {"g-0": 2}, "it ran for 15 seconds"


def test_an_empty_group_wants_nothing_and_a_restored_one_to_be_asked_at_once() -> None:
    assert Group.new(spec(1), 100.0).next_deadline() is None
    due = restored().next_deadline()
    assert due is not None
    assert due <= 100.0


HEARD_LATER = Put(Table.SESSIONS, A, Session(1.0), Session(2.0))
GRANTED = Put(Table.SHARDS, shard("0"), FREE, HELD)
SMALL: list[Entry] = [
    GroupEvent("Rebalanced", ""),
    Put(Table.IN_FLIGHT, shard("0"), None, InFlight(1)),
    Put(Table.POSITIONS, shard("0"), None, 1),
    Put(Table.TOUCHED, A, None, 1),
]
"""What no deadline depends on."""


def test_only_heartbeats_of_those_who_release_nothing_leave_the_deadline_as_it_is() -> None:
    state = restored()._state
    assert all(only_postpone(state, events) for events in [(), (HEARD_LATER,), *((small,) for small in SMALL)])
    assert only_postpone(state, (*SMALL, HEARD_LATER))
    assert [only_postpone(state, (small, GRANTED)) for small in (*SMALL, HEARD_LATER)] == [False] * 5
    for joined in (
        HEARD_LATER._replace(before=None),
        HEARD_LATER._replace(after=None),
        HEARD_LATER._replace(table=Table.HEARD),
    ):
        assert not only_postpone(state, (joined,))
    state.put_shard(HELD._replace(state=ShardState.TRANSFER, next_consumer=B))
    assert not only_postpone(state, (HEARD_LATER,))
    assert only_postpone(state, (HEARD_LATER._replace(key=B),))


def test_a_deadline_is_looked_for_anew_when_it_may_have_come_nearer_and_not_for_a_heartbeat() -> None:
    play = started(2, 1)
    play.ask(Tick())
    due = play.group.next_deadline()
    assert due == heard(play) + 45.0
    play.now += 3.0
    play.beat("g-0")
    assert play.group.next_deadline() == due, "it comes too early then, and the tick finds the next one"
    assert due is not None
    play.now = due
    play.ask(Tick())
    assert play.group.next_deadline() == heard(play) + 45.0
    play.beat("g-1")
    assert play.group.next_deadline() == heard(play) + 45.0
    play.beat("g-0")
    assert play.state("1") == "TRANSFER"
    play.change(with_settings(play.group.spec, release_timeout=1.0))
    assert play.group.next_deadline() == play.now + 1.0


def test_a_holder_that_names_a_shard_again_that_was_released_in_part_is_due_again() -> None:
    play = started(2, 1, release_timeout=10.0)
    play.consumer("g-0").busy = {shard("1")}
    play.ask(ConditionsChanged(withheld=()))
    play.beat("g-1", "g-0")
    first = play.group.next_deadline()
    assert first == play.now + 10.0
    play.now += 1.0
    play.consumer("g-0").progress += 1
    play.beat("g-0")
    assert play.group.next_deadline() == play.now + 10.0, "the holder of a transfer is looked at with each heartbeat"


def test_what_was_decided_and_rolled_back_is_as_if_it_had_not_been() -> None:
    play = started(2, 1)
    play.ask(Tick())
    before, deadline = play.view, play.group.next_deadline()
    decision = play.group.decide(Leave(A, incarnation(A)), play.now)
    after = play.view
    assert (after.consumers, play.group.next_deadline()) == ((), None)
    play.group.roll_back()
    assert (play.view, play.group.next_deadline()) == (before, deadline)
    assert play.group.decide(Leave(A, incarnation(A)), play.now) == decision
    assert play.view == after


def test_all_that_was_decided_since_the_last_commit_is_rolled_back_and_nothing_else() -> None:
    play = started(2, 2)
    play.group.decide(Leave(A, incarnation(A)), play.now)
    play.group.commit()
    committed = play.view
    play.group.decide(ShardsDiscovered(topic(3)), play.now)
    play.group.decide(Leave(B, incarnation(B)), play.now)
    assert play.view != committed
    play.group.roll_back()
    assert play.view == committed
    play.group.roll_back()
    assert play.view == committed


def test_a_refused_request_leaves_nothing_behind() -> None:
    play = started(2, 1)
    play.die("g-0")
    before = play.view
    with pytest.raises(StaleIncarnationError):
        play.group.decide(Heartbeat(A, incarnation(A), 99, 0), play.now)
    assert play.view == before


# Parked heartbeats.


def test_a_heartbeat_is_parked_only_while_it_has_applied_all_and_names_nothing_stale() -> None:
    play = started(2, 1)
    revision = play.group.assignment_revision(A)
    heartbeat = play.consumer("g-0").heartbeat()
    assert play.group.may_park(structs.replace(heartbeat, revision=revision))
    assert play.group.may_park(structs.replace(heartbeat, revision=play.group._state.record.revision))
    assert not play.group.may_park(structs.replace(heartbeat, revision=revision - 1))
    assert not play.group.may_park(structs.replace(heartbeat, revision=play.group._state.record.revision + 1))
    stale = structs.replace(heartbeat.held[0], owner_epoch=9)
    assert not play.group.may_park(structs.replace(heartbeat, held=(stale,)))


def test_the_revision_of_an_assignment_is_the_last_that_changed_what_its_consumer_is_told() -> None:
    play = started(2, 2)
    mine = play.group.assignment_revision(A)
    play.leave("g-1")
    assert play.group.assignment_revision(A) == play.group._state.record.revision > mine
    assert play.group.assignment_revision(C) == 0
    play.change(with_settings(play.group.spec, heartbeat_interval=5.0))
    assert play.group.assignment_revision(C) == play.group.assignment_revision(A) == play.group._state.record.revision


def test_a_parked_heartbeat_of_a_run_that_is_over_is_refused() -> None:
    play = started(2, 1)
    heartbeat = play.consumer("g-0").heartbeat()
    play.die("g-0")
    with pytest.raises(StaleIncarnationError):
        play.group.confirmed(heartbeat)


# Positions, as the runtime reads and writes them.


def test_the_positions_to_be_read_are_those_of_new_shards_and_of_such_that_were_lost() -> None:
    play = Play(spec(1))
    play.hold_commits = True
    play.discover([info("0")])
    assert play.group.unread([info("0"), info("1")]) == shards("1"), "what was never durable is not lost"
    play.hold_commits = False
    play.commit()
    assert play.group.unread([info("0"), info("1")]) == shards("1")
    del play.log[shard("0")]
    play.restart()
    assert play.group.unread([info("0"), info("1")]) == shards("0", "1")


def test_a_position_below_its_copy_is_read_again() -> None:
    found = restored(copies={shard("0"): 41, shard("1"): 5})
    assert found.unread([info("0"), info("1")]) == shards("0")


def test_a_note_says_whose_a_position_is_and_under_which_epochs_it_was_committed() -> None:
    found = restored(leader_epoch=4)
    assert found.notes(dict.fromkeys(shards("9", "0", "1"), 5)) == {
        shard("0"): f"1 {IDENTITY.uid} 4 4 a",
        shard("1"): f"1 {IDENTITY.uid} 4 4 a",
    }


def test_only_positions_of_shards_as_they_are_at_the_source_are_committed_once_more() -> None:
    play = started(5, 1)
    play.discover([*(info(str(number), source_id="a") for number in range(4)), info("5")])
    play.discover([*(info(str(number), source_id="ab"[number == 1]) for number in range(4)), info("5")])
    play.hold_commits = True
    play.checkpoint("g-0", "2", 40)
    assert play.group.refreshable() == {shard("0"): 0, shard("3"): 0, shard("5"): 0}
    assert play.group.to_copy({}) == dict.fromkeys(shards("0", "1", "2", "3", "4", "5"), 0)


def test_sizes_are_wanted_by_the_groups_own_clock() -> None:
    play = Play(spec(1, assignor="Weighted", weights=Weights.BYTES))
    assert play.group.wants_sizes(play.now)
    play.discover([info("0")])
    assert not play.group.wants_sizes(play.now + 2.0)
    assert play.group.wants_sizes(play.now + 60.0)
    play.ask(ClockGap(100.0))
    assert not play.group.wants_sizes(play.now + 60.0)
    assert play.group.wants_sizes(play.now + 160.0)


# Who is looked at after which request.


def test_a_shard_that_was_released_while_grants_were_withheld_goes_on_with_whatever_ends_that() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.change(with_settings(play.group.spec, paused=True))
    play.beat("g-0", "g-0")
    assert play.shard("1").holder == "g-0"
    play.group._state.put_spec(with_settings(play.group.spec, paused=False))
    play.group._state.put_clocks(due="")
    play.ask(Tick())
    assert play.shard("1").holder == "g-0", "a tick releases nothing"
    play.ask(ConditionsChanged())
    assert play.shard("1").holder == "g-1"


def test_whatever_changes_a_shard_or_a_clock_writes_the_time_of_its_request() -> None:
    play = started(2, 1)
    play.discover([info("0", end=5, open=False), info("1")])
    play.now += 7.0
    play.checkpoint("g-0", "0", 5)
    assert (play.state("0"), since(play, "0")) == (ShardState.OVER, play.now), "a commit"
    play.now += 7.0
    play.change(with_settings(play.group.spec, paused=True))
    play.change(with_settings(play.group.spec, paused=False))
    assert play.group._state.clocks.resumed_at == play.now, "other settings"
    play.now += 7.0
    play.ask(ConditionsChanged(source_reachable=False))
    play.ask(ConditionsChanged())
    assert play.group._state.clocks.resumed_at == play.now, "other conditions"
    consumer = play.consumer("g-0")
    del consumer.held[shard("1")]
    play.now += 1.0
    play.beat("g-0")
    assert (play.shard("1").owner_epoch, since(play, "1")) == (2, play.now), "a grant that its holder dropped"


def since(play: Play, name: str) -> float:
    return play.group._state.shards[shard(name)].since


def test_what_changes_hands_is_counted() -> None:
    play = started(4, 2)
    assert play.view.moves == 0
    play.die("g-1")
    assert play.view.moves == 2
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    assert play.view.moves == 4


def test_a_copy_of_a_group_goes_its_own_way() -> None:
    play = started(2, 1)
    twin = copy_of(play.group)
    before = play.view
    assert twin.view(play.now) == before
    twin.decide(Leave(A, incarnation(A)), play.now)
    assert (play.view, twin.view(play.now).consumers) == (before, ())


def test_a_pause_of_the_coordinator_makes_the_last_rebalance_no_younger() -> None:
    play = started(2, 1)
    before = play.group.view(play.now, 5_000.0).last_rebalance
    play.now += 300.0
    play.ask(ClockGap(300.0))

    assert play.group.view(play.now, 5_300.0).last_rebalance == before


def test_a_picture_says_when_the_last_rebalance_was_by_the_wall_clock() -> None:
    play = started(2, 1)
    last = play.group.view(play.now + 10.0, 5_000.0).last_rebalance
    assert last is not None
    at = play.group._state.clocks.rebalanced_at
    assert at is not None
    assert last.time == 5_000.0 - (play.now + 10.0 - at)
    later = play.view.last_rebalance
    assert later is not None
    assert later.time == -(play.now - at)


def test_what_is_no_request_is_a_defect_and_changes_nothing() -> None:
    play = started(2, 1)
    before = play.view
    nothing: Any = object()
    with pytest.raises(AssertionError):
        play.group.decide(nothing, play.now)
    assert play.view == before
