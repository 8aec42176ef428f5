"""Weighted: even in work, not in numbers; seldom moving; and where its weights come from."""

from __future__ import annotations

import pytest

from shardherd.core.assignors import Problem
from shardherd.core.assignors.sticky import sticky
from shardherd.core.assignors.weighted import effective_weights, weighted
from shardherd.core.group.rates import again, first
from shardherd.core.model.nouns import ConsumerId, ShardId, Weights
from tests.builders import Play, info, shard, spec, with_settings
from tests.unit.core.assigning import C0, C1, Assigned, C, by_name, holders, partitions


def weighing(*weights: float) -> dict[ShardId, float]:
    """Weights of t/0, t/1 and so on."""
    return dict(zip(partitions(t=len(weights)), weights, strict=True))


def assigned(
    weights: dict[ShardId, float], consumers: list[ConsumerId], before: Assigned | None = None, *capacities: float
) -> Assigned:
    able = dict(zip(consumers, capacities, strict=True)) if capacities else None
    asked = Problem.of(list(weights), consumers, holders(before or {}), weights=weights, capacities=able)
    return asked.named(weighted(asked))


def test_one_heavy_shard_weighs_as_much_as_many_light_ones() -> None:
    assert assigned(weighing(60, 10, 10, 10, 10, 10, 10), [C0, C1]) == by_name(c0="tp0", c1="tp1 tp2 tp3 tp4 tp5 tp6")


def test_a_consumer_of_twice_the_capacity_gets_twice_the_work() -> None:
    assert assigned(weighing(10, 10, 10, 10, 10, 10), [C0, C1], None, 2, 1) == by_name(c0="tp0 tp2 tp3 tp5", c1="tp1 tp4")


def test_a_consumer_that_joins_gets_its_part() -> None:
    before = by_name(c0="tp0 tp1", c1="tp2 tp3")
    assert assigned(weighing(10, 10, 10, 10), C, before) == by_name(c0="tp0", c1="tp2 tp3", c2="tp1")


def test_the_shards_of_a_consumer_that_left_go_the_heaviest_first_to_who_has_least() -> None:
    before = by_name(c0="tp0", c1="tp1")
    assert assigned(weighing(30, 20, 12, 5, 5), [C0, C1], before) == by_name(c0="tp0 tp3", c1="tp1 tp2 tp4")


@pytest.mark.parametrize(("heavier", "moves"), [(109, False), (130, True)])
def test_only_a_difference_of_more_than_a_tenth_of_the_mean_moves_a_shard(heavier: float, moves: bool) -> None:
    # c0 could give its lightest shard of 1: it gains by that only what the loads differ by.
    before = by_name(c0="tp0 tp1", c1="tp2 tp3")
    after = assigned(weighing(heavier - 1, 1, 99, 1), [C0, C1], before)
    assert (after != before) is moves


def test_what_weighs_nothing_is_spread_too() -> None:
    after = assigned(weighing(100, 100, 0, 0, 0, 0), [C0, C1])
    assert [len(held) for held in after.values()] == [3, 3]


def test_a_shard_of_unknown_weight_weighs_the_mean_of_the_others() -> None:
    weights = weighing(30, 10, float("nan"))
    assert assigned(weights, [C0, C1]) == by_name(c0="tp0", c1="tp1 tp2")


@pytest.mark.parametrize("weights", [None, weighing(*[float("nan")] * 5), weighing(0, 0, 0, 0, 0)])
def test_without_weights_shards_are_counted(weights: dict[ShardId, float] | None) -> None:
    asked = Problem.of(partitions(t=5), [C0, C1], dict.fromkeys(partitions(t=5), C0), weights=weights)
    assert asked.named(weighted(asked)) == asked.named(sticky(asked)) == by_name(c0="tp0 tp1 tp2", c1="tp3 tp4")


def test_the_weights_to_reckon_with_are_none_unknown_and_none_too_small() -> None:
    asked = Problem.of(partitions(t=4), [C0], weights=weighing(30, 9, float("nan"), 0))
    weights = effective_weights(asked)
    assert weights is not None
    assert weights.tolist() == [30, 9, 13, 0.13]


@pytest.mark.parametrize("weights", [weighing(float("nan"), float("nan")), weighing(0, 0, float("nan"))])
def test_there_are_no_weights_to_reckon_with_where_none_is_known_or_all_are_nothing(weights: dict[ShardId, float]) -> None:
    assert effective_weights(Problem.of(list(weights), [C0], weights=weights)) is None


def test_weights_of_less_than_one_count_as_well() -> None:
    assert assigned(weighing(0.6, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1), [C0, C1]) == by_name(c0="tp0", c1="tp1 tp2 tp3 tp4 tp5 tp6")


def test_what_is_free_goes_to_who_is_loaded_least_for_its_capacity() -> None:
    before = by_name(c0="tp0", c1="tp1")
    assert assigned(weighing(22, 11.5, 0.5), [C0, C1], before, 2, 1) == by_name(c0="tp0 tp2", c1="tp1")


def test_a_gain_of_exactly_a_tenth_of_the_mean_moves_nothing() -> None:
    # The mean is 10. With the shard of 1 on the other side the higher load would be 10 instead of 11.
    before = by_name(c0="tp0 tp1", c1="tp2")
    assert assigned(weighing(10, 1, 9), [C0, C1], before) == before


def test_of_two_that_could_give_the_most_loaded_does() -> None:
    # Once c0 has given, nothing that c1 could give is worth it; the other way round it would be the same.
    before = by_name(c0="tp0 tp1", c1="tp2 tp3", c2="tp4")
    after = by_name(c0="tp1", c1="tp2 tp3", c2="tp0 tp4")
    assert assigned(weighing(6, 6, 5.5, 5.5, 4), C, before) == after


def test_one_who_could_give_only_a_heavy_shard_does_not_keep_others_from_giving() -> None:
    before = by_name(c0="tp0", c1="tp1 tp2", c2="tp3")
    assert assigned(weighing(20, 6, 6, 4), C, before) == by_name(c0="tp0", c1="tp2", c2="tp1 tp3")


def test_the_heaviest_shard_goes_that_leaves_the_taker_below_the_giver() -> None:
    # Of 14 and 6 a shard of 4 would make two equal loads; of 28 of 2 and 24 of 4 one of 10 and two thirds.
    assert assigned(weighing(6, 5, 3, 6), [C0, C1], by_name(c0="tp0 tp1 tp2", c1="tp3")) == by_name(c0="tp0 tp1", c1="tp2 tp3")
    before, after = by_name(c0="tp0 tp1 tp2 tp3", c1="tp4"), by_name(c0="tp0 tp2 tp3", c1="tp1 tp4")
    assert assigned(weighing(12, 10, 4, 2, 24), [C0, C1], before, 2, 4) == after


def test_a_shard_that_gains_too_little_stays_and_a_lighter_one_goes() -> None:
    # The mean is 10. With the shard of 0.85 on the other side the higher load would fall by 0.95.
    before, after = by_name(c0="tp0 tp1 tp2", c1="tp3"), by_name(c0="tp0 tp1", c1="tp2 tp3")
    assert assigned(weighing(9.75, 0.85, 0.3, 9.1), [C0, C1], before) == after


def test_among_many_equals_the_first_in_order_is_placed_and_gives_first() -> None:
    many = [ConsumerId(f"c{number}") for number in range(81)]
    half_light = dict(zip(partitions(t=80), [10.0] * 40 + [20.0] * 40, strict=True))
    fresh = Problem.of(list(half_light), many[:40], weights=half_light)
    assert weighted(fresh).tolist() == [*range(40), *range(40)]

    # The first 40 hold one shard, the next 40 two, and the last nothing.
    alike = dict.fromkeys(partitions(t=120), 10.0)
    held = dict(zip(alike, [many[at] for at in (*range(80), *range(40, 80))], strict=True))
    joined = Problem.of(list(alike), many, held, weights=alike)
    assert weighted(joined).tolist() == [*range(80), 80, *range(41, 80)]


def test_a_shard_goes_to_who_is_loaded_least_with_it_for_its_capacity() -> None:
    # With a shard of 10 c1 would be at 15 and c2, of four times the capacity, at 12.5; with another one both at 15.
    before = by_name(c0="tp0 tp1 tp2", c1="tp3", c2="tp4")
    after = by_name(c0="tp1", c1="tp0 tp3", c2="tp2 tp4")
    assert assigned(weighing(10, 10, 10, 5, 40), C, before, 1, 1, 4) == after


def test_a_consumer_that_holds_nothing_and_may_not_receive_is_passed_over() -> None:
    asked = Problem.of(partitions(t=4), C, holders(by_name(c1="tp0 tp1 tp2 tp3")), weights=weighing(10, 10, 10, 10))
    asked.receives[2] = False
    assert asked.named(weighted(asked)) == by_name(c0="tp2 tp3", c1="tp0 tp1", c2="")


def test_a_negative_weight_is_refused() -> None:
    asked = Problem.of(partitions(t=1), [C0], weights=weighing(-2))
    with pytest.raises(ValueError, match=r"a shard has the weight -2\.0: weights are amounts of work, at least 0"):
        weighted(asked)


def test_a_capacity_of_nothing_is_refused() -> None:
    asked = Problem.of(partitions(t=1), [C0], weights=weighing(1), capacities={C0: 0})
    with pytest.raises(ValueError, match=r"a consumer has the capacity 0\.0: it must be above 0"):
        weighted(asked)


def test_a_consumer_that_may_not_receive_only_gives() -> None:
    asked = Problem.of(partitions(t=3), C, holders(by_name(c2="tp0 tp1 tp2")), weights=weighing(10, 10, 10))
    asked.receives[2] = False
    assert asked.named(weighted(asked)) == by_name(c0="tp2", c1="tp1", c2="tp0")


# A group that weighs its shards by what is written to them.


def writing(play: Play, seconds: float, *rates: float, ends: list[float], names: tuple[str, ...]) -> None:
    """So many records a second are written to shards 0, 1 and so on; the source is looked at every second."""
    for _ in range(int(seconds)):
        play.wait(1.0)
        ends[:] = [end + rate for end, rate in zip(ends, rates, strict=True)]
        play.discover(tuple(info(str(number), end=int(end)) for number, end in enumerate(ends)))
        for name in names:
            play.consumer(name).progress += 1
        play.beat(*names)


RATES = (60.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0)


def weighing_group() -> tuple[Play, list[float]]:
    """Two consumers, and shard 0 is written to as much as the six others."""
    play = Play(spec(2, assignor="Weighted"))
    ends = [100.0] * len(RATES)
    play.discover(tuple(info(str(number)) for number in range(len(RATES))))
    play.settle("g-0", "g-1")
    return play, ends


def test_a_group_counts_its_shards_until_it_has_seen_how_fast_they_grow() -> None:
    play, ends = weighing_group()
    assert sorted(play.counts().values()) == [3, 4]
    writing(play, 10, *RATES, ends=ends, names=("g-0", "g-1"))
    assert sorted(play.counts().values()) == [1, 6]
    assert play.view.last_rebalance is not None
    assert play.view.last_rebalance.reason == "WeightsChanged"


def test_while_the_rates_stay_nothing_moves() -> None:
    play, ends = weighing_group()
    writing(play, 10, *RATES, ends=ends, names=("g-0", "g-1"))
    moves = play.view.moves
    writing(play, 600, *RATES, ends=ends, names=("g-0", "g-1"))
    assert play.view.moves == moves


def test_a_burst_of_half_a_minute_moves_nothing() -> None:
    play, ends = weighing_group()
    writing(play, 60, *RATES, ends=ends, names=("g-0", "g-1"))
    moves = play.view.moves
    writing(play, 30, 60, 20, 20, 10, 10, 10, 10, ends=ends, names=("g-0", "g-1"))
    writing(play, 300, *RATES, ends=ends, names=("g-0", "g-1"))
    assert play.view.moves == moves


def test_rates_that_have_changed_for_good_move_shards() -> None:
    play, ends = weighing_group()
    writing(play, 60, *RATES, ends=ends, names=("g-0", "g-1"))
    writing(play, 1200, 10, 10, 10, 10, 10, 10, 10, ends=ends, names=("g-0", "g-1"))
    assert sorted(play.counts().values()) == [3, 4]


def test_another_coordinator_moves_nothing_before_it_has_seen_the_rates() -> None:
    play, ends = weighing_group()
    writing(play, 60, *RATES, ends=ends, names=("g-0", "g-1"))
    before = play.holders()
    play.restart()
    play.discover(tuple(info(str(number), end=int(end)) for number, end in enumerate(ends)))
    play.settle("g-0", "g-1")
    writing(play, 60, *RATES, ends=ends, names=("g-0", "g-1"))
    assert play.holders() == before


def test_a_shard_that_is_free_does_not_wait_for_rates() -> None:
    play, _ = weighing_group()
    play.die("g-0")
    assert play.counts() == {"g-1": 7}


def test_new_shards_and_shards_that_were_cut_back_have_no_rate_at_first() -> None:
    seen = first({shard("0"): info("0", end=100), shard("1"): info("1", end=100)}, 0.0, Weights.RECORDS)
    now = {shard("0"): info("0", end=150), shard("1"): info("1", end=90), shard("2"): info("2", end=40)}
    assert again(seen, now, 10.0).per_second == {shard("0"): 5.0}


def test_while_nobody_is_ready_no_rebalance_is_asked_for() -> None:
    play, ends = weighing_group()
    writing(play, 10, *RATES, ends=ends, names=("g-0", "g-1"))
    for name in ("g-0", "g-1"):
        play.consumer(name).ready = False
    rebalances = play.view.rebalances
    writing(play, 40, *RATES, ends=ends, names=("g-0", "g-1"))
    assert play.view.rebalances == rebalances


def test_a_group_that_stops_weighing_forgets_the_rates() -> None:
    play, ends = weighing_group()
    writing(play, 10, *RATES, ends=ends, names=("g-0", "g-1"))
    play.change(with_settings(play.group.spec, assignor="Sticky"))
    writing(play, 1, *RATES, ends=ends, names=("g-0", "g-1"))
    play.settle("g-0", "g-1")
    assert sorted(play.counts().values()) == [3, 4]
    assert play.group._state.rates is None
