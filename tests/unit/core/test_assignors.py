"""What every assignor is asked and may answer: consumers that may not receive, shards on their way, the delta by name."""

from __future__ import annotations

import pytest

from shardherd.core.assignors import NOBODY, Delta, Problem, target
from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.sticky import sticky
from shardherd.core.model import ShardId
from tests.unit.core.assigning import C0, C1, C, by_name, holders, partitions, problem


def test_sticky_takes_shards_that_are_on_their_way_first() -> None:
    asked = problem(partitions(t=4), [C0, C1], by_name(c0="tp0 tp1 tp2 tp3"))
    asked.pending[[0, 1]] = True
    assert asked.named(sticky(asked)) == by_name(c0="tp2 tp3", c1="tp0 tp1")


def test_a_consumer_that_may_not_receive_keeps_at_most_its_share() -> None:
    asked = problem(partitions(t=9), C, by_name(c1="tp0 tp1 tp2 tp3"))
    asked.receives[1] = False
    assert asked.named(sticky(asked)) == by_name(c0="tp3 tp5 tp7", c1="tp0 tp1 tp2", c2="tp4 tp6 tp8")


def test_what_is_meant_for_an_unready_consumer_goes_to_the_least_loaded() -> None:
    asked = problem(partitions(t=4), [C0, C1], by_name(c1="tp3"))
    asked.receives[1] = False
    assert asked.named(target("Range", asked)) == by_name(c0="tp0 tp1 tp2", c1="tp3")


@pytest.mark.parametrize("name", ["Range", "RoundRobin", "Sticky", "CooperativeSticky"])
def test_nothing_changes_when_nobody_may_receive(name: str) -> None:
    asked = problem(partitions(t=3), C, by_name(c2="tp1"))
    asked.receives[:] = False
    assert target(name, asked).tolist() == [NOBODY, 2, NOBODY]


@pytest.mark.parametrize("assignor", [ranges, round_robin, sticky])
def test_a_topic_that_nobody_reads_is_given_to_nobody(assignor: object) -> None:
    asked = Problem.of(partitions(a=1, b=1), [C0, C1], subscriptions={C0: ["b"], C1: ["b"]})
    assert callable(assignor)
    assert asked.named(assignor(asked)) == by_name(c0="bp0", c1="")


def test_a_topic_that_its_holder_does_not_read_any_more_is_given_to_a_reader() -> None:
    asked = Problem.of(partitions(a=2), [C0, C1], dict.fromkeys(partitions(a=2), C0), subscriptions={C0: [], C1: ["a"]})
    assert asked.named(sticky(asked)) == by_name(c0="", c1="ap0 ap1")


def test_with_differing_subscriptions_sticky_evens_out_through_a_third_consumer() -> None:
    # c0 reads a alone and c2 reads b alone: c1 gives its b to c2 and gets one a from c0.
    shards = partitions(a=3, b=1)
    before = {ShardId("a/0"): C0, ShardId("a/1"): C0, ShardId("a/2"): C0, ShardId("b/0"): C1}
    asked = Problem.of(shards, C, before, subscriptions={C0: ["a"], C1: ["a", "b"], C[2]: ["b"]})
    assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1", c1="ap2", c2="bp0")


def test_a_delta_names_what_changes_hands() -> None:
    asked = problem(partitions(t=4), [C0, C1], by_name(c0="tp0 tp1 tp2"))
    delta = Delta.of(asked, sticky(asked))
    assert (delta.shards.tolist(), delta.takers.tolist()) == (["t/2", "t/3"], ["c1", "c1"])


def test_the_delta_of_a_first_assignment_names_everything() -> None:
    asked = problem(partitions(t=3), [C0, C1])
    delta = Delta.of(asked, sticky(asked))
    assert (delta.shards.tolist(), delta.takers.tolist()) == (["t/0", "t/1", "t/2"], ["c0", "c1", "c0"])


def zones(**members: str) -> dict[str, str]:
    """`zones(east="c0 tp0 tp1")`: who and what is in a zone."""
    return {name.replace("tp", "t/"): zone for zone, names in members.items() for name in names.split()}


def test_sticky_prefers_shards_of_the_consumers_zone() -> None:
    where = zones(east="c0 tp0 tp1 tp2", west="c1 tp3 tp4 tp5")
    asked = Problem.of(partitions(t=6), C, zones=where)
    assert asked.named(sticky(asked)) == by_name(c0="tp0 tp1", c1="tp3 tp4", c2="tp2 tp5")


def test_balance_comes_before_zones() -> None:
    asked = Problem.of(partitions(t=4), [C0, C1], zones=zones(east="c0 tp0 tp1 tp2 tp3", west="c1"))
    assert asked.named(sticky(asked)) == by_name(c0="tp0 tp1", c1="tp2 tp3")


def test_no_shard_moves_for_its_zone_alone() -> None:
    before = holders(by_name(c0="tp2 tp3", c1="tp0 tp1"))
    asked = Problem.of(partitions(t=4), [C0, C1], before, zones=zones(east="c0 tp0 tp1", west="c1 tp2 tp3"))
    assert asked.named(sticky(asked)) == by_name(c0="tp2 tp3", c1="tp0 tp1")


def test_of_too_many_shards_those_of_other_zones_go_first() -> None:
    before = holders(by_name(c0="tp0 tp1 tp2 tp3"))
    asked = Problem.of(partitions(t=4), [C0, C1], before, zones=zones(east="c0 tp1 tp3", west="c1 tp0"))
    assert asked.named(sticky(asked)) == by_name(c0="tp1 tp3", c1="tp0 tp2")
