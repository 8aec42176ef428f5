"""The processes of queries as Spark starts them: forks of the server where there is one, and otherwise as ever."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from shardherd.spark.cells import fork_server, forked
from shardherd.spark.launch.sitecustomize import READER, RUNNERS
from shardherd.spark.python_path import LAUNCH

SECRET = b"a-secret"


class Jvm:
    """What Spark's JVM does for a query: it starts a process, which connects back and says who it is."""

    def __init__(self, module: str = READER) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        port = self._listener.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            env={
                **os.environ,
                "PYTHON_WORKER_FACTORY_PORT": str(port),
                "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
                "SPARK_BUFFER_SIZE": "65536",
            },
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.line, _ = self._listener.accept()
        self.line.settimeout(60)
        self._read: BinaryIO = self.line.makefile("rb")
        assert self._read.read(self._number()) == SECRET
        self.line.sendall(struct.pack("!i", 2) + b"ok")
        self.pid = self._number()

    def _number(self) -> int:
        (found,) = struct.unpack("!i", self._read.read(4))
        return int(found)

    def end(self) -> tuple[int, str]:
        """The exit code, and the last line of what it said, when it finds that there is no JVM any more."""
        self._read.close()
        self.line.close()
        self._listener.close()
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said.decode().splitlines()[-1] if said else ""


def until(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, file
        time.sleep(0.01)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    started = forked.start(tmp_path / "forks.sock")
    with forked.asked(tmp_path / "forks.sock"):
        until(tmp_path / "forks.sock")
        yield started
    assert started.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        started.stdin.close()
    assert started.wait(60) == 0, "it ends with the driver"
    assert not (tmp_path / "forks.sock").exists()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("module", RUNNERS)
def test_the_process_of_a_query_is_a_fork_of_the_server_and_ends_as_it_would_have(
    module: str, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = Jvm(module)
    assert fork.pid != fork.process.pid
    assert parent(fork.pid) == server.pid
    assert Path(f"/proc/{fork.pid}/cwd").readlink() == Path.cwd()
    ended = fork.end()

    monkeypatch.setenv("SHARDHERD_FORK_SERVER", "/nowhere/forks.sock")
    plain = Jvm(module)
    assert plain.pid == plain.process.pid, "it does the work itself where nobody forks"
    assert plain.end() == ended


def test_a_fork_ends_by_the_signal_that_was_meant_for_it(server: subprocess.Popen[bytes]) -> None:
    fork = Jvm()
    fork.process.send_signal(signal.SIGTERM)
    assert fork.line.recv(1) == b"", "who had the line is gone"
    assert fork.end() == (1, "")


def test_a_signal_that_comes_when_the_fork_has_ended_already_does_not_start_the_work_anew(
    server: subprocess.Popen[bytes],
) -> None:
    fork = Jvm()
    fork.process.send_signal(signal.SIGSTOP)
    os.kill(fork.pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{fork.pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    fork.process.send_signal(signal.SIGTERM)
    fork.process.send_signal(signal.SIGCONT)
    assert fork.end() == (1, "")


def test_a_fork_imports_from_where_the_process_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, forked.asked(tmp_path / "forks.sock"):
        listener.bind(str(tmp_path / "forks.sock"))
        listener.listen()
        asking = subprocess.Popen([sys.executable, "-m", READER], stderr=subprocess.DEVNULL)
        line, _ = listener.accept()
        with line:
            _, files, _, _ = socket.recv_fds(line, 1, 3)
            path = json.loads(line.makefile("rb").readline())["path"]
        asking.wait(60)
        for each in files:
            os.close(each)
    (tmp_path / "plain.py").write_text("import json, sys; print(json.dumps(sys.path))")
    plain = subprocess.run([sys.executable, "-m", "plain"], capture_output=True, check=True, text=True)
    assert path[0] == str(tmp_path)
    assert [each for each in path if each != str(LAUNCH)] == json.loads(plain.stdout)


def test_the_server_outlives_a_fork_that_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        socket.send_fds(ours, [b"f"], [0, 1, 2])
        ours.sendall(b"{}\n")
        fork_server._serve_one(theirs, listener)
    assert caplog.messages == ["the process of a query is not forked, and does the work itself: no more processes"]


def test_what_is_started_while_the_jvm_is_started_asks_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDHERD_FORK_SERVER", raising=False)
    with forked.asked(tmp_path / "forks.sock"):
        assert LAUNCH in map(Path, os.environ["PYTHONPATH"].split(os.pathsep))
        assert os.environ["SHARDHERD_FORK_SERVER"] == str(tmp_path / "forks.sock")
    assert "SHARDHERD_FORK_SERVER" not in os.environ


@pytest.mark.parametrize(("said", "forks"), [({}, True), ({"spark.python.use.daemon": " False"}, False)])
def test_who_wants_no_process_of_sparks_forked_has_none(said: dict[str, str], forks: bool) -> None:
    assert forked.wanted(said) is forks
