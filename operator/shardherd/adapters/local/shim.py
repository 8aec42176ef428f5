"""Stands between the local operator and one container's process, as containerd's shim does: `python -I -S shim.py <folder>`.

It outlives the operator, so that another one learns how the process ended. It counts the starts of the pod, writes the
termination message, hands SIGTERM on to the application's process and to no other, and when that has ended it kills what is
left of the container before it says so: its record of the end proves that nothing of this start runs any more. While it lives
it holds a lock on the file `alive`, which no other process can have. Uses the standard library only, and decides nothing else.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

TAKEN = 75
"""Exit code: the container of this pod runs already."""

NOT_STARTED = 127
"""Exit code of a container whose program could not be started, as a shell has it."""

LINGER = 0.02
"""Seconds until the processes of a container that were killed are looked for once more."""


def main(folder: Path) -> int:
    """Run the container that `spec.json` in this folder describes, to its end."""
    lock = os.open(folder / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return TAKEN
    spec = json.loads((folder / "spec.json").read_text())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # What arrives before there is a process waits for it. A terminal's Ctrl-C is for the operator alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(int(spec["ready"]), False)
    run = Path(spec["run"])
    start = _count(run)
    message = Path(spec["termination"])
    message.write_text(json.dumps({"start": start}) + "\n")
    (run / "agent.sock").unlink(missing_ok=True)
    began, parent = time.time(), os.getpid()
    child = os.fork()
    if child == 0:
        _become(spec, start, libc, parent)
    record(folder / "container.json", {"start": start, "shim": named(parent), "driver": named(child), "began": began})
    os.close(int(spec["ready"]))
    signal.signal(signal.SIGTERM, lambda *_: _hand_on(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    status = _outlive(child)
    code = os.waitstatus_to_exitcode(status)
    ended = {"start": start, "began": began, "ended": time.time(), "code": code if code >= 0 else 128 - code}
    record(folder / "ended.json", {**ended, "signal": max(0, -code), "message": message.read_text()[-4096:]})
    return 0


def _count(run: Path) -> int:
    """Which start of the pod this is. It is kept in a folder that outlives the container."""
    kept = run / "starts"
    start = int(kept.read_text()) + 1 if kept.exists() else 1
    record(kept, start)
    return start


def record(path: Path, value: Any) -> None:
    """Write JSON aside and rename it, so that nobody ever reads a part of it."""
    aside = path.with_suffix(".new")
    with aside.open("w") as file:
        file.write(json.dumps(value))
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


def _become(spec: dict[str, Any], start: int, libc: ctypes.CDLL, parent: int) -> None:
    """In the child: become the application. Never returns."""
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(NOT_STARTED)  # it died before it could have been heard of
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.chdir(spec["cwd"])
        os.execvpe(spec["command"][0], spec["command"], {**spec["environment"], "SHARDHERD_START": str(start)})
    except OSError as error:
        print(f"shardherd: the application cannot be started: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(NOT_STARTED)


def _hand_on(child: int) -> None:
    try:
        os.kill(child, signal.SIGTERM)
    except ProcessLookupError:
        return  # it has ended, which is being waited for already


def _outlive(child: int) -> int:
    """Wait for the application's process, then end all that it has left: every orphan of the container becomes our child."""
    while True:
        found, status = os.wait()
        if found == child:
            break
    while True:
        for orphan in children(os.getpid()):
            os.kill(orphan, signal.SIGKILL)
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if found == 0:
            time.sleep(LINGER)


def children(parent: int) -> list[int]:
    """The processes whose parent is this one."""
    return [pid for pid in everyone() if fact(pid, 4) == str(parent)]


def everyone() -> list[int]:
    """Every process of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def named(pid: int) -> list[Any]:
    """A process and when it began, in ticks since the machine did: no other one ever has both."""
    return [pid, fact(pid, 22)]


def fact(pid: int, number: int) -> str | None:
    """A field of /proc/<pid>/stat, counted as in its manual; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is a name in brackets, which may have anything in it.
    return text.rpartition(")")[2].split()[number - 3]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
