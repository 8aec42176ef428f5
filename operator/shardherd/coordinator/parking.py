"""Heartbeats whose reply waits: at most one a consumer. Called by a group's mailbox; decides nothing of their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shardherd.core.model.nouns import ConsumerId, Heartbeat, HeartbeatReply


@dataclass(slots=True)
class Parked:
    """A heartbeat that was taken in and whose caller waits."""

    heartbeat: Heartbeat
    answer: asyncio.Future[HeartbeatReply]
    timer: asyncio.TimerHandle


class Parking:
    """Parked heartbeats by consumer. `expired` is called when one has waited long enough; it must come back to take it out."""

    def __init__(self, expired: Callable[[Parked], None]) -> None:
        self._expired = expired
        self._parked: dict[ConsumerId, Parked] = {}

    def park(self, heartbeat: Heartbeat, answer: asyncio.Future[HeartbeatReply], wait: float) -> None:
        """Keep a heartbeat for `wait` seconds. The consumer has no other here."""

        def expire() -> None:
            self._expired(parked)

        parked = Parked(heartbeat, answer, asyncio.get_running_loop().call_later(wait, expire))
        self._parked[heartbeat.consumer] = parked
        answer.add_done_callback(lambda _: self._drop(parked))

    def take(self, consumers: Iterable[ConsumerId]) -> Iterator[Parked]:
        """Take out the heartbeats of these consumers, as far as they are here."""
        for consumer in consumers:
            parked = self._parked.get(consumer)
            if parked is not None:
                self._drop(parked)
                yield parked

    def holds(self, parked: Parked) -> bool:
        """Whether this one still waits."""
        return self._parked.get(parked.heartbeat.consumer) is parked

    def everyone(self) -> tuple[ConsumerId, ...]:
        """All consumers with a parked heartbeat."""
        return tuple(self._parked)

    def _drop(self, parked: Parked) -> None:
        parked.timer.cancel()
        if self.holds(parked):
            del self._parked[parked.heartbeat.consumer]
