"""Processes are found and ended by their record, never by their name."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from dev.cluster.processes import ProcessRecord, start_of


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_a_record_outlives_its_process_and_says_so(tmp_path: Path) -> None:
    process = sleeper()
    ProcessRecord.of(process.pid).write(tmp_path / "record")
    record = ProcessRecord.read(tmp_path / "record")
    assert record is not None
    assert record.alive()
    record.kill()
    assert process.wait(10) == -9
    assert not record.alive()


def test_a_process_that_only_has_the_same_pid_is_not_killed() -> None:
    process = sleeper()
    try:
        record = ProcessRecord.of(process.pid)
        for other in (replace(record, start=record.start - 1), replace(record, boot="another boot")):
            assert not other.alive()
            other.kill()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(10)


def test_a_zombie_counts_as_dead() -> None:
    process = sleeper()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(process.pid) is None
    process.wait(10)


def test_no_record_is_no_process(tmp_path: Path) -> None:
    assert ProcessRecord.read(tmp_path / "record") is None
