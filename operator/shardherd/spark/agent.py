"""The agent: it holds this consumer's shards towards the coordinator, and hands their records out to the stream reader.

`runtime` runs it on an event loop in a thread of its own; `serve` brings the stream reader's questions, the query listener and
SIGTERM call `finished` and `drain`. It decides when a heartbeat and a checkpoint go out, when the consumer is warm, when a
shard is released and when the application must stop. What it holds is `core.consumer.tracker`'s business. It never reads
records and never touches Spark: stopping is a callback. It is long because its two sides, the coordinator and the stream
reader, wake each other at every step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from shardherd.client import leaving, news
from shardherd.client.aio import Coordinator
from shardherd.client.leaving import FIRST_RETRY, LAST_RETRY
from shardherd.clock import boot_time
from shardherd.core.consumer.tracker import Tracker
from shardherd.core.model.errors import RUN_IS_OVER, ShardherdError, UnknownGroupError
from shardherd.core.model.nouns import LONGEST_WAIT, CheckpointRequest, Heartbeat, HeartbeatReply, Leave, Offset, Phase, ShardId
from shardherd.source.kafka.leader_epochs import Ends, epochs_in
from shardherd.spark.adoption import Adoption
from shardherd.spark.flow import Limits
from shardherd.spark.logged_epochs import leaders_of
from shardherd.spark.offsets import Offsets
from shardherd.spark.pace import Pace
from shardherd.spark.surroundings import AgentSettings, EndsKnown, Observer
from shardherd.telemetry.logs import fields

log = logging.getLogger(__name__)

IDLE_WAIT = 0.05
"""Seconds that a question for new records is parked while there are none: Spark asks again at once, 90 times a second."""

KEEP_WARM_AFTER = 45.0
"""Seconds without a micro-batch after which an empty one is made: Spark ends Python workers that were idle for 60 s."""

TARGET_SECONDS = 10.0
"""Seconds that a micro-batch should take, unless the user says otherwise: a rebalance waits for it."""

LOOK = 1.0
"""Most seconds between two looks at how long the coordinator has been silent."""

EVENT_WAIT = 10.0
"""Seconds after a query's first micro-batch in which Spark must have told of it; it does within a tenth of one."""

TASKS_LOOK = 0.25
"""Seconds between two looks at whether tasks still run that nobody waits for any more."""

STOPS_WITHIN = 2.0
"""Seconds that cancelled tasks have to end before the coordinator is told that this run leaves: soon the process ends, too."""

LEAVING = 5.0
"""Seconds of a drain that are kept for leaving, or a quarter of it if that is less: until then it tries to checkpoint."""


async def _nobody_knows() -> bool:
    return True


class Agent:
    """One run of a consumer. All methods belong to the event loop that `run` runs on.

    `stop(reason)` must end the application without delay: it is awaited when the consumer may read no longer. `now` is
    monotonic seconds. `running` says whether Spark runs a task, or may. `trouble` says why the last heartbeat failed, empty if
    it did not; `refusal` why the query is refused. `batch_at` is when a micro-batch was handed out or finished last. Two are to
    be set: `trigger_interval`, the seconds from one of the query's triggers to the next, as far as they are known; and
    `hears_events`, if the query's progress events are told, so that a query which its first one refuses has finished nothing.
    """

    def __init__(
        self,
        settings: AgentSettings,
        coordinator: Coordinator,
        ends: EndsKnown,
        observer: Observer,
        stop: Callable[[str], Awaitable[None]],
        now: Callable[[], float] = boot_time,
        running: Callable[[], Awaitable[bool]] = _nobody_knows,
    ) -> None:
        self.settings = settings
        self.tracker = Tracker()
        self.ready = False
        self.draining = False
        self.acknowledged_at: float | None = None
        self.trouble = ""
        self.refusal = ""
        self.hears_events = False
        self.pace = Pace(TARGET_SECONDS)
        self.limits = Limits()
        self._coordinator = coordinator
        self._ends = ends
        self._observer = observer
        self._stop = stop
        self._now = now
        self._running = running
        self._clean = False
        self._seq = 0
        self._warm_wanted: int | None = None
        self.batch_at = now()
        self.trigger_interval = 0.0
        self._records_at = now()
        self._asked_at = now()
        self._sink_waits = False
        self._phase = Phase.WARMING
        self._phase_since = now()
        self._bounds: Ends | None = None
        self._adoption = Adoption(self.tracker)
        self._accepted = False  # the query is known not to be refused
        self._stopping = False
        self._group_gone = False
        self._left = asyncio.Event()
        self._news = asyncio.Event()  # something the coordinator should hear now
        self._work = asyncio.Event()  # something may be checkpointed or released
        self._turned = asyncio.Event()  # something was finished or made durable, or never will be
        self._drifts = asyncio.Event()  # something was abandoned, and tasks of it may still run
        self._records = asyncio.Event()  # something may be handed out
        self._heard = asyncio.Event()  # the query's first progress event is there, or is not awaited
        self._heard.set()
        self._joined = asyncio.Event()  # the first heartbeat was answered

    # --- towards the coordinator -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Heartbeat, checkpoint and release until the consumer has left or must stop."""
        loops = [asyncio.create_task(each()) for each in self._loops()]
        left = asyncio.create_task(self._left.wait())
        try:
            done, _ = await asyncio.wait([left, *loops], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [left, *loops]:
                task.cancel()
            await asyncio.gather(left, *loops, return_exceptions=True)

    def _loops(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return (self._heartbeats, self._checkpoints, self._watch_silence, self._watch_adrift)

    def _message(self) -> Heartbeat:
        phase, goes_on_in = self._about()
        if phase is not self._phase:
            self._phase, self._phase_since = phase, self._now()
        return Heartbeat(
            consumer=self.settings.consumer,
            incarnation=self.settings.incarnation,
            seq=self._seq,
            revision=self.tracker.revision,
            held=self.tracker.held(),
            ready=self.ready,
            draining=self.draining,
            progress=self.tracker.progress,
            group_uid=self.settings.group_uid,
            zone=self.settings.zone,
            capacity=self.settings.capacity,
            phase=phase,
            phase_age=self._now() - self._phase_since,
            goes_on_in=goes_on_in,
        )

    def _about(self) -> tuple[Phase, float]:
        """What this consumer is about, and in how many seconds it means to go on if it waits; 0 if it does not."""
        if self.tracker.busy:
            return (Phase.WRITING if self._sink_waits else Phase.READING), 0.0
        if not self.ready:
            return Phase.WARMING, 0.0
        available = sum(self._available(self._ends.known()).values())
        if not available:
            # What an open transaction holds back is not there yet. What cannot be seen may be.
            return (Phase.READING if self._ends.failing() else Phase.IDLE), 0.0
        until = self._asked_at + self.trigger_interval
        if self.limits.waits(available, self._now() - self._records_at):
            until = max(until, self._records_at + self.limits.max_delay)
        left = min(LONGEST_WAIT, until - self._now())
        return (Phase.WAITING, left) if left > 0.0 else (Phase.READING, 0.0)

    def sink_waits(self, waits: bool) -> None:
        """The running micro-batch has been read, as far as can be told from outside, and what becomes of it takes its time."""
        self._sink_waits = waits

    async def _heartbeats(self) -> None:
        delay, failing = FIRST_RETRY, ""
        while not self._stopping:
            self._seq += 1
            self._news.clear()
            message, sent_at = self._message(), self._now()
            request = asyncio.ensure_future(self._coordinator.heartbeat(message, self.settings.heartbeat_interval))
            if not await news.answered(request, self._news):
                continue  # cancelled: the next one tells the news
            try:
                reply = request.result()
            except RUN_IS_OVER as error:
                self._observer.heartbeat(error.code)
                await self._end(f"the coordinator says that this run of {self.settings.consumer} is over: {error}")
                return
            except ShardherdError as error:
                self._observer.heartbeat(error.code)
                if error.code != failing:
                    log.warning("heartbeat %d failed (%s), trying on: %s", self._seq, error.code, error, extra=self._fields())
                failing, self.trouble = error.code, str(error)
                await news.within(self._news, delay)
                delay = min(LAST_RETRY, delay * 2)
                continue
            if failing:
                log.info("the coordinator answers again", extra=self._fields())
            delay, failing, self.trouble = FIRST_RETRY, "", ""
            self._observer.heartbeat("ok")
            if await self._end_if_too_silent():
                # This machine stood still, and with it the watch over silence: what runs since then may be somebody else's.
                return
            self.acknowledged_at = sent_at
            self._confirm(reply)
            if news.alike(message, self._message()) and self._now() - sent_at < reply.heartbeat_interval / 2:
                # An answer before its time that changed nothing: do not turn it into a tight loop.
                await news.within(self._news, reply.heartbeat_interval - (self._now() - sent_at))

    def _confirm(self, reply: HeartbeatReply) -> None:
        before = self._epochs()
        self.tracker.confirm(reply)
        settings = self.settings
        told = (reply.ordered, reply.heartbeat_interval, reply.session_timeout)
        if told != (settings.ordered, settings.heartbeat_interval, settings.session_timeout):
            ordered, interval, timeout = told
            self.settings = replace(settings, ordered=ordered, heartbeat_interval=interval, session_timeout=timeout)
        self._ends.watch(self.tracker.shards)
        after = self._epochs()
        self._tell("gained", {shard: epoch for shard, epoch in after.items() if before.get(shard) != epoch})
        self._tell("is to give up", {shard: epoch for shard, epoch in before.items() if shard not in after})
        self._joined.set()
        self._records.set()
        self._changed()

    def _epochs(self) -> dict[ShardId, int]:
        """The epochs of the shards that may be read."""
        readable = self.tracker.positions()
        return {shard: epoch for shard, epoch in self.tracker.held_epochs() if shard in readable}

    def _fields(self, shard: ShardId | None = None, epoch: int | None = None) -> dict[str, Any]:
        settings = self.settings
        return fields(group=settings.group or settings.group_uid, shard=shard, consumer=settings.consumer, epoch=epoch)

    def _tell(self, what: str, shards: Mapping[ShardId, int]) -> None:
        for shard, epoch in sorted(shards.items()):
            log.info(what, extra=self._fields(shard, epoch))

    def _changed(self) -> None:
        """Something was finished, granted or revoked: see what can be checkpointed, released and told."""
        epochs = dict(self.tracker.held_epochs())
        if released := self.tracker.release():
            self._tell("released", {shard: epochs[shard] for shard in released})
            self._ends.watch(self.tracker.shards)
            self._news.set()
        self._work.set()
        self._turned.set()
        if self.tracker.adrift:
            self._drifts.set()

    async def _watch_adrift(self) -> None:
        """Find out when the tasks have ended of what was abandoned: until then an ordered group does not give its shards up."""
        while not self._stopping:
            if not self.tracker.adrift:
                self._drifts.clear()
                await self._drifts.wait()
            elif await self._has_ended():
                self._changed()
            else:
                await asyncio.sleep(TASKS_LOOK)

    async def _has_ended(self) -> bool:
        """Whether nothing of what was abandoned goes on, as far as can be known."""
        looked = self.tracker.abandoned
        if await self._running() or self.tracker.abandoned != looked:
            return False
        self.tracker.settled()
        return True

    async def _checkpoints(self) -> None:
        delay = FIRST_RETRY
        while not self._stopping:
            pending = self.tracker.uncommitted()
            if not pending:
                await self._work.wait()
                self._work.clear()
                continue
            settings = self.settings
            request = CheckpointRequest(settings.consumer, settings.incarnation, pending, settings.group_uid)
            try:
                reply = await self._coordinator.checkpoint(request)
            except RUN_IS_OVER as error:
                await self._end(f"the coordinator says that this run of {self.settings.consumer} is over: {error}")
                return
            except ShardherdError as error:
                self._group_gone = isinstance(error, UnknownGroupError)
                self._turned.set()
                self._observer.checkpoint("error")
                if delay == FIRST_RETRY:
                    log.warning(
                        "checkpoint of %d shards failed (%s), will be sent again: %s",
                        len(pending),
                        error.code,
                        error,
                        extra=self._fields(),
                    )
            else:
                self._group_gone = False
                for outcome in reply.outcomes:
                    self._observer.checkpoint(outcome.result.value)
                epochs = {each.shard: each.owner_epoch for each in pending}
                for shard in self.tracker.acknowledge(pending, reply):
                    log.warning(
                        "a shard was given to another consumer: dropped, its last checkpoint was refused",
                        extra=self._fields(shard, epochs[shard]),
                    )
                    self._news.set()
                self._changed()
                if self.tracker.uncommitted() != pending:
                    delay = FIRST_RETRY
                    continue
            await asyncio.sleep(delay)
            delay = min(LAST_RETRY, delay * 2)

    async def _watch_silence(self) -> None:
        """Stop reading when the coordinator must believe us dead, or has been away for longer than was allowed."""
        while not self._stopping:
            wait = LOOK
            if await self._end_if_too_silent():
                return
            if self.acknowledged_at is not None and self.tracker.holds_any:
                wait = self.acknowledged_at + self.silence_limit - self._now()
            await asyncio.sleep(min(LOOK, max(0.01, wait)))

    async def _end_if_too_silent(self) -> bool:
        if self.acknowledged_at is None or not self._too_silent or not self.tracker.holds_any:
            return False
        silent = self._now() - self.acknowledged_at
        await self._end(
            f"no heartbeat of {self.settings.consumer} was acknowledged for {silent:.0f} s "
            f"(limit {self.silence_limit:.0f} s): check that the operator runs and can be reached"
        )
        return True

    @property
    def silence_limit(self) -> float:
        """Seconds after the sending of the last acknowledged heartbeat at which this consumer stops by itself."""
        margin = max(2 * self.settings.heartbeat_interval, 5.0)
        return self.settings.session_timeout - margin if self.settings.ordered else self.settings.coordinator_loss_limit

    @property
    def _too_silent(self) -> bool:
        return self.acknowledged_at is not None and self._now() - self.acknowledged_at >= self.silence_limit

    async def _end(self, reason: str) -> None:
        if not self._stopping:
            self._stopping = True
            self._turned.set()
            log.error("stopping: %s", reason, extra=self._fields())
            await self._stop(reason)

    @property
    def gone(self) -> bool:
        """Whether this run has left its group, or was told to stop: it will hold no shard again."""
        return self._stopping

    async def drain(self, deadline: float) -> bool:
        """Hand out nothing more, await the running micro-batch, checkpoint, release and leave.

        The micro-batch has `drainTimeout` to end; what is finished is checkpointed for as long as there is time. Gives up at
        `deadline` (monotonic). Returns whether everything that was handed out is finished and durable. Having left before, it
        does nothing.
        """
        if self._left.is_set():
            return self._clean
        dropped = self.tracker.dropped
        self.draining = True
        self._news.set()
        self._records.set()
        await self._settle(deadline)
        self._clean = not self.left_over and self.tracker.dropped == dropped
        if self.tracker.busy:
            await self._end("the running micro-batch did not end within drainTimeout")
        stopped = await self._stopped_by(min(deadline, self._now() + STOPS_WITHIN))
        self._stopping = True
        self._news.set()
        request = Leave(self.settings.consumer, self.settings.incarnation, self.settings.group_uid, stopped)
        await leaving.leave(self._coordinator, request, deadline, self._now, extra=self._fields())
        self._left.set()
        log.info("drained %s", "with nothing left over" if self._clean else "with work left over", extra=self._fields())
        return self._clean

    async def _settle(self, deadline: float) -> None:
        """Wait until a drain has nothing to wait for any more, as long as there is time."""
        began = self._now()
        until = deadline - min(LEAVING, (deadline - began) / 4)
        batch_until = min(until, began + self.settings.drain_timeout)
        while self._unfinished and not self._stopping:
            left = (batch_until if self.tracker.busy else until) - self._now()
            if left <= 0:
                return
            self._turned.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._turned.wait()

    async def _stopped_by(self, until: float) -> bool:
        """Whether nothing that was handed out goes on any more; only an ordered group waits to know it."""
        while self.tracker.busy or (self.tracker.adrift and not await self._has_ended()):
            if not self.settings.ordered or self._now() >= until:
                return False
            await asyncio.sleep(TASKS_LOOK)
        return True

    @property
    def left_over(self) -> bool:
        """Whether something that was handed out is not finished, or not durable."""
        return self.tracker.busy or bool(self.tracker.uncommitted())

    @property
    def _unfinished(self) -> bool:
        """Whether a drain has something to wait for. A group that was deleted takes no checkpoint any more."""
        tracker = self.tracker
        return tracker.busy or bool(tracker.adrift) or (bool(tracker.uncommitted()) and not self._group_gone)

    # --- towards the stream reader ---------------------------------------------------------------------------------------

    async def latest(self, start: Offsets, limit: int | None) -> Offsets:
        """What the next micro-batch should end at; `start` itself (the same object) if there is nothing to do.

        `start` proves which ranges are finished. At most `limit` records (None: no limit of the user's).
        """
        self._asked_at = self._now()
        if not self._heard.is_set() and self.tracker.busy:
            await self._first_event()
        if self._heard.is_set():
            self.finished(start)
        self._adoption.asked(start)
        self._adopt()
        if self._warm_wanted is None and not self.ready:
            self._warm_wanted = start.warm + 1
        over = False

        def end_the_wait() -> None:
            nonlocal over
            over = True
            self._records.set()

        # A timer of our own: cheaper than to be cancelled by a timeout, and this is asked all the time.
        timer = asyncio.get_running_loop().call_later(IDLE_WAIT, end_the_wait)
        try:
            while True:
                self._records.clear()
                limits = self.limits if self.limits.max_records == limit else replace(self.limits, max_records=limit)
                end = self._next(start, limits, await self._sizes())
                if end is not None or over or self.draining or self.refusal:
                    return end or start
                await self._records.wait()
        finally:
            timer.cancel()

    def refuse(self, why: str) -> None:
        """This application's query reads nothing more, and nothing that it read counts: it must end with this error."""
        if not self.refusal:
            log.error("the query is ended: %s", why, extra=self._fields())
        self.refusal = why
        self._accepted = False
        self._heard.set()
        self._records.set()

    async def _first_event(self) -> None:
        """Wait until Spark has told of the query's first micro-batch: it may be refused, and is finished only if it is not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVENT_WAIT):
                await self._heard.wait()
        if not self._heard.is_set():
            log.warning("no progress event of the query within %g s, going on without", EVENT_WAIT, extra=self._fields())
            self._heard.set()

    def heard(self) -> None:
        """The query's first progress event is there, and refuses nothing: from now on a question proves what came before."""
        self._heard.set()
        self._accepted = True

    def _adopt(self) -> None:
        """Checkpoint what an earlier run has finished, once our grants are known."""
        if self._joined.is_set() and (ours := self._adoption.adopt()):
            self._tell("adopting what was finished before of", {shard: each.epoch for shard, each in ours.items()})
            self._changed()

    def query_began(self, limits: Limits) -> None:
        """A stream reader is there; this is what the user wants of its micro-batches."""
        if self.hears_events:
            self._heard.clear()
        self._accepted = False
        self._adoption.query_began()
        self.limits = limits
        self.pace.target = limits.target_seconds or TARGET_SECONDS

    async def _sizes(self) -> Mapping[ShardId, float]:
        """How many bytes the next records have, if the user bounds them."""
        if self.limits.max_bytes is None:
            return {}
        ends = self._ends.known()
        return await self._ends.sizes({shard: at for shard, at in self.tracker.positions().items() if ends.get(shard, 0) > at})

    def _next(self, start: Offsets, limits: Limits, sizes: Mapping[ShardId, float]) -> Offsets | None:
        if self.draining or self._stopping or self.refusal or self._too_silent:
            # Too silent: this process stood still, and is asked before the watch over its silence has looked again.
            return None
        warm = start.warm
        if self._warm_wanted is not None and not self.ready:
            warm = max(warm, self._warm_wanted)
        elif self._bounds is None and self._now() - self.batch_at > KEEP_WARM_AFTER:
            warm += 1
        ends = self._ends.known() if self._bounds is None else self._bounds
        handed = {} if self._adoption.proven else self.tracker.hand_out(self._stops(limits, sizes, ends), None)
        if not handed and warm == start.warm:
            return None
        self.batch_at = self._now()
        self._sink_waits = False
        if handed:
            # An empty one, which only keeps workers warm, is none that a user's trigger waits for.
            self._records_at = self.batch_at
        self.pace.begin(sum(each.stop - each.start for each in handed.values()), self._now())
        self._changed()
        ranges = handed or self.tracker.standing()
        leaders = leaders_of(start, ranges, ends)
        return Offsets(self.settings.group_uid, warm, ranges, leaders=leaders, accepted=self._accepted)

    def _stops(
        self, limits: Limits, sizes: Mapping[ShardId, float], ends: Mapping[ShardId, Offset]
    ) -> Mapping[ShardId, Offset]:
        """Up to where each shard may be read now."""
        self.tracker.abandon()  # as handing out does: what was not finished is available again
        available = self._available(ends)
        if not available:
            return {}
        if self._bounds is None and limits.waits(sum(available.values()), self._now() - self._records_at):
            return {}
        # Trigger.AvailableNow reads what there was, in batches as large as the user allows.
        paced = self._bounds is None or limits.max_records is None
        counts = limits.share(available, sizes, self.pace.bound if paced else None)
        return {**ends, **{shard: at + counts.get(shard, 0) for shard, at in self.tracker.positions().items()}}

    def _available(self, ends: Mapping[ShardId, Offset]) -> dict[ShardId, int]:
        """How many records each shard that may be read has up to these ends, if it has any."""
        return {shard: ends[shard] - at for shard, at in self.tracker.positions().items() if ends.get(shard, 0) > at}

    def finished(self, end: Offsets) -> None:
        """A micro-batch that ends at `end` is finished, as Spark's next question or its progress event says."""
        if self.refusal:
            return
        if self._warm_wanted is not None and not self.ready and end.warm >= self._warm_wanted:
            self.ready = True
            log.info("warm, and may be given shards", extra=self._fields())
            self._news.set()
        before = self.tracker.in_flight
        self.tracker.finish(end.shards)
        if before and not self.tracker.busy:
            took = self.pace.end(self._now())
            self.batch_at = self._records_at = self._now()
            self._observer.batch(before, took or 0.0)
        if before != self.tracker.in_flight:
            self._changed()

    async def replay(self, end: Offsets) -> tuple[ShardId, ...]:
        """Which shards of a logged, unfinished micro-batch are to be read again. Waits for the first heartbeat's answer."""
        await self._joined.wait()
        # Whoever goes begins nothing: others read it, from the coordinator's position on.
        ours = self.tracker.replay({} if self.draining or self._stopping else end.shards)
        dropped = sorted(shard for shard, each in end.shards.items() if each.start < each.stop and shard not in ours)
        self._tell("replaying", {shard: each.epoch for shard, each in ours.items()})
        self._tell("dropping the logged range of", {shard: end.shards[shard].epoch for shard in dropped})
        self.pace.forget()
        self._changed()
        return tuple(ours)

    async def prepare_available_now(self) -> None:
        """For Trigger.AvailableNow: wait for the first assignment and read up to what there is now, without a warm-up."""
        self.ready = True
        self._news.set()
        while not (wanted := set(self.tracker.positions())) or not wanted <= set(self._ends.known()):
            self._records.clear()
            await self._records.wait()
        known = self._ends.known()
        self._bounds = Ends({shard: known[shard] for shard in wanted}, epochs_in(known))

    def known_ends(self) -> Mapping[ShardId, Offset]:
        """The known ends of the shards that we hold."""
        return self._ends.known()

    def ends_changed(self) -> None:
        """There may be new records."""
        self._records.set()

    def query_ended(self) -> bool:
        """The stream reader is gone: what it did not finish never will be, and its shards may be released.

        Returns whether the consumer should leave unless another query begins: not after Trigger.AvailableNow, which ends by
        itself and is made to be started again.
        """
        leaves = self._bounds is None and not self.draining
        self._bounds = None
        self.pace.forget()
        self.tracker.abandon()
        self._changed()
        return leaves
