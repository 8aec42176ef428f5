"""Which records of one shard were emitted and are not finished, which failed and come again, and what may be committed.

Kept by `worker.delivery` for each shard whose records are acknowledged one by one. Decides what is emitted next: a record that
failed, a new one, or none because too many are pending. The committable position is the lowest record that is not finished.
Belongs to one thread at a time; reads no clock: time is an argument.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardherd.core.model.nouns import Offset

R = TypeVar("R")

FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
"""Seconds before a record that failed is emitted again; doubled with each time that it fails, up to the second."""


@dataclass(slots=True)
class Emitted(Generic[R]):
    """A record that is not finished. `tries` counts how often it was emitted, which also names the attempt that is under way.

    `out` while an attempt is, since `since`; else it failed because of `reason`, and comes again at `due`. `failures` in a row.
    """

    offset: Offset
    record: R
    since: float
    tries: int = 1
    failures: int = 0
    out: bool = True
    due: float = 0.0
    reason: str = ""


class Pending(Generic[R]):
    """The account of a shard, from `position` on. At most `most` records are pending.

    `in_order`: once a record has failed, no new one is emitted until all that failed are finished, one by one, the lowest
    first. Otherwise they come again when their pause is over, and new ones go on. `timeout` seconds after it was emitted a
    record fails by itself; 0: never.
    """

    def __init__(self, position: Offset, *, most: int, in_order: bool, timeout: float = 0.0, now: float = 0.0) -> None:
        self._next = position
        self._most = most
        self._in_order = in_order
        self._timeout = timeout
        # In the order of offsets: new ones are always above all others, and one that comes again keeps its place.
        self._all: dict[Offset, Emitted[R]] = {}
        self._failed: list[tuple[float, Offset]] = []
        self._again: Offset | None = None
        self._look_at: float | None = None
        self._moved = now

    def __len__(self) -> int:
        return len(self._all)

    @property
    def position(self) -> Offset:
        """What may be committed: the lowest pending offset; with nothing pending, the next one to read."""
        return next(iter(self._all), self._next)

    @property
    def room(self) -> bool:
        """Whether a new record may be emitted now."""
        return len(self._all) < self._most and not (self._in_order and (self._failed or self._again is not None))

    @property
    def out(self) -> int:
        """How many attempts are under way."""
        return len(self._all) - len(self._failed)

    def emit(self, offset: Offset, record: R, now: float) -> Emitted[R]:
        """A new record, which must be above all before it."""
        if offset < self._next:
            raise ValueError(f"offset {offset} was read before: the next one is {self._next}")
        emitted = Emitted(offset, record, now)
        if not self._all:
            self._moved = now
        self._all[offset] = emitted
        self._next = offset + 1
        self._watch(now)
        return emitted

    def reach(self, position: Offset) -> None:
        """There is no further record before this position."""
        self._next = max(self._next, position)

    def again(self, now: float) -> Emitted[R] | None:
        """A record that failed and is emitted again now, if there is one."""
        if not self._failed or (self._in_order and self._again is not None):
            return None
        _, offset = self._failed[0]
        emitted = self._all[offset]
        if emitted.due > now:
            return None
        heapq.heappop(self._failed)
        emitted.tries += 1
        emitted.out, emitted.since = True, now
        if self._in_order:
            self._again = offset
        self._watch(now)
        return emitted

    def ack(self, offset: Offset, attempt: int, now: float) -> bool:
        """This attempt is done, and the record finished. False: another attempt counts, or none does any more."""
        emitted = self._under_way(offset, attempt)
        if emitted is None:
            return False
        first = next(iter(self._all)) == offset
        del self._all[offset]
        self._settled(offset)
        if first:
            self._moved = now
        return True

    def fail(self, offset: Offset, attempt: int, reason: str, now: float, *, limit: int = 0, bad: bool = False) -> bool:
        """This attempt failed: the record comes again after a pause, at once if it failed `limit` times. False as of `ack`.

        `bad`: it counts as if it had failed so often.
        """
        emitted = self._under_way(offset, attempt)
        if emitted is None:
            return False
        emitted.failures = max(emitted.failures + 1, limit if bad else 0)
        emitted.out, emitted.reason = False, reason
        pause = 0.0 if emitted.failures == limit else min(LAST_PAUSE, FIRST_PAUSE * 2 ** min(emitted.failures - 1, 30))
        emitted.due = now + pause
        self._settled(offset)
        heapq.heappush(self._failed, (0.0 if self._in_order else emitted.due, offset))
        return True

    def expire(self, now: float) -> list[Emitted[R]]:
        """The attempts that were under way for too long; they have failed now."""
        if self._look_at is None or now < self._look_at:
            return []
        late = [each for each in self._all.values() if each.out and each.since + self._timeout <= now]
        for each in late:
            self.fail(each.offset, each.tries, f"not acknowledged within {self._timeout:g} s", now)
        since = [each.since for each in self._all.values() if each.out]
        self._look_at = min(since) + self._timeout if since else None
        return late

    def due_in(self, now: float, *, failed: bool = True) -> float | None:
        """In how many seconds something is due by itself: an attempt, or the end of one. None if nothing is.

        Without `failed` only the end of one, as nothing may be emitted.
        """
        times = [] if self._look_at is None else [self._look_at]
        if failed and self._failed and not (self._in_order and self._again is not None):
            times.append(self._all[self._failed[0][1]].due)
        return max(0.0, min(times) - now) if times else None

    def stuck(self, now: float) -> tuple[Emitted[R], float] | None:
        """The record that holds the position, and for how many seconds it has. None if nothing is pending."""
        first = next(iter(self._all.values()), None)
        return None if first is None else (first, now - self._moved)

    def _under_way(self, offset: Offset, attempt: int) -> Emitted[R] | None:
        emitted = self._all.get(offset)
        return emitted if emitted is not None and emitted.out and emitted.tries == attempt else None

    def _settled(self, offset: Offset) -> None:
        if self._again == offset:
            self._again = None

    def _watch(self, now: float) -> None:
        if self._timeout and self._look_at is None:
            self._look_at = now + self._timeout
