"""The demo's producer, started and stopped as a process of its own. Called by the steps; it counts nothing itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dev.cluster.processes import ProcessRecord
from dev.demo.place import REPOSITORY
from dev.demo.report import DemoError, await_that


class HasBroker(Protocol):
    """Where there is a broker, and a folder for what the producer says."""

    @property
    def state(self) -> Path: ...

    @property
    def kafka_bootstrap(self) -> str: ...


class Traffic:
    """The producer's process, recorded by pid so that a later run finds it."""

    def __init__(self, where: HasBroker, topic: str) -> None:
        self._where = where
        self._topic = topic
        self._folder = where.state / "traffic" / topic

    @property
    def _counts(self) -> Path:
        return self._folder / "counts.json"

    @property
    def _record(self) -> Path:
        return self._folder / "process.json"

    def start(self, *, backlog: int, rate: int, seed: int = 1) -> None:
        """Start it; a producer of an earlier run is stopped first."""
        self.end()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._counts.unlink(missing_ok=True)
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "dev.demo.producer",
                    "--bootstrap", self._where.kafka_bootstrap,
                    "--topic", self._topic,
                    "--backlog", str(backlog),
                    "--rate", str(rate),
                    "--seed", str(seed),
                    "--state", str(self._counts),
                ],
                cwd=REPOSITORY,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        ProcessRecord.of(process.pid).write(self._record)

    def counts(self) -> Mapping[str, Any]:
        """What it has counted so far; empty before its first report. Raises DemoError if it has ended by itself."""
        record = ProcessRecord.read(self._record)
        counts: dict[str, Any] = json.loads(self._counts.read_text()) if self._counts.exists() else {}
        if counts.get("failed") or (not counts.get("stopped") and (record is None or not record.alive())):
            raise DemoError(f"the producer failed: {counts.get('failed', '')} {self.log()}")
        return counts

    def log(self) -> str:
        """The end of what it printed."""
        return "\n".join((self._folder / "log").read_text().splitlines()[-10:])

    def await_backlog(self) -> int:
        """Wait until the backlog is written; returns the number of records acknowledged by then."""
        await_that("the backlog is written", lambda: self.counts().get("backlogDone"), within=180, every=0.5, explain=self.log)
        return sum(self.counts()["produced"].values())

    def end(self) -> None:
        """End the process if it runs, after it has written what it holds."""
        record = ProcessRecord.read(self._record)
        if record is not None and record.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGTERM)
            await_that("the producer has stopped", lambda: not record.alive(), within=180, explain=self.log)

    def stop(self) -> dict[str, int]:
        """End it, and return how many records it wrote to each shard."""
        self.end()
        return {f"{self._topic}/{partition}": int(n) for partition, n in self.counts()["produced"].items()}
