"""Faults that a test arms in a twin: the next calls of an operation fail in a chosen way. Used by this package and by tests."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass
class Faults:
    """Armed faults by operation. `before` raises instead of doing the work, `after` does it and then raises."""

    before: dict[str, deque[Exception]] = field(default_factory=dict)
    after: dict[str, deque[Exception]] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    entered: Counter[str] = field(default_factory=Counter)
    """How often each operation has begun."""

    def fail(self, operation: str, error: Exception, *, done: bool = False, times: int = 1) -> None:
        """The next `times` calls of `operation` raise `error`; with `done` their work has happened all the same."""
        queue = (self.after if done else self.before).setdefault(operation, deque())
        queue.extend([error] * times)

    def hold(self, operation: str) -> asyncio.Event:
        """Calls of `operation` wait until the returned event is set."""
        return self.gates.setdefault(operation, asyncio.Event())

    async def enter(self, operation: str) -> None:
        self.entered[operation] += 1
        gate = self.gates.get(operation)
        if gate is not None:
            await gate.wait()
            self.gates.pop(operation, None)
        if self.before.get(operation):
            raise self.before[operation].popleft()

    def leave(self, operation: str) -> None:
        if self.after.get(operation):
            raise self.after[operation].popleft()
