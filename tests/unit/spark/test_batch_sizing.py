"""How many records a micro-batch gets at a measured rate."""

from __future__ import annotations

import pytest

from shardherd.spark.batch_sizing import FIRST_BOUND, LOWEST_BOUND, BatchSizing


def settle(sizing: BatchSizing, *, fixed: float, rate: float, batches: int = 40, available: int = 1 << 40) -> float:
    """Run batches of a backlog that take `fixed + records / rate` seconds; returns how long the last one took."""
    now, took = 0.0, 0.0
    for _ in range(batches):
        records = min(available, sizing.bound)
        sizing.begin(records, now)
        now += fixed + records / rate
        took = sizing.end(now) or 0.0
    return took


@pytest.mark.parametrize(("fixed", "rate"), [(0.2, 1_000_000), (0.2, 50_000), (0.5, 5_000), (0.05, 2_000)])
def test_a_backlog_is_read_in_batches_of_about_the_target(fixed: float, rate: float) -> None:
    assert settle(BatchSizing(1.0), fixed=fixed, rate=rate) == pytest.approx(1.0, abs=0.35)


def test_batches_do_not_shrink_to_nothing_where_the_fixed_cost_alone_is_above_the_target() -> None:
    sizing = BatchSizing(1.0)

    settle(sizing, fixed=1.5, rate=100_000)

    assert sizing.bound > 30_000


def test_a_slow_start_is_forgotten() -> None:
    sizing = BatchSizing(1.0)
    settle(sizing, fixed=4.0, rate=10_000, batches=3)
    assert sizing.bound < FIRST_BOUND

    settle(sizing, fixed=0.2, rate=400_000)

    assert sizing.bound == pytest.approx(320_000, rel=0.4)


def test_batches_below_the_bound_do_not_change_it() -> None:
    sizing = BatchSizing(1.0)

    settle(sizing, fixed=0.3, rate=100_000, available=2_000)

    assert sizing.bound == FIRST_BOUND


def test_the_bound_has_a_floor() -> None:
    sizing = BatchSizing(1.0)

    settle(sizing, fixed=0.1, rate=10)

    assert sizing.bound == LOWEST_BOUND


def test_a_batch_that_was_given_up_or_empty_counts_for_nothing() -> None:
    sizing = BatchSizing(1.0)

    sizing.begin(FIRST_BOUND, 0.0)
    sizing.forget()
    assert sizing.end(100.0) is None
    sizing.begin(0, 100.0)
    assert sizing.end(200.0) is None

    assert sizing.bound == FIRST_BOUND
