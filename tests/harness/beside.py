"""Runs the tests of some folders in processes of their own beside the others, as one run of pytest.

A plugin of pytest, which `dev.check` asks for: `-p tests.harness.beside --beside FOLDERS` makes one more process for these
folders, `--beside OTHERS` another one. Tests that start real programs wait more than they work, so some of them have room on
two processors. Each of the other processes begins with the first test whose tier one of its own has, so quicker tiers still
come first. Each has an instance of its own (`test-2`). What they report is told by the first one as if it were its own: one
list of failures, one summary. They end when the first one ends, whatever ends it.

`--alone PATHS` names the folders and files whose tests need the whole machine, also those of a folder that runs beside: the
first process runs them, and they begin when the others are over.

It must not decide what a failure means: a failure in any of them closes the later tiers of all (`tiers`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.harness.tiers import closed, tier_of

INSTANCE = "SHARDHERD_TEST_CLUSTER"
PATIENCE = 1.0
"""Seconds after which it is looked whether a process has ended that says nothing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("beside")
    group.addoption("--beside", action="append", default=[], help="folders, by commas, whose tests run in one more process")
    group.addoption("--alone", default="", help="folders and files, by commas, whose tests run when the others are over")
    group.addoption("--beside-of", type=int, help="be such a process: the socket to the first one")


def pytest_configure(config: pytest.Config) -> None:
    if (number := config.getoption("--beside-of")) is not None:
        config.pluginmanager.register(Other(config, socket.socket(fileno=number)), Other.__name__)
    elif config.getoption("--beside"):
        config.pluginmanager.register(First(config), First.__name__)


class First:
    """What the process does that a person started: it runs its own tests, and tells what the others report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lanes: list[list[pytest.Item]] = []
        self._lane_of: dict[str, int] = {}
        self._alone: set[str] = set()
        self._others: dict[int, _Process] = {}
        self._over: set[str] = set()
        self._stopped = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._alone = {item.nodeid for item in self._within(self._config.getoption("--alone"), items)}
        for number, folders in enumerate(self._config.getoption("--beside")):
            self._lanes.append([item for item in self._within(folders, items) if item.nodeid not in self._alone])
            self._lane_of |= {item.nodeid: number for item in self._lanes[-1]}
        items.sort(key=lambda item: (self._lane_of.get(item.nodeid, -1), item.nodeid in self._alone))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not self._lane_of:
            return None
        for number, lane in enumerate(self._lanes):
            begins = lane and number not in self._others and tier_of(item.nodeid) >= min(tier_of(each.nodeid) for each in lane)
            if begins and not closed(item):
                self._others[number] = _Process(self._config, number + 2, lane)
        self._tell_all()
        if item.nodeid in self._alone:
            for each in itertools.chain(*self._lanes):
                self._await(each)
        if item.nodeid not in self._lane_of:
            return None
        self._await(item)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        others = list(self._others.values())
        whole = [other for other in others if other.items <= self._over]
        for other in others:
            if other not in whole:
                other.end()
        while any(other.running for other in others):
            select.select([other for other in others if other.running], [], [], PATIENCE)
            self._tell_all()
        for other in others:
            end = other.wait()
            if other in whole and other.code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                self._report(other.last, f"tests in another process were run, but {end}", "teardown")
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _within(self, folders: str, items: list[pytest.Item]) -> list[pytest.Item]:
        """Those of `items` that are in one of the folders or files, which are separated by commas."""
        paths = [self._path(each) for each in folders.split(",") if each]
        return [item for item in items if any(item.path.is_relative_to(path) for path in paths)]

    def _path(self, name: str) -> Path:
        path = self._config.rootpath / name
        if not path.exists():
            raise pytest.UsageError(f"--beside or --alone names {name!r}, which is not here: correct or remove it")
        return path

    def _await(self, item: pytest.Item) -> None:
        """Tell what the others report until this test is over, or will not be run."""
        while item.nodeid not in self._over:
            if why := closed(item) or self._stopped:
                item.session.shouldfail = why
                return
            other = self._others[self._lane_of[item.nodeid]]
            if not other.running:
                self._fail(item, other.wait())
                return
            select.select([each for each in self._others.values() if each.running], [], [], PATIENCE)
            self._tell_all()

    def _tell_all(self) -> None:
        """Do what the messages are about that have come by now."""
        hook = self._config.hook
        for message in (message for other in self._others.values() for message in other.heard()):
            match message:
                case {"started": [nodeid, location]}:
                    hook.pytest_runtest_logstart(nodeid=nodeid, location=tuple(location))
                case {"report": data}:
                    report = hook.pytest_report_from_serializable(config=self._config, data=data)
                    if isinstance(report.longrepr, list):
                        report.longrepr = tuple(report.longrepr)  # Where and why it was skipped: JSON has no tuples.
                    hook.pytest_runtest_logreport(report=report)
                case {"finished": [nodeid, location]}:
                    self._over.add(nodeid)
                    hook.pytest_runtest_logfinish(nodeid=nodeid, location=tuple(location))
                case {"said": line}:
                    say(self._config, line)

    def _fail(self, item: pytest.Item, end: str) -> None:
        """The process that should have run this test has ended."""
        self._stopped = "tests in another process were not run to their end"
        self._report(item, f"{self._stopped}: {end}", "setup")
        item.session.shouldfail = self._stopped

    def _report(self, item: pytest.Item, why: str, when: Literal["setup", "teardown"]) -> None:
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, when)
        self._config.hook.pytest_runtest_logreport(report=report)


class _Process:
    """One of the others, as the first one sees it."""

    def __init__(self, config: pytest.Config, number: int, items: list[pytest.Item]) -> None:
        self.items = {item.nodeid for item in items}
        self.last = items[-1]
        self.code: int | None = None
        """How it has ended, once it was waited for."""
        self.running = True
        """Whether it may say more."""
        self._heard = b""
        options = ["-p", __name__, "-p", "no:cacheprovider"]
        options += [each for each in ("--no-skips", "--keep") if config.getoption(each)]
        files = dict.fromkeys(str(item.path) for item in items)
        self._socket, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        with theirs:
            # A session of its own: Ctrl-C reaches it as all does that ends it, through the socket, and so once.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, f"--beside-of={theirs.fileno()}", *files],
                cwd=config.invocation_params.dir,
                env={**os.environ, INSTANCE: f"{os.environ.get(INSTANCE, 'test')}-{number}"},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        # It runs what is collected here, whatever else its files have.
        with contextlib.suppress(ConnectionError):  # It has ended already, as is seen when it is listened to.
            self._socket.sendall(json.dumps([item.nodeid for item in items]).encode() + b"\n")

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def heard(self) -> list[dict[str, Any]]:
        """What it has said since the last time."""
        over = self._process.poll() is not None  # Who outlives it may hold its end of the socket.
        while self.running and select.select([self._socket], [], [], 0)[0]:
            more = b""
            with contextlib.suppress(ConnectionError):  # It ended before it had read which tests are its own.
                more = self._socket.recv(1 << 20)
            self.running = bool(more)
            self._heard += more
        self.running = self.running and not over
        *lines, self._heard = self._heard.split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Tell it to end before it has run its tests: it removes what they started first."""
        self._socket.shutdown(socket.SHUT_WR)

    def wait(self) -> str:
        """Wait for its end: how it ended, and what it printed last."""
        self.code = self._process.wait()
        self._log.seek(0)
        return f"it ended with {self.code}\n{self._log.read()[-5000:].decode(errors='replace')}"


class Other:
    """What one of the others does: it runs the tests that it is given, and reports to the first one."""

    def __init__(self, config: pytest.Config, first: socket.socket) -> None:
        self._config = config
        self._socket = first
        self._socket.set_inheritable(False)
        self._file = first.makefile("rb")
        self._wanted: set[str] = set(json.loads(self._file.readline()))
        threading.Thread(target=self._end_with_the_first, name="end with the first", daemon=True).start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._wanted]

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send(started=[nodeid, location])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(report=self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send(finished=[nodeid, location])

    def say(self, line: str) -> None:
        """Print a line on the first one's terminal."""
        self._send(said=line)

    def _send(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _end_with_the_first(self) -> None:
        with contextlib.suppress(ConnectionError):  # It has ended before it had heard all.
            self._file.read()
        os.kill(os.getpid(), signal.SIGTERM)


def say(config: pytest.Config, line: str) -> None:
    """Print a line on the terminal at once, past pytest's capturing."""
    teller: Callable[[str], None] | None = getattr(config.pluginmanager.getplugin(Other.__name__), "say", None)
    if teller is not None:
        teller(line)
        return
    terminal = config.pluginmanager.getplugin("terminalreporter")
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        terminal.ensure_newline()
        terminal.write_line(line)
