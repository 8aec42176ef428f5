"""When a process may ask for the records of a shard again: Kinesis answers 5 times and with 2 MB a second for each shard.

Everything that reads shards in a process shares one `Pace`. It waits for nobody and asks nobody: time is an argument. Each
shard has its own allowance, and the one that has waited longest is served first, so that a busy shard starves no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

CALLS = 5.0
"""GetRecords a second that Kinesis answers for a shard, whoever asks."""

BYTES = 2_000_000.0
"""Bytes a second that it answers with, for a shard."""


class Share(NamedTuple):
    """What some of those who read a shard may ask of it: calls and bytes a second. Those of a driver and its tasks are `WHOLE`
    together; the coordinator's few looks come on top."""

    calls: float
    rate: float


WHOLE = Share(CALLS, BYTES)
OF_TASKS, OF_LOOKS = Share(3.0, 0.8 * BYTES), Share(2.0, 0.2 * BYTES)
"""Tasks on other machines read all records; a driver looks at some of them meanwhile, to find where a micro-batch ends."""

COUNTED = Share(CALLS / 2, BYTES / 2)
"""Of each of the two where the driver counts records, and so reads all of them, too."""

FIRST, FEW = 1000, 20
"""Records that are asked for first, of a shard that nobody else reads meanwhile, and of one that others do."""

FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0
"""Seconds after the first refusal, and after many in a row."""

SOON = 0.1
"""Seconds within which an answer is taken to have been counted when it was asked for: most are. It costs no throughput."""

KEPT = 60.0
"""Seconds after which a shard that was not asked for is forgotten."""


@dataclass(slots=True)
class _Allowance:
    due: float = 0.0
    asked: float = 0.0
    refusals: int = 0
    mean: float = 0.0


class Pace:
    """The allowances of the shards that one process reads. `now` is monotonic seconds."""

    def __init__(self, share: Share = WHOLE) -> None:
        self._interval = 1.0 / share.calls
        self.rate = share.rate
        """Bytes a second and shard."""
        self._shards: dict[str, _Allowance] = {}

    def due(self, shard: str) -> float:
        """When this shard may be asked for again; it may be in the past."""
        found = self._shards.get(shard)
        return found.due if found is not None else 0.0

    def next_of(self, shards: Iterable[str]) -> str:
        """Which of these is asked for next: the one that is due first."""
        return min(shards, key=lambda each: (self.due(each), each))

    def asked(self, shard: str, now: float) -> None:
        """A request goes out. Until it is answered it counts as one that brings nothing."""
        self._forget(now)
        found = self._shards.setdefault(shard, _Allowance())
        found.asked = now
        found.due = max(found.due, now + self._interval)

    def most(self, shard: str) -> int:
        """Records to ask for: as many as a second allows, by the bytes of the last ones that were answered.

        Of a shard of which nothing is known it is few for who has a share only: large records would cost it many seconds.
        """
        found = self._shards.get(shard)
        if found is not None and found.mean:
            return max(1, int(min(BYTES, self.rate) / found.mean))
        return FIRST if self.rate >= BYTES else FEW

    def answered(self, shard: str, size: int, records: int = 0, took: float = 0.0) -> None:
        """The request brought so many bytes, `took` seconds after it was made: the next one goes out when Kinesis has allowed
        for them. It counts a request when it answers it, which may be late: what is waited for is waited for from then.
        """
        found = self._shards.setdefault(shard, _Allowance())
        found.refusals = 0
        if records:
            found.mean = max(1.0, size / records)
        found.due = max(
            found.due,
            found.asked + took + self._interval,
            found.asked + max(0.0, took - SOON) + size / self.rate,
        )

    def not_before(self, shard: str, due: float) -> None:
        """Somebody elsewhere has asked: this shard may be asked again then."""
        found = self._shards.setdefault(shard, _Allowance())
        found.due = max(found.due, due)

    def refused(self, shard: str, now: float) -> None:
        """Others read this shard too, and together we asked too much: wait, each time longer."""
        found = self._shards.setdefault(shard, _Allowance())
        found.due = max(found.due, now + min(LONGEST_DELAY, FIRST_DELAY * 2**found.refusals))
        found.refusals += 1

    def _forget(self, now: float) -> None:
        if len(self._shards) > 1000:
            for shard in [shard for shard, each in self._shards.items() if each.due < now - KEPT]:
                del self._shards[shard]
