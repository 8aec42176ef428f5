"""What is measured of a group: rates, and what one consumer can read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.model.nouns import ConsumerId, GroupView, ShardId, ShardState, ShardView
from shardherd.core.planning.traffic import INTERVAL, MEMORY, ConsumerRate, Mark, Span, Traffic, measure
from tests.unit.core.planning.builders import view

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
        traffic = measure(traffic, view(tuple(made(now) for made in shards)), now)
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
        assert seen.consumer_rate.per_second == pytest.approx(150)

    def test_is_not_what_it_reads_while_it_keeps_up(self) -> None:
        seen = watch(60, lambda now: shard(0, round(100 * now) + 50, round(100 * now)))
        assert (seen.consumer_rate.per_second, seen.behind) == (None, False)

    def test_comes_in_steps_as_micro_batches_do(self) -> None:
        seen = watch(300, lambda now: shard(0, 1_000_000, 2000 * int(now // 10)))
        assert seen.consumer_rate.per_second == pytest.approx(200, rel=0.1)

    def test_follows_what_changed(self) -> None:
        seen = watch(
            600 + 2 * MEMORY, lambda now: shard(0, 10_000_000, round(100 * now if now < 600 else 60_000 + 20 * (now - 600)))
        )
        assert seen.consumer_rate.per_second == pytest.approx(20, rel=0.5)

    @pytest.mark.parametrize("step", [MEMORY / 2, 1_000_000.0])
    def test_is_what_it_was_however_long_nobody_was_busy(self, step: float) -> None:
        consumer_rate = ConsumerRate(6000.0, 60.0)
        for _ in range(2000):
            consumer_rate = consumer_rate.faded(step)
        assert consumer_rate.per_second == pytest.approx(100)

    def test_leaves_out_a_shard_that_changed_hands(self) -> None:
        seen = watch(40, lambda now: shard(0, 1_000_000, round(100 * now), int(now // 5) % 2))
        assert seen.consumer_rate.per_second is None

    def test_is_known_from_before_a_restart(self) -> None:
        pictures: GroupView = view((shard(0, 100, 100),))
        seen = measure(None, pictures, 0.0, consumer_rate=70.0)
        assert seen is not None
        assert seen.consumer_rate.per_second == pytest.approx(70)


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
    assert len(seen.marks) < 20


C0, C1 = NAMES
FIRST = (
    shard(0, 100, 90),
    ShardView(ShardId("clicks/1"), ShardState.NOT_ALLOC, end=50),
    shard(2, 10, 10, state=ShardState.OVER),
    structs.replace(shard(3, 10, 5), present=False),
    ShardView(ShardId("clicks/4"), ShardState.NOT_ALLOC, lag_records=3),
)
"""Of these only the first two count, and of the second no position is known."""


def longs(*values: int) -> array[int]:
    return array("q", values)


def times(*values: float) -> array[float]:
    return array("d", values)


class TestALook:
    """Two looks, number by number."""

    first = Traffic(
        shards=(ShardId("clicks/0"), ShardId("clicks/1")),
        end_offsets=longs(100, 50),
        positions=longs(90, -1),
        moved_at=times(100.0, 100.0),
        holders=(C0, None),
        marks=(Mark(100.0, 0, 0),),
        consumer_rate=ConsumerRate(4200.0, 60.0),
    )

    def test_at_first_finds_the_ends_the_positions_and_the_holders(self) -> None:
        assert measure(None, view(FIRST), 100.0, 70.0) == self.first
        assert measure(None, view(FIRST), 100.0) == replace(self.first, consumer_rate=ConsumerRate())

    def test_is_not_taken_before_its_time(self) -> None:
        before = self.first
        assert measure(before, view(()), 100.0 + INTERVAL - 0.1) is before
        assert measure(before, view(()), 100.0 + INTERVAL).shards == ()

    def test_of_nothing_finds_no_lag(self) -> None:
        seen = measure(None, view(()), 100.0)
        assert (seen.lag_records, seen.measured) == (0, False)

    def test_adds_what_was_written_and_read_since_the_one_before(self) -> None:
        second = (shard(0, 160, 110), shard(1, 50, 40, holder=1))
        fading = math.exp(-5.0 / MEMORY)
        assert measure(self.first, view(second), 105.0) == Traffic(
            shards=self.first.shards,
            end_offsets=longs(160, 50),
            positions=longs(110, 40),
            moved_at=times(105.0, 105.0),
            holders=(C0, C1),
            marks=(Mark(100.0, 0, 0), Mark(105.0, 60, 20)),
            spans={C0: Span(100.0, 20, 50)},
            consumer_rate=ConsumerRate(4200.0 * fading, 60.0 * fading),
            written_at=105.0,
            lag_records=60,
        )

    @pytest.mark.parametrize(
        ("stays", "at", "end", "position", "moved"), [(0, 0, 100, 90, 90.0), (1, 1, 50, 40, 95.0)], ids=["first", "last"]
    )
    def test_forgets_shards_that_went_and_knows_nothing_of_those_that_came(
        self, stays: int, at: int, end: int, position: int, moved: float
    ) -> None:
        before = replace(
            self.first,
            positions=longs(90, 40),
            moved_at=times(90.0, 95.0),
            holders=NAMES,
            consumer_rate=ConsumerRate(),
            written_at=99.0,
        )
        second = (shard(stays, end, position, at), ShardView(ShardId("clicks/7"), ShardState.NOT_ALLOC, end=30))
        assert measure(before, view(second), 105.0) == Traffic(
            shards=(ShardId(f"clicks/{stays}"), ShardId("clicks/7")),
            end_offsets=longs(end, 30),
            positions=longs(position, -1),
            moved_at=times(moved, 105.0),
            holders=(NAMES[at], None),
            marks=(Mark(100.0, 0, 0), Mark(105.0, 0, 0)),
            spans={NAMES[at]: Span(100.0, 0, 10)},
            consumer_rate=ConsumerRate(),
            written_at=99.0,
            lag_records=None,
        )

    @pytest.mark.parametrize(
        ("later", "moved"),
        [
            (shard(0, 100, 90), 100.0),
            (shard(0, 120, 90), 100.0),
            (shard(0, 100, 91), 105.0),
            (shard(0, 100, 80), 105.0),
            (shard(0, 90, 90), 105.0),
            (shard(0, 85, 90), 105.0),
            (shard(0, 100, 90, state=ShardState.WAIT), 105.0),
        ],
    )
    def test_tells_what_moved_has_nothing_to_read_or_has_to_wait(self, later: ShardView, moved: float) -> None:
        first = measure(None, view((shard(0, 100, 90),)), 100.0)
        assert measure(first, view((later,)), 105.0).moved_at == times(moved)


def known(**fields: Any) -> Traffic:
    """What is known of one shard, with these differences."""
    values: dict[str, Any] = {
        "shards": (ShardId("clicks/0"),),
        "end_offsets": longs(100),
        "positions": longs(100),
        "moved_at": times(0.0),
        "holders": (C0,),
        "marks": (Mark(0.0, 0, 0), Mark(15.0, 300, 150)),
        **fields,
    }
    return Traffic(**values)


def test_rates_are_taken_between_the_first_mark_and_the_last() -> None:
    seen = known(marks=(Mark(5.0, 10, 20), Mark(6.0, 999, 999), Mark(20.0, 310, 170)))
    assert (seen.measured, seen.produced, seen.consumed) == (True, 20.0, 10.0)
    assert known(marks=(Mark(5.0, 10, 20), Mark(6.0, 30, 30))).produced == 20.0
    once = known(marks=(Mark(5.0, 10, 20),))
    assert (once.measured, once.produced, once.consumed) == (False, 0.0, 0.0)
    assert not known(marks=(Mark(5.0, 10, 20), Mark(19.9, 310, 170))).measured


@pytest.mark.parametrize(("lag", "behind"), [(None, False), (150, False), (151, True)])
def test_consumers_are_behind_with_more_left_than_they_read_in_a_span(lag: int | None, behind: bool) -> None:
    assert known(lag_records=lag).behind is behind


def test_what_stands_still_does_so_for_the_whole_patience() -> None:
    seen = known(moved_at=times(10.0))
    assert (seen.still_for(70.0, 60.0), seen.still_for(69.9, 60.0)) == ({"clicks/0": 60.0}, {})


def test_a_pace_fades_and_stays_the_same() -> None:
    faded = ConsumerRate(100.0, 10.0).faded(MEMORY)
    assert faded == ConsumerRate(100.0 / math.e, 10.0 / math.e)
    assert (faded.per_second, ConsumerRate().per_second) == (10.0, None)


NEVER_SEEN = ConsumerRate()


class TestASpan:
    """Fifteen seconds of one consumer: what it reads counts if it had more than that left all the time."""

    def after(self, *left: int, consumer_rate: ConsumerRate = NEVER_SEEN, read: int = 50) -> Traffic:
        """Looks every five seconds at which so much was left, `read` records after the look before."""
        seen = known(marks=(Mark(0.0, 0, 0),), positions=longs(0), consumer_rate=consumer_rate)
        for step, rest in enumerate(left, start=1):
            seen = measure(seen, view((shard(0, step * read + rest, step * read),)), step * INTERVAL)
        return seen

    def test_counts_at_its_end(self) -> None:
        assert (self.after(500, 500).consumer_rate, self.after(500, 151, 500).consumer_rate) == (
            ConsumerRate(),
            ConsumerRate(150.0, 15.0),
        )
        assert self.after(500, 500).spans == {C0: Span(0.0, 100, 500)}
        assert self.after(500, 500, 400).spans == {C0: Span(15.0, 0, 400)}

    @pytest.mark.parametrize("left", [(150, 500, 500), (500, 150, 500), (500, 500, 150)])
    def test_does_not_if_no_more_was_left_at_some_look(self, left: tuple[int, ...]) -> None:
        assert self.after(*left).consumer_rate == ConsumerRate()

    def test_does_not_if_nothing_was_read(self) -> None:
        assert self.after(500, 500, 500, read=0).consumer_rate == ConsumerRate()

    def test_counts_also_if_it_was_more_than_was_thought_possible(self) -> None:
        slower, fading = ConsumerRate(90.0, 10.0), math.exp(-15.0 / MEMORY)
        faster = self.after(0, 0, 0, consumer_rate=slower).consumer_rate
        assert (faster.records, faster.seconds) == pytest.approx((90.0 * fading + 150.0, 10.0 * fading + 15.0))
        faster = self.after(0, 0, 0, consumer_rate=ConsumerRate(110.0, 10.0)).consumer_rate
        assert (faster.records, faster.seconds) == pytest.approx((110.0 * fading, 10.0 * fading))

    def test_is_that_of_all_shards_that_stayed_with_the_consumer(self) -> None:
        first = measure(None, view((shard(0, 900, 0), shard(1, 900, 0), shard(2, 900, 0, 1), shard(3, 900, 0, 1))), 0.0)
        rows = (shard(0, 900, 10), shard(1, 900, 20), shard(2, 900, 40, 0), shard(3, 900, 80, 1))
        assert measure(first, view(rows), 5.0).spans == {C0: Span(0.0, 30, 1770), C1: Span(0.0, 80, 820)}

    def test_of_a_consumer_that_is_ahead_of_the_end_leaves_nothing(self) -> None:
        first = measure(None, view((shard(0, 900, 0), shard(1, 900, 0))), 0.0)
        assert measure(first, view((shard(0, 10, 30), shard(1, 900, 0))), 5.0).spans == {C0: Span(0.0, 30, 900)}


def test_the_lag_is_that_of_all_shards_and_unknown_if_that_of_any_shard_is() -> None:
    assert watch(0, lambda now: shard(0, 20, 15), lambda now: shard(1, 9, 9)).lag_records == 5  # noqa: ARG005
    assert watch(0, lambda now: shard(0, 20, 30), lambda now: shard(1, 9, 8)).lag_records == 1  # noqa: ARG005
    unread = ShardView(ShardId("clicks/1"), ShardState.NOT_ALLOC, end=20)
    assert watch(0, lambda now: shard(0, 20, 15), lambda now: unread).lag_records is None  # noqa: ARG005


def test_marks_are_kept_for_a_minute() -> None:
    seen = watch(100, lambda now: shard(0, round(now), round(now)), step=INTERVAL)
    assert [mark.at for mark in seen.marks] == [40.0 + INTERVAL * step for step in range(13)]
