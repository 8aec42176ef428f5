"""Processes of one machine that read the same shards of Kinesis ask for each of them as one."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
from pathlib import Path

import pytest

from shardherd.source.kinesis.pacing import FIRST_DELAY, OF_LOOKS, Pace
from shardherd.source.kinesis.shared_pacing import FARTHEST, LOOKED, SharedPace, pace_of

A, B = "shardId-000000000000", "shardId-000000000001"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def processes(folder: Path, clock: Clock) -> tuple[SharedPace, SharedPace]:
    return SharedPace(folder, now=clock), SharedPace(folder, now=clock)


def test_what_one_has_asked_the_other_waits_for(tmp_path: Path, clock: Clock) -> None:
    one, other = processes(tmp_path, clock)

    one.asked(A, clock.now)

    assert other.due(A) == pytest.approx(100.2)
    assert other.due(B) == 0.0
    assert other.next_of([A, B]) == B


def test_who_asks_at_the_same_time_as_others_pays_for_all_of_them_afterwards(tmp_path: Path, clock: Clock) -> None:
    found = [SharedPace(tmp_path, now=clock) for _ in range(3)]
    assert [each.due(A) for each in found] == [0.0] * 3, "nobody has asked yet"

    for each in found:
        each.asked(A, clock.now)

    clock.now += 2 * LOOKED
    assert [each.due(A) for each in found] == [pytest.approx(100.6)] * 3


def test_what_a_driver_was_answered_counts_for_others_however_small_its_share_is(tmp_path: Path, clock: Clock) -> None:
    looks, other = SharedPace(tmp_path, OF_LOOKS, now=clock), SharedPace(tmp_path, now=clock)

    looks.asked(A, clock.now)
    looks.answered(A, 10 * 1024 * 1024)

    assert other.due(A) == pytest.approx(100.0 + 10 * 1024 * 1024 / OF_LOOKS.rate)


def test_what_one_was_answered_counts_for_the_other(tmp_path: Path, clock: Clock) -> None:
    one, other = processes(tmp_path, clock)

    one.asked(A, clock.now)
    one.answered(A, 6_000_000)

    assert other.due(A) == pytest.approx(103.0)


def test_what_one_was_refused_the_other_does_not_try(tmp_path: Path, clock: Clock) -> None:
    one, other = processes(tmp_path, clock)

    one.refused(A, clock.now)

    assert other.due(A) == pytest.approx(100.0 + FIRST_DELAY)


def test_nobody_makes_a_shard_due_earlier_than_another_has_said(tmp_path: Path, clock: Clock) -> None:
    one, other = processes(tmp_path, clock)
    other.due(A)  # looked at a moment ago

    one.asked(A, clock.now)
    one.answered(A, 6_000_000)
    other.asked(A, clock.now)

    assert SharedPace(tmp_path, now=clock).due(A) == pytest.approx(103.2)


def test_others_are_looked_at_every_so_often(tmp_path: Path, clock: Clock) -> None:
    one, other = processes(tmp_path, clock)
    assert other.due(A) == 0.0
    one.asked(A, clock.now)

    clock.now += 2 * LOOKED

    assert other.due(A) == pytest.approx(100.2)


def test_what_was_written_before_the_machine_was_started_anew_says_nothing(tmp_path: Path, clock: Clock) -> None:
    clock.now = 90_000.0
    SharedPace(tmp_path, now=clock).refused(A, clock.now)
    clock.now = 90_000.0 - FARTHEST - 1.0

    one, other = processes(tmp_path, clock)
    assert one.due(A) == 0.0
    one.asked(A, clock.now)

    assert other.due(A) == pytest.approx(clock.now + 0.2)


def test_two_processes_share_the_account_of_a_stream_and_streams_have_their_own(tmp_path: Path) -> None:
    made = pace_of(("orders", "eu-central-1", ""), tmp_path)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_ask, args=(tmp_path,))
    process.start()
    process.join()

    assert process.exitcode == 0
    assert (made.due(A) > 0.0, pace_of(("clicks", "eu-central-1", ""), tmp_path).due(A)) == (True, 0.0)


def _ask(folder: Path) -> None:
    pace_of(("orders", "eu-central-1", ""), folder).refused(A, SharedPace(folder)._now())


def test_without_a_place_for_files_each_process_has_its_own_account_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        made = pace_of(("orders", "eu-central-1", ""), tmp_path / "file")

    assert type(made) is Pace
    assert "each process keeps to the limits of Kinesis by itself" in caplog.text


def test_a_folder_that_was_cleaned_up_is_made_anew(tmp_path: Path, clock: Clock) -> None:
    """As those do who delete what is old in the folder for temporary files: the times of these files are of 1970."""
    one, other = processes(tmp_path / "of one user" / "orders", clock)
    one.asked(A, clock.now)
    shutil.rmtree(tmp_path / "of one user")

    one.asked(A, clock.now)

    assert [one.due(A), other.due(A)] == [pytest.approx(100.2)] * 2


def test_a_folder_that_takes_nothing_any_more_leaves_each_process_with_its_own_account_and_says_so_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = processes(tmp_path / "orders", clock)
    (tmp_path / "orders").touch()

    for _ in range(2):
        one.asked(A, clock.now)

    assert [one.due(A), other.due(A)] == [pytest.approx(100.2), 0.0]
    assert [each.getMessage().partition(",")[0] for each in caplog.records] == [
        "each process keeps to the limits of Kinesis by itself"
    ]
