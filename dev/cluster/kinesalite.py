"""Decides how kinesalite, a server that does as Kinesis does, runs on this machine: by itself, with its data in memory.

Called by fixtures. It knows nothing of streams.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from dev.cluster.errors import ClusterError, tail
from dev.cluster.ports import HOST, free_ports
from dev.cluster.probes import listens
from dev.cluster.tools import Tools
from dev.cluster.waiting import wait_for

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
MOMENT = 20
"""Milliseconds for which a stream is made, deleted or resharded."""


class Kinesalite:
    """One server with its own port. `start` it, `close` it at the end. Its log is in `folder`."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self._program = tools.kinesalite
        (self._port,) = free_ports(1)
        self.log = folder / "kinesalite.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        times = [text for each in ("create", "delete", "update") for text in (f"--{each}StreamMs", str(MOMENT))]
        command = ["setpriv", "--pdeathsig", "KILL", "node", str(self._program), "--port", str(self._port), *times]
        with self.log.open("wb") as log:
            process = self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

        def ready() -> str | None:
            if process.poll() is not None:
                raise ClusterError(f"kinesalite has ended\n{tail(self.log)}")
            return listens(HOST, self._port)

        wait_for("readiness of kinesalite", ready, self.log, START_TIMEOUT)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT)
            self._process = None
