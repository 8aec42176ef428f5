"""What Spark's log of a cell says."""

from __future__ import annotations

import json

import pytest

from shardherd.core.consumer.cells import Begin, lost
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import ShardId
from shardherd.spark.cells.logged import batches, committed_by, furthest, offsets_in, positions
from shardherd.spark.offsets import Offsets, OffsetsError

A, B = ShardId("clicks/0"), ShardId("views/0")


def text(**stops: int) -> str:
    shards = {ShardId(f"{name}/0"): ReadRange(0, stop, 1) for name, stop in stops.items()}
    return json.dumps(Offsets("uid", 0, shards).as_dict())


def test_a_file_of_the_log_has_a_line_for_each_source_and_others_are_passed_over() -> None:
    written = "\n".join(["v1", '{"batchWatermarkMs": 0}', text(clicks=5), '{"logOffset": 3}', "17", "-", text(views=7)])
    assert positions(offsets_in(written, "uid")) == {A: 5, B: 7}
    assert offsets_in("v1\n{}", "uid") == []


def test_of_a_shard_that_is_read_twice_the_reader_that_is_behind_counts() -> None:
    assert committed_by([text(clicks=5), text(clicks=3, views=1), "17", '{"logOffset": 3}'], "uid") == {A: 3, B: 1}


def test_a_reader_that_begins_after_the_other_of_its_shard_makes_no_log_an_older_copy() -> None:
    position = committed_by([text(clicks=100), text()], "uid")[A]
    planned = furthest(offsets_in("\n".join(["v1", "{}", text(clicks=100), text(clicks=40)]), "uid"))
    assert lost(planned, {A: Begin(position, 0)}) == ""
    assert lost({A: 99}, {A: Begin(position, 0)}) != ""


def test_the_ids_of_the_topics_are_kept_with_the_positions() -> None:
    shards = {A: ReadRange(0, 5, 1), B: ReadRange(0, 7, 1)}
    found = positions([Offsets("uid", 0, shards, {"clicks": "id-1"}), Offsets("uid", 0, {A: ReadRange(0, 9, 1)})])
    assert (found, found.topic_ids) == ({A: 5, B: 7}, {A: "id-1"})


def test_a_location_of_another_group_is_an_error() -> None:
    with pytest.raises(OffsetsError, match="holds offsets of group uid, this consumer belongs to other"):
        offsets_in("\n".join(["v1", "{}", text(clicks=5)]), "other")


def test_the_numbers_of_micro_batches_are_in_order_and_other_files_do_not_count() -> None:
    assert batches(["10", "9", ".9.crc", "2.tmp", "11"]) == [9, 10, 11]
