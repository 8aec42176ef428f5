"""What a worker counts of its work, in plain numbers, which cost nothing where nobody scrapes. Decides nothing.

`holding` and `worker` count, on the consumer's event loop; `metrics` shows it to who scrapes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from shardherd.consumer.notices import CheckpointEnded, HeartbeatEnded, Notice
from shardherd.telemetry.metrics import BATCH_BOUNDS

SKIPPED, BURIED, TRUNCATED = "skipped", "dead-letter", "truncated"
"""What may become of a bad record: it was passed over, it is in a topic for such, its value was cut."""


@dataclass(slots=True)
class Counts:
    """Since the process began. `failures` by the method that failed; `durations` has one more bucket than BATCH_BOUNDS.

    Of outputs, by their names: records that were `taken`, sent again, and `dropped`; those that did not fit in a queue are
    dropped by the name "queue". `bad_records` by what became of them.
    """

    records: int = 0
    batches: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    heartbeats: Counter[str] = field(default_factory=Counter)
    checkpoints: Counter[str] = field(default_factory=Counter)
    durations: list[int] = field(default_factory=lambda: [0] * (len(BATCH_BOUNDS) + 1))
    seconds: float = 0.0
    taken: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    bad_records: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, output: str, *, taken: int = 0, retried: int = 0, dropped: int = 0) -> None:
        """What became of records on their way to an output. Called from any thread."""
        with self._lock:
            for counter, count in ((self.taken, taken), (self.retried, retried), (self.dropped, dropped)):
                if count:
                    counter[output] += count

    def bad(self, outcome: str, count: int = 1) -> None:
        """What became of records that could not be processed, or not as they are. Called from any thread."""
        with self._lock:
            self.bad_records[outcome] += count

    def failed(self, method: str) -> None:
        """A call of a program failed, or hangs. Called from any thread."""
        with self._lock:
            self.failures[method] += 1

    def took(self, seconds: float, batches: int) -> None:
        """So many batches were processed in a row, in so many seconds together: each counts with its share."""
        if batches:
            self.batches += batches
            self.durations[bisect_left(BATCH_BOUNDS, seconds / batches)] += batches
            self.seconds += seconds

    def hear(self, notice: Notice) -> None:
        """Count what the session says of its requests."""
        match notice:
            case HeartbeatEnded(result):
                self.heartbeats[result] += 1
            case CheckpointEnded(results):
                self.checkpoints.update(results)
            case _:
                pass
