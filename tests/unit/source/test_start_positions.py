from __future__ import annotations

from collections.abc import Mapping

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.partitions import EARLIEST, LATEST
from shardherd.source.reading.start_positions import RangeBound, RangeBoundError

A, B = ShardId("clicks/0"), ShardId("clicks/1")


class Log:
    """Two shards with offsets 10 to 19, written at times 100 to 109; the second has only the first five."""

    def __init__(self) -> None:
        self.asked: list[Mapping[ShardId, int]] = []

    def offsets(self, times: Mapping[ShardId, int], timeout: float) -> dict[ShardId, int]:
        self.asked.append(dict(times))
        end_offsets = {A: 20, B: 15}
        special = {shard: {EARLIEST: 10, LATEST: end_offsets[shard]} for shard in times}
        return {
            shard: special[shard].get(at, max(10, at - 90) if at < end_offsets[shard] + 90 else -1)
            for shard, at in times.items()
        }


@pytest.mark.parametrize(
    ("bound", "offsets"),
    [
        (RangeBound("o", EARLIEST), {A: 10, B: 10}),
        (RangeBound("o", LATEST), {A: 20, B: 15}),
        (RangeBound("o", 103), {A: 13, B: 13}),
        (RangeBound("o", 107, unmatched_is_latest=True), {A: 17, B: 15}),
        (RangeBound("o", offsets={A: 12, B: EARLIEST}), {A: 12, B: 10}),
        (RangeBound("o", offsets={A: 0, B: 99}), {A: 0, B: 99}),
        (RangeBound("o", times={A: 100, B: 104}), {A: 10, B: 14}),
    ],
)
def test_a_place_is_an_offset_of_every_shard(bound: RangeBound, offsets: dict[ShardId, int]) -> None:
    assert bound.resolve({A, B}, Log(), 1) == offsets


def test_given_offsets_are_not_looked_up() -> None:
    log = Log()
    RangeBound("o", offsets={A: 12, B: 13}).resolve({A, B}, log, 1)

    assert log.asked == []


@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        (
            RangeBound("startingTimestamp", 107),
            r"startingTimestamp: shard clicks/1 has no record at or after 107 .*Strategy=latest",
        ),
        (
            RangeBound("startingOffsets", offsets={A: 3}),
            r"says nothing of shard clicks/1: .* \(-2 is its beginning, -1 its end\)",
        ),
        (
            RangeBound("startingOffsetsByTimestamp", times={A: 3}),
            "says nothing of shard clicks/1: it must name every partition",
        ),
        (
            RangeBound("startingOffsets", offsets={A: 3, B: 4, ShardId("clicks/2"): 5}),
            "startingOffsets names shard clicks/2, which is not among those that are read: remove it",
        ),
    ],
)
def test_a_place_that_cannot_be_is_named(bound: RangeBound, reason: str) -> None:
    with pytest.raises(RangeBoundError, match=reason):
        bound.resolve({A, B}, Log(), 1)
