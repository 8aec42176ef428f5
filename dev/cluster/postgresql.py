"""Decides how a PostgreSQL server runs on this machine by itself: Debian's, on the loopback address. Called by fixtures.

Its data are thrown away with it, so it need not wait for the disk. It knows nothing of Spark or Kafka.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dev.cluster.errors import ClusterError, tail
from dev.cluster.ports import HOST, free_ports
from dev.cluster.tools import Tools
from dev.cluster.waiting import wait_for

USER = "postgres"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0


class PostgreSQL:
    """One server with its own port and data. `start` it, `close` it at the end; `crash` ends it as it stands."""

    def __init__(self, tools: Tools) -> None:
        self._programs = tools.postgresql
        (self._port,) = free_ports(1)
        # Not a folder of pytest's: its user may not enter these.
        self._folder = Path(tempfile.mkdtemp(prefix="shardherd-postgresql-"))
        shutil.chown(self._folder, USER, USER)
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "--pgdata", str(self._data), "--username", USER, "--auth", "trust", "--encoding", "UTF8", "--no-sync"
        )

    @property
    def conninfo(self) -> str:
        return f"host={HOST} port={self._port} user={USER} dbname=postgres"

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:postgresql://{HOST}:{self._port}/postgres?user={USER}"

    @property
    def log(self) -> Path:
        return self._folder / "log"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        settings = {
            "fsync": "off",
            "listen_addresses": HOST,
            "port": str(self._port),
            "unix_socket_directories": str(self._folder),
        }
        given = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user("--pdeathsig", "INT"), str(self._programs / "postgres"), "-D", str(self._data), *given],
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        process = self._process
        ask = [str(self._programs / "pg_isready"), "--quiet", "--host", HOST, "--port", str(self._port), "--username", USER]

        def ready() -> str | None:
            if process.poll() is not None:
                raise ClusterError(f"PostgreSQL has ended\n{tail(self.log)}")
            return None if subprocess.run(ask, check=False).returncode == 0 else "it does not accept connections"

        wait_for("readiness of PostgreSQL", ready, self.log, START_TIMEOUT)

    def crash(self) -> None:
        """It ends at once, and so do all its connections; what was committed is there after the next `start`."""
        self._end("QUIT")

    def close(self) -> None:
        self._end("INT")
        shutil.rmtree(self._folder)

    def _end(self, signal: str) -> None:
        if self._process is not None:
            subprocess.run(["kill", f"-{signal}", str(self._process.pid)], check=False)
            self._process.wait(STOP_TIMEOUT)
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user(), str(self._programs / program), *arguments]
        done = subprocess.run(
            command, cwd="/", capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")

    def _as_user(self, *more: str) -> list[str]:
        return ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", *more]
