"""The container of one pod on this machine: its folder, its process, and what is known of its ends. Used by `node`.

Decides what proves that it runs (its shim holds a lock) and that it has ended (the shim's record; or, where the shim itself was
killed, that no process has the pod's mark in its environment). A process is named by its number and the time at which it began,
and signalled through a descriptor that cannot mean another one.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardherd.adapters.local import shim

MARK = "SHARDHERD_POD_UID"
"""The variable that every process of a pod inherits."""

KILLED = 128 + signal.SIGKILL

LAST_BYTES = 16 * 1024
"""Of a crashed driver's log: a traceback and what Spark says after it."""


@dataclass(frozen=True, slots=True)
class Named:
    """A process: its number, and when it began in ticks since the machine did."""

    pid: int
    began: str

    def descriptor(self) -> int | None:
        """A descriptor of this very process, None if it has ended. The caller closes it."""
        try:
            found = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # One that has ended and that nobody has waited for still has its number.
        if shim.fact(self.pid, 22) == self.began and shim.fact(self.pid, 3) not in ("Z", "X"):
            return found
        os.close(found)
        return None

    def signal(self, number: int) -> bool:
        """Send it a signal; False if it has ended."""
        found = self.descriptor()
        if found is None:
            return False
        try:
            signal.pidfd_send_signal(found, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(found)
        return True


@dataclass(frozen=True, slots=True)
class Running:
    """The container's start `number` runs since `began` (seconds since 1970)."""

    number: int
    began: float
    shim: Named
    driver: Named


@dataclass(frozen=True, slots=True)
class Ended:
    """The container's start `number` has ended, and nothing of it runs any more. `signal` is 0 if none ended it."""

    number: int
    began: float
    ended: float
    code: int
    signal: int
    message: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: the program with its arguments, its environment and folder, and where what it writes goes."""

    command: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    log: Path


class Container:
    """The container of the pod with this UID, below `folder`. One object at a time may start it."""

    def __init__(self, folder: Path, uid: str) -> None:
        self.folder = folder
        self.uid = uid
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def run(self) -> Path:
        """The folder that outlives the container's starts."""
        return self.folder / "run"

    @property
    def _files(self) -> Path:
        return self.folder / "container"

    def running(self) -> Running | None:
        """The start that runs; None if none does."""
        ended = _read(self._files / "ended.json")
        if not self.locked() or (ended is not None and ended["start"] == self.starts()):
            return None
        found = _read(self._files / "container.json")
        if found is None or found["start"] != self.starts():
            return None  # it is being started by somebody who was killed: it will show itself
        return Running(found["start"], found["began"], Named(*found["shim"]), Named(*found["driver"]))

    def starts(self) -> int:
        """How often it was started."""
        return int(_read(self.run / "starts") or 0)

    def last_end(self) -> Ended | None:
        """How it ended last; None if it runs and never ended, or was never started."""
        found = _read(self._files / "ended.json")
        if found is not None and (found["start"] == self.starts() or self.locked()):
            return _ended(found)
        if self.locked() or self.starts() == 0:
            return None
        return self._bury()

    async def start(self, launch: Launch) -> None:
        """Start it, and wait until it is known who runs. It must not run."""
        self._files.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(exist_ok=True)
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        ready, write = os.pipe()
        spec = {
            "command": list(launch.command),
            "environment": {**launch.environment, MARK: self.uid},
            "cwd": str(launch.cwd),
            "run": str(self.run),
            "termination": str(self._files / "termination-log"),
            "ready": write,
        }
        path = self._files / "spec.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(spec))
        try:
            with launch.log.open("ab") as log:
                # A fork and an exec: what takes long, the application's own start, is the shim's.
                self._child = subprocess.Popen(  # noqa: ASYNC220
                    [sys.executable, "-I", "-S", shim.__file__, str(self._files)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                    pass_fds=(write,),
                    start_new_session=True,
                )
        finally:
            os.close(write)
        # It closes its end once it has written who runs; so does its end.
        await asyncio.to_thread(os.read, ready, 1)
        os.close(ready)

    def watch(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> bool:
        """Have `ended` called once the container that runs has ended; False if it has ended already."""
        running = self.running()
        found = None if running is None else running.shim.descriptor()
        if found is None:
            return False

        def tell(descriptor: int) -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            if self._child is not None:
                self._child.wait()
            ended()

        loop.add_reader(found, tell, found)
        return True

    def terminate(self) -> None:
        """Ask the application to end: SIGTERM to its own process."""
        running = self.running()
        if running is not None:
            running.shim.signal(signal.SIGTERM)

    def signal(self, number: int) -> list[int]:
        """Send every process of the container a signal; who got it."""
        found = [process for process in self.processes() if process.signal(number)]
        return [process.pid for process in found]

    def kill(self) -> None:
        """End it now: the application's process, with which the shim ends all others."""
        running = self.running()
        if running is None or not running.driver.signal(signal.SIGKILL):
            self.signal(signal.SIGKILL)

    def processes(self) -> list[Named]:
        """Every process that has the pod's mark in its environment."""
        mark, found = f"{MARK}={self.uid}".encode(), []
        for pid in shim.everyone():
            began = shim.fact(pid, 22)
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue  # it has ended, or is somebody else's
            if began is not None and mark in environment.split(b"\0"):
                found.append(Named(pid, began))
        return found

    def remove(self) -> None:
        """The pod is gone: its folder goes, too."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def locked(self) -> bool:
        """Whether a shim lives."""
        try:
            descriptor = os.open(self._files / "alive", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _bury(self) -> Ended | None:
        """The shim was killed, or the machine went down: what is left of the container is ended, then that is an end, too."""
        left = self.processes()
        for process in left:
            process.signal(signal.SIGKILL)
        if left:
            return None  # the next look finds them gone
        termination_log = self._files / "termination-log"
        message = termination_log.read_text() if termination_log.exists() else ""
        began = (_read(self._files / "container.json") or {}).get("began", 0.0)
        end = {"start": self.starts(), "began": began, "ended": time.time(), "code": KILLED, "signal": int(signal.SIGKILL)}
        shim.record(self._files / "ended.json", {**end, "message": message})
        return _ended({**end, "message": message})


def _ended(found: Mapping[str, Any]) -> Ended:
    return Ended(found["start"], found["began"], found["ended"], found["code"], found["signal"], found["message"])


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def log_tail(log: Path) -> str:
    """The end of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
