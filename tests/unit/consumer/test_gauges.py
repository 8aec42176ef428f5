"""What a consumer measures of itself: its disks, the memory of its control group, and its own gauge."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from shardherd.consumer.gauges import DISKS, Gauges, Measure, measure_of
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.gauges import Gauge, GaugeKind

OWN = Gauge(GaugeKind.OWN, "own", 2_500, 10_000)


def group(root: Path, path: str, files: Mapping[str, str]) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def in_group(root: Path, path: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"1:name=systemd:/other\n0::{path}\n")


LIMITED = {"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "anon 1\ninactive_file 300\nfile 2\n"}


def test_a_disk_is_as_full_as_df_says(tmp_path: Path) -> None:
    (found,) = Measure([tmp_path], root=tmp_path)()
    disk = os.statvfs(tmp_path)
    assert (found.kind, found.name) == (GaugeKind.DISK, str(tmp_path))
    assert 0 < found.used < found.total <= disk.f_blocks * disk.f_frsize


def test_what_cannot_be_measured_is_left_out_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    measure = Measure([tmp_path / "gone"], root=tmp_path)
    with caplog.at_level(logging.WARNING):
        assert (measure(), measure()) == ((), ())
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the disk of {tmp_path}/gone cannot be measured, and is not reported: ")


def test_a_file_system_without_blocks_is_left_out(tmp_path: Path) -> None:
    assert Measure([Path("/proc")], root=tmp_path)() == ()


def test_memory_counts_as_the_kubelet_counts_it(tmp_path: Path) -> None:
    in_group(tmp_path, "/")
    group(tmp_path, "", LIMITED)
    assert Measure([], root=tmp_path)() == (Gauge(GaugeKind.MEMORY, "memory", 600, 1000),)


def test_of_nested_control_groups_the_nearest_with_a_limit_counts(tmp_path: Path) -> None:
    in_group(tmp_path, "/pods/a/inner")
    group(tmp_path, "pods/a/inner", {**LIMITED, "memory.max": "max\n"})
    group(tmp_path, "pods/a", {**LIMITED, "memory.max": "2000\n"})
    group(tmp_path, "pods", LIMITED)
    assert Measure([], root=tmp_path)() == (Gauge(GaugeKind.MEMORY, "memory", 600, 2000),)


@pytest.mark.parametrize("limit", ["max\n", None])
def test_without_a_limit_memory_is_not_reported(tmp_path: Path, limit: str | None) -> None:
    if limit is not None:
        in_group(tmp_path, "/")
        group(tmp_path, "", {**LIMITED, "memory.max": limit})
    assert Measure([], root=tmp_path)() == ()


def test_its_own_gauge_is_a_part_of_one(tmp_path: Path) -> None:
    assert Measure([], lambda: 0.25, tmp_path)() == (OWN,)
    assert Measure([], lambda: 7.0, tmp_path)() == (Gauge(GaugeKind.OWN, "own", 10_000, 10_000),)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-0.5, "the application's gauge is -0.5, and is not reported: return a number from 0 (empty) to 1 (full)"),
        (float("nan"), "the application's gauge is nan, and is not reported: return a number from 0 (empty) to 1 (full)"),
        (None, "the application's gauge failed, and is not reported: ZeroDivisionError: division by zero"),
    ],
)
def test_what_its_own_gauge_may_not_say_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: float | None, message: str
) -> None:
    def own() -> float:
        return 1 / 0 if value is None else value

    with caplog.at_level(logging.WARNING):
        assert Measure([], own, tmp_path)() == ()
    assert [record.getMessage() for record in caplog.records] == [message]


@pytest.mark.parametrize("error", [SystemExit("odd"), KeyboardInterrupt("odd"), GeneratorExit("odd")])
def test_its_own_gauge_ends_no_thread_by_what_would_end_a_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def own() -> float:
        raise error

    with caplog.at_level(logging.WARNING):
        assert Measure([], own, tmp_path)() == ()
    message = f"the application's gauge failed, and is not reported: {type(error).__name__}: odd"
    assert [record.getMessage() for record in caplog.records] == [message]


def test_a_gauge_that_fails_with_another_text_each_time_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[OSError | float] = [OSError("request 1"), -0.5, OSError("request 2"), -0.25]

    def own() -> float:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    measure = Measure([], own, tmp_path)
    assert [measure() for _ in range(4)] == [()] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "the application's gauge failed, and is not reported: OSError: request 1",
        "the application's gauge is -0.5, and is not reported: return a number from 0 (empty) to 1 (full)",
    ]


def test_the_disk_is_that_in_which_the_process_runs_unless_folders_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def disks(text: str) -> list[str]:
        return [each.name for each in measure_of({DISKS: text})() if each.kind is GaugeKind.DISK]

    assert disks("") == [str(tmp_path)]
    assert disks(f"{tmp_path}/a:{tmp_path}/b:") == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert disks(f"{tmp_path}/a:{tmp_path}/a/") == [f"{tmp_path}/a"], "what is named twice is reported once"


def test_a_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="SHARDHERD_DISKS names /no/such, which is no folder here: name folders that"):
        measure_of({DISKS: "/:/no/such"})


def test_too_many_folders_are_refused(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(15)]
    for each in folders:
        each.mkdir()
    with pytest.raises(InvalidRequestError, match="SHARDHERD_DISKS names 15 folders: name at most 14, one on each disk"):
        measure_of({DISKS: ":".join(map(str, folders))})


def test_it_is_measured_again_and_again_beside_whatever_the_process_does() -> None:
    measured = threading.Semaphore(0)
    numbers = iter(range(1, 1000))

    def read() -> tuple[Gauge, ...]:
        measured.release()
        return (Gauge(GaugeKind.OWN, "own", next(numbers), 1000),)

    gauges = Gauges(read, every=0.001)
    try:
        assert all(measured.acquire(timeout=10) for _ in range(4))
        assert gauges()[0].used >= 2
    finally:
        gauges.close()


def test_a_measurement_that_hangs_keeps_nobody_and_is_told_of_again_after_twice_as_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    clock = [100.0]
    first = [True]

    def read() -> tuple[Gauge, ...]:
        if first.pop() if first else False:
            return (OWN,)
        hangs.set()
        goes_on.wait(10)
        return ()

    gauges = Gauges(read, every=0.001, now=lambda: clock[0])
    try:
        assert hangs.wait(10)
        for clock[0] in (114.0, 115.0, 129.0, 130.0, 140.0):
            assert gauges() == (OWN,), "the last one is told on"
        assert [record.getMessage() for record in caplog.records] == [
            f"a measurement has not ended for {seconds} s: what the last one has found is reported until it does. A disk is"
            " away, or the application's gauge hangs: have it return at once what is known already"
            for seconds in (15, 30)
        ]
    finally:
        goes_on.set()
        gauges.close()


def test_a_first_measurement_that_hangs_is_waited_for_for_a_while_and_said_and_told_once_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goes_on, measured_again = threading.Event(), threading.Event()

    def read() -> tuple[Gauge, ...]:
        if goes_on.is_set():
            measured_again.set()
        goes_on.wait(10)
        return (OWN,)

    with caplog.at_level(logging.WARNING):
        gauges = Gauges(read, every=0.001, first=0.01)
    try:
        assert gauges() == ()
        assert [record.getMessage() for record in caplog.records] == [
            "the first measurement has not ended within 0.01 s: nothing is reported until it does. A disk is away, or the"
            " application's gauge hangs: have it return at once what is known already"
        ]
        goes_on.set()
        assert measured_again.wait(10)
        assert gauges() == (OWN,)
    finally:
        goes_on.set()
        gauges.close()
