"""One run of a consumer: its heartbeats, its checkpoints, the limit of its silence, and its leaving.

`spark.agent` and `client.consumer` own one each. It decides when a request goes out, when one that failed is made again, and
when the run is over; what is read is its owner's business, what is held and may be released the ledger's, and the rules that
need no clock are in `core.consumer`. It must not know Spark, how requests are sent, or how the coordinator decides.

A defect, which is an exception that nobody expected, in one of its tasks ends the run: a consumer that went on without its
heartbeats would read what has long been somebody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from shardherd.consumer.notices import FAILED, OK, Assigned, Changed, CheckpointEnded, Ended, HeartbeatEnded, Released
from shardherd.consumer.ports import Coordinator, Owner
from shardherd.consumer.waiting import answered, within
from shardherd.core.consumer.heartbeats import pause_after
from shardherd.core.consumer.ledger import Ledger
from shardherd.core.consumer.refusals import Refusal, Retries, ends_run, may_pass, meaning_of
from shardherd.core.consumer.saving import Saving
from shardherd.core.consumer.settings import DrainTimes, SessionSettings
from shardherd.core.model.errors import ShardherdError, UnknownGroupError
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Phase,
    ShardCheckpoint,
    ShardId,
)
from shardherd.telemetry.logs import fields

log = logging.getLogger(__name__)

LOOK = 1.0
"""Most seconds between two looks at how long the coordinator has been silent."""

HAS_LEFT = "this consumer has left the group"
"""Why a run is over that has ended as it should."""


class Session:
    """One run. All of it belongs to one event loop. `now` is monotonic seconds.

    Others read `settings`, as the last answer has them; `over`, why the run is over, empty while it is not; `defect`, the
    exception that ended it, if one did; `trouble` and `unsaved`, with what the last heartbeat and the last request for
    checkpoints failed, None if they did not; `rounds`, how many requests for checkpoints there were; `clean`, whether a drain
    has left nothing over. `beside` are loops of the owner, which run and fail as the session's own do.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        ledger: Ledger[Any],
        owner: Owner,
        settings: SessionSettings,
        now: Callable[[], float],
        beside: tuple[Callable[[], Awaitable[None]], ...] = (),
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.over = ""
        self.defect: Exception | None = None
        self.draining = False
        self.clean = False
        self.acknowledged_at: float | None = None
        self.trouble: ShardherdError | None = None
        self.unsaved: ShardherdError | None = None
        self.rounds = 0
        self._coordinator = coordinator
        self._owner = owner
        self._now = now
        self._loops = (self._heartbeats, self._checkpoints, self._watch_silence, *beside)
        self._tasks: list[asyncio.Task[None]] = []
        self._seq = 0
        self._phase: tuple[Phase | None, float] = (None, now())
        self._saving = Saving(settings.save_interval)
        self._group_gone = False
        self._drain = asyncio.Lock()
        self._news = asyncio.Event()  # something the coordinator should hear now
        self._work = asyncio.Event()  # something may be saved
        self._turned = asyncio.Event()  # something was finished or made durable, or never will be
        self._finished = asyncio.Event()

    async def run(self) -> None:
        """Until the run is over. Raises the defect that ended it, if one did."""
        self._tasks = [asyncio.create_task(self._guarded(each)) for each in self._loops]
        try:
            await self._finished.wait()
        finally:
            await self._end_tasks()
        if self.defect is not None:
            raise self.defect

    # --- for the owner ---------------------------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether nothing may be begun any more."""
        return self.draining or bool(self.over)

    @property
    def joined(self) -> bool:
        """Whether the coordinator has accepted a heartbeat of this run."""
        return self.acknowledged_at is not None

    @property
    def left_over(self) -> bool:
        """Whether something that was read is not finished, or not durable."""
        return self.ledger.busy or bool(self.ledger.uncommitted())

    def heartbeat_now(self) -> None:
        """There is something that the coordinator should hear without delay."""
        self._news.set()

    def save(self, *, at_once: bool) -> None:
        """Something was finished: make it durable, at once or when it is due."""
        if at_once:
            self._saving.hurry()
        if at_once or not self._saving.gathers:
            self._work.set()

    def changed(self) -> None:
        """To be called after every change of the ledger: releases what can be released, and sees to what must be saved."""
        if released := self.ledger.release():
            self.log_shards("released", self.ledger.given_up(released))
            self._owner.hear(Released(released))
            self._news.set()
        if self.ledger.leaving():
            self._saving.hurry()
        self._work.set()
        self._turned.set()
        self._owner.hear(Changed())

    def end(self, reason: str) -> None:
        """This run must stop now. Only the first reason counts."""
        if self.over:
            return
        self.over = reason
        log.error("stopping: %s", reason, extra=self.log_fields())
        for event in (self._finished, self._news, self._work, self._turned):
            event.set()
        self._owner.hear(Ended(reason))

    @property
    def too_silent(self) -> bool:
        """Whether the last acknowledged heartbeat is so long ago that nothing may be begun."""
        return self.acknowledged_at is not None and self._now() - self.acknowledged_at >= self.settings.silence_limit

    def end_if_too_silent(self) -> bool:
        """End the run if it is too silent: the coordinator must believe it dead, or has been away for too long. Whether it is.

        Not left to the watch alone: the timers of a machine that was suspended are late.
        """
        if self.acknowledged_at is None or not self.too_silent or not self.ledger.holds_any:
            return False
        silent, limit = self._now() - self.acknowledged_at, self.settings.silence_limit
        self.end(
            f"no heartbeat of {self.settings.consumer} was acknowledged for {silent:.0f} s (limit {limit:.0f} s):"
            " check that the operator runs and can be reached"
        )
        return True

    async def drain(self, times: DrainTimes) -> bool:
        """Wait for what is being read, save, release, and leave; the run is over then.

        Once it was called `ending` is true, and the owner must begin nothing more. Returns whether everything that was read is
        finished and durable. A later call waits for the first one and returns the same.
        """
        self.draining = True
        self._saving.hurry()
        async with self._drain:
            if not self.over:
                await self._drain_once(times)
        return self.clean

    def log_fields(self, shard: ShardId | None = None, epoch: int | None = None) -> dict[str, Any]:
        """The `extra` of a log record of this consumer."""
        settings = self.settings
        return fields(group=settings.group or settings.group_uid, shard=shard, consumer=settings.consumer, epoch=epoch)

    def log_shards(self, what: str, shards: Mapping[ShardId, int]) -> None:
        """A line for each of these shards, with the epoch of its grant."""
        for shard, epoch in sorted(shards.items()):
            log.info(what, extra=self.log_fields(shard, epoch))

    # --- heartbeats ------------------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        retries = Retries()
        while not self.over:
            self._seq += 1
            self._news.clear()
            message, sent_at = self._heartbeat(), self._now()
            request = asyncio.ensure_future(self._coordinator.heartbeat(message, self.settings.heartbeat_interval))
            # How a request ends that nobody waits for any more is of no interest.
            request.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not await answered(request, self._news):
                continue  # given up: the next one tells the news
            try:
                reply = request.result()
            except ShardherdError as error:
                self._owner.hear(HeartbeatEnded(error.code))
                if self._ended_by(error):
                    return
                if self.trouble is None or self.trouble.code != error.code:
                    log.warning(
                        "heartbeat %d failed (%s), trying on: %s", self._seq, error.code, error, extra=self.log_fields()
                    )
                self.trouble = error
                await within(self._news, retries.pause())
                continue
            if self.trouble is not None:
                log.info("the coordinator answers again", extra=self.log_fields())
            self.trouble = None
            retries.succeeded()
            self._owner.hear(HeartbeatEnded(OK))
            if self.end_if_too_silent():
                # This machine stood still, and with it the watch over silence: what runs since then may be somebody else's.
                return
            self.acknowledged_at = sent_at
            self._confirm(reply)
            pause = pause_after(message, self._heartbeat(), self._now() - sent_at, reply.heartbeat_interval)
            if pause > 0:
                await within(self._news, pause)

    def _heartbeat(self) -> Heartbeat:
        said, settings, ledger, now = self._owner.readiness(), self.settings, self.ledger, self._now()
        if said.phase is not self._phase[0]:
            self._phase = (said.phase, now)
        return Heartbeat(
            consumer=settings.consumer,
            incarnation=settings.incarnation,
            seq=self._seq,
            revision=ledger.revision,
            held=ledger.held(),
            ready=said.ready,
            draining=self.draining,
            progress=ledger.progress,
            group_uid=settings.group_uid,
            zone=settings.zone,
            capacity=settings.capacity,
            phase=said.phase,
            phase_age=Seconds(0.0 if said.phase is None else now - self._phase[1]),
            goes_on_in=Seconds(said.goes_on_in),
            state_lost=said.state_lost,
            gauges=said.gauges,
            cells_failing=said.cells_failing or UNSET,
        )

    def _confirm(self, reply: HeartbeatReply) -> None:
        before = self.ledger.readable_epochs()
        self.ledger.confirm(reply)
        self.settings = self.settings.answered(reply)
        after = self.ledger.readable_epochs()
        gained = {shard: epoch for shard, epoch in after.items() if before.get(shard) != epoch}
        revoked = {shard: epoch for shard, epoch in before.items() if shard not in after}
        self.log_shards("gained", gained)
        self.log_shards("is to give up", revoked)
        self._owner.hear(Assigned(gained, revoked))
        self.changed()

    # --- checkpoints -----------------------------------------------------------------------------------------------------

    async def _checkpoints(self) -> None:
        retries = Retries()
        while not self.over:
            pending = self.ledger.uncommitted()
            due_in = self._saving.due_in(self._now(), pending=bool(pending))
            if due_in is None or due_in > 0:
                await within(self._work, due_in)
                self._work.clear()
                continue
            self._saving.sent(draining=self.draining)
            self.unsaved = None
            settings = self.settings
            request = CheckpointRequest(settings.consumer, settings.incarnation, pending, settings.group_uid)
            try:
                reply = await self._coordinator.checkpoint(request)
            except ShardherdError as error:
                if self._ended_by(error):
                    return
                self._group_gone = isinstance(error, UnknownGroupError)
                self.unsaved = error
                if not retries.begun:
                    text = "checkpoint of %d shards failed (%s), will be sent again: %s"
                    log.warning(text, len(pending), error.code, error, extra=self.log_fields())
                results: tuple[str, ...] = (FAILED,)
            else:
                self._group_gone = False
                self._acknowledge(pending, reply)
                results = tuple(outcome.result.value for outcome in reply.outcomes)
            self.rounds += 1
            self._owner.hear(CheckpointEnded(results))
            self.changed()
            moved = self.unsaved is None and self.ledger.uncommitted() != pending
            self._saving.answered(self._now(), moved=moved)
            if moved:
                retries.succeeded()
            else:
                await asyncio.sleep(retries.pause())

    def _acknowledge(self, sent: Sequence[ShardCheckpoint], reply: CheckpointReply) -> None:
        epochs = {each.shard: each.owner_epoch for each in sent}
        for shard in self.ledger.acknowledge(sent, reply):
            log.warning(
                "a shard was given to another consumer: dropped, its last checkpoint was refused",
                extra=self.log_fields(shard, epochs[shard]),
            )
            self._news.set()

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _ended_by(self, error: ShardherdError) -> bool:
        """Whether this error is the end of the run."""
        if not ends_run(error, joined=self.joined):
            return False
        consumer = self.settings.consumer
        if meaning_of(error) is Refusal.OVER:
            self.end(f"the coordinator says that this run of {consumer} is over: {error}")
        else:
            self.end(f"the coordinator refuses {consumer} ({error.code}): {error}")
        return True

    async def _watch_silence(self) -> None:
        """Stop when the coordinator must believe us dead, or has been away for longer than was allowed."""
        while not self.end_if_too_silent() and not self.over:
            since = self.acknowledged_at if self.ledger.holds_any else None
            wait = LOOK if since is None else since + self.settings.silence_limit - self._now()
            await asyncio.sleep(min(LOOK, max(0.01, wait)))

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        """A loop that ends while the run is not over has a defect, whatever it was."""
        try:
            try:
                await loop()
            except asyncio.CancelledError as cancelled:
                task = asyncio.current_task()
                if self.over or (task is not None and task.cancelling()):
                    raise
                raise RuntimeError("a request was cancelled, and not by the session") from cancelled
        except Exception as defect:
            log.exception("a defect ends this consumer", extra=self.log_fields())
            self.defect = defect
            self.end(f"a defect of shardherd, or of what it was given: {type(defect).__name__}: {defect}")

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _drain_once(self, times: DrainTimes) -> None:
        dropped = self.ledger.dropped
        self._news.set()
        self.changed()
        await self._await_unfinished(times)
        self.clean = not self.left_over and self.ledger.dropped == dropped
        # Nothing may be on its way when we leave: its answer would be that this run is over, before that of the leave.
        await self._end_tasks()
        if self.over:
            return
        self.over = HAS_LEFT
        try:
            stopped = await self._owner.cease(times.leaving)
            settings = self.settings
            await self._leave(Leave(settings.consumer, settings.incarnation, settings.group_uid, stopped), times.leaving)
        finally:
            self._finished.set()
        log.info("drained %s", "with nothing left over" if self.clean else "with work left over", extra=self.log_fields())

    async def _await_unfinished(self, times: DrainTimes) -> None:
        """Wait until a drain has nothing to wait for any more, as long as there is time."""
        while self._unfinished and not self.over:
            left = (times.reading if self.ledger.busy else times.saving) - self._now()
            if left <= 0:
                return
            self._turned.clear()
            await within(self._turned, left)

    @property
    def _unfinished(self) -> bool:
        """Whether a drain has something to wait for. A group that was deleted takes no checkpoint any more."""
        ledger = self.ledger
        return ledger.busy or bool(ledger.adrift) or (bool(ledger.uncommitted()) and not self._group_gone)

    async def _leave(self, request: Leave, deadline: float) -> None:
        """Say so again and again while there is time: otherwise only our silence tells it, much later."""
        retries = Retries()
        while True:
            try:
                await self._coordinator.leave(request)
                return
            except ShardherdError as error:
                log.warning("leaving of %s failed (%s): %s", request.consumer, error.code, error, extra=self.log_fields())
                pause = retries.pause()
                if not may_pass(error) or self._now() + pause > deadline:
                    return
            await asyncio.sleep(pause)
