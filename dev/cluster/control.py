"""Decides how the machine talks to an instance's first process. Called by `cluster`. Holds no state."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.cluster.errors import ClusterError, tail
from dev.cluster.paths import REPOSITORY, Layout
from dev.cluster.processes import ProcessRecord


@dataclass(frozen=True)
class Daemon:
    """A process to run in an instance. `argv[0]` is a full path."""

    name: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Control:
    """The first process of one instance, seen from the machine."""

    layout: Layout

    @staticmethod
    def hostname(name: str) -> str:
        """What an instance's processes take for the machine's name."""
        return f"shardherd-{name}"

    def launch(self, binds: dict[str, Path]) -> int:
        """Start the first process; its pid on the machine. `binds`: path -> what of the instance takes its place."""
        layout = self.layout
        specification = {
            "record": str(layout.record),
            "log": str(layout.log("node")),
            "run": str(layout.run),
            "socket": str(layout.control_socket),
            "hostname": self.hostname(layout.name),
            "binds": {path: str(folder) for path, folder in binds.items()},
        }
        done = subprocess.run(
            [sys.executable, "-m", "dev.cluster.node", json.dumps(specification)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        record = ProcessRecord.read(layout.record)
        if done.returncode != 0 or record is None:
            raise ClusterError(f"the instance's namespaces were not made: {done.stderr.strip()}\n{tail(layout.log('node'))}")
        return record.pid

    def ask(self, request: dict[str, Any], timeout: float = 30.0) -> dict[str, Any]:
        """The answer to one request; ClusterError if it was refused."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            try:
                connection.connect(str(self.layout.control_socket))
                connection.sendall(json.dumps(request).encode() + b"\n")
                reply: dict[str, Any] = json.loads(connection.makefile("rb").readline())
            except (OSError, ValueError) as error:
                raise ClusterError(f"instance {self.layout.name!r} does not answer ({error}): is it up?") from error
        if "error" in reply:
            raise ClusterError(f"instance {self.layout.name!r} refused {request}: {reply['error']}")
        return reply

    def start(self, daemon: Daemon) -> None:
        """Start a process unless it runs."""
        request = {"name": daemon.name, "argv": daemon.argv, "env": dict(daemon.env), "log": str(self.layout.log(daemon.name))}
        self.ask({"do": "start", **request})

    def stop(self, name: str, timeout: float = 30.0) -> None:
        """End a process with SIGTERM, with SIGKILL after `timeout` seconds; returns when it is gone."""
        self.ask({"do": "stop", "name": name, "timeout": timeout}, timeout + 10.0)

    def signal(self, name: str, number: int) -> None:
        self.ask({"do": "signal", "name": name, "number": number})

    def running(self) -> dict[str, int]:
        """Running processes by name, with their pids inside the instance."""
        running: dict[str, int] = self.ask({"do": "list"})["running"]
        return running

    def failure(self, name: str) -> str | None:
        """What is wrong with a process, or None while it runs."""
        reply = self.ask({"do": "list"})
        if name in reply["running"]:
            return None
        return f"{name} ended with {reply['ended'].get(name, 'no exit code')}"

    def alive(self) -> bool:
        """Whether the recorded first process lives."""
        record = ProcessRecord.read(self.layout.record)
        return record is not None and record.alive()
