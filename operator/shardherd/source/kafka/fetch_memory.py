"""How much memory the answers of Kafka may take in one worker, and which brokers are asked at once so that it suffices.

`brokers` asks before every Fetch. Answers are in memory twice over, one that is decoded and the next one, and one of them once
more for the moment in which it is copied out of what the connection has read. Pure but for whose turn it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

MOST = 16 * 1024 * 1024
"""Most bytes of one answer: enough to make a round trip cheap."""

LEAST = 1024 * 1024 + 4096
"""Fewest bytes of one answer: a batch as large as brokers take by default (`message.max.bytes`) fits."""

FETCH_MEMORY = 64 * 1024 * 1024
"""Bytes of all answers in one worker, unless the user says otherwise."""

LEAST_MEMORY = 4 * 1024 * 1024
"""Fewest bytes that can be kept to: one broker at a time, three answers of more than LEAST."""


@dataclass(frozen=True, slots=True)
class FetchMemory:
    """`total` bytes for all answers; `batch` is the largest batch that is known of: an answer is never smaller than one."""

    total: int = FETCH_MEMORY
    batch: int = 0

    def among(self, brokers: int) -> tuple[int, int]:
        """How many of so many brokers are asked at once, and for how many bytes each."""
        least = max(LEAST, self.batch)
        at_once = max(1, min(brokers, (self.total // least - 1) // 2))
        return at_once, max(LEAST, min(MOST, self.total // (2 * at_once + 1)))


class Turns:
    """Which brokers are asked next where not all can be: those whose last turn is the longest ago."""

    def __init__(self) -> None:
        self._round = 0
        self._last: dict[int, int] = {}

    def next(self, brokers: Collection[int], count: int) -> list[int]:
        """So many of these brokers; of those that wait equally long the first ones."""
        self._round += 1
        chosen = sorted(brokers, key=lambda node: self._last.get(node, 0))[:count]
        self._last.update(dict.fromkeys(chosen, self._round))
        return chosen
