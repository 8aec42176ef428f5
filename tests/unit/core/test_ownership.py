"""What is stored, and that it is read back as it was."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardherd.core.errors import OwnershipDamagedError, OwnershipFormatError
from shardherd.core.group import Group
from shardherd.core.model import ConsumerId, Reset, ResetTo, ShardState
from shardherd.core.ownership import decode, dumps, encode, loads
from shardherd.core.records import GroupRecord, Ownership, ShardRecord
from shardherd.core.requests import ShardsDiscovered
from tests.builders import Play, incarnation, info, shard, spec, started


def timeless(ownership: Ownership) -> Ownership:
    return replace(ownership, shards={name: record._replace(since=0.0) for name, record in ownership.shards.items()})


def eventful() -> Play:
    play = Play(spec(2, ordered=True))
    play.discover([info("0", open=False, source_id="x"), info("1", parents=["0"]), info("2"), info("3"), info("4")])
    play.settle("g-0", "g-1")
    play.beat("g-2")
    play.run("g-0", pod=2)
    play.beat("g-0")
    play.leave("g-1")
    for reset in (Reset("a", ResetTo.LATEST), Reset("b", ResetTo.EARLIEST, shards=(shard("9"),))):
        play.change(replace(play.group.spec, settings=replace(play.group.spec.settings, paused=True), reset=reset))
        if (due := play.group.reset_due) is not None:
            play.ask(due)
    return play


STORED = eventful().group.ownership


def test_what_is_encoded_is_decoded_to_the_same_through_json() -> None:
    ownership = eventful().group.ownership
    assert timeless(decode(json.loads(json.dumps(encode(ownership))))) == timeless(ownership)


def test_the_stored_form_is_versioned_and_says_so_when_it_is_unknown() -> None:
    stored = encode(started(1, 1).group.ownership)
    assert stored["format"] == 1
    with pytest.raises(OwnershipFormatError, match="format 2, this version reads 1"):
        decode({**stored, "format": 2})


@pytest.mark.parametrize(
    "damage",
    [{"shards": {}}, {"group": {}}, {"runs": []}, {"consumers": [{}]}, {"consumers": []}, {"format": None}, {"format": "1"}],
)
def test_a_damaged_ownership_is_told_apart_from_one_of_another_version(damage: dict[str, Any]) -> None:
    with pytest.raises(OwnershipDamagedError, match="damaged"):
        decode({**encode(started(1, 1).group.ownership), **damage})


@pytest.mark.parametrize(
    ("column", "value"), [("state", 1), ("holder", -1), ("run", -1), ("next", 0), ("since", 9), ("epoch", [1, 1]), ("state", 7)]
)
def test_a_row_that_cannot_be_is_damage(column: str, value: Any) -> None:
    stored = encode(started(1, 1).group.ownership)
    stored["shards"][column] = value if isinstance(value, list) else [value]
    with pytest.raises(OwnershipDamagedError, match="damaged"):
        decode(stored)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"7", b'{"format":1}', b"\xff\x00", b"[" * 100_000])
def test_a_text_that_no_version_wrote_is_damage(text: bytes) -> None:
    with pytest.raises(OwnershipDamagedError, match="damaged"):
        loads(text)


@given(cut=st.integers(0, 400), flipped=st.integers(0, 7))
def test_whatever_befalls_the_stored_text_it_is_read_as_it_was_or_refused(cut: int, flipped: int) -> None:
    text = dumps(STORED)
    at = cut % len(text)
    for damaged in (text[:at], text[:at] + bytes([text[at] ^ (1 << flipped)]) + text[at + 1 :]):
        try:
            found = loads(damaged)
        except (OwnershipDamagedError, OwnershipFormatError):
            continue
        assert isinstance(found, Ownership)


def test_an_ownership_without_what_a_later_version_added_is_read() -> None:
    stored = encode(started(1, 1).group.ownership)
    del stored["group"]["rebuilding"]
    assert decode(stored).group.rebuilding is False


def test_a_hundred_thousand_shards_fit_in_300_kilobytes() -> None:
    records = {}
    for number in range(100_000):
        holder = ConsumerId(f"g-{number % 50}")
        name = shard(f"clicks/{number}")
        records[name] = ShardRecord(
            name,
            ShardState.ALREADY_ALLOC,
            0,
            True,
            holder,
            incarnation(holder),
            last_holder=holder,
            owner_epoch=1 + number % 3,
            held_since_epoch=1,
            revision=7,
            source_id="c3b1a2d4-topic-id",
        )
    stored = json.dumps(encode(Ownership(GroupRecord("uid"), records, {})), separators=(",", ":")).encode()
    assert len(zlib.compress(stored)) < 300 * 1024


def test_a_refused_request_changes_nothing_and_what_was_applied_can_be_reverted() -> None:
    play = eventful()
    before = encode(play.group.ownership), play.view
    result = play.group.handle(ShardsDiscovered((info("9"),)), play.now)
    assert (encode(play.group.ownership), play.view) == before
    play.group.apply(result.events)
    assert (encode(play.group.ownership), play.view) != before
    play.group.revert(result.events)
    assert play.view == before[1]
    assert timeless(play.group.ownership) == timeless(decode(before[0]))


def test_a_copy_is_independent() -> None:
    play = started(2, 1)
    twin = play.group.copy()
    before = twin.view(play.now)
    play.die("g-0")
    assert twin.view(play.now) == before
    assert play.view != before


def test_a_new_leader_writes_its_own_epoch() -> None:
    play = started(1, 1)
    group = Group.restore(play.group.ownership, play.log, play.group.spec, play.now, leader_epoch=7)
    assert group.ownership.group.leader_epoch == 7
