"""Processes and what lies between them: messages that are late, lost, doubled or overtaken, and links that are cut one way.

`Network.send` delivers to a process; `Network.call` is a request to a server that never stands still (the API server, Kafka).
Which faults there are is the schedule's decision; what a loss means to the caller is the caller's.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.simulation.virtual import Timeline, VirtualLoop

T = TypeVar("T")


class Process:
    """Something that runs on a loop of its own, with a monotonic clock of its own and a wall clock that may jump."""

    def __init__(self, name: str, timeline: Timeline, rng: random.Random, drift: float) -> None:
        self.name = name
        rate = 1.0 + rng.uniform(-drift, drift)
        self.loop = VirtualLoop(timeline, rate=rate, origin=rng.uniform(0.0, 1e6))
        self.wall_offset = 1_700_000_000.0
        self.die_at_await = 0
        """Dies at the n-th of its requests to the outside from now on; 0 is never."""
        self.on_death: Callable[[], None] = lambda: None

    # Clock of `shardherd.ports`.

    def now(self) -> float:
        return self.loop.time()

    def wall(self) -> float:
        return self.wall_offset + self.loop.timeline.now

    @property
    def dead(self) -> bool:
        return self.loop.dead

    def kill(self) -> None:
        """As SIGKILL does."""
        if not self.loop.dead:
            self.loop.kill()
            self.on_death()

    def await_outside(self) -> bool:
        """It asks the outside for something. False: it has just died instead."""
        if self.loop.dead:
            return False
        if self.die_at_await:
            self.die_at_await -= 1
            if not self.die_at_await:
                self.kill()
                return False
        return True


@dataclass(frozen=True)
class Weather:
    """How bad the network is: probabilities of loss and doubling, and the longest delay in seconds."""

    loss: float = 0.0
    double: float = 0.0
    delay: float = 0.03


@dataclass
class Network:
    """All links. `weather` holds for links between the processes and the coordinators."""

    timeline: Timeline
    rng: random.Random
    weather: Weather = Weather()
    cut: set[tuple[str, str]] = field(default_factory=set)
    """(from, to) by name of process or server: nothing comes through."""
    armed: dict[tuple[str, str], deque[str]] = field(default_factory=dict)
    """By (server, operation): what happens to the next such requests: refused, lost, slow, late, unanswered, or in limbo."""
    limbo: list[Callable[[], None]] = field(default_factory=list)
    """Requests that are on their way until somebody else's next one arrives there."""
    down: dict[str, bool] = field(default_factory=dict)
    """Servers that refuse every request."""
    counts: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    asked: dict[str, tuple[Process, int]] = field(default_factory=dict)
    """By operation: who asked last, and how many of its requests have no answer yet."""
    say: Callable[[str], None] | None = None

    def send(self, source: str, target: str, loop: VirtualLoop | None, callback: Callable[..., object], *args: Any) -> bool:
        """Deliver a message, or lose it. Whether at least one copy is under way."""
        rng, weather = self.rng, self.weather
        if (source, target) in self.cut:
            self.counts["messages cut off"] += 1
            return False
        if weather.loss and rng.random() < weather.loss:
            self.counts["messages lost"] += 1
            return False
        now = self.timeline.now
        self.timeline.at(now + 0.001 + rng.random() * weather.delay, loop, self._arrive, callback, args)
        if weather.double and rng.random() < weather.double:
            self.counts["messages doubled"] += 1
            self.timeline.at(now + 0.001 + rng.random() * 2 * weather.delay, loop, self._arrive, callback, args)
        return True

    def out_of_limbo(self) -> None:
        """What was in limbo arrives now."""
        waiting, self.limbo = self.limbo, []
        for arrive in waiting:
            arrive()

    def under_way(self, process: Process, operation: str) -> bool:
        """Whether this process waits for the answer to such a request."""
        who, count = self.asked.get(operation, (None, 0))
        return who is process and count > 0

    def _arrive(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.delivered += 1
        callback(*args)

    async def call(
        self,
        process: Process,
        server: str,
        operation: str,
        effect: Callable[[], T],
        timeout: float,
        unknown: Callable[[str], Exception],
        refused: Callable[[str], Exception],
    ) -> T:
        """Have `effect` happen at the server and return its result, or raise what it raises.

        `unknown` is raised when no answer comes within `timeout` seconds, `refused` when it surely did not happen.
        """
        if not process.await_outside():
            raise asyncio.CancelledError
        rng, timeline, loop = self.rng, self.timeline, process.loop
        answer: asyncio.Future[T] = loop.create_future()
        queue = self.armed.get((server, operation))
        fate = queue.popleft() if queue else "refused" if self.down.get(server) else ""
        if fate and self.say is not None:
            self.say(f"{process.name}: {operation} at {server} will be {fate}")
        if (process.name, server) in self.cut:
            fate = "lost"
        if fate:
            self.counts[f"{operation} at {server} {fate}"] += 1
        sent = timeline.now

        def arrive() -> None:
            self.delivered += 1
            if loop.dead and rng.random() < 0.5:
                return
            try:
                outcome: tuple[bool, Any] = (True, effect())
            except Exception as error:
                if isinstance(error, AssertionError):
                    raise
                outcome = (False, error)
            if fate in ("unanswered", "late", "limbo") or (server, process.name) in self.cut:
                self.counts[f"answers lost of {operation} at {server} that was done"] += outcome[0]
                timeline.at(max(timeline.now, sent + timeout), loop, resolve, False, unknown(f"no answer to {operation}"))
            else:
                timeline.at(timeline.now + 0.001 + rng.random() * 0.02, loop, resolve, *outcome)

        def resolve(fine: bool, outcome: Any) -> None:
            self.delivered += 1
            if answer.done():
                return
            if fine:
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)

        if fate == "lost":
            timeline.at(sent + timeout, loop, resolve, False, unknown(f"{operation} was lost"))
        elif fate == "refused":
            timeline.at(sent + 0.005, loop, resolve, False, refused(f"{operation} was refused"))
        elif fate == "slow":
            timeline.at(sent + timeout * rng.uniform(0.05, 0.8), None, arrive)
        elif fate == "limbo":
            self.limbo.append(arrive)
            timeline.at(sent + timeout, loop, resolve, False, unknown(f"{operation} took too long"))
        elif fate == "late":
            timeline.at(sent + timeout + rng.random() * timeout, None, arrive)
            timeline.at(sent + timeout, loop, resolve, False, unknown(f"{operation} took too long"))
        else:
            timeline.at(sent + 0.001 + rng.random() * 0.02, None, arrive)
        self.asked[operation] = (process, 1)
        try:
            result = await answer
        finally:
            self.asked[operation] = (process, 0)
        if not process.await_outside():
            raise asyncio.CancelledError
        return result


__all__ = ["Network", "Process", "Weather"]
