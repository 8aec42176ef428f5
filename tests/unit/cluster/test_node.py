"""Starting and ending daemons, and telling why one ended."""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster.node import Daemons

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
QUIET = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    # As in the first process of an instance: signals of children are taken by sigtimedwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    under_test = Daemons()
    yield under_test
    for name in list(under_test.running):
        under_test.stop(name, 0.0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def start(daemons: Daemons, log: Path, program: str) -> None:
    """Start a Python program and return once it has written its first line."""
    os.mkfifo(log)
    reader = threading.Thread(target=lambda: lines.append(log.open().readline()))
    lines: list[str] = []
    reader.start()
    daemons.start("it", [sys.executable, "-c", program], {}, str(log))
    reader.join(30)
    assert lines == ["up\n"]


def test_a_stopped_process_is_gone_and_its_end_is_known(daemons: Daemons, tmp_path: Path) -> None:
    start(daemons, tmp_path / "log", QUIET)
    daemons.stop("it", 10.0)
    assert (daemons.running, daemons.ended) == ({}, {"it": -signal.SIGTERM})


def test_a_process_that_ignores_the_request_is_killed(daemons: Daemons, tmp_path: Path) -> None:
    start(daemons, tmp_path / "log", STUBBORN)
    daemons.stop("it", 0.1)
    assert (daemons.running, daemons.ended) == ({}, {"it": -signal.SIGKILL})


def test_a_paused_process_can_be_stopped(daemons: Daemons, tmp_path: Path) -> None:
    start(daemons, tmp_path / "log", QUIET)
    daemons.signal("it", signal.SIGSTOP)
    daemons.stop("it", 10.0)
    assert daemons.ended == {"it": -signal.SIGTERM}


def test_starting_what_runs_changes_nothing(daemons: Daemons, tmp_path: Path) -> None:
    start(daemons, tmp_path / "log", QUIET)
    before = dict(daemons.running)
    daemons.start("it", ["/bin/false"], {}, str(tmp_path / "other"))
    assert daemons.running == before


def test_a_request_that_nobody_knows_is_refused(daemons: Daemons) -> None:
    with pytest.raises(ValueError, match="unknown request 'dance'"):
        daemons.answer({"do": "dance"})


def test_an_answer_can_be_sent_as_json(daemons: Daemons) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(json.dumps(daemons.answer({"do": "list"})).encode())
        assert json.loads(other.recv(1000)) == {"running": {}, "ended": {}}
