"""A position that was decided for one topic is never set in another one that was made under its name meanwhile."""

from __future__ import annotations

from typing import Any

from shardherd.core.group.notes import parse
from shardherd.core.group.ownership import decode, encode
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ResetReport, ResetRow, ResetState, ResetTo, ShardInfo
from shardherd.core.model.requests import ForceCheckpoint
from tests.builders import Play, info, restore, shard, spec
from tests.unit.core.test_resets import WALL, declare, go_on, positions, report, reset

LEFT = "t/0 was made anew since this was decided, and is left alone: reset it under another id."


def shards_of(*sources: str, end: int = 100) -> tuple[ShardInfo, ...]:
    """The shards of t, each of the topic of this id."""
    return tuple(info(str(number), end=end, source_id=source) for number, source in enumerate(sources))


def reading(*offsets: int) -> Play:
    """A group whose one consumer has read each shard of t, of topic a, up to here."""
    play = Play(spec(1))
    play.discover(shards_of(*"a" * len(offsets)))
    play.settle("g-0")
    for number, offset in enumerate(offsets):
        play.checkpoint("g-0", str(number), offset)
    play.events.clear()
    return play


def decided(play: Play, *names: str, to: str = "Latest") -> None:
    """A reset is decided and stored, and nothing of it written: whoever decided it ends."""
    play.hold_commits = True
    declare(play, reset(to, shards=tuple(shard(name) for name in names)))
    go_on(play)
    play.uncommitted, play.hold_commits = {}, False


def source_of_note(play: Play, name: str) -> str | None:
    note = parse(play.noted[shard(name)])
    return note.source_id if note is not None else None


def withheld(play: Play) -> list[str]:
    return [cause.reason for cause in play.view.withheld]


def remade(play: Play, *names: str) -> None:
    """Kafka deletes the offsets of a topic with it."""
    for name in names:
        del play.log[shard(name)], play.noted[shard(name)]


def test_a_reset_sets_nothing_in_a_topic_that_was_made_anew_since_it_was_decided() -> None:
    play = reading(40)
    decided(play, "0")
    remade(play, "0")
    play.restart()
    play.discover(shards_of("b", end=18))
    go_on(play)

    expected = ResetReport("r1", ResetTo.LATEST, ResetState.DONE, f"No position was set. {LEFT}", Seconds(WALL))
    assert (play.log, report(play), play.view.last_reset) == ({}, expected, expected)
    assert play.events[-1].message == f"reset r1 to Latest: {expected.message}"
    assert withheld(play) == ["Paused", "SourceRecreated", "CheckpointLost"]


def test_the_other_shards_of_such_a_reset_are_set() -> None:
    play = reading(40, 60)
    decided(play, "0", "1")
    remade(play, "0")
    play.restart()
    play.discover((info("0", end=18, source_id="b"), info("1", end=150, source_id="a")))
    go_on(play)

    message = f"The position of 1 shard was set, 0 records are read again and 40 not at all: t/1 60 -> 100. {LEFT}"
    rows = (ResetRow(shard("1"), 60, 100),)
    assert report(play) == ResetReport("r1", ResetTo.LATEST, ResetState.DONE, message, Seconds(WALL), 1, 0, 40, rows)
    assert play.log == {shard("1"): 100}


def test_what_was_left_alone_is_still_told_of_by_the_coordinator_that_makes_the_rest() -> None:
    play = reading(40, 60)
    decided(play, "0", "1")
    remade(play, "0")
    play.restart()
    play.hold_commits = True
    play.discover((info("0", end=18, source_id="b"), info("1", source_id="a")))
    go_on(play)
    play.uncommitted, play.hold_commits = {}, False
    play.restart()
    play.discover((info("0", end=18, source_id="b"), info("1", source_id="a")))
    go_on(play)

    assert report(play).message.endswith(f"t/1 60 -> 100. {LEFT}")
    assert (report(play).rows, play.log) == ((ResetRow(shard("1"), 60, 100),), {shard("1"): 100})


def test_a_new_reset_says_where_to_read_on_in_what_was_left_alone() -> None:
    play = reading(40)
    decided(play, "0")
    remade(play, "0")
    play.restart()
    play.discover(shards_of("b", end=18))
    go_on(play)
    declare(play, reset(id="r2"))
    go_on(play)

    assert (positions(play), source_of_note(play, "0"), withheld(play)) == ({"0": 0}, "b", ["Paused"])


def test_a_reset_that_was_decided_for_the_new_topic_is_made_by_the_next_coordinator() -> None:
    play = reading(40)
    remade(play, "0")
    play.discover(shards_of("b", end=18))
    decided(play, "0")
    play.restart()
    play.discover(shards_of("b", end=25))
    go_on(play)

    assert (play.log, source_of_note(play, "0"), withheld(play)) == ({shard("0"): 18}, "b", ["Paused"])
    assert (report(play).state, report(play).rows) == (ResetState.DONE, (ResetRow(shard("0"), 40, 18),))
    assert play.group.ownership.group.reset_sources == ()


def test_a_reset_that_was_decided_for_the_new_topic_sets_nothing_in_the_one_after_it() -> None:
    play = reading(40)
    remade(play, "0")
    play.discover(shards_of("b", end=18))
    decided(play, "0")
    play.restart()
    play.discover(shards_of("c", end=25))
    go_on(play)

    assert (play.log, report(play).message) == ({}, f"No position was set. {LEFT}")
    assert withheld(play) == ["Paused", "SourceRecreated", "CheckpointLost"]


def test_a_reset_that_an_older_version_decided_sets_nothing_in_a_topic_that_is_another_than_was_read() -> None:
    play = reading(40)
    remade(play, "0")
    play.discover(shards_of("b", end=18))
    decided(play, "0")
    stored: dict[str, Any] = encode(play.group.ownership)
    del stored["group"]["resetSources"], stored["group"]["resetLeftOut"]
    play.group = restore(decode(stored), {}, play.group.spec, play.now)
    play.discover(shards_of("b", end=18))
    go_on(play)

    assert (play.log, report(play).message) == ({}, f"No position was set. {LEFT}")


def test_a_position_of_a_reset_that_is_written_when_the_topic_is_made_anew_is_one_of_the_topic_before() -> None:
    play = reading(40)
    play.hold_commits = True
    declare(play, reset("Latest"))
    go_on(play)
    play.discover(shards_of("b", end=18))
    play.commit()

    assert (source_of_note(play, "0"), withheld(play)) == ("a", ["Paused", "SourceRecreated"])
    assert (report(play).state, report(play).message) == (ResetState.DONE, f"No position was set. {LEFT}")


def test_a_forced_checkpoint_that_is_written_when_the_topic_is_made_anew_is_one_of_the_topic_before() -> None:
    play = reading(40)
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 70))
    play.discover(shards_of("b"))
    play.commit()

    assert (source_of_note(play, "0"), withheld(play)) == ("a", ["SourceRecreated"])
    play.settle("g-0")
    assert play.confirmed("g-0") == {}


def test_a_forced_checkpoint_of_a_topic_made_anew_is_none_of_the_one_after_it() -> None:
    play = reading(40)
    play.discover(shards_of("b"))
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 70))
    play.discover(shards_of("c"))
    play.commit()

    assert (source_of_note(play, "0"), withheld(play)) == ("b", ["SourceRecreated"])


def test_many_that_are_left_alone_are_named_in_part() -> None:
    play = reading(10, 20, 30, 40, 50)
    decided(play, *"01234")
    remade(play, *"01234")
    play.restart()
    play.discover(shards_of(*"bbbbb"))
    go_on(play)

    assert report(play).message == (
        "No position was set. t/0, t/1, t/2 and others were made anew since this was decided, and are left alone: "
        "reset them under another id."
    )
