"""Which records wait for which output, what of a batch is sent again, and when a record is finished by all of them.

Kept by `worker.outputs` for each shard. Decides when a batch is full or old enough to be sent, and for how long an output that
failed is left alone. Knows no output and no file; belongs to one thread at a time; reads no clock: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shardherd.core.consumer.pending import FIRST_PAUSE, LAST_PAUSE
from shardherd.core.model.nouns import Offset, Place

R = TypeVar("R")

ALMOST = 1e-6
"""Seconds that are none: a time that was computed may be a hair ahead, and to wait for that hair may be no time at all."""


@dataclass(slots=True, eq=False)
class Queued(Generic[R]):
    """A record that outputs have still to take: those of the bits of `left`. `refusals`: how often, by the bit of who did.
    `bad`: refused too often by one of them, and not sent any more. `lost`: not all have it, and it is finished all the same."""

    place: Place
    record: R
    size: int
    since: float
    left: int
    refusals: dict[int, int] | None = None
    bad: bool = False
    lost: bool = False

    @property
    def offset(self) -> Offset:
        return self.place[0]

    def refused_by(self, bit: int, limit: int) -> None:
        """Once more; the `limit`th time makes it bad, unless that is 0."""
        # Few are refused at all: the others need no dict.
        counts = self.refusals = self.refusals or {}
        counts[bit] = counts.get(bit, 0) + 1
        self.bad = self.bad or (bool(limit) and counts[bit] >= limit)


@dataclass(slots=True)
class _Lane(Generic[R]):
    """What one output is about. `rest` is what it did not take, which is sent again at `due`, after so many `failures`.

    `down`: it took nothing at all, and gets nothing before `due`. Offsets below `reached` it has from elsewhere.
    """

    bit: int
    waiting: deque[Queued[R]] = field(default_factory=deque)
    rest: list[Queued[R]] = field(default_factory=list)
    out: list[Queued[R]] | None = None
    failures: int = 0
    due: float = 0.0
    down: bool = False
    reached: Offset = 0

    def needs(self, each: Queued[R]) -> bool:
        return bool(each.left & self.bit) and not each.bad

    def tidy(self) -> None:
        """Forget what it needs no more."""
        self.rest = [each for each in self.rest if self.needs(each)]
        while self.waiting and not self.needs(self.waiting[0]):
            self.waiting.popleft()
        if not self.rest and not self.down:
            self.failures = 0


class OutputQueue(Generic[R]):
    """The records of a shard on their way to so many outputs; at most `most` of them, and about `most_bytes`.

    A batch is sent with `batch_size` records, when its first one has waited for `batch_wait` seconds, when the queue is full,
    and at once while `flushing`. Each output has one batch at a time. `in_order`: what was not taken is sent again before
    anything new. `retried` counts the records that were sent again.
    """

    def __init__(
        self, outputs: int, *, most: int, most_bytes: int, batch_size: int, batch_wait: float, in_order: bool = True
    ) -> None:
        self.flushing = False
        self.size = 0
        self.retried = 0
        self._most, self._most_bytes = most, most_bytes
        self._batch_size, self._batch_wait = batch_size, batch_wait
        self._in_order = in_order
        self._lanes: list[_Lane[R]] = [_Lane(1 << output) for output in range(outputs)]
        # In order.
        self._all: dict[Place, Queued[R]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, place: Place) -> bool:
        return place in self._all

    @property
    def full(self) -> bool:
        """Whether nothing new should be added now. May be asked in any thread."""
        return len(self._all) >= self._most or (self.size >= self._most_bytes and bool(self._all))

    @property
    def held_by(self) -> Place | None:
        """The first record that is bad, behind which none is finished; None if there is none."""
        return next((each.place for each in self._all.values() if each.bad and each.left), None)

    def is_bad(self, place: Place) -> bool:
        """Whether a record in it was refused too often, and is not sent any more."""
        return self._all[place].bad

    def unfinished(self) -> tuple[Queued[R], ...]:
        """Everything in it, in order."""
        return tuple(self._all.values())

    def add(self, place: Place, record: R, size: int, now: float, *, taken: Collection[int] = ()) -> bool:
        """A new record, which these outputs have already. Whether somebody should look at what is to be sent now."""
        offset, _ = place
        if place in self._all:
            raise ValueError(f"offset {offset} is in the queue already")
        left = sum(lane.bit for at, lane in enumerate(self._lanes) if at not in taken and offset >= lane.reached)
        each = Queued(place, record, size, now, left)
        self._all[place] = each
        self.size += size
        lengths = set()
        for lane in self._lanes:
            if lane.needs(each):
                lane.waiting.append(each)
                lengths.add(len(lane.waiting))
        # The first one sets a timer, and a batch that is full ends it.
        return not left or self.flushing or self.full or bool(lengths & {1, self._batch_size})

    def again(self, place: Place) -> None:
        """It was given again: if it was bad, it is sent again to who did not take it."""
        each = self._all[place]
        if each.bad:
            each.bad, each.refusals = False, None
            for lane in self._lanes:
                if lane.needs(each) and each not in (lane.out or ()):
                    lane.rest = sorted({*lane.rest, each}, key=lambda queued: queued.place)

    def reach(self, output: int, position: Offset) -> None:
        """The output has everything below this position already."""
        lane = self._lanes[output]
        lane.reached = position
        for each in self._all.values():
            if each.offset < position:
                each.left &= ~lane.bit
        lane.tidy()

    def batch(self, output: int, now: float) -> list[Queued[R]] | None:
        """What is sent to this output now; None: nothing is. Ends with `settle` or `fail`."""
        lane = self._lanes[output]
        if lane.out is not None or self._due_in(lane, now) != 0.0:
            return None
        if lane.rest and lane.due <= now + ALMOST:
            found, lane.rest = lane.rest[: self._batch_size], lane.rest[self._batch_size :]
            self.retried += len(found)
        else:
            found = []
            while lane.waiting and len(found) < self._batch_size:
                each = lane.waiting.popleft()
                if lane.needs(each):
                    found.append(each)
        lane.out = found
        return found

    def due_in(self, output: int, now: float) -> float | None:
        """In how many seconds there is a batch for this output; None: not by itself."""
        lane = self._lanes[output]
        return None if lane.out is not None else self._due_in(lane, now)

    def settle(self, output: int, refused: Collection[Place], now: float, *, limit: int = 0) -> list[Queued[R]]:
        """The output took its batch but for these records. Returns those of them that it refused for the `limit`th time.

        They are bad, and not sent any more before `again`. Raises ValueError for a batch that was settled before.
        """
        lane, batch = self._ended(output)
        lane.down = False
        bad: list[Queued[R]] = []
        rest: list[Queued[R]] = []
        for each in batch:
            if each.place not in refused:
                each.left &= ~lane.bit
            elif each.place in self._all:
                each.refused_by(lane.bit, limit)
                (bad if each.bad else rest).append(each)
        self._back(lane, rest, now)
        return bad

    def fail(self, output: int, now: float, taken: Collection[Place] = ()) -> float:
        """The output took nothing of its batch but for `taken`: it gets nothing for so many seconds, which are returned."""
        lane, batch = self._ended(output)
        lane.down = True
        for each in batch:
            if each.place in taken:
                each.left &= ~lane.bit
        self._back(lane, [each for each in batch if each.place not in taken], now)
        return lane.due - now

    def drop(self, place: Place) -> None:
        """It is not to be taken by anybody any more."""
        if (each := self._all.get(place)) is not None:
            each.left, each.lost = 0, True

    def finished(self) -> list[Queued[R]]:
        """The records from the first one on that all outputs have, which are in the queue no more: in order, and each once."""
        found = []
        for each in self._all.values():
            if each.left:
                break
            found.append(each)
        for each in found:
            del self._all[each.place]
            self.size -= each.size
        return found

    def _due_in(self, lane: _Lane[R], now: float) -> float | None:
        lane.tidy()
        times = [lane.due] if lane.rest else []
        if lane.waiting and not (lane.rest and self._in_order):
            first = lane.waiting[0]
            ready = self.flushing or self.full or len(lane.waiting) >= self._batch_size
            new = now if ready else first.since + self._batch_wait
            times.append(max(new, lane.due) if lane.down else new)
        if not times:
            return None
        seconds = min(times) - now
        return seconds if seconds > ALMOST else 0.0

    def _ended(self, output: int) -> tuple[_Lane[R], list[Queued[R]]]:
        lane = self._lanes[output]
        if lane.out is None:
            raise ValueError(f"the batch of output {output} was settled before: nothing of it is sent")
        batch, lane.out = lane.out, None
        return lane, batch

    def _back(self, lane: _Lane[R], rest: list[Queued[R]], now: float) -> None:
        if rest or lane.down:
            lane.rest = sorted((*lane.rest, *rest), key=lambda each: each.place)
            lane.failures += 1
            lane.due = now + min(LAST_PAUSE, FIRST_PAUSE * 2 ** min(lane.failures - 1, 30))
        lane.tidy()
