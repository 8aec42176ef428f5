"""Declared resets: planned, refused or made as a whole; decided before anything is written, and made once for every id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.group.resets import REMEMBERED, SHOWN
from shardherd.core.group.state import GroupEvent
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    CheckpointResult,
    Condition,
    Offset,
    Reset,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardId,
    ShardInfo,
)
from shardherd.core.model.requests import CheckpointsFailed, ConditionsChanged, ForceCheckpoint, ResetDue, SettingsChanged
from tests.builders import Play, info, shard, shards, spec, started, topic, with_settings

WALL = 1_700_000_000.0


def reset(to: str = "Earliest", id: str = "r1", **rest: Any) -> Reset:
    return Reset(id, ResetTo(to), **rest)


def declare(play: Play, declared: Reset | None, *, paused: bool = True) -> None:
    play.change(replace(with_settings(play.group.spec, paused=paused), reset=declared))


def go_on(play: Play, found: Mapping[ShardId, Offset] | None = None) -> None:
    """What the coordinator does after every look."""
    due = play.group.reset_due
    if due is not None:
        play.ask(replace(due, positions=found or {}, wall=WALL))


def reading(*offsets: int, **settings: Any) -> Play:
    """A group whose one consumer has read each shard of t, of 100 records each, up to here."""
    play = started(len(offsets), 1, **settings)
    for number, offset in enumerate(offsets):
        play.checkpoint("g-0", str(number), offset)
    play.events.clear()
    return play


def report(play: Play) -> ResetReport:
    found = play.group.reset_report
    assert found is not None
    return found


def positions(play: Play) -> dict[str, int | None]:
    return {row.shard.removeprefix("t/"): row.checkpoint for row in play.view.shards}


@pytest.mark.parametrize(
    ("declared", "found", "after"),
    [
        (reset("Earliest"), {}, {"0": 5, "1": 5}),
        (reset("Latest"), {}, {"0": 100, "1": 100}),
        (reset("Latest"), {shard("0"): 33}, {"0": 100, "1": 100}),
        (reset("Latest", shards=(shard("1"),)), {}, {"0": 40, "1": 100}),
        (reset("Timestamp", timestamp=17.5), {shard("0"): 33}, {"0": 33, "1": 100}),
        (reset("Timestamp", timestamp=17.5), {shard("0"): 3, shard("1"): 101}, {"0": 5, "1": 100}),
        (reset("Offsets", offsets=((shard("1"), 5),)), {}, {"0": 40, "1": 5}),
        (reset("Offsets", offsets=((shard("1"), 100), (shard("0"), 60))), {}, {"0": 60, "1": 100}),
    ],
)
def test_positions_are_set_as_declared(declared: Reset, found: dict[ShardId, int], after: dict[str, int]) -> None:
    play = reading(40, 60)
    play.discover([info("0", begin=5), info("1", begin=5)])
    declare(play, declared)

    assert play.group.reset_due == ResetDue("r1", declared.timestamp)
    go_on(play, found)

    assert positions(play) == after
    assert {name.removeprefix("t/"): offset for name, offset in play.log.items()} == after
    assert report(play).state is ResetState.DONE


def test_a_reset_fences_whoever_holds_a_shard_and_the_same_consumer_reads_on_from_there() -> None:
    play = reading(40, 60)
    before = play.confirmed("g-0")
    declare(play, reset(shards=(shard("0"),)))
    go_on(play)

    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.FENCED
    assert play.checkpoint("g-0", "1", 70) is CheckpointResult.OK
    declare(play, reset(shards=(shard("0"),)), paused=False)
    play.settle("g-0")
    after = play.confirmed("g-0")
    assert (after["0"].position, after["0"].owner_epoch) == (0, before["0"].owner_epoch + 1)
    assert after["0"].held_since_epoch == after["0"].owner_epoch
    assert after["1"] == structs.replace(before["1"], position=70)


def test_what_was_made_is_told_once_with_what_it_comes_to() -> None:
    play = reading(40, 60)
    declared = reset("Offsets", offsets=((shard("0"), 10), (shard("1"), 75)), manager="kubectl-edit")
    declare(play, declared)
    go_on(play)
    go_on(play)

    message = "The positions of 2 shards were set, 30 records are read again and 15 not at all: t/0 40 -> 10, t/1 60 -> 75."
    rows = (ResetRow(shard("0"), 40, 10), ResetRow(shard("1"), 60, 75))
    made = ResetReport("r1", ResetTo.OFFSETS, ResetState.DONE, message, Seconds(WALL), 2, 30, 15, rows, "kubectl-edit")
    assert report(play) == play.view.last_reset == play.view.reset == made
    reported = f"reset r1 to Offsets (declared by field manager kubectl-edit): {message}"
    assert play.events == [GroupEvent("ResetDone", reported, shards=shards("0", "1"), warning=True)]


def test_up_to_three_shards_are_named_and_who_declared_it_only_if_that_is_known() -> None:
    play = reading(40, 60, 70)
    declare(play, reset())
    go_on(play)
    message = (
        "The positions of 3 shards were set, 170 records are read again and 0 not at all: "
        "t/0 40 -> 0, t/1 60 -> 0, t/2 70 -> 0."
    )
    done = f"reset r1 to Earliest: {message}"
    assert play.events == [GroupEvent("ResetDone", done, shards=shards("0", "1", "2"), warning=True)]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ((40,), "The position of 1 shard is being set, 40 records are read again and 0 not at all: t/0 40 -> 0."),
        (
            (40, 60),
            "The positions of 2 shards are being set, 100 records are read again and 0 not at all: t/0 40 -> 0, t/1 60 -> 0.",
        ),
    ],
)
def test_what_is_being_made_says_what_it_comes_to(read: tuple[int, ...], said: str) -> None:
    play = reading(*read)
    play.hold_commits = True
    declare(play, reset())
    go_on(play)
    rows = tuple(ResetRow(shard(str(number)), offset, 0) for number, offset in enumerate(read))
    begun = ResetReport("r1", ResetTo.EARLIEST, ResetState.APPLYING, said, Seconds(WALL), len(read), sum(read), 0, rows)
    assert report(play) == begun


def test_a_group_that_is_not_paused_is_left_alone_and_its_user_told_why() -> None:
    play = reading(40)
    declare(play, reset(), paused=False)
    go_on(play)

    why = "the group is not paused; set spec.paused to true, and back to false once it is done"
    assert report(play) == ResetReport("r1", ResetTo.EARLIEST, ResetState.PAUSE_FIRST, f"Nothing was changed: {why}.")
    assert [(event.reason, event.message, event.warning) for event in play.events] == [("ResetWaits", f"reset r1: {why}", True)]
    assert positions(play) == {"0": 40}

    declare(play, reset())
    go_on(play)
    assert positions(play) == {"0": 0}


def test_a_dry_run_changes_nothing_needs_no_pause_and_says_what_would_be_done() -> None:
    play = reading(40, 60)
    before = play.group.ownership
    declare(play, reset(dry_run=True), paused=False)
    go_on(play)

    message = (
        "A dry run, nothing was changed. The positions of 2 shards would be set, 100 records are read again and 0 not at all: "
        "t/0 40 -> 0, t/1 60 -> 0."
    )
    rows = (ResetRow(shard("0"), 40, 0), ResetRow(shard("1"), 60, 0))
    assert report(play) == ResetReport("r1", ResetTo.EARLIEST, ResetState.PLANNED, message, Seconds(WALL), 2, 100, 0, rows)
    assert (positions(play), play.group.ownership) == ({"0": 40, "1": 60}, before)
    assert play.group.reset_due is None
    assert play.events == [GroupEvent("ResetPlanned", f"reset r1 to Earliest: {message}")]


def test_a_dry_run_for_one_record_of_one_shard_is_told_as_one_each() -> None:
    play = reading(1)
    declare(play, reset(dry_run=True))
    go_on(play)
    assert report(play).message == (
        "A dry run, nothing was changed. The position of 1 shard would be set, 1 record is read again and 0 not at all: "
        "t/0 1 -> 0."
    )


def test_a_dry_run_is_made_under_its_id_once_it_is_none_any_more() -> None:
    play = reading(40)
    declare(play, reset(dry_run=True))
    go_on(play)
    declare(play, reset())
    go_on(play)
    assert (report(play).state, positions(play)) == (ResetState.DONE, {"0": 0})


def test_a_dry_run_is_planned_anew_when_it_says_something_else() -> None:
    play = reading(40)
    declare(play, reset(dry_run=True))
    go_on(play)
    declare(play, reset("Latest", dry_run=True))
    assert report(play).state is ResetState.WAITING
    go_on(play)
    assert report(play).rows == (ResetRow(shard("0"), 40, 100),)


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [
        (reset("Offsets", offsets=((shard("0"), 4),)), "spec.reset.offsets sets t/0 to 4, and it has 5 to 100"),
        (
            reset("Offsets", offsets=((shard("1"), 7), (shard("0"), 101))),
            "spec.reset.offsets sets t/0 to 101, and it has 5 to 100",
        ),
        (reset("Offsets", offsets=((shard("9"), 7),)), "spec.reset.offsets names t/9, which the group does not have"),
        (reset(shards=(shard("0"), shard("9"))), "spec.reset.shards names t/9, which the group does not have"),
        (
            reset(shards=tuple(shard(str(number)) for number in range(5, 9))),
            "; ".join(f"spec.reset.shards names t/{number}, which the group does not have" for number in (5, 6, 7))
            + "; and 1 more",
        ),
        (
            reset(shards=tuple(shard(str(number)) for number in range(5, 8))),
            "; ".join(f"spec.reset.shards names t/{number}, which the group does not have" for number in (5, 6, 7)),
        ),
        (
            reset("Offsets", offsets=((shard("9"), 7), (shard("0"), 4))),
            "spec.reset.offsets names t/9, which the group does not have; "
            "spec.reset.offsets sets t/0 to 4, and it has 5 to 100",
        ),
    ],
)
def test_what_cannot_be_is_refused_as_a_whole_before_anything_is_changed(declared: Reset, wrong: str) -> None:
    play = reading(40, 60)
    play.discover([info("0", begin=5), info("1", begin=5)])
    declare(play, declared)
    go_on(play)

    reported = f"Nothing was changed: {wrong}. Correct it, with another id."
    assert report(play) == ResetReport("r1", declared.to, ResetState.REFUSED, reported, Seconds(WALL))
    assert positions(play) == {"0": 40, "1": 60}
    assert play.events == [GroupEvent("ResetRefused", f"reset r1 to {declared.to}: {reported}", warning=True)]
    assert play.view.last_reset is None


def test_a_refused_reset_stays_refused_also_when_its_offset_exists_by_then() -> None:
    play = reading(40)
    declare(play, reset("Offsets", offsets=((shard("0"), 101),)))
    go_on(play)
    play.discover(topic(1, end=200))
    play.restart()
    play.discover(topic(1, end=200))
    go_on(play)
    assert (report(play).state, positions(play)) == (ResetState.REFUSED, {"0": 40})


def test_a_dry_run_that_would_be_refused_may_be_corrected_under_its_id() -> None:
    play = reading(40)
    declare(play, reset("Offsets", offsets=((shard("0"), 101),), dry_run=True))
    go_on(play)
    assert report(play).message == ("Nothing was changed: spec.reset.offsets sets t/0 to 101, and it has 0 to 100. Correct it.")
    declare(play, reset("Offsets", offsets=((shard("0"), 99),)))
    go_on(play)
    assert (report(play).state, positions(play)) == (ResetState.DONE, {"0": 99})


def test_a_reset_that_was_made_is_not_made_again_by_another_coordinator() -> None:
    play = reading(40)
    declare(play, reset())
    go_on(play)
    declare(play, reset(), paused=False)
    play.settle("g-0")
    play.checkpoint("g-0", "0", 30)
    declare(play, reset())
    play.restart()
    play.discover(topic(1))
    go_on(play)
    assert (positions(play), report(play).state) == ({"0": 30}, ResetState.DONE)
    assert play.view.last_reset == report(play)


def test_an_id_that_comes_back_after_another_one_is_not_made_again() -> None:
    play = reading(40)
    for declared in (reset(id="a"), reset("Latest", id="b"), reset(id="a")):
        declare(play, declared)
        go_on(play)
    assert positions(play) == {"0": 100}
    assert (report(play).state, report(play).message) == (
        ResetState.DONE,
        "A reset of id a was decided before, and is not made again: give it another id.",
    )
    assert (play.view.last_reset or report(play)).id == "b"
    declare(play, reset(id="a"), paused=False)
    assert "ResetWaits" not in play.reasons()


def test_only_so_many_ids_are_remembered() -> None:
    play = reading(40)
    for number in range(REMEMBERED + 2):
        declare(play, reset(id=f"r{number}"))
        go_on(play)
    assert play.group.ownership.group.reset_ids == tuple(f"r{number}" for number in range(2, REMEMBERED + 2))


def test_a_refusal_does_not_hide_the_last_reset_that_was_made() -> None:
    play = reading(40)
    declare(play, reset())
    go_on(play)
    declare(play, reset(id="r2", shards=(shard("9"),)))
    go_on(play)
    play.restart()
    assert (report(play).state, (play.view.last_reset or report(play)).id) == (ResetState.REFUSED, "r1")


def test_nothing_is_declared_any_more_and_what_was_made_stays_known() -> None:
    play = reading(40)
    declare(play, reset())
    go_on(play)
    declare(play, None)
    assert (play.group.reset_report, play.view.reset) == (None, None)
    assert play.view.last_reset is not None


def test_what_was_decided_is_made_though_the_declaration_would_come_to_something_else_by_then() -> None:
    play = reading(40)
    play.hold_commits = True
    declare(play, reset("Latest"))
    go_on(play)
    play.fail_commits()
    play.hold_commits = False
    play.discover(topic(1, end=150))
    go_on(play)
    assert (positions(play), report(play).rows) == ({"0": 100}, (ResetRow(shard("0"), 40, 100),))


def test_another_coordinator_waits_until_it_has_read_the_source() -> None:
    play = reading(40)
    declare(play, reset())
    play.restart()
    assert report(play).message == "Nothing was changed yet: the source has not been read."
    assert play.group.reset_due is None


def test_a_coordinator_that_takes_over_in_the_middle_sets_the_positions_that_were_decided() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset("Latest"))
    go_on(play)
    assert report(play).state is ResetState.APPLYING
    # It was written and nobody has heard of it; meanwhile more is written to the topic, and the declaration is gone.
    play.log |= play.uncommitted
    play.uncommitted, play.hold_commits = {}, False
    play.restart(replace(play.group.spec, reset=None))
    assert play.group.reset_due is None, "nothing can be decided before the source was read"
    play.discover(topic(2, end=150))
    go_on(play)

    assert (positions(play), play.group.reset_report) == ({"0": 100, "1": 100}, None)
    assert play.checkpoint("g-0", "0", 120) is CheckpointResult.FENCED
    assert (play.view.last_reset or report(play)).rows == (ResetRow(shard("0"), 40, 100), ResetRow(shard("1"), 60, 100))


def test_no_checkpoint_undoes_a_position_that_was_set_before_its_holder_was_fenced() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset(shards=(shard("0"),)))
    go_on(play)
    # It was written, and its coordinator ended before it could fence the holder, which finishes what it had read on from 40.
    play.log |= play.uncommitted
    play.uncommitted, play.hold_commits = {}, False
    play.restart()
    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.WITHHELD
    play.discover(topic(2))
    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.WITHHELD
    go_on(play)

    assert (report(play).state, positions(play)) == (ResetState.DONE, {"0": 0, "1": 60})
    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.FENCED
    assert play.checkpoint("g-0", "1", 70) is CheckpointResult.OK


def test_what_a_reset_does_not_set_is_checkpointed_while_it_is_being_made() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset(shards=(shard("0"),)))
    go_on(play)
    play.fail_commits()
    play.hold_commits = False

    assert report(play).state is ResetState.APPLYING
    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.WITHHELD
    assert play.checkpoint("g-0", "1", 70) is CheckpointResult.OK


def test_while_it_is_being_made_nothing_is_granted_even_if_the_pause_ends() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset(), paused=False)
    declare(play, reset())
    go_on(play)
    play.die("g-0")
    declare(play, reset(), paused=False)
    play.run("g-1")
    play.settle("g-1")
    assert play.view.withheld == (
        Condition("Resetting", "reset r1 is being made; nothing is granted or moved until it is done"),
    )
    assert play.held_by("g-1") == set()

    play.hold_commits = False
    play.commit()
    play.settle("g-1")
    assert {name: each.position for name, each in play.confirmed("g-1").items()} == {"0": 0, "1": 0}


def test_what_could_not_be_written_is_written_at_the_next_look() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset())
    go_on(play)
    play.fail_commits()
    assert (report(play).state, positions(play)) == (ResetState.APPLYING, {"0": 40, "1": 60})
    with pytest.raises(CoordinatorUnavailableError, match="ask again"):
        play.ask(ForceCheckpoint(shard("0"), 7))
    play.hold_commits = False
    go_on(play)
    assert (report(play).state, positions(play)) == (ResetState.DONE, {"0": 0, "1": 0})
    assert "CheckpointForced" not in play.reasons()


def test_a_checkpoint_under_way_goes_first() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    play.checkpoint("g-0", "0", 55)
    declare(play, reset())
    go_on(play)
    assert (report(play).state, report(play).message, play.uncommitted) == (
        ResetState.WAITING,
        "Nothing was changed yet: checkpoints are being committed.",
        {shard("0"): 55},
    )
    play.hold_commits = False
    play.commit()
    go_on(play)
    assert (report(play).state, positions(play)) == (ResetState.DONE, {"0": 0, "1": 0})
    assert [(row.before, row.after) for row in report(play).rows] == [(55, 0), (60, 0)]


def test_a_position_that_is_being_set_by_hand_is_set_first_and_then_by_the_reset() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 7))
    declare(play, reset(to="Latest"))
    go_on(play)
    assert (report(play).state, report(play).message) == (
        ResetState.WAITING,
        "Nothing was changed yet: a position is being set by hand.",
    )
    play.hold_commits = False
    play.commit()
    assert positions(play) == {"0": 7, "1": 60}
    go_on(play)
    assert (report(play).state, positions(play)) == (ResetState.DONE, {"0": 100, "1": 100})


def test_a_shard_that_goes_meanwhile_does_not_keep_the_others() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset())
    go_on(play)
    play.fail_commits()
    play.hold_commits = False
    play.discover(topic(1))
    go_on(play)
    assert (report(play).state, play.log) == (ResetState.DONE, {shard("0"): 0, shard("1"): 60})


def test_what_went_before_it_was_set_is_not_said_to_be_set_and_is_named() -> None:
    play = reading(40, 60, 70)
    play.hold_commits = True
    declare(play, reset("Offsets", offsets=((shard("0"), 10), (shard("1"), 20), (shard("2"), 30))))
    go_on(play)
    # t/2 is set before it goes, t/1 is not.
    play.uncommitted = {shard("2"): 30}
    play.commit()
    play.ask(CheckpointsFailed(frozenset(shards("0", "1"))))
    play.hold_commits = False
    play.discover(topic(1))
    go_on(play)
    message = (
        "The positions of 2 shards were set, 70 records are read again and 0 not at all: t/0 40 -> 10, t/2 70 -> 30. "
        "Not set, as the source has no such shard any more: t/1."
    )
    rows = (ResetRow(shard("0"), 40, 10), ResetRow(shard("2"), 70, 30))
    assert report(play) == ResetReport("r1", ResetTo.OFFSETS, ResetState.DONE, message, Seconds(WALL), 2, 70, 0, rows)
    assert play.events[-1] == GroupEvent("ResetDone", f"reset r1 to Offsets: {message}", shards=shards("0", "2"), warning=True)


def test_who_holds_what_was_set_before_it_went_and_before_the_leader_changed_is_fenced() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset())
    go_on(play)
    # Both positions become durable, and the leader ends before it hears of that.
    play.log.update(play.uncommitted)
    play.uncommitted, play.hold_commits = {}, False
    play.copies = {shard("1"): 60}
    epochs = {name: play.shard(name).owner_epoch for name in ("0", "1")}
    play.restart()
    play.discover(topic(1))
    play.beat("g-0")
    go_on(play)
    assert (report(play).state, [(row.shard, row.after) for row in report(play).rows]) == (
        ResetState.DONE,
        [(shard("0"), 0), (shard("1"), 0)],
    )
    assert {name: play.shard(name).owner_epoch - epoch for name, epoch in epochs.items()} == {"0": 1, "1": 1}
    play.discover(topic(2))
    play.change(with_settings(play.group.spec, paused=False))
    play.settle("g-0")
    assert (play.view.withheld, {name: each.position for name, each in play.confirmed("g-0").items()}) == ((), {"0": 0, "1": 0})
    assert {name: each.held_since_epoch for name, each in play.confirmed("g-0").items()} == {
        name: epoch + 1 for name, epoch in epochs.items()
    }


def test_a_shard_that_was_away_for_a_while_is_set_before_the_reset_is_done() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset())
    go_on(play)
    play.fail_commits()
    play.discover(topic(1))
    go_on(play)
    assert play.uncommitted == {shard("0"): 0}
    play.discover(topic(2))
    play.commit()
    assert (report(play).state, play.log) == (ResetState.APPLYING, {shard("0"): 0, shard("1"): 60})
    play.hold_commits = False
    go_on(play)
    assert (report(play).state, play.log) == (ResetState.DONE, {shard("0"): 0, shard("1"): 0})
    assert [(row.shard, row.after) for row in report(play).rows] == [(shard("0"), 0), (shard("1"), 0)]


def test_one_whose_shards_have_all_gone_is_done() -> None:
    play = reading(40, 60)
    play.hold_commits = True
    declare(play, reset(shards=(shard("1"),)))
    go_on(play)
    play.fail_commits()
    play.discover(topic(1))
    go_on(play)
    assert play.uncommitted == {}
    message = "No position was set. Not set, as the source has no such shard any more: t/1."
    assert report(play) == ResetReport("r1", ResetTo.EARLIEST, ResetState.DONE, message, Seconds(WALL))


def test_a_position_that_went_meanwhile_is_the_first_that_there_is() -> None:
    play = reading(40)
    play.hold_commits = True
    declare(play, reset())
    go_on(play)
    play.fail_commits()
    play.hold_commits = False
    play.discover([info("0", begin=20)])
    go_on(play)
    assert positions(play) == {"0": 20}


def test_an_answer_to_what_is_not_asked_any_more_changes_nothing() -> None:
    play = reading(40)
    declare(play, reset("Timestamp", timestamp=5.0))
    play.ask(ResetDue("r0", 5.0))
    play.ask(ResetDue("r1", 4.0))
    declare(play, None)
    play.ask(ResetDue("r1", 5.0))
    assert (positions(play), play.events) == ({"0": 40}, [])


def test_a_lost_checkpoint_is_found_by_a_reset_of_its_shard() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    del play.log[shard("1")]
    play.restart()
    play.discover(topic(2))
    declare(play, reset(shards=(shard("1"),)))
    go_on(play)
    assert report(play).message == (
        "The position of 1 shard was set, 0 records are read again and 0 not at all, of 1 the position before is not known: "
        "t/1 ? -> 0."
    )
    declare(play, None, paused=False)
    play.settle("g-0")
    assert play.view.withheld == ()
    assert {name: each.position for name, each in play.confirmed("g-0").items()} == {"0": 40, "1": 0}


def test_a_topic_that_was_made_anew_is_read_after_a_reset_of_all_its_shards() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a"), info("1", source_id="a")])
    play.settle("g-0")
    play.checkpoint("g-0", "0", 70)
    recreated = [info("0", end=9, source_id="b"), info("1", end=9, source_id="b")]
    play.discover(recreated)
    declare(play, reset("Latest", id="half", shards=(shard("0"),)))
    go_on(play)
    assert [cause.reason for cause in play.view.withheld] == ["Paused", "SourceRecreated"]
    declare(play, reset(id="rest", shards=(shard("1"),)))
    go_on(play)
    declare(play, None, paused=False)
    play.discover(recreated)
    play.settle("g-0")
    assert play.view.withheld == ()
    assert {name: each.position for name, each in play.confirmed("g-0").items()} == {"0": 9, "1": 0}


def test_a_topic_that_was_made_anew_is_known_by_its_reset_though_the_ownership_is_lost_afterwards() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a")])
    play.settle("g-0")
    recreated = [info("0", end=9, source_id="b")]
    play.discover(recreated)
    declare(play, reset("Latest"))
    go_on(play)
    play.lose()
    play.discover(recreated)
    assert [cause.reason for cause in play.view.withheld] == ["Paused", "OwnershipRebuilding"]


def test_a_reset_that_was_made_stays_made_though_the_ownership_is_lost_before_the_holder_hears_of_it() -> None:
    play = reading(40, 60)
    declare(play, reset(shards=(shard("0"),)))
    go_on(play)
    play.lose()
    play.discover(topic(2))
    play.beat("g-0")
    assert play.holders() == {"0": None, "1": "g-0"}
    assert play.checkpoint("g-0", "0", 70) is CheckpointResult.FENCED
    declare(play, None, paused=False)
    play.wait(60.0, ["g-0"])
    play.settle("g-0")
    assert {name: each.position for name, each in play.confirmed("g-0").items()} == {"0": 0, "1": 60}


def test_who_heard_of_a_reset_that_was_made_claims_what_it_reads_since() -> None:
    play = reading(40, 60)
    declare(play, reset(shards=(shard("0"),)))
    go_on(play)
    declare(play, None, paused=False)
    play.settle("g-0")
    before = play.holders(), dict(play.consumer("g-0").held)
    play.lose()
    play.discover(topic(2))
    play.beat("g-0")
    assert (play.holders(), play.consumer("g-0").held) == before


def test_a_finished_shard_is_read_again() -> None:
    play = Play(spec(1))
    closed: list[ShardInfo] = [info("0", open=False)]
    play.discover(closed)
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    assert play.state("0") == "OVER"
    declare(play, reset())
    go_on(play)
    assert play.state("0") == "NOT_ALLOC"
    declare(play, None, paused=False)
    play.settle("g-0")
    assert play.confirmed("g-0")["0"].position == 0


def test_a_new_group_may_begin_with_a_reset() -> None:
    play = Play(replace(spec(1, paused=True), reset=reset("Offsets", offsets=((shard("0"), 30),))))
    assert report(play).message == "Nothing was changed yet: the source has not been read."
    play.discover(topic(1))
    assert report(play).message == "Nothing was changed yet: it begins."
    go_on(play)
    assert (report(play).state, positions(play)) == (ResetState.DONE, {"0": 30})


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        (ConditionsChanged(source_reachable=False, source_error="no broker"), "the source does not answer: no broker"),
        (ConditionsChanged(commits=False), "nothing can be committed"),
        (ConditionsChanged((Condition("GroupHasLiveMembers", "it has members"),), commits=False), "it has members"),
        (ConditionsChanged((Condition("One", "one is"), Condition("Two", "two are"))), "one is; two are"),
    ],
)
def test_it_waits_while_nothing_can_be_written(conditions: ConditionsChanged, why: str) -> None:
    play = reading(40)
    play.ask(conditions)
    declare(play, reset())
    assert play.group.reset_due is None
    assert (report(play).state, report(play).message) == (ResetState.WAITING, f"Nothing was changed yet: {why}.")
    play.ask(ConditionsChanged())
    go_on(play)
    assert positions(play) == {"0": 0}


def test_a_begun_one_waits_while_nothing_can_be_written() -> None:
    play = reading(40)
    play.hold_commits = True
    declare(play, reset())
    go_on(play)
    play.fail_commits()
    play.ask(ConditionsChanged(commits=False))
    assert play.group.reset_due is None
    play.ask(ConditionsChanged())
    assert play.group.reset_due == ResetDue("r1")


def test_it_waits_until_lost_ownership_is_found_out() -> None:
    play = reading(40)
    play.lose()
    play.discover(topic(1))
    declare(play, reset())
    assert report(play).message == "Nothing was changed yet: who holds which shard is being found out."
    play.wait(60.0)
    go_on(play)
    assert positions(play) == {"0": 0}


def test_of_a_large_one_the_first_rows_are_shown_and_kept() -> None:
    play = started(SHOWN + 5, 1)
    play.hold_commits = True
    declare(play, reset("Latest"))
    go_on(play)
    shown = play.view.reset
    assert shown is not None
    assert (len(shown.rows), len(report(play).rows), report(play).shards) == (SHOWN, SHOWN + 5, SHOWN + 5)
    play.hold_commits = False
    play.commit()
    assert (len(report(play).rows), report(play).shards) == (SHOWN, SHOWN + 5)
    assert report(play).message.endswith(f"t/0 0 -> 100, t/1 0 -> 100, t/2 0 -> 100 and {SHOWN + 2} more.")


def test_a_declaration_that_stays_is_told_of_once() -> None:
    play = reading(40)
    declare(play, reset(), paused=False)
    play.ask(SettingsChanged(replace(play.group.spec, wanted=2)))
    assert play.reasons().count("ResetWaits") == 1
