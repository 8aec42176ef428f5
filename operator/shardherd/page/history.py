"""What the page tells of the past: how the lag of the last hour went, and which rebalances there were. In memory, and bounded.

`Recorder` is started by the composition root; the coordinator's counter of rebalances tells of each. Kept are GROUPS groups
with POINTS points of 24 bytes and REBALANCES rebalances each, some 20 MB at most. Decides nothing; forgotten when the process
ends.
"""

from __future__ import annotations

import logging
import math
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from shardherd.core.model.nouns import GroupIdentity, GroupView

log = logging.getLogger(__name__)

HOUR = 3600.0
INTERVAL = 15.0
"""Seconds between two points."""

POINTS = int(HOUR / INTERVAL)
REBALANCES = 100
GROUPS = 1000
"""So many groups have a history, those that were seen first. One that goes makes room."""

UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One step that gave shards out or called them back: seconds since 1970, why, and how many changed hands."""

    time: float
    reason: str
    moved: int


@dataclass(slots=True)
class _Past:
    """Of one group. Three columns as a ring: `at` is where the next point goes, once there are POINTS."""

    times: array[float] = field(default_factory=lambda: array("d"))
    records: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    at: int = 0
    rebalances: deque[Rebalance] = field(default_factory=lambda: deque(maxlen=REBALANCES))
    total: int = 0
    """How many rebalances there were, also those that are forgotten."""

    def add(self, *point: float) -> None:
        for column, value in zip((self.times, self.records, self.seconds), point, strict=True):
            if len(column) < POINTS:
                column.append(value)
            else:
                column[self.at] = value
        self.at = (self.at + 1) % POINTS

    def points(self) -> Iterator[tuple[float, int | None, int | None]]:
        first = self.at if len(self.times) == POINTS else 0
        for number in range(len(self.times)):
            place = (first + number) % POINTS
            yield self.times[place], _known(self.records[place]), _known(self.seconds[place])


def _known(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


class History:
    """The past of all groups, since `since` (seconds since 1970). May be called from any thread."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._groups: dict[GroupIdentity, _Past] = {}
        self.since = wall()

    def begin(self) -> None:
        """The past is counted from now on: before, this operator stood by."""
        self.since = self._wall()

    def sample(self, views: Mapping[GroupIdentity, GroupView]) -> None:
        """Take a point of every group that is there, and forget those that are not."""
        now = self._wall()
        with self._lock:
            for group in self._groups.keys() - views.keys():
                del self._groups[group]
            for group, view in views.items():
                past = self._of(group)
                if past is not None and view.discovered:
                    records = view.lag_records if view.counts_records else UNKNOWN
                    past.add(now, records, UNKNOWN if view.lag_seconds is None else view.lag_seconds)

    def rebalanced(self, group: GroupIdentity, reason: str, moved: int) -> None:
        """One rebalance has happened."""
        with self._lock:
            past = self._of(group)
            if past is not None:
                past.rebalances.append(Rebalance(self._wall(), reason, moved))
                past.total += 1

    def lag(self, group: GroupIdentity) -> list[tuple[float, int | None, int | None]]:
        """Time, records and seconds (None: not known) of the last hour, the oldest first."""
        oldest = self._wall() - HOUR
        with self._lock:
            past = self._groups.get(group)
            return [] if past is None else [point for point in past.points() if point[0] >= oldest]

    def rebalances(self, group: GroupIdentity) -> tuple[list[Rebalance], int]:
        """The last rebalances, the newest first, and how many earlier ones are forgotten."""
        with self._lock:
            past = self._groups.get(group)
            return ([], 0) if past is None else ([*reversed(past.rebalances)], past.total - len(past.rebalances))

    def _of(self, group: GroupIdentity) -> _Past | None:
        if group not in self._groups and len(self._groups) >= GROUPS:
            return None
        return self._groups.setdefault(group, _Past())


class Recorder:
    """Samples `views` in a thread of its own, as a scrape of the metrics does, until it is closed."""

    def __init__(
        self, history: History, views: Callable[[], Mapping[GroupIdentity, GroupView]], interval: float = INTERVAL
    ) -> None:
        self._history = history
        history.begin()
        self._views = views
        self._interval = interval
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._record, name="page-history", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self._closed.set()
        self._thread.join()

    def _record(self) -> None:
        while True:
            try:
                self._history.sample(self._views())
            except Exception:
                log.exception("the page's history lacks a point")
            if self._closed.wait(self._interval):
                return
