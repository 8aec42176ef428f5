"""What is measured of a group: rates, what one consumer can read, and how old the lag is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardherd.core.model import ConsumerId, GroupView, ShardId, ShardState, ShardView
from shardherd.core.traffic import INTERVAL, MEMORY, Pace, Traffic, watched
from tests.unit.controller.builders import view

NAMES = (ConsumerId("clicks-0"), ConsumerId("clicks-1"))


def shard(number: int, end: int, position: int, holder: int = 0, state: ShardState = ShardState.ALREADY_ALLOC) -> ShardView:
    """A shard that ends here and is checkpointed there."""
    return ShardView(
        ShardId(f"clicks/{number}"), state, NAMES[holder], checkpoint=position, end=end, lag_records=end - position
    )


def watch(
    seconds: float,
    *shards: Callable[[float], ShardView],
    start: float = 0.0,
    before: Traffic | None = None,
    step: float = 1.0,
) -> Traffic:
    """What is known after so many seconds of shards that each are a function of the time."""
    traffic, now = before, start
    while now <= start + seconds:
        traffic = watched(traffic, view(tuple(made(now) for made in shards)), now)
        now += step
    assert traffic is not None
    return traffic


def test_rates_are_those_of_all_shards_over_the_last_minute() -> None:
    seen = watch(
        180,
        lambda now: shard(0, round(100 * now), round(80 * now)),
        lambda now: shard(1, round(10 * now), round(max(0.0, 10 * now - 5))),
    )
    assert seen.measured
    assert seen.produced == pytest.approx(110)
    assert seen.consumed == pytest.approx(90)


def test_no_rate_is_known_at_first() -> None:
    assert not watch(INTERVAL, lambda now: shard(0, round(100 * now), 0)).measured


def test_a_shard_that_was_cut_back_and_a_position_that_was_set_back_count_for_nothing() -> None:
    seen = watch(
        60,
        lambda now: shard(0, 1000 if now < 30 else 10, 10),
        lambda now: shard(1, 1000, 500 if now < 30 else 0),
    )
    assert (seen.produced, seen.consumed) == (0, 0)


def test_a_shard_that_appears_with_records_was_not_written_all_at_once() -> None:
    before = watch(60, lambda now: shard(0, round(10 * now), round(10 * now)))
    seen = watch(
        60,
        lambda now: shard(0, round(10 * now), round(10 * now)),
        lambda now: shard(1, 1_000_000, 0),  # noqa: ARG005
        start=61,
        before=before,
    )
    assert seen.produced == pytest.approx(10, rel=0.05)


class TestWhatOneConsumerCanRead:
    def test_is_seen_while_it_has_more_to_read_than_it_reads(self) -> None:
        seen = watch(
            60,
            lambda now: shard(0, 1_000_000, round(200 * now), 0),
            lambda now: shard(1, 1_000_000, round(100 * now), 1),
        )
        assert seen.pace.per_second == pytest.approx(150)

    def test_is_not_what_it_reads_while_it_keeps_up(self) -> None:
        seen = watch(60, lambda now: shard(0, round(100 * now) + 50, round(100 * now)))
        assert (seen.pace.per_second, seen.behind) == (None, False)

    def test_comes_in_steps_as_micro_batches_do(self) -> None:
        seen = watch(300, lambda now: shard(0, 1_000_000, 2000 * int(now // 10)))
        assert seen.pace.per_second == pytest.approx(200, rel=0.1)

    def test_follows_what_changed(self) -> None:
        seen = watch(
            600 + 2 * MEMORY, lambda now: shard(0, 10_000_000, round(100 * now if now < 600 else 60_000 + 20 * (now - 600)))
        )
        assert seen.pace.per_second == pytest.approx(20, rel=0.5)

    @pytest.mark.parametrize("step", [MEMORY / 2, 1_000_000.0])
    def test_is_what_it_was_however_long_nobody_was_busy(self, step: float) -> None:
        pace = Pace(6000.0, 60.0)
        for _ in range(2000):
            pace = pace.faded(step)
        assert pace.per_second == pytest.approx(100)

    def test_leaves_out_a_shard_that_changed_hands(self) -> None:
        seen = watch(40, lambda now: shard(0, 1_000_000, round(100 * now), int(now // 5) % 2))
        assert seen.pace.per_second is None

    def test_is_known_from_before_a_restart(self) -> None:
        pictures: GroupView = view((shard(0, 100, 100),))
        seen = watched(None, pictures, 0.0, pace=70.0)
        assert seen is not None
        assert seen.pace.per_second == pytest.approx(70)


class TestTheAgeOfTheLag:
    def test_is_zero_when_all_is_read(self) -> None:
        assert watch(60, lambda now: shard(0, round(10 * now), round(10 * now))).lag_seconds == 0

    @pytest.mark.parametrize("behind", [5.0, 30.0, 300.0])
    def test_is_when_the_next_record_was_written(self, behind: float) -> None:
        seen = watch(1000, lambda now: shard(0, round(100 * now), max(0, round(100 * (now - behind)))))
        assert seen.lag_seconds == pytest.approx(behind, abs=INTERVAL)

    def test_is_right_within_a_quarter_for_records_that_came_in_bursts(self) -> None:
        # 1000 records every 200 s; those of the burst at 400 s are read next.
        seen = watch(1000, lambda now: shard(0, 1000 * int(now // 200), min(2000, 1000 * int(now // 200)) - 1))
        assert seen.lag_seconds == pytest.approx(600, rel=0.25)

    def test_is_that_of_the_worst_shard(self) -> None:
        seen = watch(
            200,
            lambda now: shard(0, round(10 * now), round(10 * now)),
            lambda now: shard(1, round(10 * now), round(max(0.0, 10 * (now - 50)))),
        )
        assert seen.lag_seconds == pytest.approx(50, abs=INTERVAL)

    def test_of_a_backlog_from_before_the_start_is_estimated_by_the_rate_since(self) -> None:
        seen = watch(100, lambda now: shard(0, 10_000 + round(10 * now), 9_000))
        assert seen.lag_seconds == pytest.approx(200, rel=0.05)

    def test_of_a_backlog_that_nobody_adds_to_is_at_least_as_old_as_we_know(self) -> None:
        assert watch(100, lambda now: shard(0, 10_000, 9_000)).lag_seconds == 100  # noqa: ARG005

    def test_is_not_known_at_the_first_look(self) -> None:
        assert watch(0, lambda now: shard(0, 10_000, 9_000)).lag_seconds is None  # noqa: ARG005


def test_what_stands_still_is_told_from_what_has_nothing_to_read() -> None:
    seen = watch(
        120,
        lambda now: shard(0, 1000, min(500, round(10 * now))),
        lambda now: shard(1, 1000, 1000),  # noqa: ARG005
        lambda now: shard(2, 1000, 0, state=ShardState.WAIT),  # noqa: ARG005
    )
    assert seen.still_for(120.0, 60.0) == {"clicks/0": pytest.approx(70, abs=INTERVAL)}


def test_what_is_remembered_does_not_grow_with_the_time() -> None:
    seen = watch(20_000, lambda now: shard(0, round(now), round(now)), step=INTERVAL)
    assert len(seen.looks) < 60
    assert len(seen.marks) < 20
