"""Kafka's side: a Java program with Kafka's own classes, asked for one event at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dev.cluster.tools import Tools

PROGRAM = Path(__file__).with_name("Peer.java")
HEAP = "-Xmx6g"


@dataclass(frozen=True, slots=True)
class Answered:
    """What one event took and led to."""

    milliseconds: float
    moved: int
    least: int
    most: int


class Kafka:
    """A running program. Raises RuntimeError if it ends early; its errors are on the standard error output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, event: str) -> Answered:
        """One event: uniform-full, uniform-leave or cooperative-leave."""
        assert self._process.stdin is not None
        self._process.stdin.write(event + "\n")
        self._process.stdin.flush()
        nanoseconds, moved, least, most = self.line().split()
        return Answered(int(nanoseconds) / 1e6, int(moved), int(least), int(most))

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{PROGRAM.name} ended with {self._process.wait()}; see what it printed above")
        return line


@contextmanager
def kafka(shards: int, consumers: int, topics: int) -> Iterator[Kafka]:
    """Kafka with a group of this size at rest."""
    tools = Tools()
    # What it logs is of no interest here, and must not be on the standard output.
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command = [tools.java_compiler, HEAP, quiet, "-cp", f"{tools.kafka}/*", str(PROGRAM)]
    process = subprocess.Popen(
        [*command, str(shards), str(consumers), str(topics)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        peer = Kafka(process)
        ready = peer.line()
        if ready.strip() != "ready":
            raise RuntimeError(f"{PROGRAM.name} began with {ready!r} instead of 'ready'")
        yield peer
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=30)
        finally:
            process.kill()
            process.wait()
