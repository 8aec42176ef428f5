"""The agent: it hands this consumer's records out to the stream reader, and owns the consumer's session with the coordinator.

`runtime` runs it on an event loop in a thread of its own; `serve` brings the stream reader's questions, the query listener and
SIGTERM call `finished` and `drain`. It decides when the consumer is warm, what the next micro-batch has, and what it does when
the run is over; when requests go out is `consumer.session`'s business, what is held `core.consumer.tracker`'s. It never reads
records and never touches Spark: stopping is a callback. The session's notices and the stream reader's questions are both here
because each waits for what the other one changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from shardherd.clock import boot_time
from shardherd.consumer.notices import Assigned, Changed, Notice, Released
from shardherd.consumer.ports import Coordinator, Readiness
from shardherd.consumer.session import Session
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.consumer.tracker import Tracker
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import LONGEST_WAIT, Offset, Phase, ShardId
from shardherd.source.kafka.leader_epochs import EndOffsets, epochs_in
from shardherd.spark.adoption import Adoption
from shardherd.spark.agent_ports import KnownEndOffsets, Observer
from shardherd.spark.available_now import AvailableNow
from shardherd.spark.batch_sizing import BatchSizing
from shardherd.spark.consumer_run import ConsumerRun
from shardherd.spark.counting import size_of
from shardherd.spark.flow import Limits
from shardherd.spark.logged_epochs import leaders_of
from shardherd.spark.offsets import Offsets, topics_of
from shardherd.spark.running_batch import HandedBatch, handed_out, read_again

log = logging.getLogger(__name__)

IDLE_WAIT = 0.05
"""Seconds that a question for new records is parked while there are none: Spark asks again at once, 90 times a second."""

KEEP_WARM_AFTER = 45.0
"""Seconds without a micro-batch after which an empty one is made: Spark ends Python workers that were idle for 60 s."""

TARGET_SECONDS = 10.0
"""Seconds that a micro-batch should take, unless the user says otherwise: a rebalance waits for it."""

EVENT_WAIT = 10.0
"""Seconds after a query's first micro-batch within which Spark must have reported its progress; it does within 0.1 s."""

TASKS_LOOK = 0.25
"""Seconds between two looks at whether tasks still run that nobody waits for any more."""

STOPS_WITHIN = 2.0
"""Seconds that cancelled tasks have to end before this run leaves its group: soon the process ends, too."""


class Agent(ConsumerRun[Tracker]):
    """One run of a consumer. All methods belong to the event loop that `run` runs on.

    `running` says whether Spark runs a task, or may.

    Others read `refusal`, why the query is refused, empty if it is not; and `batch`, what the query was given last to read,
    None before that and after its end. They set `events_arrive`, if progress events do: then nothing counts as finished before
    the query's first one has refused nothing.
    """

    def __init__(
        self,
        settings: SessionSettings,
        coordinator: Coordinator,
        end_offsets: KnownEndOffsets,
        observer: Observer,
        stop: Callable[[str], Awaitable[None]],
        running: Callable[[], Awaitable[bool]],
        now: Callable[[], float] = boot_time,
    ) -> None:
        tracker = Tracker()
        session = Session(coordinator, tracker, self, settings, now, beside=(self._watch_adrift,))
        super().__init__(session, tracker, end_offsets, observer, stop, now)
        self.refusal = ""
        self.events_arrive = False
        self.batch_sizing = BatchSizing(TARGET_SECONDS)
        self.limits = Limits()
        self._running = running
        self._warm_wanted: int | None = None
        self.batch: HandedBatch | None = None
        self._records_at = now()
        self._asked_at = now()
        self._bounds: AvailableNow | None = None
        self._adoption = Adoption(self.tracker)
        self._accepted = False  # the query is known not to be refused
        self._drifts = asyncio.Event()  # something was abandoned, and tasks of it may still run
        self._event_seen = asyncio.Event()  # the query's first progress event is there, or is not awaited
        self._event_seen.set()
        self._joined = asyncio.Event()  # the first heartbeat was answered

    # --- towards the coordinator -----------------------------------------------------------------------------------------

    async def drain(self, deadline: float) -> bool:
        self._records.set()
        return await super().drain(deadline)

    def readiness(self) -> Readiness:
        """For the session's heartbeats."""
        phase, goes_on_in = self._about()
        return Readiness(self.ready, phase, goes_on_in, gauges=self.gauges())

    def hear(self, notice: Notice) -> None:
        match notice:
            case Assigned():
                self._end_offsets.watch(self.tracker.epochs(), self.tracker.ends())
                self._joined.set()
                self._records.set()
            case Released():
                self._end_offsets.watch(self.tracker.epochs(), self.tracker.ends())
            case Changed():
                if self.tracker.adrift:
                    self._drifts.set()
            case _:
                super().hear(notice)

    async def cease(self, deadline: float) -> bool:
        """For the session: a micro-batch that is still running is given up. Whether nothing that was handed out goes on."""
        if self.tracker.busy:
            reason = "the running micro-batch did not end within drainTimeout"
            log.error("stopping: %s", reason, extra=self.session.log_fields())
            await self._begin_stop(reason)
        return await self._stopped_by(min(deadline, self._now() + STOPS_WITHIN))

    def _about(self) -> tuple[Phase, float]:
        """What this consumer is about, and in how many seconds it means to go on if it waits; 0 if it does not."""
        if self.tracker.busy:
            return (Phase.WRITING if self._writing else Phase.READING), 0.0
        if not self.ready:
            return Phase.WARMING, 0.0
        available = sum(self._available(self._end_offsets.known()).values())
        if not available:
            # What an open transaction holds back is not there yet. What cannot be seen may be.
            return (Phase.READING if self._end_offsets.failing() else Phase.IDLE), 0.0
        until = self._asked_at + self.trigger_interval
        if self.limits.waits(available, self._now() - self._records_at):
            until = max(until, self._records_at + self.limits.max_delay)
        left = min(LONGEST_WAIT, until - self._now())
        return (Phase.WAITING, left) if left > 0.0 else (Phase.READING, 0.0)

    async def _watch_adrift(self) -> None:
        """Find out when the tasks have ended of what was abandoned: until then an ordered group does not give its shards up."""
        while True:
            if not self.tracker.adrift:
                self._drifts.clear()
                await self._drifts.wait()
            elif await self._has_ended():
                self.session.changed()
            else:
                await asyncio.sleep(TASKS_LOOK)

    async def _has_ended(self) -> bool:
        """Whether nothing of what was abandoned goes on, as far as can be known."""
        looked = self.tracker.abandoned
        if await self._running() or self.tracker.abandoned != looked:
            return False
        self.tracker.settled()
        return True

    async def _stopped_by(self, until: float) -> bool:
        """Whether nothing that was handed out goes on any more; only an ordered group waits to know it."""
        while self.tracker.busy or (self.tracker.adrift and not await self._has_ended()):
            if not self.settings.ordered or self._now() >= until:
                return False
            await asyncio.sleep(TASKS_LOOK)
        return True

    # --- towards the stream reader ---------------------------------------------------------------------------------------

    async def latest(self, start: Offsets, limit: int | None) -> Offsets:
        """What the next micro-batch should end at; `start` itself (the same object) if there is nothing to do.

        `start` proves which ranges are finished. At most `limit` records (None: no limit of the user's).
        """
        self._asked_at = self._now()
        if not self._event_seen.is_set() and self.tracker.busy:
            await self._await_first_event()
        if self._event_seen.is_set():
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
            log.error("the query is ended: %s", why, extra=self.session.log_fields())
        self.refusal = why
        self._accepted = False
        self._event_seen.set()
        self._records.set()

    async def _await_first_event(self) -> None:
        """Wait until Spark has reported the query's first micro-batch: it may be refused, and is finished only if it is not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVENT_WAIT):
                await self._event_seen.wait()
        if not self._event_seen.is_set():
            log.warning(
                "no progress event of the query within %g s, going on without", EVENT_WAIT, extra=self.session.log_fields()
            )
            self._event_seen.set()

    def event_accepted(self) -> None:
        """The query's first progress event is there, and refuses nothing: from now on a question proves what came before."""
        self._event_seen.set()
        self._accepted = True

    def _adopt(self) -> None:
        """Checkpoint what an earlier run has finished, once our grants are known."""
        if self._joined.is_set() and (ours := self._adoption.adopt()):
            self.session.log_shards("adopting what was finished before of", {shard: each.epoch for shard, each in ours.items()})
            self.session.changed()

    def query_began(self, limits: Limits) -> None:
        """A stream reader is there; this is what the user wants of its micro-batches."""
        if self.events_arrive:
            self._event_seen.clear()
        self._accepted = False
        self.batch = None
        self._bounds = None  # of the query before, whose end may not have been acted upon yet
        self._adoption.query_began()
        self.limits = limits
        self.batch_sizing.target = limits.target_seconds or TARGET_SECONDS

    async def _sizes(self) -> Mapping[ShardId, float]:
        """How many bytes the next records have, if the user bounds them."""
        if self.limits.max_bytes is None:
            return {}
        known, positions = self._end_offsets.known(), self.tracker.positions()
        return await self._end_offsets.sizes({shard: at for shard, at in positions.items() if known.get(shard, 0) > at})

    def _next(self, start: Offsets, limits: Limits, sizes: Mapping[ShardId, float]) -> Offsets | None:
        if self.session.ending or self.refusal or self.session.too_silent:
            # Too silent: this process stood still, and is asked before the watch over its silence has looked again.
            return None
        warm = start.warm
        if self._warm_wanted is not None and not self.ready:
            warm = max(warm, self._warm_wanted)
        elif self._bounds is None and self._now() - self.batch_at > KEEP_WARM_AFTER:
            warm += 1
        end_offsets = self._end_offsets.known()
        if self._bounds is not None:
            looked_for = 0.0 if self._end_offsets.failing() else self._now() - self._records_at
            end_offsets = self._bounds.ends(end_offsets, looked_for)
        handed = {} if self._adoption.proven else self.tracker.hand_out(self._read_up_to(limits, sizes, end_offsets))
        if not handed and warm == start.warm:
            return None
        self.batch_at = self._now()
        self._writing = False
        if handed:
            # An empty one, which only keeps workers warm, is none that a user's trigger waits for.
            self._records_at = self.batch_at
            self._observer.began(self.tracker.in_flight, self._asked_at)
        self.batch_sizing.begin(size_of(handed), self._now())
        self.session.changed()
        ranges = handed or self.tracker.standing()
        leaders = leaders_of(start, ranges, end_offsets)
        ids = self.tracker.source_ids
        self.batch = handed_out(handed, ids)
        return Offsets(self.settings.group_uid, warm, ranges, topics_of(ranges, ids), leaders=leaders, accepted=self._accepted)

    def _read_up_to(
        self, limits: Limits, sizes: Mapping[ShardId, float], end_offsets: Mapping[ShardId, Offset]
    ) -> Mapping[ShardId, Offset]:
        """Up to where each shard may be read now."""
        self.tracker.abandon()  # what was not finished by now never will be: it is available again
        available = self._available(end_offsets)
        if not available:
            return {}
        if self._bounds is None and limits.waits(sum(available.values()), self._now() - self._records_at):
            return {}
        if any(map(is_of_kinesis, available)):
            # How much that is was decided where it was looked for: positions count nothing.
            return {shard: end_offsets[shard] for shard in available}
        # Trigger.AvailableNow reads what there was, in batches as large as the user allows.
        paced = self._bounds is None or limits.max_records is None
        counts = limits.share(available, sizes, self.batch_sizing.bound if paced else None)
        return {shard: at + counts.get(shard, 0) for shard, at in self.tracker.positions().items()}

    def unread(self) -> bool:
        """Whether a query with Trigger.AvailableNow must not end yet, although there was nothing to hand out just now."""
        over = self.session.ending or bool(self.refusal)
        if self._bounds is None or over:
            return False
        positions = self.tracker.positions()
        return self._bounds.unread(positions) or (self.held_up and self._bounds.left(positions))

    def _available(self, end_offsets: Mapping[ShardId, Offset]) -> dict[ShardId, int]:
        """How many records each shard that may be read has up to these ends, if it has any; 1 where nothing counts them."""
        positions = self.tracker.positions()
        return {
            shard: 1 if is_of_kinesis(shard) else end_offsets[shard] - at
            for shard, at in positions.items()
            if end_offsets.get(shard, 0) > at
        }

    def finished(self, end: Offsets) -> None:
        """A micro-batch that ends at `end` is finished, as Spark's next question or its progress event says."""
        if self.refusal:
            return
        if self._warm_wanted is not None and not self.ready and end.warm >= self._warm_wanted:
            self.ready = True
            log.info("warm, and may be given shards", extra=self.session.log_fields())
            self.session.heartbeat_now()
        before = self.tracker.in_flight
        self.tracker.finish(end.shards)
        if before and not self.tracker.busy:
            took = self.batch_sizing.end(self._now())
            self.batch_at = self._records_at = self._now()
            self._observer.batch(before, took or 0.0)
        if before != self.tracker.in_flight:
            self.session.changed()

    async def replay(self, end: Offsets) -> tuple[ShardId, ...]:
        """Which shards of a logged, unfinished micro-batch are to be read again. Waits for the first heartbeat's answer."""
        await self._joined.wait()
        # Whoever goes begins nothing: others read it, from the coordinator's position on.
        ours = self.tracker.replay({} if self.session.ending else end.shards)
        dropped = {shard: each for shard, each in sorted(end.shards.items()) if each.start < each.stop and shard not in ours}
        self._adoption.left_out(dropped)
        self.batch = read_again(ours, self.tracker.held(), self.tracker.source_ids)
        self.session.log_shards("replaying", {shard: each.epoch for shard, each in ours.items()})
        self.session.log_shards("dropping the logged range of", {shard: each.epoch for shard, each in dropped.items()})
        self.batch_sizing.forget()
        self.session.changed()
        return tuple(ours)

    async def prepare_available_now(self) -> None:
        """For Trigger.AvailableNow: wait for the first assignment and read up to what there is now, without a warm-up."""
        self.ready = True
        self.session.heartbeat_now()
        bounds = EndOffsets()
        while not (wanted := self.tracker.positions().keys()) or not wanted <= bounds.keys():
            self._records.clear()
            # One that ends where it is read to is read on once the coordinator has looked how far, or is not ours any more.
            positions, ends = self.tracker.positions(), self.tracker.ends()
            missing = {shard for shard in wanted - bounds.keys() if ends.get(shard) != positions[shard]}
            reached = await self._end_offsets.reached(missing) if missing else {}
            bounds = EndOffsets({**bounds, **reached}, {**bounds.leaders, **epochs_in(reached)})
            if not reached:
                await self._records.wait()
        self._bounds = AvailableNow(EndOffsets({shard: bounds[shard] for shard in wanted}, bounds.leaders))
        self._records_at = self._now()

    def known_end_offsets(self) -> Mapping[ShardId, Offset]:
        """The known ends of the shards that we hold."""
        return self._end_offsets.known()

    def query_ended(self) -> bool:
        """The stream reader is gone: what it did not finish never will be, and its shards may be released.

        Returns whether the consumer should leave unless another query begins: not after Trigger.AvailableNow, which ends by
        itself and is made to be started again.
        """
        leaves = self._bounds is None and not self.draining
        self.batch = None
        self._bounds = None
        self.batch_sizing.forget()
        self.tracker.abandon()
        self.session.changed()
        return leaves
