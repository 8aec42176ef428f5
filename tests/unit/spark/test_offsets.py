"""Offsets as text: what Spark's log holds."""

from __future__ import annotations

import json

import pytest

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import ShardId
from shardherd.spark.offsets import STANDALONE, Offsets, OffsetsError, parse

SHARDS = {ShardId("clicks/10"): ReadRange(0, 5, 3), ShardId("clicks/2"): ReadRange(7, 7, 4)}


def test_offsets_are_written_with_sorted_keys_as_spark_compares_them_as_text() -> None:
    text = json.dumps(Offsets("uid", 2, SHARDS).as_dict())

    assert text == '{"group": "uid", "shards": {"clicks/10": [0, 5, 3], "clicks/2": [7, 7, 4]}, "v": 1, "warm": 2}'
    assert text == json.dumps(Offsets("uid", 2, dict(reversed(SHARDS.items()))).as_dict())


@pytest.mark.parametrize("topics", [None, {}, {"views": "id-2", "clicks": "id-1"}])
def test_what_was_written_is_read_back(topics: dict[str, str] | None) -> None:
    offsets = Offsets("uid", 2, SHARDS, topics)

    assert parse(offsets.as_dict(), "uid") == offsets
    assert list(offsets.as_dict()) == sorted(offsets.as_dict())
    assert parse(json.dumps(offsets.as_dict()), "uid") == offsets


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"group": STANDALONE, "shards": {}, "topics": {}, "v": 1, "warm": 0}, "of the other way to use this source"),
        ({"group": "other", "shards": {}, "v": 1, "warm": 0}, "of group other, this consumer belongs to uid"),
        ({"group": "uid", "shards": {}, "v": 2, "warm": 0}, "of version 2"),
        ({"clicks": {"0": 5}}, "of another source"),
        ({"group": "uid", "shards": {"clicks/0": 5}, "v": 1, "warm": 0}, "of another source"),
        ({"group": "uid", "shards": {"clicks/0": [1, 2]}, "v": 1, "warm": 0}, "of another source"),
        ({"group": "uid", "shards": {"clicks/0": [1, 2, "x"]}, "v": 1, "warm": 0}, "of another source"),
        ({"group": "uid", "shards": {"clicks/0": [1, float("inf"), 3]}, "v": 1, "warm": 0}, "of another source"),
        ({"group": "uid", "shards": {}, "v": 1, "warm": "often"}, "of another source"),
        (["clicks"], "of another source"),
    ],
)
def test_offsets_of_others_are_refused_with_a_remedy(found: object, reason: str) -> None:
    with pytest.raises(OffsetsError, match=reason):
        parse(found, "uid")  # type: ignore[arg-type]
