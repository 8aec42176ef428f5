"""The table of the demo: what it blames on the kill, what it calls a moved shard, and when it says BROKEN."""

from __future__ import annotations

import pytest

from dev.demo.account import Account, Line, Pauses, Timeline, account, lines, moved_shards, render
from dev.demo.sink import Count
from tests.unit.test_demo_sink import Row, rows

TIMELINE = Timeline(
    ready=0, grown=100, killed=200, died=200.5, scaled_in=300, ended=400, dead="c-2", dead_shards=("t/0", "t/1")
)

# Two shards read by c-2, which dies at 200; c-1 reads on 3 s later, and repeats the last micro-batch of t/0.
KILLED: tuple[Row, ...] = (
    ("t/0", 0, "c-2", 190, 189),
    ("t/1", 0, "c-2", 190, 189),
    ("t/0", 1, "c-2", 199, 198),
    ("t/0", 1, "c-1", 203, 198),
    ("t/1", 1, "c-1", 203, 199),
    ("t/0", 2, "c-1", 204, 203.5),
)


def line(name: str, of: Account) -> Line:
    return next(line for line in lines(of) if line.name.startswith(name))


def test_the_last_micro_batch_of_the_dead_may_be_repeated() -> None:
    assert account(rows(*KILLED), {"t/0": 3, "t/1": 2}, TIMELINE) == Account(
        total=Count(produced=5, distinct=5, missing=0, foreign=0, duplicates=1),
        duplicates_before_kill=0,
        duplicates_after_kill=1,
        duplicates_unexplained=0,
        duplicates_at_scale_in=0,
        unfinished_batch=1,
        batch_before_it=2,
        read_by_others_after={"t/0": 3, "t/1": 3},
        pauses={
            "growth": Pauses(None, 1, 0),
            "the kill": Pauses(4, None, 2),
            "scale-in": Pauses(None, None, 0),
        },
    )


def test_all_promises_hold_for_a_clean_kill() -> None:
    table = lines(account(rows(*KILLED), {"t/0": 3, "t/1": 2}, TIMELINE))
    assert [line.name for line in table if line.holds is False] == []
    assert line("duplicates after the kill", account(rows(*KILLED), {"t/0": 3, "t/1": 2}, TIMELINE)) == Line(
        "duplicates after the kill", "1", "at most 3: the unfinished micro-batch 1 and the one before it 2", True
    )


@pytest.mark.parametrize(
    ("more", "broken"),
    [
        (("t/0", 0, "c-1", 150, 149), "duplicates before the kill"),
        (("t/9", 0, "c-1", 150, 149), "read but never produced"),
        (("t/0", 2, "c-1", 310, 149), "duplicates at scale-in"),
        (("t/0", 2, "c-0", 290, 149), "duplicates after the kill"),
    ],
)
def test_one_row_too_many_breaks_the_promise_of_its_phase(more: Row, broken: str) -> None:
    table = lines(account(rows(*KILLED, more), {"t/0": 3, "t/1": 2}, TIMELINE))
    assert [line.name for line in table if line.holds is False] == [broken]


def test_a_lost_record_breaks_the_first_promise() -> None:
    assert line("missing", account(rows(*KILLED), {"t/0": 3, "t/1": 3}, TIMELINE)) == Line("missing", "1", "0", False)


def test_a_shard_that_nobody_took_over_breaks_the_promise_of_the_takeover() -> None:
    only_one = [row for row in KILLED if row[0] == "t/0" or row[2] == "c-2"]
    found = account(rows(*only_one), {"t/0": 3, "t/1": 1}, TIMELINE)
    assert found.slowest_takeover is None
    assert line("the killed consumer's 2 shards", found) == Line(
        "the killed consumer's 2 shards read by others after", "never, for at least one", "at most 5 s", False
    )


def test_a_shard_moved_when_its_reader_differs_from_the_last_one_before() -> None:
    held = rows(
        ("t/0", 0, "a", 1, 0), ("t/0", 1, "b", 11, 0), ("t/1", 0, "a", 1, 0), ("t/1", 1, "a", 11, 0), ("t/2", 0, "a", 11, 0)
    )
    assert moved_shards(held, 10, 20) == {"t/0"}


def test_the_table_says_what_held_and_what_did_not() -> None:
    assert render([Line("missing", "0", "0", True), Line("moves", "7"), Line("duplicates", "12", "0", False)]) == (
        "missing      0  held    0\nmoves        7\nduplicates  12  BROKEN  0"
    )
