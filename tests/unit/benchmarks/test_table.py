"""The table and the score of the benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.assignor.ours import Ours
from benchmarks.table import Row, middle, render, score


def test_a_ratio_says_how_many_times_better_ours_is() -> None:
    assert Row("time", ours=2.0, peer=10.0, goal=4).ratio == 5.0
    assert Row("rate", ours=10.0, peer=2.0, goal=4, more_is_better=True).ratio == 5.0


def test_the_score_is_the_smallest_ratio_to_a_goal() -> None:
    rows = [Row("a", 1, 8, goal=4), Row("b", 1, 3, goal=2), Row("shown only", 5, 1, goal=0)]
    assert score(rows) == pytest.approx(1.5)


def test_where_the_goal_is_nothing_only_nothing_meets_it() -> None:
    assert Row("requests", ours=0.0, peer=0.0, goal=1.0).ratio == 1.0
    assert Row("requests", ours=0.1, peer=0.0, goal=1.0).ratio == 0.0


def test_a_slow_moment_does_not_change_the_middle() -> None:
    assert middle([3.0, 2.0, 900.0]) == 3.0


def test_the_table_ends_with_the_score() -> None:
    rows = [
        Row("join", 100.0, 5000.0, goal=10, note="11 consumers"),
        Row("growth", 2000.0, 5000.0, goal=3),
        Row("killed", 1.0, 4.5, goal=0, unit="s"),
    ]
    assert render(rows).splitlines() == [
        "              ours        peer  ratio  goal",
        "join      100.0 ms  5,000.0 ms  50.0x   10x  met     11 consumers",
        "growth  2,000.0 ms  5,000.0 ms  2.50x    3x  missed",
        "killed      1.00 s      4.50 s  4.50x",
        "score: 0.83",
    ]


def test_our_side_of_the_assignors_answers_evenly_and_moves_only_what_the_leaver_held() -> None:
    ours = Ours(shards=1_000, consumers=8, topics=10)
    problem, target, delta = ours.full()
    assert (problem.loads(target).tolist(), len(delta)) == ([125] * 8, 1_000)
    problem, target, delta = ours.one_leaves()
    assert (sorted(problem.loads(target).tolist()), len(delta)) == ([142, 143, 143, 143, 143, 143, 143], 125)
    assert "consumer-4" not in set(delta.takers.tolist())
