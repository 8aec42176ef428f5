"""The ranges of the running micro-batch, as a sink is told them: right or not at all."""

from __future__ import annotations

import re

import pytest

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import HeldShard, ShardId
from shardherd.spark import ranges
from shardherd.spark.running_batch import BatchRange, HandedBatch, RangesError, Running, handed_out, ranges_of, read_again

A, B, C = ShardId("clicks/0"), ShardId("clicks/1"), ShardId("clicks/2")
BATCH = Running("run-1", 5)


def handed() -> HandedBatch:
    return handed_out({B: ReadRange(7, 9, 3), A: ReadRange(0, 4, 2), C: ReadRange(5, 5, 1)}, {A: "id-1", C: "id-1"})


def test_every_shard_with_records_has_its_range_in_order() -> None:
    found = ranges_of(handed(), "group-uid", 5, BATCH)

    assert list(found.items()) == [("clicks/0", (0, 4, 2)), ("clicks/1", (7, 9, 3))]
    assert found["clicks/1"] == BatchRange(start=7, stop=9, epoch=3)
    assert (found.group, found.batch_id, found.run) == ("group-uid", 5, "run-1")


def test_what_is_read_again_has_the_epoch_of_the_grant_of_now() -> None:
    held = (HeldShard(A, 2), HeldShard(A, 6), HeldShard(B, 7))

    again = ranges_of(read_again({A: ReadRange(0, 4, 2)}, held, {A: "id-2"}), "group-uid", 5, BATCH)

    assert dict(again) == {"clicks/0": (0, 4, 6)}
    assert again.key("clicks/0") == "clicks/0@id-2"


def test_the_key_of_a_position_names_the_topic_where_kafka_has_an_id_of_it() -> None:
    found = ranges_of(handed(), "group-uid", 5, BATCH)

    assert [found.key(shard) for shard in found] == ["clicks/0@id-1", "clicks/1"]
    assert found.topic_ids == {"clicks/0": "id-1"}, "of what has records, and no others"


def test_it_may_be_asked_for_as_often_as_one_likes() -> None:
    batch = handed()
    assert dict(ranges_of(batch, "group-uid", 5, BATCH)) == dict(ranges_of(batch, "group-uid", 5, BATCH))


@pytest.mark.parametrize(
    ("batch", "asked", "running", "says"),
    [
        (handed(), 5, None, "ranges(5) was called outside of a micro-batch: call it in the function that foreachBatch calls"),
        (handed(), 4, BATCH, "ranges(4) was called while micro-batch 5 is running: pass the batch id"),
        (None, 5, BATCH, "nothing of this ConsumerGroup is being read, so that micro-batch 5 has no ranges of it"),
    ],
)
def test_any_other_micro_batch_than_the_running_one_is_refused(
    batch: HandedBatch | None, asked: int, running: Running | None, says: str
) -> None:
    with pytest.raises(RangesError, match=re.escape(says)):
        ranges_of(batch, "group-uid", asked, running)


@pytest.mark.parametrize("other", [Running("run-2", 5), Running("run-1", 6)])
def test_what_was_handed_out_for_one_micro_batch_is_of_no_other(other: Running) -> None:
    batch = handed()
    ranges_of(batch, "group-uid", 5, BATCH)

    with pytest.raises(RangesError, match=r"what was handed out last is micro-batch 5 of the run run-1"):
        ranges_of(batch, "group-uid", other.batch_id, other)


def test_without_a_session_in_a_group_it_says_what_is_needed() -> None:
    with pytest.raises(RangesError, match=re.escape("needs a session made by shardherd.spark.session() in a ConsumerGroup")):
        ranges(0)
