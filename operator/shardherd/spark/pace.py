"""How many records the next micro-batch may have, so that it takes about as long as wanted.

Shards can move only between micro-batches, so an unbounded one (a backlog) would hold up every rebalance. The agent asks
before it hands out, and tells when a batch began and ended; time is an argument.
"""

from __future__ import annotations

FIRST_BOUND = 50_000
"""Records of the first bounded batch, before anything was measured."""

LOWEST_BOUND = 1_000


class Pace:
    """Bounds micro-batches to about `target` seconds each. Starts small and follows the measured duration."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.bound = FIRST_BOUND
        self._began: float | None = None
        self._limited = False

    def begin(self, records: int, now: float) -> None:
        """A batch of so many records was handed out."""
        self._began = now
        self._limited = records >= self.bound

    def end(self, now: float) -> float | None:
        """The batch is finished. Returns how long it took, None if none was under way."""
        if self._began is None:
            return None
        took, self._began = now - self._began, None
        # A batch that was smaller than allowed says nothing: most of its time was Spark's fixed cost.
        if self._limited:
            change = min(2.0, max(0.5, self.target / max(took, 0.001)))
            self.bound = max(LOWEST_BOUND, int(self.bound * change))
        return took

    def forget(self) -> None:
        """The batch will never be finished."""
        self._began = None
