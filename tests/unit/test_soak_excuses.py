"""What the faults of a long run excuse, and what they do not."""

from __future__ import annotations

import pytest

from dev.demo.account import Line
from dev.soak.excuses import Incident, beside, changes_of_leader, describe_duplicates, stops, table
from dev.soak.plan import Kind
from tests.unit.test_demo_sink import Row, rows

PRODUCED = {"t/0": 4, "t/1": 0}

# g-0 reads one record every two seconds, from 100 on.
READ: tuple[Row, ...] = tuple(("t/0", offset, "g-0", 100 + 2 * offset, 99) for offset in range(4))
KILL = Incident(Kind.KILL, 107, 107.2, "g", "g-0")
TRANCE = Incident(Kind.FREEZE, 107, 130, "g", "g-0")


def again(offset: int, at: float, by: str = "g-1") -> Row:
    return ("t/0", offset, by, at, 99)


def lines(*more: Row, incidents: tuple[Incident, ...] = (), ordered: bool = False) -> list[Line]:
    return table(rows(*READ, *more), "g", PRODUCED, {"t/0": 4}, incidents, ordered=ordered)


def broken(*more: Row, incidents: tuple[Incident, ...] = (), ordered: bool = False) -> dict[str, str]:
    return {line.name: line.value for line in lines(*more, incidents=incidents, ordered=ordered) if line.holds is False}


def test_a_run_in_which_all_is_read_once_holds_every_promise() -> None:
    assert lines(ordered=True) == [
        Line("records produced", "4"),
        Line("committed in the end", "4", "all that was produced", True),
        Line("distinct (shard, offset) processed", "4"),
        Line("missing", "0", "0", True),
        Line("read but never produced", "0", "0", True),
        Line("duplicates excused by 0 kills, 0 long pauses, 0 stops", "0"),
        Line("duplicates beside", "0", "0", True),
        Line("records of a key read before an earlier one of it", "0", "0", True),
    ]


def test_a_kill_excuses_the_last_two_micro_batches_of_its_victim() -> None:
    found = lines(again(2, 110), again(3, 110), incidents=(KILL,))
    assert [line for line in found if "duplicates" in line.name] == [
        Line("duplicates excused by 1 kills, 0 long pauses, 0 stops", "2"),
        Line("duplicates beside", "0", "0", True),
    ]


def test_what_nothing_excuses_is_told_by_range_with_who_read_it_and_when() -> None:
    found = beside(rows(*READ, again(0, 110), again(2, 110), again(3, 110)), "g", (KILL,))
    assert describe_duplicates(found, since=100) == ["t/0 0-0 (1): read by g-0 at 0.0 s, again by g-1 at 10.0 s"]


def test_what_was_read_before_them_is_not_excused() -> None:
    assert broken(again(1, 110), again(2, 110), incidents=(KILL,)) == {"duplicates beside": "1"}


@pytest.mark.parametrize(
    "other",
    [
        Incident(Kind.KILL, 107, 107.2, "h", "g-0"),
        Incident(Kind.KILL, 107, 107.2, "g", "g-1"),
        *(Incident(kind, 107, 108, "g", "g-0") for kind in Kind if kind not in (Kind.KILL, Kind.FREEZE)),
    ],
)
def test_nothing_else_excuses_a_duplicate(other: Incident) -> None:
    assert broken(again(3, 110), incidents=(other,)) == {"duplicates beside": "1"}


@pytest.mark.parametrize("kind", [Kind.BROKER, Kind.LEADER_KILL, Kind.LEADER_DELETE, Kind.LEADER_FREEZE, Kind.LEADER_BLINK])
def test_where_nothing_could_become_durable_before_a_kill_all_since_then_is_excused(kind: Kind) -> None:
    outage = Incident(kind, 103, 104)
    assert broken(again(0, 110), again(1, 110), incidents=(outage, KILL)) == {}
    assert broken(again(0, 110), again(1, 110), incidents=(KILL,)) == {"duplicates beside": "2"}


def test_an_outage_that_was_long_over_or_came_later_excuses_nothing() -> None:
    for outage in (Incident(Kind.BROKER, 50, 60), Incident(Kind.BROKER, 108, 120)):
        assert broken(again(1, 110), incidents=(outage, KILL)) == {"duplicates beside": "1"}


def test_one_that_goes_on_after_a_long_pause_may_write_what_it_had_in_hand_and_no_more() -> None:
    others = tuple(again(offset, 120) for offset in range(2, 4))
    assert broken(*others, again(3, 131, "g-0"), incidents=(TRANCE,)) == {}
    assert broken(*others, again(1, 131, "g-0"), again(1, 133, "g-0"), incidents=(TRANCE,)) == {"duplicates beside": "1"}


def test_a_change_of_the_leader_that_nobody_planned_is_an_outage_too() -> None:
    looks = [(130.0, "b"), (100.0, "a"), (110.0, "a"), (120.0, "b"), (140.0, "a")]
    assert changes_of_leader(looks) == [Incident(Kind.LEADER_KILL, 100, 120), Incident(Kind.LEADER_KILL, 120, 140)]


def test_a_consumer_that_ends_while_there_is_no_leader_or_soon_after_has_stopped_by_itself() -> None:
    looks = [(100.0, "g-0", "a"), (110.0, "g-0", "a"), (130.0, "g-0", "b"), (100.0, "g-1", "c"), (130.0, "g-1", "c")]
    away = Incident(Kind.LEADER_FREEZE, 90, 105)
    assert stops(looks, "g", [away]) == [Incident("stopped", 110, 130, "g", "g-0")]
    for other in (Incident(Kind.LEADER_FREEZE, 20, 40), Incident(Kind.BROKER, 90, 105), Incident(Kind.LEADER_KILL, 131, 140)):
        assert stops(looks, "g", [other]) == []


def test_what_one_that_stopped_by_itself_could_not_checkpoint_is_excused() -> None:
    away = Incident(Kind.LEADER_FREEZE, 103, 108)
    stopped = Incident("stopped", 106, 109, "g", "g-0")
    assert broken(*(again(offset, 110) for offset in range(4)), incidents=(away, stopped)) == {}
    assert broken(again(0, 110), incidents=(stopped,)) == {"duplicates beside": "1"}


def test_an_end_that_was_seen_late_is_excused_by_an_outage_before_the_last_look_at_it() -> None:
    away = Incident(Kind.LEADER_FREEZE, 103, 107)
    assert broken(again(1, 160), incidents=(away, Incident("stopped", 108, 150, "g", "g-0"))) == {}


def test_order_is_broken_by_a_record_that_is_first_read_before_an_earlier_one() -> None:
    late = table(rows(("t/0", 0, "g-0", 102, 99), ("t/0", 1, "g-1", 101, 99)), "g", {"t/0": 2}, {"t/0": 2}, (), ordered=True)
    assert [line for line in late if line.holds is False] == [
        Line("records of a key read before an earlier one of it", "1", "0", False)
    ]


def test_losses_and_what_is_not_committed_are_told() -> None:
    found = table(rows(*READ[:3], ("t/1", 0, "g-0", 101, 99)), "g", PRODUCED, {"t/0": 3}, (), ordered=False)
    assert {line.name: line.value for line in found if line.holds is False} == {
        "committed in the end": "3",
        "missing": "1",
        "read but never produced": "1",
    }
