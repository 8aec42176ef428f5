"""What every assignor is asked and may answer: consumers that may not receive, shards on their way, the delta by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardherd.core.assignors import NOBODY, Delta, Problem, target
from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.names import kept
from shardherd.core.assignors.problem import Indexes
from shardherd.core.assignors.sticky import sticky
from shardherd.core.model.nouns import ConsumerId, ShardId
from tests.unit.core.assigning import C0, C1, C2, C, by_name, holders, partitions, problem


def test_sticky_takes_shards_that_are_on_their_way_first() -> None:
    asked = problem(partitions(t=4), [C0, C1], by_name(c0="tp0 tp1 tp2 tp3"))
    asked.pending[[0, 1]] = True
    assert asked.named(sticky(asked)) == by_name(c0="tp2 tp3", c1="tp0 tp1")


def test_the_larger_share_goes_to_who_would_have_to_give_up_a_settled_shard() -> None:
    asked = problem(partitions(t=4), C, by_name(c0="tp0 tp1", c1="tp2 tp3"))
    asked.pending[[0, 1]] = True
    assert asked.named(sticky(asked)) == by_name(c0="tp0", c1="tp2 tp3", c2="tp1")


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
    assert sticky(asked).tolist() == [NOBODY, 2, NOBODY]


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


class TestStickyWithDifferingSubscriptions:
    """Topic a is read by c0 and c1, and what else there is by somebody else too, so that not everybody reads everything."""

    def test_of_no_shards_is_empty(self) -> None:
        nothing = replace(problem([], [C0, C1]), subscribed=np.array([[True], [False]]))
        answer = sticky(nothing)
        assert (answer.tolist(), str(answer.dtype)) == ([], "int64")

    def test_gives_what_fewer_read_first(self) -> None:
        asked = Problem.of(partitions(a=2, b=1), [C0, C1], subscriptions={C0: ["a", "b"], C1: ["a"]})
        assert asked.named(sticky(asked)) == by_name(c0="ap1 bp0", c1="ap0")

    def test_gives_to_who_has_least_the_first_in_order_of_those(self) -> None:
        reads = {C0: ["a"], C1: ["a"], C2: []}
        asked = Problem.of(partitions(a=3), C, subscriptions=reads)
        assert asked.named(sticky(asked)) == by_name(c0="ap0 ap2", c1="ap1", c2="")
        asked = Problem.of(partitions(a=5), C, holders(by_name(c0="ap0 ap1")), subscriptions=reads)
        assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1 ap4", c1="ap2 ap3", c2="")

    def test_moves_the_last_shards_of_who_has_most(self) -> None:
        reads = {C0: ["a"], C1: ["a"], C2: []}
        asked = Problem.of(partitions(a=6), C, holders(by_name(c0="ap0 ap1 ap2 ap3 ap4 ap5")), subscriptions=reads)
        assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1 ap2", c1="ap3 ap4 ap5", c2="")
        before = by_name(c0="ap0 ap1 ap2", c1="ap3 ap4 ap5 ap6 ap7", c3="bp0 bp1")
        reads = {C0: ["a"], C1: ["a"], C2: ["a"], ConsumerId("c3"): ["b"]}
        asked = Problem.of(partitions(a=8, b=2), [*reads], holders(before), subscriptions=reads)
        assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1 ap2", c1="ap3 ap4 ap5", c2="ap6 ap7", c3="bp0 bp1")

    def test_moves_what_is_on_its_way_before_what_is_settled(self) -> None:
        reads = {C0: ["a"], C1: ["a"], C2: []}
        asked = Problem.of(partitions(a=3), C, holders(by_name(c0="ap0 ap1 ap2")), subscriptions=reads)
        asked.pending[0] = True
        assert asked.named(sticky(asked)) == by_name(c0="ap1 ap2", c1="ap0", c2="")

    def test_moves_what_was_free_before_what_is_settled(self) -> None:
        # c2 may not receive, so b goes to c0 although a/0 went there before it.
        reads = {C0: ["a", "b"], C1: ["a"], C2: ["b"]}
        asked = Problem.of(partitions(a=3, b=1), C, holders(by_name(c0="ap1", c1="ap2")), subscriptions=reads)
        asked.receives[2] = False
        assert asked.named(sticky(asked)) == by_name(c0="ap1 bp0", c1="ap0 ap2", c2="")

    def test_evens_out_through_a_consumer_that_has_neither_too_much_nor_too_little(self) -> None:
        reads = {C0: ["a"], C1: ["a", "b"], C2: ["b"]}
        asked = Problem.of(partitions(a=2, b=1), C, holders(by_name(c0="ap0 ap1", c1="bp0")), subscriptions=reads)
        assert asked.named(sticky(asked)) == by_name(c0="ap0", c1="ap1", c2="bp0")

    def test_evens_out_by_as_few_moves_as_it_can(self) -> None:
        # c3 has nothing. What c0 has too much would get there in three moves, by c1 and c2; what c4 has in two.
        c3, c4 = ConsumerId("c3"), ConsumerId("c4")
        reads = {C0: ["t0"], C1: ["t0", "t1"], C2: ["t1", "t2", "t3"], c3: ["t2"], c4: ["t3"]}
        before = by_name(c0="t0p0 t0p1", c1="t1p0", c2="t2p0", c4="t3p0 t3p1")
        asked = Problem.of(partitions(t0=2, t1=1, t2=1, t3=2), [*C, c3, c4], holders(before), subscriptions=reads)
        assert asked.named(sticky(asked)) == by_name(c0="t0p0 t0p1", c1="t1p0", c2="t3p1", c3="t2p0", c4="t3p0")


def test_what_nobody_holds_stays_free_where_nobody_may_receive_it_or_not_everybody_reads_it() -> None:
    asked = problem(partitions(t=3), [C0, C1], by_name(c0="tp1"))
    asked.receives[:] = False
    assert kept(asked, asked.current).tolist() == [NOBODY, 0, NOBODY]
    differing = Problem.of(partitions(t=3), [C0, C1], subscriptions={C0: ["t"], C1: []})
    assert kept(differing, differing.current).tolist() == [NOBODY, NOBODY, NOBODY]


def test_the_arrays_of_a_problem_have_their_shapes_and_types_though_nothing_is_in_them() -> None:
    nothing = Problem.of([], [], subscriptions={}, weights={}, capacities={}, zones={})
    weights = dict.fromkeys(partitions(t=2), 1)
    some = Problem.of(partitions(t=2), [C0], subscriptions={C0: ["t"]}, weights=weights, capacities={C0: 1}, zones={})
    for asked, shards, consumers in ((nothing, 0, 0), (some, 2, 1)):
        found = {name: getattr(asked, name) for name in Problem.__slots__}
        assert {name: (array.shape, str(array.dtype)) for name, array in found.items()} == {
            "shards": ((shards,), "object"),
            "consumers": ((consumers,), "object"),
            "topics": ((shards,), "int64"),
            "current": ((shards,), "int64"),
            "pending": ((shards,), "bool"),
            "receives": ((consumers,), "bool"),
            "subscribed": ((consumers, min(shards, 1)), "bool"),
            "weights": ((shards,), "float64"),
            "capacities": ((consumers,), "float64"),
            "shard_zones": ((shards,), "int64"),
            "consumer_zones": ((consumers,), "int64"),
        }


def test_a_delta_names_what_changes_hands() -> None:
    asked = problem(partitions(t=4), [C0, C1], by_name(c0="tp0 tp1 tp2"))
    delta = Delta.of(asked, sticky(asked))
    assert (len(delta), delta.shards.tolist(), delta.takers.tolist()) == (2, ["t/2", "t/3"], ["c1", "c1"])


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


@pytest.mark.parametrize("zones", [(np.array([0, 1, 0, 1]), None), (None, np.array([1, 0]))])
def test_zones_of_shards_alone_or_of_consumers_alone_do_not_matter(zones: tuple[Indexes | None, Indexes | None]) -> None:
    asked = problem(partitions(t=4), [C0, C1], by_name(c0="tp0 tp1 tp2 tp3"))
    zoned = replace(asked, shard_zones=zones[0], consumer_zones=zones[1])
    assert sticky(zoned).tolist() == sticky(asked).tolist() == [0, 0, 1, 1]
