"""Which records of one shard were emitted and are not finished, which failed and come again, and what may be committed.

Kept by `worker.delivery` for each shard whose records are acknowledged one by one. Decides what is emitted next: a record that
failed, a new one, or none because too many are pending. The committable position is the lowest record that is not finished.
Belongs to one thread at a time; reads no clock: time is an argument.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardherd.core.model.nouns import Offset, Place

R = TypeVar("R")

FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
"""Seconds before a record that failed is emitted again; doubled with each time that it fails, up to the second."""


@dataclass(slots=True)
class Emitted(Generic[R]):
    """A record that is not finished. `tries` counts how often it was emitted, which also names the attempt that is under way.

    `out` while an attempt is, since `since`; else it failed because of `reason`, and comes again at `due`. `failures` in a row.
    """

    place: Place
    record: R
    since: float
    tries: int = 1
    failures: int = 0
    out: bool = True
    due: float = 0.0
    reason: str = ""

    @property
    def offset(self) -> Offset:
        return self.place[0]


class Pending(Generic[R]):
    """The account of a shard, from `position` on. At most `most` records are pending.

    `in_order`: once a record has failed, no new one is emitted until all that failed are finished, one by one, the lowest
    first; one that fails does not wait for a higher one that is under way again. Otherwise they come again when their pause is
    over, and new ones go on. `timeout` seconds after it was emitted a record fails by itself; 0: never.
    """

    def __init__(self, position: Offset, *, most: int, in_order: bool, timeout: float = 0.0, now: float = 0.0) -> None:
        # No new record is below.
        self._next: Place = (position, 0)
        self._most = most
        self._in_order = in_order
        self._timeout = timeout
        # In order: new ones are always above all others, and one that comes again keeps its place.
        self._all: dict[Place, Emitted[R]] = {}
        self._failed: list[tuple[float, Place]] = []
        self._again: set[Place] = set()
        self._look_at: float | None = None
        self._moved = now

    def __len__(self) -> int:
        return len(self._all)

    @property
    def position(self) -> Offset:
        """What may be committed: the lowest pending offset; with nothing pending, the next one to read."""
        return next(iter(self._all), self._next)[0]

    @property
    def halfway(self) -> bool:
        """Whether further records of the last offset follow, and nothing keeps them from being emitted for good."""
        return self._next[1] > 0 and not self._failed and not self._again

    @property
    def room(self) -> bool:
        """Whether a new record may be emitted now."""
        return len(self._all) < self._most and not (self._in_order and (self._failed or self._again))

    def out(self, before: Place | None = None) -> int:
        """How many attempts are under way, of all records or of those before this one."""
        if before is None:
            return len(self._all) - len(self._failed)
        return sum(each.out for each in self._all.values() if each.place < before)

    def emit(self, place: Place, record: R, now: float, *, more: bool = False) -> Emitted[R]:
        """A new record, which must be above all before it. `more`: others of this offset follow, so it is not passed yet."""
        offset, sub = place
        if place < self._next:
            raise ValueError(f"offset {offset} was read before: the next one is {self._next[0]}")
        emitted = Emitted(place, record, now)
        if not self._all and not self._next[1]:
            self._moved = now
        self._all[place] = emitted
        self._next = (offset, sub + 1) if more else (offset + 1, 0)
        self._watch(now)
        return emitted

    def reach(self, position: Offset) -> None:
        """There is no further record before this position."""
        self._next = max(self._next, (position, 0))

    def again(self, now: float) -> Emitted[R] | None:
        """A record that failed and is emitted again now, if there is one."""
        if not self._one_may_come:
            return None
        _, place = self._failed[0]
        emitted = self._all[place]
        if emitted.due > now:
            return None
        heapq.heappop(self._failed)
        emitted.tries += 1
        emitted.out, emitted.since = True, now
        if self._in_order:
            self._again.add(place)
        self._watch(now)
        return emitted

    def ack(self, place: Place, attempt: int, now: float) -> bool:
        """This attempt is done, and the record finished. False: another attempt counts, or none does any more."""
        if self._under_way(place, attempt) is None:
            return False
        before = self.position
        del self._all[place]
        self._settled(place)
        if self.position > before:
            self._moved = now
        return True

    def fail(self, place: Place, attempt: int, reason: str, now: float, *, limit: int = 0, bad: bool = False) -> bool:
        """This attempt failed: the record comes again after a pause, at once if it failed `limit` times. False as of `ack`.

        `bad`: it counts as if it had failed so often now.
        """
        emitted = self._under_way(place, attempt)
        if emitted is None:
            return False
        emitted.failures = max(emitted.failures + 1, limit if bad else 0)
        emitted.out, emitted.reason = False, reason
        pause = 0.0 if bad or emitted.failures == limit else min(LAST_PAUSE, FIRST_PAUSE * 2 ** min(emitted.failures - 1, 30))
        emitted.due = now + pause
        self._settled(place)
        heapq.heappush(self._failed, (0.0 if self._in_order else emitted.due, place))
        return True

    def expire(self, now: float) -> list[Emitted[R]]:
        """The attempts that were under way for too long; they have failed now."""
        if self._look_at is None or now < self._look_at:
            return []
        late = [each for each in self._all.values() if each.out and each.since + self._timeout <= now]
        for each in late:
            self.fail(each.place, each.tries, f"not acknowledged within {self._timeout:g} s", now)
        since = [each.since for each in self._all.values() if each.out]
        self._look_at = min(since) + self._timeout if since else None
        return late

    def due_in(self, now: float, *, failed: bool = True) -> float | None:
        """In how many seconds something is due by itself: an attempt, or the end of one. None if nothing is.

        Without `failed` only the end of one, as nothing may be emitted.
        """
        times = [] if self._look_at is None else [self._look_at]
        if failed and self._one_may_come:
            times.append(self._all[self._failed[0][1]].due)
        return max(0.0, min(times) - now) if times else None

    def stuck(self, now: float) -> tuple[Emitted[R], float] | None:
        """The record that holds the position, and for how many seconds it has. None if nothing is pending."""
        first = next(iter(self._all.values()), None)
        return None if first is None else (first, now - self._moved)

    @property
    def _one_may_come(self) -> bool:
        """Whether one that failed comes again once it is due. An output may be done with a higher one only after it."""
        return bool(self._failed) and not (self._in_order and self._again and min(self._again) < self._failed[0][1])

    def _under_way(self, place: Place, attempt: int) -> Emitted[R] | None:
        emitted = self._all.get(place)
        return emitted if emitted is not None and emitted.out and emitted.tries == attempt else None

    def _settled(self, place: Place) -> None:
        self._again.discard(place)

    def _watch(self, now: float) -> None:
        if self._timeout and self._look_at is None:
            self._look_at = now + self._timeout
