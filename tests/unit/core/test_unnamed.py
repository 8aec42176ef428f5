"""Topics that are taken off the list: in an ordered group nobody else reads them before who held them must have stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.model.errors import CoordinatorUnavailableError, UnknownShardError
from shardherd.core.model.nouns import (
    CheckpointResult,
    GroupSpec,
    HeldShard,
    Reset,
    ResetState,
    ResetTo,
    ShardInfo,
)
from shardherd.core.model.requests import ForceCheckpoint, ResetDue
from tests.builders import Play, shard, spec, topic, with_settings, with_topics

TIMEOUT = 45.0
BOTH = (*topic(2), *topic(2, name="u"))
LEFT = topic(2)


def named(*topics: str, **settings: Any) -> GroupSpec:
    return with_topics(spec(2, **{"ordered": True, "session_timeout": TIMEOUT, "rejoin_grace": 0.0} | settings), *topics)


def begun(**settings: Any) -> Play:
    """Topics t and u, of two shards each; g-0 holds u/0 and t/0, g-1 the others."""
    play = Play(named("t", "u", **settings))
    play.discover(BOTH)
    play.settle("g-0", "g-1")
    assert (play.held_by("g-0"), play.held_by("g-1")) == ({"0", "u/0"}, {"1", "u/1"})
    return play


def edited(play: Play, infos: tuple[ShardInfo, ...], *topics: str) -> None:
    """The list is edited: a coordinator takes over with it, and looks at the source."""
    play.restart(with_topics(play.group.spec, *topics))
    play.discover(infos)


def stored(play: Play) -> set[str]:
    """All shards whose rows are stored, by partition."""
    return {name.removeprefix("t/") for name in play.group.ownership.shards}


def looks(play: Play, infos: tuple[ShardInfo, ...], seconds: float, *beating: str) -> None:
    """So many seconds pass, with a look at each."""
    for _ in range(int(seconds)):
        play.wait(1.0)
        play.beat(*beating)
        play.discover(infos)


# A holder that is cut off, and may read on.


@pytest.mark.parametrize("executors", [False, True])
def test_a_topic_that_is_taken_off_and_put_back_has_no_second_reader_before_the_first_must_have_stopped(
    executors: bool,
) -> None:
    play = begun()
    play.group._state.put_spec(replace(play.group.spec, executors=executors))
    edited(play, LEFT, "t")
    looks(play, LEFT, 2.0, "g-1")

    edited(play, BOTH, "t", "u")
    looks(play, BOTH, TIMEOUT - 1.0, "g-1")
    assert set(play.consumers["g-1"].held) == {shard("1"), shard("u/1")}

    looks(play, BOTH, 3.0, "g-1")
    assert set(play.consumers["g-1"].held) == {shard("0"), shard("1"), shard("u/0"), shard("u/1")}


def test_what_its_holder_cannot_read_any_more_is_dropped() -> None:
    play = begun()
    edited(play, LEFT, "t")
    looks(play, LEFT, TIMEOUT - 1.0, "g-1")
    assert stored(play) == {"0", "1", "u/0", "u/1"}

    events = len(play.events)
    looks(play, LEFT, 2.0, "g-1")

    assert stored(play) == {"0", "1"}
    assert play.group.ownership.group.epoch_floor == 1
    assert {"ShardsGone", "ShardsForgotten"}.isdisjoint(event.reason for event in play.events[events:])


def test_proof_of_its_holder_s_end_drops_it_at_once() -> None:
    play = begun()
    edited(play, LEFT, "t")
    play.settle("g-1")
    play.die("g-0")
    play.discover(LEFT)
    assert stored(play) == {"0", "1"}


def test_a_group_without_order_drops_it_at_once_and_gives_it_to_others_when_it_is_back() -> None:
    play = begun(ordered=False)
    edited(play, LEFT, "t")
    assert stored(play) == {"0", "1"}


def test_what_nobody_holds_is_dropped_at_once() -> None:
    play = Play(named("t", "u"))
    play.discover(BOTH)
    edited(play, LEFT, "t")
    assert stored(play) == {"0", "1"}


def test_a_topic_that_comes_back_while_one_shard_of_it_is_read_has_not_grown() -> None:
    play = begun()
    play.checkpoint("g-1", "u/1", 40)
    edited(play, LEFT, "t")
    looks(play, LEFT, 4.0, "g-1")
    assert stored(play) == {"0", "1", "u/0", "u/1"}

    edited(play, BOTH, "t", "u")
    looks(play, BOTH, 8.0, "g-1")

    assert {"PartitionGrowth", "ShardsWait"}.isdisjoint(play.reasons())
    again = play.confirmed("g-1")["u/1"]
    assert (again.owner_epoch, again.position) == (2, 40)


# A holder that is well.


def test_its_holder_is_told_by_the_next_reply_and_it_is_dropped_with_the_look_after_that() -> None:
    play = begun()
    play.restart(with_topics(play.group.spec, "t"))
    heartbeat = play.consumer("g-0").heartbeat()
    reply = play.answer(heartbeat)

    assert [each.shard for each in reply.confirmed] == [shard("0")]
    assert reply.fenced == (HeldShard(shard("u/0"), 1),)

    play.consumers["g-0"].apply(reply)
    play.beat("g-1")
    play.discover(LEFT)
    assert stored(play) == {"0", "1", "u/0", "u/1"}

    play.beat("g-0", "g-1")
    play.discover(LEFT)
    assert stored(play) == {"0", "1"}


def test_it_is_kept_as_long_as_its_holder_names_it() -> None:
    play = begun()
    play.consumer("g-0").busy = {shard("u/0")}
    edited(play, LEFT, "t")
    looks(play, LEFT, 2 * TIMEOUT, "g-0", "g-1")
    assert stored(play) == {"0", "1", "u/0", "u/1"}

    play.consumer("g-0").busy = set()
    looks(play, LEFT, 2.0, "g-0", "g-1")
    assert stored(play) == {"0", "1"}


def test_it_comes_back_to_its_holder_under_a_new_epoch_at_its_checkpoint() -> None:
    play = begun()
    play.checkpoint("g-0", "u/0", 40)
    edited(play, LEFT, "t")
    play.beat("g-0")
    edited(play, BOTH, "t", "u")
    play.settle("g-0", "g-1")
    again = play.confirmed("g-0")["u/0"]
    assert (again.owner_epoch, again.position) == (2, 40)


def test_one_that_was_on_its_way_to_another_is_given_to_nobody() -> None:
    play = Play(named("t", "u", initial_assignment_delay=0.0))
    play.discover(BOTH)
    play.consumer("g-0").busy = {each.shard for each in BOTH}
    play.settle("g-0")
    play.settle("g-0", "g-1")
    moving = {name for name, state in play.states().items() if state == "TRANSFER"}
    assert "u/1" in moving

    play.consumer("g-0").busy = set()
    play.restart(with_topics(play.group.spec, "t"))
    play.beat("g-1", "g-0", "g-0", "g-1")
    row = play.group.ownership.shards[shard("u/1")]
    assert (row.holder, row.next_consumer, row.owner_epoch) == ("g-0", "g-1", 1)
    play.discover(LEFT)
    assert stored(play) == {"0", "1"}


# What is seen of it meanwhile.


def test_it_is_no_shard_of_the_group() -> None:
    play = begun()
    play.log.pop(shard("u/0"))
    play.restart(with_topics(play.group.spec, "t"))
    assert (play.states(), play.counts(), play.view.withheld) == (
        {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"},
        {"g-0": 1, "g-1": 1},
        (),
    )

    play.discover(LEFT)
    assert (set(play.states()), play.counts(), play.view.withheld) == ({"0", "1"}, {"g-0": 1, "g-1": 1}, ())
    assert play.group.shard_view(shard("u/0"), play.now) is None
    assert play.group.changed_by(LEFT), "a look is to drop it"


def test_no_position_of_it_is_taken() -> None:
    play = begun()
    edited(play, LEFT, "t")
    assert play.checkpoint("g-0", "u/0", 40) is CheckpointResult.FENCED
    with pytest.raises(UnknownShardError):
        play.ask(ForceCheckpoint(shard("u/0"), 40))


def test_it_is_not_dropped_while_a_reset_is_made_or_who_holds_what_is_found_out() -> None:
    play = begun()
    play.change(with_settings(play.group.spec, paused=True))
    play.change(play.with_reset(Reset("1", ResetTo.EARLIEST)))
    play.hold_commits = True
    play.ask(ResetDue("1"))
    report = play.group.reset_report
    assert report is not None
    assert report.state is ResetState.APPLYING
    edited(play, LEFT, "t")
    looks(play, LEFT, TIMEOUT + 2.0)
    assert stored(play) == {"0", "1", "u/0", "u/1"}


def test_a_source_that_shows_it_all_the_same_has_it() -> None:
    play = begun()
    edited(play, BOTH, "t")
    assert set(play.states()) == {"0", "1", "u/0", "u/1"}


# All topics are others.


def test_who_reads_nothing_but_other_topics_now_waits_for_all_at_the_first_assignment() -> None:
    play = begun(initial_assignment_delay=20.0)
    play.consumer("g-1").ready = False
    fresh = topic(2, name="v")
    edited(play, fresh, "v")
    looks(play, fresh, 10.0, "g-0", "g-1")
    assert play.holders() == {"v/0": None, "v/1": None}
    looks(play, fresh, 12.0, "g-0", "g-1")
    assert play.holders() == {"v/0": "g-0", "v/1": "g-0"}


def test_who_names_shards_of_later_than_was_stored_is_to_ask_again_once_the_source_was_read() -> None:
    play = begun()
    play.restart(with_topics(play.group.spec, "v"))
    later = structs.replace(play.consumer("g-0").heartbeat(), revision=play.view.revision + 1)
    with pytest.raises(CoordinatorUnavailableError):
        play.ask(later)


@pytest.mark.parametrize("grace", [0.0, 4 * TIMEOUT])
def test_it_is_kept_for_a_run_before_that_may_write_still_and_not_until_its_name_returns(grace: float) -> None:
    play = begun(rejoin_grace=grace)
    play.group._state.put_spec(replace(play.group.spec, executors=True))
    edited(play, LEFT, "t")
    play.run("g-0", start=2)
    looks(play, LEFT, TIMEOUT - 1.0, "g-0", "g-1")
    assert stored(play) == {"0", "1", "u/0", "u/1"}

    looks(play, LEFT, 2.0, "g-0", "g-1")
    assert stored(play) == {"0", "1"}


def test_nobody_waits_with_it_for_the_return_of_a_name() -> None:
    play = begun(rejoin_grace=4 * TIMEOUT)
    edited(play, LEFT, "t")
    looks(play, LEFT, TIMEOUT + 1.0, "g-1")
    assert (stored(play), play.holders()) == ({"0", "1"}, {"0": "g-0", "1": "g-1"})
