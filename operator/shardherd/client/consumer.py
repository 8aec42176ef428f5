"""A consumer of a group, for any Python program: it keeps the membership alive, and hands out the shards that it holds.

    async with AsyncConsumer(client, name, incarnation, group_uid=uid) as consumer:
        while True:
            async with consumer.take() as shard:
                records = read(shard.name, shard.position)
                ...
                await shard.save_checkpoint(after_the_last, now=False)

It owns a session, which heartbeats, saves and leaves, and decides what a program may do with the shards meanwhile: when one is
handed out, when what is in hand is cancelled. What is held is `core.consumer.holdings`' business. It never reads records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from shardherd.client.in_hand import ShardInHand
from shardherd.clock import boot_time
from shardherd.consumer.notices import Changed, CheckpointEnded, Ended, Notice
from shardherd.consumer.ports import Coordinator, Readiness
from shardherd.consumer.session import Session
from shardherd.consumer.settings_given import no_number
from shardherd.core.consumer.holdings import Grant, Holdings
from shardherd.core.consumer.settings import SessionSettings, until
from shardherd.core.model.errors import ConsumerStoppedError, CoordinatorUnavailableError, InvalidRequestError
from shardherd.core.model.gauges import Gauge
from shardherd.core.model.nouns import ConsumerId, Incarnation, Offset, Phase, ShardId

log = logging.getLogger(__name__)

SAVE_INTERVAL = 60.0
"""Seconds after which a checkpoint that need not be durable at once is: the specification's figure."""

CANCEL_GRACE = 3.0
"""Seconds that a drain whose time is over gives to what it cancels, before it leaves."""

LOSS_LIMIT = 300.0
"""Seconds that a consumer of an unordered group reads on without the coordinator; as `coordinatorLossLimit` by default."""


class AsyncConsumer:
    """One run of a consumer, on one event loop. `async with` joins the group and, at its end, drains and leaves it.

    `group_uid` is the UID of the ConsumerGroup. `zone` and `capacity` are for assignors that look at them: where this consumer
    runs, and how much work it can do relative to the others.

    `ready` False joins without being given shards, until `become_ready` is called. `save_interval` in seconds: see
    `ShardInHand.save_checkpoint`. `loss_limit` in seconds: how long an unordered group's shards are read on without an answer.
    `about` says what the program is about, for every heartbeat; without it the coordinator takes it for one that reads. `heard`
    is called with each notice of the session, for who counts. `gauges` say how full the program is, for groups with watermarks.

    Raises InvalidRequestError for times that are none. A defect of the session stops the consumer, and is raised at the end of
    the `async with`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        consumer: ConsumerId,
        incarnation: Incarnation,
        *,
        group_uid: str,
        zone: str = "",
        capacity: int = 1,
        ready: bool = True,
        save_interval: float = SAVE_INTERVAL,
        loss_limit: float = LOSS_LIMIT,
        drain_timeout: float = 60.0,
        about: Callable[[], Phase | None] = lambda: None,
        heard: Callable[[Notice], None] = lambda _: None,
        gauges: Callable[[], tuple[Gauge, ...]] = tuple,
        now: Callable[[], float] = boot_time,
    ) -> None:
        times = {"save_interval": save_interval, "loss_limit": loss_limit, "drain_timeout": drain_timeout}
        for name, seconds in times.items():
            # Found out only as it drains, it would cost what is done and not durable.
            if wrong := no_number(seconds, 0):
                raise InvalidRequestError(f"{name} {wrong}")
        self.holdings = Holdings(consumer)
        settings = SessionSettings(
            group_uid,
            consumer,
            incarnation,
            zone=zone,
            capacity=capacity,
            coordinator_loss_limit=loss_limit,
            drain_timeout=drain_timeout,
            save_interval=save_interval,
        )
        self.session = Session(coordinator, self.holdings, self, settings, now)
        self._name = consumer
        self._ready = ready
        self._about = about
        self._heard = heard
        self._gauges = gauges
        self._now = now
        self._changed = asyncio.Event()
        self._readers: set[asyncio.Task[Any]] = set()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncConsumer:
        self._running = asyncio.create_task(self.session.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        try:
            if self.draining or not self.stopped:
                await self.drain(self.session.settings.drain_timeout)
        finally:
            if not self.stopped:
                self._running.cancel()  # the drain itself was cut short
            await asyncio.gather(self._running, return_exceptions=True)
        if self.session.defect is not None:
            raise self.session.defect

    # For the program.

    @asynccontextmanager
    async def take(self) -> AsyncIterator[ShardInHand]:
        """The next shard to read, in hand until the block ends. Waits until there is one. Shards take turns.

        What was not saved in the block is read again. When this run must stop, the block is cancelled and ConsumerStoppedError
        raised in its place; it is raised at once when the run is over or draining.
        """
        grant = await self._next()
        task = asyncio.current_task()
        assert task is not None
        self._readers.add(task)
        try:
            yield ShardInHand(grant, self)
        except asyncio.CancelledError:
            if self.stopped and task.uncancel() == 0:
                raise self._has_stopped() from self.session.defect
            raise
        finally:
            self._readers.discard(task)
            self.holdings.put_back(grant)
            self.session.changed()

    def held(self) -> tuple[ShardId, ...]:
        """The shards that may be read now."""
        return self.holdings.readable

    @property
    def stopped(self) -> str:
        """Why this run is over; empty while it is not."""
        return self.session.over

    @property
    def draining(self) -> bool:
        """Whether nothing is handed out any more, because this run is about to leave or has left."""
        return self.session.draining

    @property
    def joined(self) -> bool:
        """Whether the coordinator has answered a heartbeat of this run."""
        return self.session.joined

    @property
    def paused(self) -> bool:
        """Whether the group is, or this consumer because it is too full.

        What is in hand is finished, and nothing more is begun. No shard is taken either.
        """
        return self.holdings.paused

    @property
    def ordered(self) -> bool:
        """Whether the group is, as the last answer says: what goes on of a shard must end before anybody else has it."""
        return self.holdings.ordered

    async def changed(self) -> None:
        """Wait until shards may have been granted, asked for or made durable, or this run drains or is over."""
        await self._changed.wait()

    def check(self) -> None:
        """Whoever keeps a shard in hand asks before each thing that it begins. Raises ConsumerStoppedError if it may not."""
        if self.session.end_if_too_silent() or self.session.ending:
            raise self._has_stopped() from self.session.defect

    def become_ready(self) -> None:
        """From now on shards may be given to this consumer."""
        self._ready = True
        self.session.heartbeat_now()

    async def drain(self, timeout: float) -> bool:
        """Take nothing more, wait for what is in hand, make all that is done durable, release, leave.

        What is still in hand after `timeout` seconds is cancelled, and has `CANCEL_GRACE` more to end before the coordinator
        hears that this run has left. It hears, too, whether all has ended; an ordered group waits if not. Returns whether
        all that was in hand was put back and all that was done is durable, also of a run that had to stop meanwhile. The run
        is over afterwards. Of several calls the later ones wait for the first.
        """
        return await self.session.drain(until(self._now() + timeout))

    # For the session.

    def readiness(self) -> Readiness:
        """What the program tells of itself."""
        return Readiness(self._ready, self._about(), gauges=self._gauges())

    def hear(self, notice: Notice) -> None:
        self._heard(notice)
        match notice:
            case Ended():
                self._drop_all()
            case Changed() | CheckpointEnded():
                self._wake()
            case _:
                pass

    async def cease(self, deadline: float) -> bool:  # noqa: ARG002
        """What a drain has left in hand is cancelled, whatever is left of its time."""
        self._drop_all()
        stopped = await self._put_back_within(CANCEL_GRACE)
        if not stopped:
            log.warning("%s leaves although something that it has in hand goes on: an ordered group waits for it", self._name)
        return stopped

    # Inside.

    def _drop_all(self) -> None:
        """Nothing may be read any more: what is in hand is cancelled."""
        self.holdings.lose_all()
        for task in self._readers - {asyncio.current_task()}:
            task.cancel()
        self._wake()

    def _wake(self) -> None:
        """Everybody who waits for a change looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _put_back_within(self, seconds: float) -> bool:
        """Whether nothing is in hand any more, before so many seconds are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.holdings.busy:
                    await self._changed.wait()
        return not self.holdings.busy

    async def _next(self) -> Grant:
        # A program that finds every shard ready and nothing to wait for must not keep the heartbeats from running.
        await asyncio.sleep(0)
        while True:
            self.check()
            grant = self.holdings.take()
            if grant is not None:
                return grant
            await self._changed.wait()

    # For a shard in hand.

    def note(self, grant: Grant, offset: Offset, *, now: bool) -> None:
        """For `ShardInHand`: everything before `offset` is done."""
        if self.stopped:
            raise self._has_stopped() from self.session.defect
        self.holdings.save(grant, offset)
        self.session.save(at_once=now)

    async def answered(self, grant: Grant, offset: Offset) -> None:
        """For `ShardInHand`: wait until it is durable, or was refused once."""
        # Whatever request is on its way may have been made before this position: the one after it counts too.
        last = self.session.rounds + 2
        await self._until_durable(grant, offset, last)

    async def durable(self, grant: Grant, offset: Offset) -> None:
        """For `ShardInHand`: wait until it is durable, or never will be."""
        await self._until_durable(grant, offset, None)

    async def _until_durable(self, grant: Grant, offset: Offset, last: int | None) -> None:
        session = self.session
        while grant.durable < offset:
            if grant.lost:
                raise self.holdings.fenced(grant)
            if self.stopped:
                raise self._has_stopped() from self.session.defect
            if last is not None and session.rounds >= last:
                raise CoordinatorUnavailableError(
                    f"the checkpoint of shard {grant.shard} at {offset} is not durable yet ({session.unsaved or 'withheld'});"
                    " it is sent again",
                    shard=grant.shard,
                    consumer=self._name,
                )
            await self._changed.wait()

    def _has_stopped(self) -> ConsumerStoppedError:
        return ConsumerStoppedError(self.stopped or "this consumer drains", consumer=self._name)
