"""The lag in seconds: the age of the oldest record that is not checkpointed, as the records that were read tell it."""

from __future__ import annotations

import math

import pytest

from shardherd.core.group.ages import AGAIN, FRESH, MOST, Ages, Unread, unread
from shardherd.core.model.nouns import GroupView, Offset, ShardId, ShardState, ShardView

NOW, WALL = 1000.0, 1_700_000_000.0
FIRST, SECOND, THIRD = (ShardId(f"clicks/{number}") for number in range(3))
RULE_BREAKERS = (
    ShardView(FIRST, ShardState.OVER, end=9, lag_records=9),
    ShardView(FIRST, ShardState.NOT_ALLOC, end=9, lag_records=9, present=False),
)


def seen(level: tuple[ShardId, ...] = (), **positions: Offset | None) -> Unread:
    """Shards that are read to their ends, and the positions of those that are not, by `first`, `second` and `third`."""
    names = {"first": FIRST, "second": SECOND, "third": THIRD}
    return Unread(frozenset(level), {names[name]: position for name, position in positions.items()})


def looked(
    before: Ages, what: Unread, written: dict[ShardId, float | None], *, later: float = 0.0, unanswered: bool = False
) -> Ages:
    """What is known after one look, so many seconds after NOW, that found these ages at the positions it asked about."""
    wanted = before.wanted(what, NOW + later)
    answers = {} if unanswered else {shard: age if age is None else WALL + later - age for shard, age in written.items()}
    assert unanswered or answers.keys() == wanted.keys()
    return before.after(what, wanted, answers, NOW + later, WALL + later)


def age(ages: Ages, what: Unread, *, later: float = 0.0) -> int | None:
    return ages.seconds(what, NOW + later, WALL + later)


class TestWhatIsUnread:
    def of(self, *shards: ShardView) -> Unread:
        return unread(GroupView(1, 1, shards, (), source_reachable=True))

    def test_begins_at_the_positions_of_the_shards_that_lag(self) -> None:
        assert self.of(
            ShardView(FIRST, ShardState.ALREADY_ALLOC, end=100, lag_records=0),
            ShardView(SECOND, ShardState.WAIT, begin=3, end=100, lag_records=40),
            ShardView(THIRD, ShardState.NOT_ALLOC, end=100),
        ) == Unread(frozenset({FIRST}), {SECOND: 60, THIRD: None})

    def test_begins_where_the_shard_does_if_that_is_later(self) -> None:
        assert self.of(ShardView(FIRST, ShardState.ALREADY_ALLOC, begin=70, end=100, lag_records=40)) == seen(first=70)

    @pytest.mark.parametrize("shard", RULE_BREAKERS, ids=["over", "gone"])
    def test_leaves_out_what_nobody_will_read(self, shard: ShardView) -> None:
        assert self.of(shard) == seen()


class TestTheAge:
    def test_is_that_of_the_record_at_the_position_and_grows_while_the_position_stands(self) -> None:
        ages = looked(Ages(), seen(first=60), {FIRST: 120.0})
        assert [age(ages, seen(first=60), later=later) for later in (0.0, 3.0, 10 * FRESH)] == [120, 123, 1320]

    def test_is_that_of_the_oldest_record_of_all_shards(self) -> None:
        skewed = seen((THIRD,), first=60, second=5)
        assert age(looked(Ages(), skewed, {FIRST: 3.0, SECOND: 640.0}), skewed) == 640

    def test_is_nothing_where_all_is_read_whatever_was_known(self) -> None:
        assert age(Ages(), seen((FIRST, SECOND))) == 0
        assert age(looked(Ages(), seen(first=60), {FIRST: 5.0}), seen((FIRST,))) == 0

    def test_is_not_known_before_a_look_or_where_the_source_does_not_tell(self) -> None:
        assert age(Ages(), seen(first=60)) is None
        assert age(looked(Ages(), seen(first=60), {}, unanswered=True), seen(first=60)) is None

    def test_is_not_known_unless_that_of_every_shard_is(self) -> None:
        ages = looked(Ages(), seen(first=60), {FIRST: 5.0})
        assert age(ages, seen(first=60, second=3)) is None
        assert age(ages, seen(first=60, second=None)) is None

    def test_is_not_known_of_no_shards(self) -> None:
        assert age(Ages(), seen()) is None

    def test_of_a_position_that_has_moved_is_what_it_was_and_after_a_while_unknown(self) -> None:
        ages = looked(Ages(), seen(first=60), {FIRST: 30.0})
        assert [age(ages, seen(first=61), later=later) for later in (0.0, 3.0, FRESH)] == [30, 30, 30]
        assert age(ages, seen(first=61), later=FRESH + 0.1) is None

    def test_of_a_shard_that_had_no_lag_is_nothing_until_the_next_look(self) -> None:
        ages = looked(Ages(), seen((FIRST,)), {})
        assert age(ages, seen(first=60), later=5.0) == 0
        assert age(ages, seen(first=60), later=FRESH + 0.1) is None
        assert age(looked(ages, seen(first=60), {FIRST: 4.0}, later=5.0), seen(first=60), later=5.0) == 4

    def test_of_a_shard_that_had_no_lag_is_not_what_it_was_before_that(self) -> None:
        ages = looked(Ages(), seen(first=60), {FIRST: 600.0})
        assert age(looked(ages, seen((FIRST,)), {}, later=5.0), seen(first=70), later=6.0) == 0

    def test_of_a_shard_with_nothing_but_marks_of_transactions_is_nothing(self) -> None:
        assert age(looked(Ages(), seen(first=60), {FIRST: None}), seen(first=60)) == 0

    def test_of_a_record_from_the_future_is_nothing(self) -> None:
        assert age(looked(Ages(), seen(first=60), {FIRST: -30.0}), seen(first=60)) == 0


class TestALook:
    def test_asks_about_shards_that_lag_and_are_not_known(self) -> None:
        assert Ages().wanted(seen((THIRD,), first=60, second=None), NOW) == {FIRST: 60}

    def test_does_not_ask_again_while_the_position_stands(self) -> None:
        ages = looked(Ages(), seen(first=60), {FIRST: 5.0})
        assert ages.wanted(seen(first=60), NOW + AGAIN - 0.1) == {}
        assert ages.wanted(seen(first=61), NOW + 5.0) == {FIRST: 61}

    def test_asks_again_after_long_as_the_topic_may_be_another_one(self) -> None:
        assert looked(Ages(), seen(first=60), {FIRST: 5.0}).wanted(seen(first=60), NOW + AGAIN) == {FIRST: 60}

    def test_asks_again_where_no_record_was(self) -> None:
        assert looked(Ages(), seen(first=60), {FIRST: None}).wanted(seen(first=60), NOW + 5.0) == {FIRST: 60}

    def test_asks_first_about_what_was_asked_longest_ago_and_then_about_what_was_never_answered(self) -> None:
        ages = looked(Ages(), seen(second=1), {}, unanswered=True)
        everything = seen(first=2, second=2, third=2)
        assert list(ages.wanted(everything, NOW)) == [FIRST, THIRD, SECOND]
        ages = ages.after(everything, {FIRST: 2, SECOND: 2, THIRD: 2}, {FIRST: WALL, THIRD: WALL}, NOW, WALL)
        assert list(ages.wanted(seen(first=3, second=3, third=3), NOW)) == [SECOND, FIRST, THIRD]

    def test_asks_about_so_many_at_most_and_comes_round_to_all(self) -> None:
        shards = [ShardId(f"clicks/{number:04}") for number in range(1000)]
        ages, asked = Ages(), set[ShardId]()
        for step in range(8):
            # All of them move all the time, and none of them answers.
            what = Unread(frozenset(), dict.fromkeys(shards, step))
            wanted = ages.wanted(what, NOW + step)
            assert len(wanted) == MOST
            ages = ages.after(what, wanted, {}, NOW + step, WALL + step)
            asked |= wanted.keys()
        assert asked == set(shards)

    @pytest.mark.parametrize("room", [50, 64])
    @pytest.mark.parametrize("many", [175, 400, 1000])
    def test_comes_round_to_all_where_a_source_has_room_for_fewer_than_are_asked_about(self, many: int, room: int) -> None:
        shards = [ShardId(f"orders/{number:04}") for number in range(many)]
        ages, answered = Ages(), dict.fromkeys(shards, 0)
        most = math.ceil(many / room)
        for step in range(10 * most):
            # All of them move all the time.
            what = Unread(frozenset(), dict.fromkeys(shards, step))
            wanted = ages.wanted(what, NOW + step)
            answers = dict.fromkeys(list(wanted)[:room], WALL)
            ages = ages.after(what, wanted, answers, NOW + step, WALL + step)
            for shard in answers:
                assert step - answered[shard] <= most, f"{shard} was not looked at for {step - answered[shard]} looks"
                answered[shard] = step
        assert min(answered.values()) >= 9 * most

    def test_of_which_none_is_answered_does_not_keep_others_waiting(self) -> None:
        shards = [ShardId(f"orders/{number:04}") for number in range(MOST + 1)]
        what = Unread(frozenset(), dict.fromkeys(shards, 0))
        ages = Ages()
        ages = ages.after(what, ages.wanted(what, NOW), {}, NOW, WALL)
        assert next(iter(ages.wanted(what, NOW))) == shards[-1]

    def test_forgets_shards_that_do_not_lag_any_more(self) -> None:
        ages = looked(Ages(), seen(first=60, second=1), {FIRST: 5.0, SECOND: 5.0})
        assert looked(ages, seen((FIRST,)), {}, later=5.0) == Ages(level=frozenset({FIRST}), looked=NOW + 5.0)
