"""Time that a test moves by hand. Decides nothing."""

from __future__ import annotations


class SimulatedClock:
    """Starts at `now` monotonic seconds and `wall` seconds since 1970; `advance` moves both."""

    def __init__(self, now: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time only goes forward, not by {seconds} s")
        self._now += seconds
        self._wall += seconds
