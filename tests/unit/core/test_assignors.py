"""The assignors, on the worked examples of the documents."""

from __future__ import annotations

import numpy as np
import pytest

from shardherd.core.assignors import NOBODY, Problem, target
from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.sticky import sticky
from shardherd.core.model import ConsumerId, ShardId
from shardherd.core.naming import consumer_key, shard_key

C = [ConsumerId("c0"), ConsumerId("c1"), ConsumerId("c2")]


def partitions(**topics: int) -> list[ShardId]:
    return [ShardId(f"{topic}/{number}") for topic, count in topics.items() for number in range(count)]


def of(text: str) -> tuple[ShardId, ...]:
    """`t0p0 t0p1` as the documents write it."""
    return tuple(ShardId(name.replace("p", "/")) for name in text.split())


def by_name(**assigned: str) -> dict[ConsumerId, tuple[ShardId, ...]]:
    return {ConsumerId(name): tuple(sorted(of(text), key=shard_key)) for name, text in assigned.items()}


def holders(assigned: dict[ConsumerId, tuple[ShardId, ...]]) -> dict[ShardId, ConsumerId]:
    return {shard: consumer for consumer, held in assigned.items() for shard in held}


def test_range_two_topics_of_three() -> None:
    problem = Problem.of(partitions(t0=3, t1=3), C[:2])
    assert problem.named(ranges(problem)) == by_name(c0="t0p0 t0p1 t1p0 t1p1", c1="t0p2 t1p2")


def test_range_of_four_over_three_is_2_1_1() -> None:
    problem = Problem.of(partitions(t=4), C)
    assert problem.named(ranges(problem)) == by_name(c0="tp0 tp1", c1="tp2", c2="tp3")


def test_round_robin_equal_subscriptions() -> None:
    problem = Problem.of(partitions(t0=3, t1=3), C[:2])
    assert problem.named(round_robin(problem)) == by_name(c0="t0p0 t0p2 t1p1", c1="t0p1 t1p0 t1p2")


FIRST = by_name(c0="t0p0 t1p1 t3p0", c1="t0p1 t2p0 t3p1", c2="t1p0 t2p1")


def test_sticky_first_round_equals_round_robin() -> None:
    problem = Problem.of(partitions(t0=2, t1=2, t2=2, t3=2), C)
    assert problem.named(sticky(problem)) == FIRST == problem.named(round_robin(problem))


def test_sticky_keeps_survivors_when_c1_dies() -> None:
    problem = Problem.of(partitions(t0=2, t1=2, t2=2, t3=2), [C[0], C[2]], holders(FIRST))
    assert problem.named(sticky(problem)) == by_name(c0="t0p0 t1p1 t3p0 t2p0", c2="t1p0 t2p1 t0p1 t3p1")
    assert problem.named(round_robin(problem)) == by_name(c0="t0p0 t1p0 t2p0 t3p0", c2="t0p1 t1p1 t2p1 t3p1")


def test_an_eleventh_consumer_sorts_after_the_second() -> None:
    names = [ConsumerId(f"g-{number}") for number in range(11)]
    assert sorted(names, key=consumer_key) == names
    problem = Problem.of(partitions(t=11), names)
    assert problem.named(ranges(problem))[ConsumerId("g-10")] == of("tp10")


def test_sticky_takes_shards_that_are_on_their_way_first() -> None:
    problem = Problem.of(partitions(t=4), C[:2], dict.fromkeys(partitions(t=4), C[0]))
    problem.pending[[0, 1]] = True
    assert problem.named(sticky(problem)) == by_name(c0="tp2 tp3", c1="tp0 tp1")


def test_a_consumer_that_may_not_receive_keeps_at_most_its_share() -> None:
    problem = Problem.of(partitions(t=9), C, dict.fromkeys(partitions(t=9)[:4], C[1]))
    problem.receives[1] = False
    assert problem.named(sticky(problem)) == by_name(c0="tp3 tp5 tp7", c1="tp0 tp1 tp2", c2="tp4 tp6 tp8")


def test_what_is_meant_for_an_unready_consumer_goes_to_the_least_loaded() -> None:
    problem = Problem.of(partitions(t=4), C[:2], {ShardId("t/3"): C[1]})
    problem.receives[1] = False
    assert problem.named(target("Range", problem)) == by_name(c0="tp0 tp1 tp2", c1="tp3")


@pytest.mark.parametrize("name", ["Range", "RoundRobin", "Sticky", "CooperativeSticky", "unheard of"])
def test_nothing_changes_when_nobody_may_receive(name: str) -> None:
    problem = Problem.of(partitions(t=3), C, {ShardId("t/1"): C[2]})
    problem.receives[:] = False
    assert target(name, problem).tolist() == [NOBODY, 2, NOBODY]


def test_cooperative_sticky_is_sticky() -> None:
    problem = Problem.of(partitions(t=7), C, {ShardId("t/6"): C[2]})
    assert np.array_equal(target("CooperativeSticky", problem), target("Sticky", problem))
