"""In which order the results of asynchronous calls are emitted: that of their elements, or that in which they come.

Kept by `worker.asynchronous` and `spark.async_map` for what they have called and not emitted. Watermarks take a place, and no
result passes one: between two of them is a segment. A watermark waits for calls that failed and are to be called again. Decides
nothing about time, calls or failures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

E = TypeVar("E")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Call(Generic[E, R]):
    """An element that was called for. `results` are there once it has `finished`: none, one or many."""

    element: E
    results: tuple[R, ...] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Watermark:
    """Nothing with an earlier time follows."""

    time: int


@dataclass(slots=True)
class _Segment(Generic[E, R]):
    """Calls up to a watermark, if that has come: `waiting` in the order of their elements, `done` in that of their ends.

    The elements of those that `failed` are not done, and take no place.
    """

    waiting: dict[int, Call[E, R]] = field(default_factory=dict)
    done: deque[Call[E, R]] = field(default_factory=deque)
    failed: dict[int, Call[E, R]] = field(default_factory=dict)
    watermark: Watermark | None = None


class Awaiting(Generic[E, R]):
    """The queue of an asynchronous operator, with at most `capacity` places for calls and watermarks."""

    def __init__(self, capacity: int, *, ordered: bool) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more, not {capacity}")
        self._capacity = capacity
        self._ordered = ordered
        self._segments: deque[_Segment[E, R]] = deque([_Segment()])
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> bool:
        """Whether another call may be begun, or a watermark be taken. If not, the input waits."""
        return self._count < self._capacity

    def begin(self, element: E, after: Call[E, R] | None = None) -> Call[E, R]:
        """Take the next place for this element, before the same watermark `after` a call of it that failed.

        Raises ValueError without room.
        """
        self._take()
        call: Call[E, R] = Call(element)
        same = (each for each in self._segments if after is not None and each.failed.pop(id(after), None) is not None)
        next(same, self._segments[-1]).waiting[id(call)] = call
        return call

    def watermark(self, mark: Watermark, after: Call[E, R] | None = None) -> None:
        """Take the next place for a watermark. Raises ValueError without room.

        If it is told late, `after` a call that has another one behind it, that follows at once: it stands for both.
        """
        if after is not None and self._segment_of(after) is not self._segments[-1]:
            return
        self._take()
        self._segments[-1].watermark = mark
        self._segments.append(_Segment())

    def finish(self, call: Call[E, R], results: Iterable[R]) -> bool:
        """The call has these results. False: it had others before, or was dropped; there is one output for an input."""
        segment = self._segment_of(call)
        if call.finished or segment is None:
            return False
        call.results, call.finished = tuple(results), True
        if not self._ordered:
            del segment.waiting[id(call)]
            segment.done.append(call)
        return True

    def fail(self, call: Call[E, R]) -> None:
        """The call has failed, or counts no more though it has finished: nothing is emitted for it, and its place is free.

        Its element is called for again, or dropped. A call that was emitted may fail until something else is.
        """
        segment = self._take_out(call) or self._segments[0]
        segment.failed[id(call)] = call

    def drop(self, call: Call[E, R]) -> None:
        """As `fail`, for a call whose element is not called for again. A watermark before which nothing is left follows another
        one at once, and takes its place."""
        self._take_out(call)
        for segment in self._segments:
            segment.failed.pop(id(call), None)
        for at in range(len(self._segments) - 1, 0, -1):
            segment = self._segments[at]
            if segment.watermark is not None and not (segment.waiting or segment.done or segment.failed):
                self._segments[at - 1].watermark = segment.watermark
                del self._segments[at]
                self._count -= 1

    def emit(self) -> Call[E, R] | Watermark | None:
        """What is emitted now, one at a time. None: nothing is ready."""
        segment = self._segments[0]
        if segment.done:
            found = segment.done.popleft()
        elif not segment.waiting and not segment.failed and segment.watermark is not None:
            self._segments.popleft()
            self._count -= 1
            return segment.watermark
        else:
            first = next(iter(segment.waiting.values()), None)
            if first is None or not first.finished:
                return None
            del segment.waiting[id(first)]
            found = first
        self._count -= 1
        return found

    def in_flight(self) -> Iterator[E]:
        """The elements that are not emitted, finished or not: those that are called for again after a restart."""
        for segment in self._segments:
            yield from (call.element for call in (*segment.done, *segment.waiting.values()))

    def _take_out(self, call: Call[E, R]) -> _Segment[E, R] | None:
        """Free the place of a call, if it has one; where that was."""
        for segment in self._segments:
            if call in segment.done:
                segment.done.remove(call)
            elif segment.waiting.pop(id(call), None) is None:
                continue
            self._count -= 1
            return segment
        return None

    def _take(self) -> None:
        if not self.room:
            raise ValueError(f"{self._count} calls are not emitted, which is the capacity: emit some first")
        self._count += 1

    def _segment_of(self, call: Call[E, R]) -> _Segment[E, R] | None:
        return next((each for each in self._segments if id(call) in each.waiting), None)
