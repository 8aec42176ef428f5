from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardherd.core.model.nouns import ShardId
from shardherd.spark.flow import Limits

A, B, C = ShardId("clicks/0"), ShardId("clicks/1"), ShardId("clicks/2")


@pytest.mark.parametrize(
    ("limits", "bound", "given"),
    [
        (Limits(), None, {A: 100, B: 10}),
        (Limits(max_records=40), None, {A: 36, B: 4}),
        (Limits(max_records=40), 20, {A: 18, B: 2}),
        (Limits(), 20, {A: 18, B: 2}),
        (Limits(max_bytes=2000), None, {A: 100, B: 10}),
        (Limits(max_bytes=500), None, {A: 45, B: 4}),
        (Limits(max_records=20, max_bytes=150), None, {A: 13, B: 1}),
    ],
)
def test_limits_are_shared_by_backlog(limits: Limits, bound: int | None, given: dict[ShardId, int]) -> None:
    assert limits.share({A: 100, B: 10}, {A: 10.0, B: 10.0}, bound) == given


def test_a_record_larger_than_the_limit_passes() -> None:
    assert Limits(max_bytes=10).share({A: 5, B: 5}, {A: 1000.0, B: 2.0}) == {A: 1, B: 1}


def test_a_shard_of_unknown_size_counts_for_nothing() -> None:
    assert Limits(max_bytes=50).share({A: 100, B: 100}, {A: 10.0}) == {A: 5, B: 100}


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 1000), max_size=3),
    st.dictionaries(st.sampled_from([A, B, C]), st.floats(0.5, 5000)),
    st.integers(1, 100_000),
)
def test_bytes_are_exceeded_only_by_the_first_record_of_each_shard(
    available: dict[ShardId, int], sizes: dict[ShardId, float], most: int
) -> None:
    given = Limits(max_bytes=most).share(available, sizes)

    assert given.keys() == {shard for shard, count in available.items() if count}
    assert all(0 < count <= available[shard] for shard, count in given.items())
    above = sum((count - 1) * sizes.get(shard, 0.0) for shard, count in given.items())
    assert above <= most + len(given)  # sizes are rounded to whole bytes


def test_few_records_wait_until_they_are_more_or_the_delay_is_over() -> None:
    limits = Limits(min_records=100, max_delay=60)

    assert limits.waits(99, 59.9)
    assert not limits.waits(100, 0)
    assert not limits.waits(1, 60)
    assert not Limits().waits(1, 0)


def test_limits_go_over_the_socket_and_back() -> None:
    limits = Limits(5, 2, 1.5, 700, 3.0)

    assert Limits(**limits.as_dict()) == limits
