"""When a shard may be asked for again: Kinesis's limits, kept by everything that reads in a process, and no shard starves."""

from __future__ import annotations

import itertools

import pytest

from shardherd.source.kinesis.pacing import (
    BYTES,
    CALLS,
    COUNTED,
    FIRST_DELAY,
    LONGEST_DELAY,
    OF_LOOKS,
    OF_TASKS,
    WHOLE,
    Pace,
    Share,
)


def test_a_shard_is_asked_five_times_a_second_at_most() -> None:
    pace, now, asked = Pace(), 0.0, []
    while now < 3.0:
        now = max(now, pace.due("s"))
        pace.asked("s", now)
        pace.answered("s", 1000)
        asked.append(now)
    assert all(later - earlier >= 0.2 - 1e-9 for earlier, later in itertools.pairwise(asked))
    assert len(asked) == 16


def test_a_large_answer_is_waited_for_until_kinesis_has_allowed_for_it() -> None:
    pace = Pace()
    pace.asked("s", 10.0)
    pace.answered("s", 10_000_000)
    assert pace.due("s") == 15.0
    assert pace.due("another") == 0.0


@pytest.mark.parametrize("size", [1000, 900_000, 1_800_000, 4_500_000, 10_000_000])
@pytest.mark.parametrize("late", [0.0, 0.05, 0.3, 0.9, 3.0])
def test_kinesis_refuses_nothing_however_long_it_takes_to_answer(size: int, late: float) -> None:
    """It counts a request when it answers it, and every fourth is late: the next ones must not come too soon after that."""
    pace, now = Pace(), 0.0
    counted: list[tuple[float, int]] = []
    for number in range(100):
        now = max(now, pace.due("s"))
        pace.asked("s", now)
        took = late if number % 4 == 0 else 0.0
        second, five = ([each for each in counted if now + took - each[0] < of - 1e-6] for of in (1.0, 5.0))
        assert (len(second) < 5, sum(of for _, of in five) <= 10_000_000) == (True, True), (number, counted[-8:])
        counted.append((now + took, size))
        pace.answered("s", size, took=took)
        now += took


def test_an_answer_within_the_usual_time_delays_no_bytes() -> None:
    pace = Pace()
    pace.asked("s", 10.0)
    pace.answered("s", 10_000_000, took=0.1)
    assert pace.due("s") == 15.0


def test_two_megabytes_a_second_are_all_that_a_shard_gives_whatever_the_answers_size() -> None:
    for size in (100_000, 500_000, 2_000_000, 9_000_000):
        pace, now, read = Pace(), 0.0, 0
        while now < 60.0:
            now = max(now, pace.due("s"))
            pace.asked("s", now)
            pace.answered("s", size)
            read += size
        assert read - size <= 2_000_000 * now + 1
        assert read >= min(2_000_000, 5 * size) * 59


def test_after_refusals_it_waits_longer_each_time_and_an_answer_ends_that() -> None:
    pace = Pace()
    waits = []
    now = 100.0
    for _ in range(8):
        pace.asked("s", now)
        pace.refused("s", now)
        waits.append(pace.due("s") - now)
        now = pace.due("s")
    assert waits == [FIRST_DELAY, 0.5, 1.0, 2.0, 4.0, LONGEST_DELAY, LONGEST_DELAY, LONGEST_DELAY]
    pace.asked("s", now)
    pace.answered("s", 0)
    pace.asked("s", now)
    pace.refused("s", now)
    assert pace.due("s") == now + FIRST_DELAY


def test_a_busy_shard_starves_no_other() -> None:
    """One shard brings 2 MB each time, the others nothing: in five seconds each was asked as often as its own limits allow."""
    pace, now = Pace(), 0.0
    counts = dict.fromkeys(("busy", "idle-1", "idle-2"), 0)
    while now < 5.0:
        shard = pace.next_of(counts)
        now = max(now, pace.due(shard))
        pace.asked(shard, now)
        pace.answered(shard, 2_000_000 if shard == "busy" else 0)
        counts[shard] += 1
    assert counts["busy"] in (5, 6)
    assert min(counts["idle-1"], counts["idle-2"]) >= 25


def test_shards_that_are_not_asked_for_are_forgotten() -> None:
    pace = Pace()
    for number in range(1001):
        pace.asked(f"s{number}", 0.0)
    pace.asked("late", 1000.0)
    assert pace.due("s0") == 0.0
    assert pace.due("late") == 1000.2


def test_as_many_records_are_asked_for_as_a_second_allows() -> None:
    whole, share = Pace(), Pace(OF_LOOKS)
    assert (whole.most("a"), share.most("a")) == (1000, 20), "nothing is known of it"
    for pace in (whole, share):
        pace.answered("a", 200_000, 20)
    assert (whole.most("a"), share.most("a")) == (200, 40)
    whole.answered("a", 0)
    assert whole.most("a") == 200, "an answer without records tells nothing of them"
    whole.answered("a", 10_000_000, 2)
    assert whole.most("a") == 1


@pytest.mark.parametrize("length", [10, 1000, 100_000])
@pytest.mark.parametrize(
    ("looks", "tasks", "within"),
    [
        pytest.param(OF_LOOKS, OF_TASKS, True, id="a driver looks at some"),
        pytest.param(COUNTED, COUNTED, True, id="a driver counts"),
        pytest.param(WHOLE, WHOLE, False, id="each as if it were alone"),
    ],
)
def test_a_driver_and_tasks_elsewhere_ask_for_what_a_shard_allows_together(
    looks: Share, tasks: Share, within: bool, length: int
) -> None:
    """Both as fast as they may for ten minutes, of a shard in which there is always more; each with an account of its own."""
    accounts, now, calls, size = (Pace(looks), Pace(tasks)), 0.0, 0, 0
    while now < 600.0:
        pace = min(accounts, key=lambda each: each.due("a"))
        now = max(now, pace.due("a"))
        pace.asked("a", now)
        records = min(10_000, pace.most("a"))
        pace.answered("a", records * length, records)
        calls, size = calls + 1, size + records * length
    assert (calls <= 1.01 * 600 * CALLS and size <= 1.01 * 600 * BYTES) is within
