"""A consumer of a group, for any Python program: it keeps the membership alive, and hands out the shards that it holds.

    async with AsyncConsumer(client, name, incarnation, group_uid=uid) as consumer:
        while True:
            async with consumer.take() as shard:
                records = read(shard.name, shard.position)
                ...
                await shard.save_checkpoint(after_the_last, now=False)

Behind it run the heartbeats, the checkpoints and a watch over silence. It decides when each goes out and when this run must
stop; what is held is `holdings`' business. It never reads records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from shardherd.client import leaving, news
from shardherd.client.aio import Coordinator
from shardherd.client.holdings import Grant, Holdings
from shardherd.client.in_hand import ShardInHand
from shardherd.client.leaving import FIRST_RETRY, LAST_RETRY
from shardherd.clock import boot_time
from shardherd.core.model.errors import RUN_IS_OVER, ConsumerStoppedError, CoordinatorUnavailableError, ShardherdError
from shardherd.core.model.nouns import (
    CheckpointRequest,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    Offset,
    ShardId,
)

log = logging.getLogger(__name__)

SAVE_INTERVAL = 60.0
"""Seconds after which a checkpoint that need not be durable at once is: the specification's figure."""

CANCEL_GRACE = 3.0
"""Seconds that a drain whose time is over gives to what it cancels, before it leaves."""

LOOK = 1.0
"""Most seconds between two looks at how long the coordinator has been silent."""

LOSS_LIMIT = 300.0
"""Seconds that a consumer of an unordered group reads on without the coordinator; as `coordinatorLossLimit` by default."""


class AsyncConsumer:
    """One run of a consumer, on one event loop. `async with` joins the group and, at its end, drains and leaves it.

    `group_uid` is the UID of the ConsumerGroup. `zone` and `capacity` are for assignors that look at them: where this consumer
    runs, and how much work it can do relative to the others.

    `ready` False joins without being given shards, until `become_ready` is called. `save_interval` in seconds: see
    `ShardInHand.save_checkpoint`. `loss_limit` in seconds: how long an unordered group's shards are read on without an answer.
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
        now: Callable[[], float] = boot_time,
    ) -> None:
        self.holdings = Holdings(consumer)
        self.stopped = ""
        """Why this run is over; empty while it is not."""
        self._coordinator = coordinator
        self._name = consumer
        self._incarnation = incarnation
        self._group_uid = group_uid
        self._zone = zone
        self._capacity = capacity
        self._ready = ready
        self._draining = False
        self._leaving = asyncio.Lock()
        self._clean = False
        self._save_interval = save_interval
        self._loss_limit = loss_limit
        self._drain_timeout = drain_timeout
        self._now = now
        self._seq = 0
        self._settings = HeartbeatReply(0, ())
        self._acknowledged_at: float | None = None
        self._unsaved_since: float | None = None
        self._urgent = False
        self._trouble: ShardherdError | None = None
        self._rounds = 0
        self._changed = asyncio.Condition()
        self._news = asyncio.Event()
        self._work = asyncio.Event()
        self._readers: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._wakes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> AsyncConsumer:
        self._loops = [asyncio.create_task(loop()) for loop in (self._heartbeats, self._checkpoints, self._watch_silence)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._draining or not self.stopped:
                await self.drain(self._drain_timeout)
        finally:
            await self._end_loops()
            await asyncio.gather(*self._wakes, return_exceptions=True)

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
            yield ShardInHand(grant, self._save)
        except asyncio.CancelledError:
            if self.stopped and task.uncancel() == 0:
                raise ConsumerStoppedError(self.stopped, consumer=self._name) from None
            raise
        finally:
            self._readers.discard(task)
            self.holdings.put_back(grant)
            self._stir()

    def held(self) -> tuple[ShardId, ...]:
        """The shards that may be read now."""
        return self.holdings.readable

    @property
    def joined(self) -> bool:
        """Whether the coordinator has answered a heartbeat of this run."""
        return self._acknowledged_at is not None

    def become_ready(self) -> None:
        """From now on shards may be given to this consumer."""
        self._ready = True
        self._news.set()

    async def drain(self, timeout: float) -> bool:
        """Take nothing more, wait for what is in hand, make all that is done durable, release, leave.

        What is still in hand after `timeout` seconds is cancelled, and has `CANCEL_GRACE` more to end before the coordinator
        hears that this run has left. It hears, too, whether all has ended; an ordered group waits if not. Returns whether
        all that was in hand was put back and all that was done is durable, also of a run that had to stop meanwhile. The run
        is over afterwards. Of several calls the later ones wait for the first.
        """
        until = self._now() + timeout
        self._draining = self._urgent = True
        async with self._leaving:
            if not self.stopped:
                await self._drain(until)
        return self._clean

    async def _drain(self, until: float) -> None:
        self._news.set()
        self._stir()
        dropped = self.holdings.dropped
        self._clean = await self._settled(until) and self.holdings.dropped == dropped
        # Nothing may be on its way when we leave: its answer would be that this run is over, before that of the leave.
        await self._end_loops()
        if self.stopped:
            return
        self._end("this consumer has left the group", logging.INFO)
        stopped = await self._put_back_within(CANCEL_GRACE)
        if not stopped:
            log.warning("%s leaves although something that it has in hand goes on: an ordered group waits for it", self._name)
        request = Leave(self._name, self._incarnation, self._group_uid, stopped)
        await leaving.leave(self._coordinator, request, until, self._now)

    async def _put_back_within(self, seconds: float) -> bool:
        """Whether nothing is in hand any more, before so many seconds are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: not self.holdings.in_hand)
        return not self.holdings.in_hand

    # What runs behind it.

    async def _end_loops(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _next(self) -> Grant:
        # A program that finds every shard ready and nothing to wait for must not keep the heartbeats from running.
        await asyncio.sleep(0)
        async with self._changed:
            while True:
                if self._end_if_too_silent() or self.stopped or self._draining:
                    raise ConsumerStoppedError(self.stopped or "this consumer drains", consumer=self._name)
                grant = self.holdings.take()
                if grant is not None:
                    return grant
                await self._changed.wait()

    async def _settled(self, until: float) -> bool:
        """Whether nothing is in hand and nothing unsaved, before `until`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - self._now())), self._changed:
                while self.holdings.in_hand or self.holdings.uncommitted():
                    if self.stopped:
                        return False
                    await self._changed.wait()
        return not self.holdings.in_hand and not self.holdings.uncommitted()

    async def _save(self, grant: Grant, offset: Offset, now: bool) -> None:
        if self.stopped:
            raise ConsumerStoppedError(self.stopped, consumer=self._name)
        self.holdings.save(grant, offset)
        if self._unsaved_since is None:
            self._unsaved_since = self._now()
        if not now:
            self._work.set()
            return
        self._urgent = True
        self._work.set()
        # Whatever request is on its way may have been made before this position: the one after it counts too.
        last = self._rounds + 2
        async with self._changed:
            while grant.durable < offset:
                if grant.lost:
                    raise self.holdings.fenced(grant)
                if self.stopped:
                    raise ConsumerStoppedError(self.stopped, consumer=self._name)
                if self._rounds >= last:
                    raise CoordinatorUnavailableError(
                        f"the checkpoint of shard {grant.shard} at {offset} is not durable yet ({self._trouble or 'withheld'});"
                        " it is sent again",
                        shard=grant.shard,
                        consumer=self._name,
                    )
                await self._changed.wait()

    def _stir(self) -> None:
        """Something was granted, revoked, put back or made durable: see what can be released, and wake who waits."""
        if released := self.holdings.release():
            log.info("released %s", list(released))
            self._news.set()
        if self.holdings.leaving():
            self._urgent = True
        self._work.set()
        waking = asyncio.create_task(self._wake())
        self._wakes.add(waking)
        waking.add_done_callback(self._wakes.discard)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _message(self) -> Heartbeat:
        books = self.holdings
        return Heartbeat(
            self._name,
            self._incarnation,
            self._seq,
            books.revision,
            books.held(),
            self._ready,
            self._draining,
            books.progress,
            self._group_uid,
            self._zone,
            self._capacity,
        )

    async def _heartbeats(self) -> None:
        delay = FIRST_RETRY
        while not self.stopped:
            self._seq += 1
            self._news.clear()
            message, sent_at = self._message(), self._now()
            request = asyncio.ensure_future(self._coordinator.heartbeat(message, self._settings.heartbeat_interval))
            # How a request ends that nobody waits for any more is of no interest.
            request.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not await news.answered(request, self._news):
                continue  # given up: the next one tells the news
            try:
                reply = request.result()
            except RUN_IS_OVER as error:
                self._end(str(error))
                return
            except ShardherdError as error:
                if not error.retryable:
                    self._end(f"the coordinator refuses this consumer: {error}")
                    return
                log.warning("heartbeat %d of %s failed (%s), trying on: %s", self._seq, self._name, error.code, error)
                await news.within(self._news, delay)
                delay = min(LAST_RETRY, delay * 2)
                continue
            delay = FIRST_RETRY
            if self._end_if_too_silent():
                return
            self._acknowledged_at = sent_at
            self._settings = reply
            self.holdings.confirm(reply)
            self._stir()
            if news.alike(message, self._message()) and self._now() - sent_at < reply.heartbeat_interval / 2:
                # An answer before its time that changed nothing: do not turn it into a tight loop.
                await news.within(self._news, reply.heartbeat_interval - (self._now() - sent_at))

    async def _checkpoints(self) -> None:
        delay = FIRST_RETRY
        while not self.stopped:
            pending = self.holdings.uncommitted()
            if not pending:
                self._unsaved_since = None
            if not pending or not self._due():
                await news.within(self._work, self._save_interval if not pending else self._until_due())
                self._work.clear()
                continue
            self._urgent = self._draining
            request = CheckpointRequest(self._name, self._incarnation, pending, self._group_uid)
            self._trouble = None
            try:
                reply = await self._coordinator.checkpoint(request)
            except RUN_IS_OVER as error:
                self._end(str(error))
                return
            except ShardherdError as error:
                log.warning("checkpoint of %d shards failed (%s), will be sent again: %s", len(pending), error.code, error)
                self._trouble = error
            else:
                for shard in self.holdings.acknowledge(pending, reply):
                    log.warning("shard %s was given to another consumer; its last checkpoint was refused", shard)
                    self._news.set()
            self._rounds += 1
            self._stir()
            if self.holdings.uncommitted() != pending:
                delay = FIRST_RETRY
                self._unsaved_since = self._now()
                continue
            self._urgent = True
            await asyncio.sleep(delay)
            delay = min(LAST_RETRY, delay * 2)

    def _due(self) -> bool:
        return self._urgent or self._until_due() <= 0

    def _until_due(self) -> float:
        since = self._now() if self._unsaved_since is None else self._unsaved_since
        return since + self._save_interval - self._now()

    async def _watch_silence(self) -> None:
        """Stop when the coordinator must believe us dead, or has been away for longer than was allowed."""
        # Whoever acts asks too: the timers of a machine that was suspended are late.
        while not self._end_if_too_silent() and not self.stopped:
            since = self._acknowledged_at if self.holdings.held() else None
            wait = LOOK if since is None else since + self.silence_limit - self._now()
            await asyncio.sleep(min(LOOK, max(0.01, wait)))

    def _end_if_too_silent(self) -> bool:
        since = self._acknowledged_at
        if late := since is not None and self.holdings.held() and (silent := self._now() - since) >= self.silence_limit:
            self._end(f"no heartbeat was acknowledged for {silent:.0f} s: check that the operator can be reached")
        return bool(late)

    @property
    def silence_limit(self) -> float:
        """Seconds after the sending of the last acknowledged heartbeat at which this run stops by itself."""
        settings = self._settings
        return settings.session_timeout - max(2 * settings.heartbeat_interval, 5.0) if settings.ordered else self._loss_limit

    def _end(self, reason: str, level: int = logging.ERROR) -> None:
        if self.stopped:
            return
        log.log(level, "%s stops: %s", self._name, reason)
        self.stopped = reason
        self.holdings.lose_all()
        for task in self._readers - {asyncio.current_task()}:
            task.cancel()
        self._news.set()
        self._stir()
