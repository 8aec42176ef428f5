"""What the agents have in common: one run of a consumer with its session, and how it ends.

`agent` (one streaming query, shard by shard) and `cells.agent` (a query for each cell) are the two. It decides only how a run
that must stop ends the application; what is read is theirs to say. It never touches Spark: stopping is a callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from shardherd.consumer.notices import CheckpointEnded, Ended, HeartbeatEnded, Notice
from shardherd.consumer.session import Session
from shardherd.core.consumer.settings import SessionSettings, with_room_to_leave
from shardherd.core.model.gauges import Gauge
from shardherd.spark.agent_ports import Account, KnownEndOffsets, Observer

T = TypeVar("T", bound=Account)


class ConsumerRun(Generic[T]):
    """One run. `stop(reason)` must end the application without delay: it is awaited when the consumer may read no longer.

    `now` is monotonic seconds. `gauges` say how full it is. `ready`: it is warm, and may be given shards. `cold`: what it waits
    for until it is. `tracker`: what it holds and reads. Others read `batch_at`, when a micro-batch was handed out or finished
    last, and set `trigger_interval`, the seconds from one trigger of a query to the next, if that is known.
    """

    cold = "the first micro-batch of the streaming query has not run"

    def __init__(
        self,
        session: Session,
        tracker: T,
        end_offsets: KnownEndOffsets,
        observer: Observer,
        stop: Callable[[str], Awaitable[None]],
        now: Callable[[], float],
    ) -> None:
        self.session = session
        self.tracker = tracker
        self.ready = False
        self.gauges: Callable[[], tuple[Gauge, ...]] = tuple
        self.batch_at = now()
        self.trigger_interval = 0.0
        self._end_offsets = end_offsets
        self._observer = observer
        self._writing = False
        self._records = asyncio.Event()  # something may be handed out, or must not be any more
        self._stop = stop
        self._stop_begun: asyncio.Future[None] | None = None
        self._now = now

    async def run(self) -> None:
        """Until the consumer has left or must stop; then the application is being stopped. Raises what was a defect."""
        await self.session.run()
        if self._stop_begun is not None:
            await self._stop_begun

    @property
    def settings(self) -> SessionSettings:
        """As the coordinator's last answer has them."""
        return self.session.settings

    @property
    def draining(self) -> bool:
        """Whether nothing more is handed out, because this run is about to leave or has left."""
        return self.session.draining

    @property
    def gone(self) -> bool:
        """Whether this run has left its group, or was stopped: it will hold no shard again."""
        return bool(self.session.over)

    @property
    def held_up(self) -> bool:
        """Whether nothing may be begun for now: it is paused, or the coordinator has been silent for too long."""
        return self.session.ledger.paused or self.session.too_silent

    @property
    def acknowledged_at(self) -> float | None:
        """When the last heartbeat that was answered had been sent; None before the first."""
        return self.session.acknowledged_at

    @property
    def trouble(self) -> str:
        """Why the last heartbeat failed, empty if it did not."""
        return str(self.session.trouble or "")

    async def drain(self, deadline: float) -> bool:
        """Hand out nothing more, await the running micro-batch, checkpoint, release and leave.

        The micro-batch has `drainTimeout` to end; what is finished is checkpointed for as long as there is time. Gives up at
        `deadline` (monotonic). Returns whether everything that was handed out is finished and durable. Having left before, it
        does nothing.
        """
        return await self.session.drain(with_room_to_leave(self._now(), deadline, self.settings.drain_timeout))

    def set_writing(self, writing: bool) -> None:
        """Whether what runs has been read, as far as can be seen from outside, and is being written."""
        self._writing = writing

    def ends_changed(self) -> None:
        """There may be new records."""
        self._records.set()

    def hear(self, notice: Notice) -> None:
        """Called by the session with whatever happens in it."""
        match notice:
            case HeartbeatEnded(result):
                self._observer.heartbeat(result)
            case CheckpointEnded(results):
                for result in results:
                    self._observer.checkpoint(result)
            case Ended(reason):
                self._begin_stop(reason)
            case _:
                pass  # of no interest to every agent

    def _begin_stop(self, reason: str) -> asyncio.Future[None]:
        self._stop_begun = asyncio.ensure_future(self._stop(reason))
        return self._stop_begun
