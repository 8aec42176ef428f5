"""Decides whether a recorded process still lives. Called by `cluster` and `node`. Never finds a process by its name.

A pid alone proves nothing, because pids are used again: the record also has the time at which the process started.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessRecord:
    """One process: its pid as the machine sees it, and its start in clock ticks since boot, with the boot's id."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessRecord:
        """The record of a living process; ProcessLookupError if there is none."""
        start = start_of(pid)
        if start is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, start, boot_id())

    @classmethod
    def read(cls, path: Path) -> ProcessRecord | None:
        """The record in a file, or None if there is no file."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)) + "\n")

    def alive(self) -> bool:
        """Whether this very process lives: same boot, same pid, same start."""
        return self.boot == boot_id() and start_of(self.pid) == self.start

    def kill(self) -> None:
        """SIGKILL, unless it is gone already."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)


def start_of(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None if there is no such process or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may hold spaces: count from its end.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
