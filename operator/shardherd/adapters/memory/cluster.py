"""Twins of what the coordinator asks of Kubernetes: leadership, token reviews and events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import Caller, Clock, ReviewUnavailableError


class MemoryLeadership:
    """Leadership that a test gives and takes. It is certain until `until` (monotonic seconds), at first for ever."""

    def __init__(self, clock: Clock) -> None:
        self.until = float("inf")
        self.released = False
        self._clock = clock
        self._acquired = asyncio.Event()
        self._lost = asyncio.Event()
        self._acquired.set()

    def withhold(self) -> None:
        """Somebody else leads until `grant`."""
        self._acquired.clear()

    def grant(self) -> None:
        self._acquired.set()

    def lose(self) -> None:
        """Another process leads from now on."""
        self.until = self._clock.now() - 1.0
        self._lost.set()

    async def acquire(self) -> None:
        await self._acquired.wait()

    def deadline(self) -> float:
        return self.until

    async def lost(self) -> None:
        await self._lost.wait()

    async def release(self) -> None:
        self.released = True


class MemoryTokens:
    """TokenReviewer over a dictionary. `reviews` counts the reviews made.

    `rights` are (user, verb, namespace, name) as a Role gives them.
    """

    def __init__(self) -> None:
        self.callers: dict[str, Caller] = {}
        self.rights: set[tuple[str, str, str, str]] = set()
        self.reviews = 0
        self.available = True

    async def review(self, token: str) -> Caller | None:
        self.reviews += 1
        if not self.available:
            raise ReviewUnavailableError("the API server did not answer the review of a token")
        return self.callers.get(token)

    async def may(self, caller: Caller, verb: str, namespace: str, name: str) -> bool:
        if not self.available:
            raise ReviewUnavailableError("the API server did not answer whether a caller has a right")
        return (caller.user, verb, namespace, name) in self.rights


@dataclass(frozen=True)
class RecordedEvent:
    """One Event as a test sees it."""

    group: GroupIdentity
    reason: str
    message: str
    warning: bool


class MemoryEvents:
    """EventRecorder that keeps everything."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []

    def record(self, group: GroupIdentity, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append(RecordedEvent(group, reason, message, warning))

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]
