"""How many records the next micro-batch may have, so that it takes about as long as wanted.

Shards can move only between micro-batches, so an unbounded one (a backlog) would hold up every rebalance. The agent asks
before it hands out, and tells when a batch began and ended; time is an argument. A batch costs something whatever its size, so
its duration is fitted as `fixed + records / rate`: fewer records do not help against the fixed part.
"""

from __future__ import annotations

FIRST_BOUND = 50_000
"""Records of the first bounded batch, before anything was measured."""

LOWEST_BOUND = 1_000

MEMORY = 0.7
"""Weight of a batch once the next one is there: a JVM that is still warming up is soon forgotten."""


class BatchSizing:
    """Bounds micro-batches to about `target` seconds each. Starts small and follows the measured durations."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.bound = FIRST_BOUND
        self._under_way: tuple[int, float] | None = None
        # Weighted sums over batches: of 1, records, seconds, records squared, and records times seconds.
        self._sums = [0.0] * 5

    def begin(self, records: int, now: float) -> None:
        """A batch of so many records was handed out."""
        self._under_way = (records, now) if records else None

    def end(self, now: float) -> float | None:
        """The batch is finished. Returns how long it took, None if none with records was under way."""
        if self._under_way is None:
            return None
        records, began = self._under_way
        self._under_way = None
        took = now - began
        news = (1.0, float(records), took, float(records) ** 2, records * took)
        self._sums = [MEMORY * old + new for old, new in zip(self._sums, news, strict=True)]
        if records >= self.bound:  # a smaller one was not held back by the bound
            self._adjust(took)
        return took

    def forget(self) -> None:
        """The batch will never be finished."""
        self._under_way = None

    def _adjust(self, took: float) -> None:
        cost = self._cost_of_a_record()
        if cost is None:
            wanted = self.bound * (1.5 if took <= 2 * self.target else 0.5)
        else:
            count, records, seconds, _, _ = self._sums
            fixed = max(0.0, (seconds - cost * records) / count)
            # At least half of the target goes to records, even where the fixed part alone is longer.
            wanted = max(self.target - fixed, self.target / 2) / cost
            if took < 0.7 * self.target:  # what was just seen beats what was fitted
                wanted = max(wanted, 1.5 * self.bound)
        self.bound = max(LOWEST_BOUND, int(min(2.0 * self.bound, max(0.5 * self.bound, wanted))))

    def _cost_of_a_record(self) -> float | None:
        """Seconds that one more record costs; None if sizes were too alike to tell, or more records did not cost more."""
        count, records, seconds, squares, products = self._sums
        spread = squares / count - (records / count) ** 2
        if spread < (0.05 * records / count) ** 2:
            return None
        cost = (products / count - records * seconds / count**2) / spread
        return cost if cost > 0 else None
