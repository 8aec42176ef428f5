"""Decides how kinesalite, a server that does as Kinesis does, runs on this machine: by itself, with its data in memory.

Called by fixtures. It moves its clock, so that iterators expire and retention deletes records. It knows nothing of streams.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dev.cluster.errors import ClusterError, tail
from dev.cluster.paths import SOURCES
from dev.cluster.ports import HOST, free_ports
from dev.cluster.tools import Tools
from dev.cluster.waiting import wait_for

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
MOMENT = 20
"""Milliseconds for which a stream is made, deleted or resharded."""

MOST_SHARDS = 50
"""Open shards of all streams together."""


class Kinesalite:
    """One server with its own port. `start` it, `close` it at the end. Its log is in `folder`."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self._modules = tools.kinesalite
        (self._port,) = free_ports(1)
        self.log = folder / "kinesalite.log"
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        server = SOURCES / "kinesalite" / "server.js"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "node", str(server), str(self._port), str(MOMENT), str(MOST_SHARDS)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env={**os.environ, "NODE_PATH": str(self._modules)},
                start_new_session=True,
            )
        self._says(f"listening at {self._port}", since=0)

    def set_ahead(self, seconds: float) -> None:
        """Let its clock be so far ahead of the machine's."""
        assert self._process is not None
        assert self._process.stdin is not None
        milliseconds, since = round(seconds * 1000), self.log.stat().st_size
        self._process.stdin.write(f"{milliseconds}\n")
        self._process.stdin.flush()
        self._says(f"ahead by {milliseconds}", since=since)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=STOP_TIMEOUT)
            self._process = None

    def _says(self, line: str, *, since: int) -> None:
        """Return once it has written this line beyond that place of its log."""
        process = self._process
        assert process is not None

        def said() -> str | None:
            if line.encode() in self.log.read_bytes()[since:].splitlines():
                return None
            if process.poll() is not None:
                raise ClusterError(f"kinesalite has ended\n{tail(self.log)}")
            return "it has not said so yet"

        wait_for(f"kinesalite's {line!r}", said, self.log, START_TIMEOUT)
