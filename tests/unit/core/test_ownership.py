"""What is stored, and that it is read back as it was."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardherd import protocol
from shardherd.core.group.ownership import decode, dumps, encode, loads
from shardherd.core.group.records import ConsumerRecord, GroupRecord, Ownership, ShardRecord
from shardherd.core.model.errors import OwnershipDamagedError, OwnershipFormatError
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    ConsumerId,
    Growth,
    Incarnation,
    Reset,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardState,
)
from shardherd.core.model.requests import ShardsDiscovered
from tests.builders import Play, copy_of, incarnation, info, restore, shard, shards, spec, started


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


G0, G1, G2 = (ConsumerId(f"g-{number}") for number in range(3))

WRITTEN = Ownership(
    GroupRecord(
        "uid",
        leader_epoch=2,
        group_epoch=3,
        revision=4,
        discovered=True,
        growths=(Growth("t", 1, 3, ((shard("0"), 40), (shard("1"), 50))),),
        epoch_floor=5,
        rebuilding=True,
        reset=ResetReport("b", ResetTo.EARLIEST, ResetState.REFUSED, "no such shard", Seconds(20.0), manager="tool"),
        last_reset=ResetReport(
            "a",
            ResetTo.LATEST,
            ResetState.DONE,
            "done",
            Seconds(10.0),
            2,
            3,
            4,
            (ResetRow(shard("0"), None, 7), ResetRow(shard("1"), 8, 9)),
        ),
        reset_ids=("a", "b"),
        reset_sources=((shard("0"), "topic-id"),),
        reset_left_out=shards("1"),
    ),
    {
        shard("0"): ShardRecord(
            shard("0"),
            ShardState.TRANSFER,
            1,
            started=True,
            holder=G1,
            incarnation=Incarnation("pod-1", 2),
            next_consumer=G0,
            last_holder=G1,
            owner_epoch=6,
            held_since_epoch=5,
            revision=3,
            parents=shards("1", "2"),
            source_id="topic-id",
        ),
        shard("1"): ShardRecord(
            shard("1"),
            ShardState.ALREADY_ALLOC,
            2,
            holder=G0,
            incarnation=Incarnation("pod-0", 1),
            last_holder=G0,
            owner_epoch=1,
            held_since_epoch=1,
            revision=2,
        ),
        shard("2"): ShardRecord(shard("2"), ShardState.OVER, 3, started=True, last_holder=G2),
        shard("3"): ShardRecord(shard("3"), ShardState.WAIT, 4),
        shard("4"): ShardRecord(shard("4"), ShardState.NOT_ALLOC, 5),
    },
    {
        G0: ConsumerRecord(G0, Incarnation("pod-0", 1)),
        G1: ConsumerRecord(
            G1,
            Incarnation("pod-1", 2),
            present=False,
            ended=Incarnation("pod-1", 1),
            end_reason="Died",
            superseded=("pod-8", "pod-9"),
            proven=(Incarnation("pod-8", 3), Incarnation("pod-9", 4)),
            zone="a",
            capacity=3,
        ),
    },
)

AS_WRITTEN: dict[str, Any] = {
    "format": 1,
    "group": {
        "uid": "uid",
        "leaderEpoch": 2,
        "groupEpoch": 3,
        "revision": 4,
        "discovered": True,
        "epochFloor": 5,
        "growths": [["t", 1, 3, [["t/0", 40], ["t/1", 50]]]],
        "rebuilding": True,
        "reset": {
            "id": "b",
            "to": "Earliest",
            "state": "Refused",
            "message": "no such shard",
            "time": 20.0,
            "shards": 0,
            "repeated": 0,
            "skipped": 0,
            "manager": "tool",
            "rows": [],
        },
        "lastReset": {
            "id": "a",
            "to": "Latest",
            "state": "Done",
            "message": "done",
            "time": 10.0,
            "shards": 2,
            "repeated": 3,
            "skipped": 4,
            "manager": "",
            "rows": [["t/0", "t/1"], [None, 8], [7, 9]],
        },
        "resetIds": ["a", "b"],
        "resetSources": [["t/0", "topic-id"]],
        "resetLeftOut": ["t/1"],
    },
    "consumers": [
        {
            "consumer": "g-0",
            "run": ["pod-0", 1],
            "present": True,
            "ended": None,
            "endReason": "",
            "superseded": [],
            "proven": [],
            "zone": "",
            "capacity": 1,
        },
        {
            "consumer": "g-1",
            "run": ["pod-1", 2],
            "present": False,
            "ended": ["pod-1", 1],
            "endReason": "Died",
            "superseded": ["pod-8", "pod-9"],
            "proven": [["pod-8", 3], ["pod-9", 4]],
            "zone": "a",
            "capacity": 3,
        },
    ],
    "names": ["g-0", "g-1", "g-2"],
    "runs": [["pod-0", 1], ["pod-1", 2]],
    "shards": {
        "shard": ["t/0", "t/1", "t/2", "t/3", "t/4"],
        "state": [3, 2, 4, 0, 1],
        "start": [1, 2, 3, 4, 5],
        "started": [1, 0, 1, 0, 0],
        "holder": [1, 0, -1, -1, -1],
        "run": [1, 0, -1, -1, -1],
        "next": [0, -1, -1, -1, -1],
        "last": [1, 0, 2, -1, -1],
        "epoch": [6, 1, 0, 0, 0],
        "since": [5, 1, 0, 0, 0],
        "revision": [3, 2, 0, 0, 0],
        "source": ["topic-id", "", "", "", ""],
        "parents": {"t/0": ["t/1", "t/2"]},
    },
}
"""Format 1. What stands here was written by coordinators that run: it must be read as it is for ever."""


def test_every_field_has_its_place_in_the_stored_form() -> None:
    assert encode(WRITTEN) == AS_WRITTEN
    assert dumps(WRITTEN) == json.dumps(AS_WRITTEN, separators=(",", ":"), sort_keys=True).encode()


def test_the_stored_form_is_read_field_by_field() -> None:
    assert decode(AS_WRITTEN) == WRITTEN
    assert loads(json.dumps(AS_WRITTEN, indent=1).encode()) == WRITTEN


def test_the_time_of_a_reset_is_one_that_can_be_told_when_it_is_read_again() -> None:
    assert protocol.encode(decode(AS_WRITTEN).group.last_reset)["timeMs"] == 10_000


def test_a_reset_that_was_made_last_is_stored_once() -> None:
    made = replace(WRITTEN.group, reset=WRITTEN.group.last_reset)
    stored = encode(replace(WRITTEN, group=made))
    assert (stored["group"]["reset"], stored["group"]["lastReset"]) == (AS_WRITTEN["group"]["lastReset"], None)
    assert decode(stored).group == made


def test_a_group_without_any_reset_has_none_when_it_is_read() -> None:
    never = replace(WRITTEN.group, reset=None, last_reset=None)
    assert decode(encode(replace(WRITTEN, group=never))).group == never


def test_a_reset_that_was_refused_first_is_not_the_last_that_was_made() -> None:
    refused = replace(WRITTEN.group, last_reset=None)
    assert decode(encode(replace(WRITTEN, group=refused))).group == refused


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


def test_an_ownership_without_what_later_versions_added_is_read() -> None:
    added = ("epochFloor", "growths", "rebuilding", "reset", "lastReset", "resetIds", "resetSources", "resetLeftOut")
    group = {name: value for name, value in AS_WRITTEN["group"].items() if name not in added}
    consumers = [
        {name: value for name, value in consumer.items() if name not in ("zone", "capacity")}
        for consumer in AS_WRITTEN["consumers"]
    ]
    before = replace(
        WRITTEN,
        group=GroupRecord("uid", leader_epoch=2, group_epoch=3, revision=4, discovered=True),
        consumers={name: replace(consumer, zone="", capacity=1) for name, consumer in WRITTEN.consumers.items()},
    )
    assert decode({**AS_WRITTEN, "group": group, "consumers": consumers}) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"format":1', "it is not JSON: Expecting ',' delimiter: line 1 column 12 (char 11)"),
        (b"7", "TypeError: its format is None"),
        (b'{"format":"1"}', "TypeError: its format is '1'"),
        (b'{"format":1}', "KeyError: 'group'"),
    ],
)
def test_damage_is_told(text: bytes, message: str) -> None:
    with pytest.raises(OwnershipDamagedError) as refused:
        loads(text)
    assert str(refused.value) == f"the stored ownership is damaged: {message}"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"epoch": [1] * 6, "since": [0]}, "the columns of its shards have lengths [1, 5, 6]"),
        ({"state": [2, 2, 4, 0, 1]}, "shard t/0 is ALREADY_ALLOC, held by g-1 and next g-0"),
        ({"holder": [1, 0, -1, 0, -1]}, "shard t/3 is WAIT, held by g-0 and next None"),
        ({"holder": [1, 2, -1, -1, -1]}, "shard t/1 is ALREADY_ALLOC, held by g-2 and next None"),
        ({"next": [2, -1, -1, -1, -1]}, "shard t/0 is TRANSFER, held by g-1 and next g-2"),
        ({"next": [-1, -1, -1, -1, -1]}, "shard t/0 is TRANSFER, held by g-1 and next None"),
        ({"run": [-1, 0, -1, -1, -1]}, "shard t/0 is TRANSFER, held by g-1 and next g-0"),
        ({"since": [5, 1, 1, 0, 0]}, "shard t/2 is OVER, held by None and next None"),
    ],
)
def test_a_row_that_cannot_be_is_named(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(OwnershipDamagedError) as refused:
        decode({**AS_WRITTEN, "shards": {**AS_WRITTEN["shards"], **columns}})
    assert str(refused.value) == f"the stored ownership is damaged: ValueError: {message}"


def test_a_reset_whose_rows_are_not_whole_is_damage() -> None:
    reset = {**AS_WRITTEN["group"]["lastReset"], "rows": [["t/0", "t/1"], [None], [7, 9]]}
    with pytest.raises(OwnershipDamagedError, match="damaged: ValueError: zip"):
        decode({**AS_WRITTEN, "group": {**AS_WRITTEN["group"], "lastReset": reset}})


def test_a_format_that_a_later_version_wrote_is_told_with_the_remedy() -> None:
    with pytest.raises(OwnershipFormatError) as refused:
        decode({**AS_WRITTEN, "format": 2})
    assert str(refused.value) == (
        "the stored ownership has format 2, this version reads 1; run the version that wrote it, or a later one"
    )


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


def test_what_was_decided_can_be_rolled_back() -> None:
    play = eventful()
    before = encode(play.group.ownership), play.view
    play.group.decide(ShardsDiscovered((info("9"),)), play.now)
    assert (encode(play.group.ownership), play.view) != before
    play.group.roll_back()
    assert play.view == before[1]
    assert timeless(play.group.ownership) == timeless(decode(before[0]))


def test_a_copy_is_independent() -> None:
    play = started(2, 1)
    twin = copy_of(play.group)
    before = twin.view(play.now)
    play.die("g-0")
    assert twin.view(play.now) == before
    assert play.view != before


def test_a_new_leader_writes_its_own_epoch() -> None:
    play = started(1, 1)
    group = restore(play.group.ownership, play.log, play.group.spec, play.now, leader_epoch=7)
    assert group.ownership.group.leader_epoch == 7
