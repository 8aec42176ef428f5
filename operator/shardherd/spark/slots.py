"""How many tasks a micro-batch should have while Spark adds executors and gives them back (dynamic allocation).

Kept by the agent's runtime, sent to the stream reader with every answer. As many as Spark can run at once; twice as many while
micro-batches take long, since Spark adds executors only for tasks that wait. Holds no clock and does no I/O.
"""

from __future__ import annotations

LONG = 3.0
"""Seconds of a micro-batch after which more executors would help: half of it waits longer than Spark's backlog timeout, 1 s."""


class Slots:
    """Tasks of `cores` a time on each of `least` to `most` executors."""

    def __init__(self, cores: int, least: int, most: int) -> None:
        self._cores, self._most = cores, max(1, most)
        self._executors = max(1, least)
        self._behind = False

    def runs(self, executors: int) -> None:
        """Spark reports so many executors now."""
        self._executors = min(max(1, executors), self._most)

    def took(self, seconds: float) -> None:
        """The last micro-batch took so long."""
        self._behind = seconds >= LONG

    def wanted(self, *, news: bool) -> int:
        """So many tasks. Without news nothing is behind: a micro-batch that only keeps workers warm adds no executor."""
        self._behind = self._behind and news
        executors = min(2 * self._executors, self._most) if self._behind else self._executors
        return executors * self._cores
