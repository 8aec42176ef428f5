"""Which leader epochs are noted in the offsets that Spark logs, and what must hold of the logs by them."""

from __future__ import annotations

import json

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.leader_epochs import EndOffsets, Mark
from shardherd.spark.logged_epochs import leaders_of, marks_of
from shardherd.spark.offsets import Offsets, parse

A = ShardId("clicks/0")


def offsets(*each: int, leader: int | None = None, topic_id: str | None = None) -> Offsets:
    leaders = {} if leader is None else {A: leader}
    return Offsets("uid", 0, {A: ReadRange(*each)}, None if topic_id is None else {"clicks": topic_id}, leaders)


def test_leaders_are_logged_and_read_back_and_offsets_without_are_as_before() -> None:
    noted, older = offsets(0, 5, 2, leader=7), offsets(0, 5, 2)

    assert json.dumps(noted.as_dict()) == (
        '{"group": "uid", "leaders": {"clicks/0": 7}, "shards": {"clicks/0": [0, 5, 2]}, "v": 1, "warm": 0}'
    )
    assert parse(noted.as_dict(), "uid") == noted
    assert json.dumps(older.as_dict()) == '{"group": "uid", "shards": {"clicks/0": [0, 5, 2]}, "v": 1, "warm": 0}'
    assert parse(json.dumps(older.as_dict()), "uid") == older


def test_a_range_is_noted_with_the_epoch_under_which_its_end_was_seen() -> None:
    end_offsets = EndOffsets({A: 20}, {A: 4})

    assert leaders_of(offsets(0, 5, 2, leader=3), {A: ReadRange(5, 9, 2)}, end_offsets) == {A: 4}
    assert leaders_of(offsets(0, 5, 2, leader=3), {A: ReadRange(5, 5, 2)}, end_offsets) == {A: 3}, (
        "nobody asks before it is read on"
    )
    assert leaders_of(offsets(0, 5, 2, leader=3), {A: ReadRange(5, 5, 6)}, end_offsets) == {A: 4}, "another grant begins anew"
    assert leaders_of(offsets(0, 5, 2), {A: ReadRange(25, 25, 2)}, end_offsets) == {}, "nobody has seen it there"
    assert leaders_of(offsets(0, 5, 2), {A: ReadRange(5, 9, 2)}, {A: 20}) == {}, "brokers that do not say"


def test_a_range_has_a_mark_at_its_end_and_at_its_beginning_if_that_is_of_another_epoch() -> None:
    before = offsets(0, 5, 2, leader=3)

    assert marks_of(before, offsets(5, 9, 2, leader=3)) == {A: (Mark(9, 3),)}
    assert marks_of(before, offsets(5, 9, 2, leader=4)) == {A: (Mark(5, 3), Mark(9, 4))}
    assert marks_of(before, offsets(5, 9, 6, leader=4)) == {A: (Mark(9, 4),)}, "a position of the coordinator's has no epoch"
    assert marks_of(before, offsets(5, 9, 2)) == {A: (Mark(5, 3),)}
    assert marks_of(before, offsets(5, 5, 2, leader=4)) == {}
    assert marks_of(offsets(0, 0, 2, leader=3), offsets(0, 9, 2, leader=4)) == {A: (Mark(9, 4),)}, "before 0 nothing is lost"


def test_a_topic_that_was_made_anew_begins_anew() -> None:
    before = offsets(0, 5, 0, leader=3, topic_id="id-1")

    assert marks_of(before, offsets(5, 9, 0, leader=0, topic_id="id-2")) == {A: (Mark(9, 0),)}
    assert marks_of(before, offsets(5, 9, 0, leader=4, topic_id="id-1")) == {A: (Mark(5, 3), Mark(9, 4))}
