"""For how long the broker keeps an offset that is not committed again, and whether it may have come to its forgetting it.

A broker forgets the offsets of a group without members one by one, each so long after it was committed last. The world tells
for which time the group was served: a coordinator that serves it commits every position again long before.
"""

from __future__ import annotations

from tests.simulation.history import History
from tests.simulation.history_entries import BrokenError
from tests.simulation.plan import DAY

RETENTION = 7 * DAY
"""Seconds: the broker's default."""

SERVED = 2 * DAY
"""Seconds of service within which every position is committed once more: a day, and what it may take longer."""


class Retention:
    """When each offset was committed last, in seconds and in seconds of service."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._served = 0.0
        self._committed: dict[str, tuple[float, float]] = {}

    def passes(self, seconds: float) -> None:
        """So much time has passed in which a coordinator led, and reached the broker."""
        self._served += seconds

    def committed(self, shard: str) -> None:
        """Its offset was committed just now."""
        self._committed[shard] = (self._history.now, self._served)

    def due(self, shard: str, *, kept: bool = True) -> bool:
        """Whether its offset is forgotten now. Raises BrokenError if it was to be `kept`, and the coordinator had the time."""
        at, served = self._committed[shard]
        if self._history.now - at <= RETENTION:
            return False
        if kept and self._served - served > SERVED:
            raise BrokenError(
                f"{shard}: its offset expires {(self._history.now - at) / DAY:.1f} days after it was committed, of which the"
                f" group was served for {(self._served - served) / DAY:.1f}"
            )
        return True
