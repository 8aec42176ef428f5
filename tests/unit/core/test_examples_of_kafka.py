"""Kafka's own examples of its assignors: which consumer gets exactly which partitions."""

from __future__ import annotations

import random

import pytest

from shardherd.core.assignors import Problem, target
from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.sticky import sticky
from shardherd.core.model.naming import consumer_key, shard_key
from shardherd.core.model.nouns import ConsumerId
from tests.builders import started
from tests.unit.core.assigning import C0, C1, C2, C, by_name, holders, of, partitions, problem, unchanged

TWO_OF_THREE = partitions(t0=3, t1=3)
FOUR_OF_TWO = partitions(t0=2, t1=2, t2=2, t3=2)
ONE_TWO_THREE = partitions(t0=1, t1=2, t2=3)
UNEQUAL = {C0: ("t0",), C1: ("t0", "t1"), C2: ("t0", "t1", "t2")}
UNEQUAL_WITHOUT_C0 = {C1: UNEQUAL[C1], C2: UNEQUAL[C2]}


def test_range_two_topics_of_three() -> None:
    asked = problem(TWO_OF_THREE, [C0, C1])
    assert asked.named(ranges(asked)) == by_name(c0="t0p0 t0p1 t1p0 t1p1", c1="t0p2 t1p2")


def test_range_of_four_over_three_is_2_1_1() -> None:
    asked = problem(partitions(t=4), C)
    assert asked.named(ranges(asked)) == by_name(c0="tp0 tp1", c1="tp2", c2="tp3")


def test_range_unequal_subscriptions() -> None:
    asked = Problem.of(ONE_TWO_THREE, C, subscriptions=UNEQUAL)
    assert asked.named(ranges(asked)) == by_name(c0="t0p0", c1="t1p0", c2="t1p1 t2p0 t2p1 t2p2")


def test_round_robin_equal_subscriptions() -> None:
    asked = problem(TWO_OF_THREE, [C0, C1])
    assert asked.named(round_robin(asked)) == by_name(c0="t0p0 t0p2 t1p1", c1="t0p1 t1p0 t1p2")


ROUND_ROBIN_UNEQUAL = by_name(c0="t0p0", c1="t1p0", c2="t1p1 t2p0 t2p1 t2p2")


def test_round_robin_unequal_subscriptions() -> None:
    asked = Problem.of(ONE_TWO_THREE, C, subscriptions=UNEQUAL)
    assert asked.named(round_robin(asked)) == ROUND_ROBIN_UNEQUAL


def test_round_robin_unequal_after_c0_dies() -> None:
    asked = Problem.of(ONE_TWO_THREE, [C1, C2], holders(ROUND_ROBIN_UNEQUAL), subscriptions=UNEQUAL_WITHOUT_C0)
    after = asked.named(round_robin(asked))
    assert after == by_name(c1="t0p0 t1p1", c2="t1p0 t2p0 t2p1 t2p2")
    assert unchanged(ROUND_ROBIN_UNEQUAL, after) == 3


STICKY_FIRST = by_name(c0="t0p0 t1p1 t3p0", c1="t0p1 t2p0 t3p1", c2="t1p0 t2p1")


def test_sticky_first_round_equals_round_robin() -> None:
    asked = problem(FOUR_OF_TWO, C)
    assert asked.named(sticky(asked)) == STICKY_FIRST == asked.named(round_robin(asked))


def test_sticky_keeps_survivors_when_c1_dies() -> None:
    asked = problem(FOUR_OF_TWO, [C0, C2], STICKY_FIRST)
    after = {"Sticky": asked.named(sticky(asked)), "RoundRobin": asked.named(round_robin(asked))}
    assert after == {
        "Sticky": by_name(c0="t0p0 t1p1 t3p0 t2p0", c2="t1p0 t2p1 t0p1 t3p1"),
        "RoundRobin": by_name(c0="t0p0 t1p0 t2p0 t3p0", c2="t0p1 t1p1 t2p1 t3p1"),
    }
    assert {name: unchanged(STICKY_FIRST, each) for name, each in after.items()} == {"Sticky": 5, "RoundRobin": 3}


def test_sticky_gives_orphans_in_order_to_the_least_loaded_the_first_by_name_of_those() -> None:
    # c0 has 1, c1 has 2, c2 has 1: the orphans t0 to t4 find c0, c2, then all at 2: c0, c1, c2.
    before = by_name(c0="tp5", c1="tp6 tp7", c2="tp8")
    asked = problem(partitions(t=9), C, before)
    assert asked.named(sticky(asked)) == by_name(c0="tp5 tp0 tp2", c1="tp6 tp7 tp3", c2="tp8 tp1 tp4")


STICKY_UNEQUAL = by_name(c0="t0p0", c1="t1p0 t1p1", c2="t2p0 t2p1 t2p2")


def test_sticky_unequal_subscriptions_then_c0_dies() -> None:
    asked = Problem.of(ONE_TWO_THREE, C, subscriptions=UNEQUAL)
    assert asked.named(sticky(asked)) == STICKY_UNEQUAL

    asked = Problem.of(ONE_TWO_THREE, [C1, C2], holders(STICKY_UNEQUAL), subscriptions=UNEQUAL_WITHOUT_C0)
    after = asked.named(sticky(asked))
    assert after == by_name(c1="t1p0 t1p1 t0p0", c2="t2p0 t2p1 t2p2")
    assert unchanged(STICKY_UNEQUAL, after) == 5


@pytest.mark.parametrize("name", ["Range", "RoundRobin"])
def test_range_and_round_robin_do_not_look_at_the_past(name: str) -> None:
    fresh = problem(FOUR_OF_TWO, C)
    held_otherwise = problem(FOUR_OF_TWO, C, by_name(c0="t0p1", c1="t1p0 t1p1", c2="t0p0 t3p1"))
    assert fresh.named(target(name, fresh)) == held_otherwise.named(target(name, held_otherwise))


@pytest.mark.parametrize("name", ["Range", "RoundRobin"])
def test_in_whatever_order_consumers_arrive_the_result_is_the_same(name: str) -> None:
    def after_arriving(order: list[str]) -> dict[str, str | None]:
        play = started(7, 1, assignor=name)
        play.settle(*order)
        return play.holders()

    orders = [["g-0", "g-1", "g-2"], ["g-2", "g-1", "g-0"], ["g-1", "g-0", "g-2"]]
    assert after_arriving(orders[0]) == after_arriving(orders[1]) == after_arriving(orders[2])


def test_consumers_and_shards_are_sorted_by_number_not_by_dictionary() -> None:
    consumers = [ConsumerId(f"g-{number}") for number in range(11)]
    shards = partitions(t=11)
    shuffled = random.Random(7)
    assert sorted(shuffled.sample(consumers, 11), key=consumer_key) == consumers
    assert sorted(shuffled.sample(shards, 11), key=shard_key) == shards


@pytest.mark.parametrize("name", ["Range", "RoundRobin", "Sticky", "CooperativeSticky"])
def test_of_eleven_consumers_the_one_numbered_ten_is_the_last(name: str) -> None:
    consumers = [ConsumerId(f"g-{number}") for number in range(11)]
    asked = problem(partitions(t=11), consumers)
    assert asked.named(target(name, asked)) == {ConsumerId(f"g-{number}"): of(f"tp{number}") for number in range(11)}


def test_cooperative_sticky_is_sticky() -> None:
    asked = problem(FOUR_OF_TWO, [C0, C2], STICKY_FIRST)
    assert target("CooperativeSticky", asked).tolist() == target("Sticky", asked).tolist()


def test_an_edited_assignor_moves_only_what_its_target_asks_for() -> None:
    asked = problem(partitions(t=6), C)
    by_round_robin = asked.named(round_robin(asked))
    assert by_round_robin == by_name(c0="tp0 tp3", c1="tp1 tp4", c2="tp2 tp5")

    asked = problem(partitions(t=6), C, by_round_robin)
    by_range = asked.named(target("Range", asked))
    assert by_range == by_name(c0="tp0 tp1", c1="tp2 tp3", c2="tp4 tp5")
    assert unchanged(by_round_robin, by_range) == 2

    asked = problem(partitions(t=6), C, by_range)
    assert asked.named(target("Sticky", asked)) == by_range
