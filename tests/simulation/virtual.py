"""Virtual time for many processes in one: a timeline, and an event loop for each process that lives on it.

The code under test runs unchanged on `VirtualLoop`: `asyncio.sleep` costs nothing, and what happens next depends only on what
was scheduled. A process can stand still (its callbacks wait, its clock goes on) and can be killed (nothing of it runs again).
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

TICK = 1e-6
"""A timer fires this much late (seconds), so that the clock has surely reached what was waited for."""


class StuckError(AssertionError):
    """Callbacks run for ever without time going on."""


class _Callback(msgspec.Struct, eq=False):
    """As much of a handle as asyncio asks for: its own costs more, and enters a context, which nothing here looks at.

    A schedule makes thousands, and a class of msgspec is made at half the cost of another.
    """

    callback: Callable[..., object]
    args: tuple[Any, ...]
    cancelled_: bool = False

    def cancel(self) -> None:
        self.cancelled_ = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.cancelled_

    def __repr__(self) -> str:
        return f"<callback {self.callback!r}>"

    def run(self) -> None:
        if not self.cancelled_:
            self.callback(*self.args)


class Timeline:
    """What happens when. `now` is seconds since the world began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, VirtualLoop | None, _Callback]] = []
        self.ready: deque[tuple[VirtualLoop | None, _Callback]] = deque()
        """What is to run now, in order."""
        self._order = 0

    def at(self, when: float, loop: VirtualLoop | None, callback: Callable[..., object], *args: Any) -> _Callback:
        """Call back at that time, in that process (None: in the world around the processes)."""
        handle = _Callback(callback, args)
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, loop, handle))
        return handle

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back in the world around the processes."""
        self.at(self.now + seconds, None, callback, *args)

    def add(self, when: float, loop: VirtualLoop | None, handle: _Callback) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, loop, handle))

    def run(self, until: float) -> None:
        """Let everything happen that is due until then."""
        ready, heap = self.ready, self._heap
        pop, next_ready = heapq.heappop, ready.popleft
        set_running = events._set_running_loop
        current: VirtualLoop | None = None
        idle = 0
        try:
            while True:
                if ready:
                    loop, handle = next_ready()
                    idle += 1
                    if idle > 100_000:
                        raise StuckError(f"time stands still at {self.now}: {handle!r}")
                    if loop is not None and loop.dead:
                        # It wakes a task, which is unwound.
                        loop.held.append(handle)
                        continue
                elif heap and heap[0][0] <= until:
                    when, _, loop, handle = pop(heap)
                    if when > self.now:
                        self.now = when
                        idle = 0
                else:
                    break
                if handle.cancelled_:
                    continue
                if loop is not None:
                    if loop.stopped_until > self.now:
                        loop.held.append(handle)
                        continue
                    if loop.dead:
                        continue
                if loop is not current:
                    set_running(loop)
                    current = loop
                handle.callback(*handle.args)
        finally:
            set_running(None)
        self.now = max(self.now, until)


class VirtualLoop(base_events.BaseEventLoop):
    """The event loop of one process. Its clock starts anywhere and may run a little too fast or too slow."""

    def __init__(self, timeline: Timeline, *, rate: float = 1.0, origin: float = 0.0) -> None:
        super().__init__()
        self.timeline = timeline
        self.dead = False
        self.stopped_until = 0.0
        self.held: list[_Callback] = []
        self.complaints: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._ready_now = timeline.ready.append
        self.create_future = functools.partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self._rate = rate
        self._zero = origin - timeline.now * rate

    def time(self) -> float:
        return self._zero + self.timeline.now * self._rate

    get_debug = staticmethod(bool)
    """False, which every future and task asks for: by a function that costs nothing."""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = _Callback(callback, args)
        if not self.dead:
            self._ready_now((self, handle))
        else:
            self.held.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_soon(callback, *args)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = _Callback(callback, args)
        if not self.dead:
            self.timeline.add((when - self._zero) / self._rate + TICK, self, handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        # As `call_at` at `time() + delay`, which is asked for with every sleep.
        timeline = self.timeline
        handle = _Callback(callback, args)
        if not self.dead:
            timeline.add(timeline.now + delay / self._rate + TICK, self, handle)
        return handle

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:  # type: ignore[override]
        # Kept by each loop, since asyncio's own list is one for all loops, and there are thousands in a process.
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        return task

    def forget_done(self) -> None:
        """Let go of the tasks that are done, so that those which failed unseen complain."""
        self._tasks = [task for task in self._tasks if not task.done()]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self.complaints.append(context)

    def stop_until(self, when: float) -> None:
        """Nothing of this process runs until then; what should have run does so afterwards, in order."""
        if when <= self.stopped_until or self.dead:
            return
        self.stopped_until = when
        self.timeline.at(when, None, self._go_on)

    def resume(self) -> None:
        """Stand still no longer."""
        if self.stopped_until > self.timeline.now:
            self.stopped_until = self.timeline.now
            self._go_on()

    def _go_on(self) -> None:
        if self.stopped_until > self.timeline.now or self.dead:
            return
        held, self.held = self.held, []
        for handle in held:
            self._ready_now((self, handle))

    def kill(self) -> None:
        """The process is gone. What it was doing is unwound where nobody sees it, so that nothing complains later."""
        if self.dead:
            return
        self.dead = True
        self.held = []
        self.timeline.after(0.0, self._unwind)

    def end(self) -> None:
        """As `kill`, at once: the world is over."""
        self.dead = True
        self.held = []
        self._unwind()

    def _unwind(self) -> None:
        events._set_running_loop(self)
        try:
            for _ in range(20):
                self.forget_done()
                for task in self._tasks:
                    task.cancel()
                while self.held:
                    held, self.held = self.held, []
                    for handle in held:
                        handle.run()
                if not self._tasks:
                    return
        finally:
            events._set_running_loop(None)
            self.close()

    def close(self) -> None:
        self._closed = True
