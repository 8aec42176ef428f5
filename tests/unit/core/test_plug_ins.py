"""Assignors that are not ours: an unknown name, a plug-in, and one that fails. What a user is told, and what moves."""

from __future__ import annotations

import numpy as np
import pytest

from shardherd.core.assignors import ASSIGNORS, NOBODY, Assignment, Assignor, Problem, target
from shardherd.core.group.group import Group
from shardherd.core.model.nouns import Condition, ConsumerId
from tests.builders import Play, spec, topic, with_settings
from tests.unit.core.assigning import C, partitions, problem


def last_first(problem: Problem) -> Assignment:
    """RoundRobin from the last consumer to the first."""
    return len(problem.consumers) - 1 - np.arange(len(problem.shards)) % len(problem.consumers)


def group_with(assignor: Assignor, name: str = "example.LastFirst") -> Play:
    """Two consumers and four shards, under a plug-in."""
    asked = spec(2, assignor=name)
    play = Play(asked, Group.new(asked, 1000.0, assignors={**ASSIGNORS, "example.LastFirst": assignor}))
    play.discover(topic(4))
    play.settle("g-0", "g-1")
    return play


UNKNOWN = Condition(
    "UnknownAssignor",
    'spec.assignor is "example.Magic", which this operator does not have: set one of CooperativeSticky, Range, RoundRobin, '
    "Sticky, Weighted, example.LastFirst, or install the plug-in of that name in the operator's image; "
    "nothing is granted or moved",
)


def test_a_plug_in_decides_who_holds_what() -> None:
    assert group_with(last_first).holders() == {"0": "g-1", "1": "g-0", "2": "g-1", "3": "g-0"}


def test_changing_to_a_plug_in_and_back_moves_what_its_target_asks_for() -> None:
    play = group_with(last_first, "Range")
    assert play.holders() == {"0": "g-0", "1": "g-0", "2": "g-1", "3": "g-1"}
    play.change(with_settings(play.group.spec, assignor="example.LastFirst"))
    play.settle("g-0", "g-1")
    assert (play.holders(), play.view.moves) == ({"0": "g-1", "1": "g-0", "2": "g-1", "3": "g-0"}, 2)
    play.change(with_settings(play.group.spec, assignor="Sticky"))
    play.settle("g-0", "g-1")
    assert play.view.moves == 2


def test_an_unknown_assignor_is_named_with_the_known_ones_and_nothing_is_granted() -> None:
    play = group_with(last_first, "example.Magic")
    assert set(play.states().values()) == {"NOT_ALLOC"}
    assert play.view.withheld == (UNKNOWN,)


def test_a_group_that_is_edited_to_an_unknown_assignor_keeps_what_it_holds_and_goes_on_with_a_known_one() -> None:
    play = group_with(last_first)
    before = play.holders()
    play.change(with_settings(play.group.spec, assignor="example.Magic"))
    play.settle("g-0", "g-1", "g-2")
    assert (play.holders(), play.view.withheld) == (before, (UNKNOWN,))
    play.change(with_settings(play.group.spec, assignor="Sticky"))
    play.settle("g-0", "g-1", "g-2")
    assert (sorted(play.counts().values()), play.view.withheld) == ([1, 1, 2], ())


def raising(problem: Problem) -> Assignment:
    raise ZeroDivisionError("no consumers of mine")


def too_short(problem: Problem) -> Assignment:
    return np.zeros(1, dtype=np.int64)


def fractions(problem: Problem) -> Assignment:
    return np.full(len(problem.shards), 0.5)


def beyond(problem: Problem) -> Assignment:
    return np.array([NOBODY, 0, 2, 7])


def below(problem: Problem) -> Assignment:
    return np.array([0, 1, -2, -3])


@pytest.mark.parametrize(
    ("assignor", "why"),
    [
        (raising, "failed: ZeroDivisionError: no consumers of mine"),
        (
            too_short,
            "answered int64 of shape (1,); it must answer one integer for each shard, shape (4,)",
        ),
        (
            fractions,
            "answered float64 of shape (4,); it must answer one integer for each shard, shape (4,)",
        ),
        (beyond, "gave shard t/2 to consumer 2; there are consumers 0 to 1, and -1 for nobody"),
        (below, "gave shard t/2 to consumer -2; there are consumers 0 to 1, and -1 for nobody"),
    ],
)
def test_a_plug_in_that_fails_is_reported_and_shards_are_given_out_without_it(assignor: Assignor, why: str) -> None:
    play = group_with(assignor)
    assert play.counts() == {"g-0": 2, "g-1": 2}
    assert play.view.withheld == (
        Condition(
            "AssignorFailed",
            f'assignor "example.LastFirst" {why}; what is held stays, free shards go to who has least. '
            "Mend the plug-in, or set another spec.assignor",
        ),
    )
    assert [event.message for event in play.events if event.warning] == [f'assignor "example.LastFirst" {why}']


def test_what_is_held_stays_while_a_plug_in_fails_and_it_is_used_again_once_it_answers() -> None:
    broken = False

    def fragile(problem: Problem) -> Assignment:
        return raising(problem) if broken else last_first(problem)

    play = group_with(fragile)
    before = play.holders()
    broken = True
    play.settle("g-0", "g-1", "g-2")
    assert (play.holders(), [condition.reason for condition in play.view.withheld]) == (before, ["AssignorFailed"])
    broken = False
    play.settle("g-0", "g-1", "g-2", "g-3")
    assert (play.view.withheld, play.holders()["0"]) == ((), "g-3")


def test_a_plug_in_may_not_give_to_a_consumer_that_is_not_ready() -> None:
    asked = problem(partitions(t=2), C[:2])
    asked.receives[1] = False
    assert target("example.LastFirst", asked, {"example.LastFirst": last_first}).tolist() == [0, 0]


@pytest.mark.parametrize("answer", [[1, NOBODY, 0], np.array([1, -1, 0], dtype=np.int8)])
def test_a_plug_in_may_answer_in_any_integers_and_give_a_shard_to_nobody(answer: object) -> None:
    asked = problem(partitions(t=3), C[:2])
    answered = target("example.Fixed", asked, {"example.Fixed": lambda _: answer})  # type: ignore[dict-item, return-value]
    assert (answered.tolist(), str(answered.dtype)) == ([1, NOBODY, 0], "int64")


def test_an_unknown_name_is_refused_by_the_function() -> None:
    with pytest.raises(ValueError, match=r'spec\.assignor is "Magic", which this operator does not have'):
        target("Magic", problem(partitions(t=1), [ConsumerId("c0")]))
