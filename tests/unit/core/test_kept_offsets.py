"""A group takes over offsets that were committed before it was there: they bear its note before anybody holds their shards."""

from __future__ import annotations

import pytest

from shardherd.core.group.notes import parse, text
from shardherd.core.group.ownership import decode, encode
from shardherd.core.model.requests import CheckpointsCommitted, CheckpointsFailed
from tests.builders import IDENTITY, Play, info, restore, shard, spec, topic

ANOTHER = text("the UID of a group that was deleted", 7, 9, "")


def kept(note: str = ANOTHER) -> Play:
    """A new group whose shard 0 has a durable position already, which is being committed once more."""
    play = Play(spec(1))
    play.hold_commits = True
    play.log, play.noted = {shard("0"): 40}, {shard("0"): note}
    play.discover(topic(1))
    assert play.uncommitted == {shard("0"): 40}
    return play


def takes_over(play: Play) -> None:
    """Another coordinator, from what was stored and committed."""
    stored = decode(encode(play.group.ownership))
    play.group = restore(stored, dict(play.log), play.group.spec, play.now, notes=play.noted)
    play.uncommitted = {}


def whose(play: Play) -> str:
    note = parse(play.noted[shard("0")])
    return note.uid if note is not None else ""


def test_a_kept_offset_whose_first_commit_failed_is_committed_again_at_the_next_look_and_granted_only_then() -> None:
    play = kept()
    for _ in range(2):
        play.fail_commits()
        play.settle("g-0")
        assert play.confirmed("g-0") == {}
        assert play.discover(topic(1)).positions == {shard("0"): 40}
    play.hold_commits = False
    play.commit()
    play.discover(topic(1))
    play.settle("g-0")
    assert (play.confirmed("g-0")["0"].position, whose(play)) == (40, IDENTITY.uid)


def test_a_kept_offset_whose_first_commit_was_read_back_is_committed_again_at_the_next_look_and_granted_only_then() -> None:
    play = kept()
    for _ in range(2):
        play.uncommitted = {}
        play.ask(CheckpointsCommitted({shard("0"): 40}, read_back=True))
        play.settle("g-0")
        assert play.confirmed("g-0") == {}
        assert play.discover(topic(1)).positions == {shard("0"): 40}
    play.commit()
    play.settle("g-0")
    assert (play.confirmed("g-0")["0"].position, whose(play)) == (40, IDENTITY.uid)


def test_what_was_committed_once_is_not_committed_again_at_every_look() -> None:
    play = kept()
    play.commit()
    assert play.discover(topic(1)).positions == {}
    takes_over(play)
    assert play.discover(topic(1)).positions == {}


def test_the_next_coordinator_commits_a_kept_offset_that_the_one_before_could_not() -> None:
    for note in (ANOTHER, "somebody's own"):
        play = kept(note)
        takes_over(play)
        play.settle("g-0")
        assert play.discover(topic(1)).positions == {shard("0"): 40}
        play.settle("g-0")
        assert play.confirmed("g-0") == {}
        play.commit()
        play.discover(topic(1))
        play.settle("g-0")
        assert (play.confirmed("g-0")["0"].position, whose(play)) == (40, IDENTITY.uid)


def test_a_kept_offset_of_a_shard_that_went_is_committed_when_it_is_back() -> None:
    play = kept()
    play.ask(CheckpointsFailed(frozenset(play.uncommitted)))
    play.uncommitted = {}
    assert play.discover(topic(1, name="u")).positions == {shard("u/0"): 0}
    assert play.discover((*topic(1), *topic(1, name="u"))).positions == {shard("0"): 40}


@pytest.mark.parametrize(
    ("noted", "shown", "put_right"), [("id-1", "id-2", True), ("id-2", "id-2", False), ("", "id-2", False), ("id-1", "", False)]
)
def test_a_position_whose_note_names_another_shard_is_committed_once_more_by_the_next_leader(
    noted: str, shown: str, put_right: bool
) -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id=shown)])
    play.settle("g-0")
    play.noted[shard("0")] = before = text(IDENTITY.uid, 0, 0, noted)
    takes_over(play)
    play.discover([info("0", source_id=shown)])
    play.settle("g-0")
    assert (play.noted[shard("0")] != before) is put_right
    if put_right:
        assert play.noted[shard("0")] == text(IDENTITY.uid, 0, 1, shown)
    assert play.confirmed("g-0")["0"].position == 0
