"""The shards of one topic are spread over the consumers, where that costs neither balance nor a move nor a zone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shardherd.core.assignors import NOBODY, Assignment, Problem
from shardherd.core.assignors import spread as spreading
from shardherd.core.assignors.spread import spread
from shardherd.core.assignors.sticky import sticky
from shardherd.core.assignors.weighted import weighted
from shardherd.core.model.nouns import ConsumerId, ShardId
from tests.builders import Play, moved, spec, topic
from tests.unit.core.assigning import C0, C1, C2, C, by_name, holders, partitions, problem

FOUR = [*C, ConsumerId("c3")]


def by_topic(asked: Problem, answer: Assignment) -> list[list[int]]:
    """For each topic how many of its shards each consumer has."""
    return [np.bincount(answer[asked.topics == each], minlength=len(asked.consumers)).tolist() for each in set(asked.topics)]


def changes(asked: Problem, answer: Assignment) -> int:
    return int(((asked.current != NOBODY) & (asked.current != answer)).sum())


def rested(shards: list[ShardId], consumers: list[ConsumerId]) -> dict[ShardId, ConsumerId]:
    """Who holds what after a first assignment."""
    asked = problem(shards, consumers)
    return holders(asked.named(sticky(asked)))


def test_consumers_that_join_take_of_every_topic() -> None:
    shards = partitions(a=12, b=12)
    asked = Problem.of(shards, FOUR, rested(shards, FOUR[:2]))
    answer = sticky(asked)
    assert (by_topic(asked, answer), changes(asked, answer)) == ([[3, 3, 3, 3], [3, 3, 3, 3]], 12)


def test_weighted_spreads_what_weighs_the_same() -> None:
    shards = partitions(a=12, b=12)
    asked = Problem.of(shards, FOUR, rested(shards, FOUR[:2]), weights=dict.fromkeys(shards, 10))
    answer = weighted(asked)
    assert (by_topic(asked, answer), changes(asked, answer)) == ([[3, 3, 3, 3], [3, 3, 3, 3]], 12)


def test_weighted_exchanges_nothing_of_another_weight() -> None:
    # c1 takes 20 and 10. To spread b it would have to take b/0, which is heavier than what it took of a.
    weights = {ShardId("a/0"): 20.0, ShardId("a/1"): 10.0, ShardId("b/0"): 25.0, ShardId("b/1"): 5.0}
    asked = Problem.of(list(weights), [C0, C1], dict.fromkeys(weights, C0), weights=weights)
    alone = replace(asked, topics=np.zeros_like(asked.topics))
    assert weighted(asked).tolist() == weighted(alone).tolist()


def test_consumers_that_go_leave_their_shards_to_who_has_least_of_the_topic() -> None:
    shards = partitions(a=12, b=12)
    asked = Problem.of(shards, FOUR[:2], rested(shards, FOUR))
    answer = sticky(asked)
    assert (by_topic(asked, answer), changes(asked, answer)) == ([[6, 6], [6, 6]], 0)


def test_the_shards_of_a_dead_consumer_go_to_who_has_least_of_the_topic() -> None:
    before = holders(by_name(c0="ap0 ap1 bp0 bp1", c1="ap2 ap3 ap4 bp2", c2="bp3 bp4 bp5 bp6"))
    asked = Problem.of(partitions(a=5, b=7), [C1, C2], before)
    assert asked.named(sticky(asked)) == by_name(c1="ap2 ap3 ap4 bp0 bp1 bp2", c2="ap0 ap1 bp3 bp4 bp5 bp6")


def test_the_larger_share_goes_to_who_has_less_of_the_topic() -> None:
    before = holders(by_name(c0="ap0", c1="ap1", c2="bp0"))
    asked = Problem.of(partitions(a=2, b=1), [C1, C2], before)
    assert asked.named(sticky(asked)) == by_name(c1="ap1", c2="ap0 bp0")


def test_who_gives_up_the_larger_share_is_chosen_by_topic_too() -> None:
    # One of c0 and c1 gives a shard to c2, which has one of a.
    before = holders(by_name(c0="ap0 ap1 ap2", c1="ap3 bp0 bp1", c2="ap4"))
    asked = Problem.of(partitions(a=5, b=2), C, before)
    assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1 ap2", c1="ap3 bp0", c2="ap4 bp1")


def test_new_shards_of_a_topic_that_grows_go_to_who_has_least_of_it() -> None:
    before = holders(by_name(c0="ap0 ap1 bp0", c1="ap2 bp1 bp2"))
    asked = Problem.of(partitions(a=3, b=5), [C0, C1], before)
    assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1 bp0 bp3", c1="ap2 bp1 bp2 bp4")
    asked = Problem.of(partitions(a=5, b=3), [C0, C1], before)
    assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1 ap3 bp0", c1="ap2 ap4 bp1 bp2")


def test_what_is_balanced_stays_though_its_topics_are_not_spread() -> None:
    before = holders(by_name(c0="ap0 ap1 ap2", c1="bp0 bp1 bp2"))
    asked = Problem.of(partitions(a=3, b=3), [C0, C1], before)
    assert sticky(asked).tolist() == asked.current.tolist()


def test_a_zone_comes_before_the_spread_of_a_topic() -> None:
    """c0 keeps the shards of its zone, all of topic a; b alone goes, though one of each would be spread better."""
    shards = partitions(a=2, b=2)
    zones = {"c0": "east", "a/0": "east", "a/1": "east", "c1": "west", "b/0": "west", "b/1": "west"}
    asked = Problem.of(shards, [C0, C1], dict.fromkeys(shards, C0), zones=zones)
    assert asked.named(sticky(asked)) == by_name(c0="ap0 ap1", c1="bp0 bp1")
    assert asked.named(sticky(replace(asked, shard_zones=None))) == by_name(c0="ap0 bp0", c1="ap1 bp1")


def test_among_the_consumers_of_a_zone_its_shards_are_spread() -> None:
    shards = partitions(a=12, b=12)
    zones = {name: "east" if at % 2 == 0 else "west" for at, name in enumerate((*FOUR, *shards))}
    asked = Problem.of(shards, FOUR, rested(shards, FOUR[:2]), zones=zones)
    answer = sticky(asked)
    assert (by_topic(asked, answer), changes(asked, answer)) == ([[3, 3, 3, 3], [3, 3, 3, 3]], 12)
    assert asked.shard_zones is not None
    assert asked.consumer_zones is not None
    assert (asked.shard_zones == asked.consumer_zones[answer]).all()


def test_what_is_on_its_way_goes_on_though_its_topic_would_be_spread_better() -> None:
    asked = problem(partitions(a=2, b=2), [C0, C1], by_name(c0="ap0 ap1", c1="bp0 bp1"))
    asked.pending[[1, 2]] = True
    assert sticky(asked).tolist() == asked.current.tolist()


def test_of_what_is_on_its_way_that_is_redirected_which_is_best_spread() -> None:
    asked = problem(partitions(a=2, b=2), [C0, C1], by_name(c0="ap0 ap1 bp0", c1="bp1"))
    asked.pending[[1, 2]] = True
    assert asked.named(sticky(asked)) == by_name(c0="ap0 bp0", c1="ap1 bp1")


def test_nobody_gives_up_what_is_settled_for_the_sake_of_a_topic() -> None:
    # What is on its way to c0 goes to c1, which has one of a already.
    asked = problem(partitions(a=3, b=1), [C0, C1], by_name(c0="ap0 ap1 bp0", c1="ap2"))
    asked.pending[0] = True
    assert asked.named(sticky(asked)) == by_name(c0="ap1 bp0", c1="ap0 ap2")


def test_topics_of_one_shard_each_are_moved_as_if_they_were_one() -> None:
    shards = [ShardId(f"t{number}/0") for number in range(40)]
    asked = Problem.of(shards, FOUR, rested(shards, FOUR[:3]))
    answer = sticky(asked)
    assert (sorted(asked.loads(answer).tolist()), changes(asked, answer)) == ([10, 10, 10, 10], 10)


@pytest.mark.parametrize("limit", ["MOST_CELLS", "MOST_WORK", "MOST_SPARE"])
def test_beyond_its_limits_it_is_spread_less_and_as_even_and_moves_as_few(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = holders(by_name(c0="ap0 ap1 bp0 bp1", c1="ap2 ap3 ap4 bp2", c2="bp3 bp4 bp5 bp6"))
    asked = Problem.of(partitions(a=5, b=8), [C1, C2], before)
    best = by_topic(asked, sticky(asked))
    monkeypatch.setattr(spreading, limit, 0)
    answer = sticky(asked)
    assert (sorted(asked.loads(answer).tolist()), changes(asked, answer)) == ([6, 7], 0)
    assert np.square(by_topic(asked, answer)).sum() >= np.square(best).sum()


def test_where_nothing_moves_there_is_nothing_to_spread() -> None:
    asked = problem(partitions(a=2, b=2), [C0, C1], by_name(c0="ap0 ap1", c1="bp0 bp1"))
    assert spread(asked, asked.current, np.array([], dtype=np.int64)) is asked.current


def hot(play: Play, name: str) -> list[int]:
    """How many shards of this topic each consumer holds."""
    found: Counter[str | None] = Counter(each.holder for each in play.view.shards if each.shard.startswith(f"{name}/"))
    return sorted(found[consumer] for consumer in play.counts())


def test_a_group_that_is_scaled_out_relieves_its_hot_topic_and_one_that_is_scaled_in_is_as_even() -> None:
    play = Play(spec(2))
    shown = (*topic(12, name="hot"), *topic(12, name="idle"))
    play.discover(shown)
    play.settle("g-0", "g-1")
    before = play.holders()
    play.change(spec(4))
    play.settle("g-0", "g-1", "g-2", "g-3")
    assert (hot(play, "hot"), hot(play, "idle"), len(moved(before, play.holders()))) == ([3, 3, 3, 3], [3, 3, 3, 3], 12)
    before = play.holders()
    play.change(spec(3, leaving=["g-3"]))
    play.settle("g-0", "g-1", "g-2", "g-3")
    assert (hot(play, "hot"), hot(play, "idle"), len(moved(before, play.holders()))) == ([0, 4, 4, 4], [0, 4, 4, 4], 6)
    play.die("g-2")
    play.settle("g-0", "g-1")
    assert (hot(play, "hot")[-2:], hot(play, "idle")[-2:]) == ([6, 6], [6, 6])
