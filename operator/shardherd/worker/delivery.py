"""Hands out the records of one shard one by one, each of which is acknowledged: made by `holding` for a RecordProcessor.

It decides what becomes of a record that failed too often, and when a position that does not move is told of. Which record is
next, and what may be committed, is `core.consumer.pending`'s rule; when the shard is given up is the holding's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from shardherd.client.in_hand import ShardInHand
from shardherd.consumer.contained import contained, text_of
from shardherd.core.consumer.pending import Emitted, Pending
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import Place
from shardherd.worker.counts import BURIED, SKIPPED
from shardherd.worker.crew import Work, is_async
from shardherd.worker.dead_letters import DeadLetters
from shardherd.worker.options import Options
from shardherd.worker.queueing import QueueingProcessor
from shardherd.worker.record_processor import Ack, RecordProcessor
from shardherd.worker.records import Record, Records
from shardherd.worker.unfinished import check_done

log = logging.getLogger(__name__)


MEANWHILE = 1.0
"""Seconds between two looks while a thread of the program has records in hand, so that nothing wakes the delivery."""

MOMENT = 0.001
"""Fewest seconds until something that is not due yet is looked at."""


class BadRecordError(Exception):
    """A record failed too often, and the options say that this ends the worker."""


class Hands(Protocol):
    """What a holding lends. `turned` is set by whoever changes something."""

    turned: asyncio.Event
    busy: bool
    trouble: str

    @property
    def shard(self) -> ShardInHand: ...
    @property
    def options(self) -> Options: ...
    @property
    def fields(self) -> dict[str, Any]: ...
    @property
    def leaving(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def patience(self) -> float: ...
    def may_hand_out(self, *, new: bool) -> bool: ...
    def no_hand_out(self) -> None: ...
    def next_batch(self) -> Records | None: ...
    def batch_is_out(self) -> None: ...
    def count(self, *, records: int, failures: int) -> None: ...
    def count_bad(self, outcome: str) -> None: ...
    async def ran(self, work: Work) -> Any: ...
    async def ended(self, work: Work) -> None: ...
    async def turn(self, seconds: float | None) -> None: ...


class Delivery:
    """The records of a shard in hand: first those that were `kept`. `queue` is the processor, if it has one."""

    def __init__(
        self, hands: Hands, processor: RecordProcessor, dead_letters: DeadLetters | None, kept: Records | None = None
    ) -> None:
        self._hands = hands
        self._options = options = hands.options
        self._processor = processor
        processor.max_pending = options.max_pending
        self.queue = processor if isinstance(processor, QueueingProcessor) else QueueingProcessor()
        self._dead_letters = dead_letters
        self._loop = asyncio.get_running_loop()
        # Of what any thread may touch: whoever acknowledges does so in its own.
        self._lock = threading.Lock()
        self._ledger: Pending[Record] = Pending(
            hands.shard.position,
            most=options.max_pending,
            in_order=options.in_order,
            timeout=options.ack_timeout,
            now=self._loop.time(),
        )
        self._asleep = self._closed = self._handing_out = False
        self._raised_in_vain = False
        # What was not told to the holding yet.
        self._finished = self._failed = 0
        # What the processor was not told yet.
        self._late: list[Record] = []
        self._records = kept
        self._left: Iterator[Record] = iter(kept or ())
        self._alarm_at = options.alarm_after
        # The attempts that are coroutines and run. Changed on their loop only.
        self._tasks: dict[tuple[Place, int], asyncio.Task[None]] = {}
        self.queue.begin(self.save, self.wake)

    async def run(self) -> None:
        """Until nothing may be handed out any more, and what was is done or is not waited for any longer."""
        meanwhile = asyncio.create_task(self._look_meanwhile())
        try:
            while not self._ends():
                if self._hands.leaving:
                    self.queue.finish()  # what is in it may be in the way of the rest
                await self._step()
            await self._settle_all()
            # Before the last position is saved: what comes from now on must not be told that it counts.
            self._close()
            await self._save()
        except Exception as error:
            if not isinstance(error, FencedEpochError | ConsumerStoppedError):
                # Who hears of it waits for the coroutines that run, in an ordered group for as long as they do.
                log.warning("no more records are handed out: %s: %s", type(error).__name__, error, extra=self._hands.fields)
            raise
        finally:
            meanwhile.cancel()
            self._close()
            if is_async(self._processor.process):
                # None of them may run beside what comes next: `shutdown`, another processor, or another consumer.
                await self._hands.ended(self._end_coroutines)

    async def _look_meanwhile(self) -> None:
        """A record that takes its time must not keep others from being saved, or from being late."""
        with contextlib.suppress(FencedEpochError, ConsumerStoppedError):  # who hands out hears of it, too
            while True:
                await asyncio.sleep(MEANWHILE)
                if self._handing_out:
                    self._look()
                    await self._save()

    @property
    def pending(self) -> int:
        """How many records were handed out and are not finished. May be asked in any thread."""
        return len(self._ledger)

    async def save(self) -> None:
        """All that is acknowledged is durable when this returns. May be awaited on any loop; raises as a checkpoint's does."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._save_now(), self._loop))

    def _stops(self) -> bool:
        """Whether nothing is handed out any more. Under the lock, from any thread.

        Of an aggregated record all are handed out: where the shard goes in the middle of one, the position stays before it, and
        those that are acknowledged come again.
        """
        return self._hands.leaving and (self._hands.over or not self._ledger.halfway)

    # --- on the session's loop -------------------------------------------------------------------------------------------

    def _ends(self) -> bool:
        with self._lock:
            stops = self._stops()
        return stops or (self._hands.leaving and self._hands.patience <= 0)

    async def _step(self) -> None:
        hands = self._hands
        if self.queue.defect is not None:
            raise self.queue.defect
        self._look()
        await self._save()
        with self._lock:
            now = self._loop.time()
            comes_again = self._ledger.due_in(now) == 0.0
            room = self._has_room()
            self._asleep = True
        may = (comes_again or room) and hands.may_hand_out(new=not comes_again and self._records is None)
        if may:
            self._asleep = False
            hands.busy = self._handing_out = True
            try:
                await hands.ran(self._hand_out_coroutines if is_async(self._processor.process) else self._hand_out)
            finally:
                self._handing_out = False
                if self._records is None:
                    hands.batch_is_out()
                await self._save()
            return
        if not comes_again and not room:
            hands.no_hand_out()
        # What is due and has no turn now, as all slots are taken or the group is paused, is woken when it has.
        await self._turn(hands.patience if hands.leaving else float("inf"), failed=not comes_again)
        self._asleep = False

    def _look(self) -> None:
        """What is over by itself: attempts whose time is, and the patience with a position that does not move."""
        hands, now = self._hands, self._loop.time()
        with self._lock:
            late = self._ledger.expire(now)
            self._failed += len(late)
            self._late += [each.record for each in late]
            attempts = [self._tasks.get((each.place, each.tries)) for each in late]
            stuck = self._ledger.stuck(now)
            pending = len(self._ledger)
        hands.busy = bool(self._handing_out or pending or self.queue.queued[0])
        for each, task in zip(late, attempts, strict=True):
            log.warning("%s: %s", each.record.name, each.reason, extra=hands.fields)
            if task is not None:
                # It counts no more, and the next attempt would run beside it.
                task.get_loop().call_soon_threadsafe(task.cancel)
        if stuck is None or not self._options.alarm_after:
            hands.trouble = self.queue.trouble
            return
        first, seconds = stuck
        if seconds < self._options.alarm_after:
            self._alarm_at, hands.trouble = self._options.alarm_after, self.queue.trouble
        elif seconds >= self._alarm_at:
            self._alarm_at = 2 * seconds
            why = f"failed: {first.reason}" if first.reason else "is not acknowledged"
            hands.trouble = (
                f"the position of shard {hands.shard.name} has not moved from {first.offset} for {seconds:.0f} s: that record"
                f" {why}; it was handed out {first.tries} times, {pending} are pending"
                + (f"; {self.queue.trouble}" if self.queue.trouble else "")
            )
            log.warning("%s", hands.trouble, extra=hands.fields)

    async def _turn(self, patience: float, *, failed: bool) -> None:
        """Wait until something has changed or is due, and no longer than for so many seconds."""
        wake = self._wake_in(self._loop.time(), failed=failed)
        seconds = patience if wake is None else min(patience, wake)
        await self._hands.turn(seconds if seconds < float("inf") else None)

    def _wake_in(self, now: float, *, failed: bool) -> float | None:
        with self._lock:
            due = [self._ledger.due_in(now, failed=failed)]
            stuck = self._ledger.stuck(now)
        if stuck is not None and self._options.alarm_after:
            due.append(max(0.0, self._alarm_at - stuck[1]))
        # Not less than a moment: a time that was computed may be a hair ahead, and to wait for that hair may be no time at all.
        return min((max(MOMENT, each) for each in due if each is not None), default=None)

    async def _save(self) -> None:
        with self._lock:
            position = self._ledger.position
            finished, failed, self._finished, self._failed = self._finished, self._failed, 0, 0
        self._hands.count(records=finished, failures=failed)
        if position > self._hands.shard.done:
            await self._hands.shard.save_checkpoint(position, now=False)

    async def _save_now(self) -> None:
        await self._save()
        await self._hands.shard.save_checkpoint(self._hands.shard.done, now=True)

    def _has_room(self) -> bool:
        return self._ledger.room and not self.queue.full

    async def _settle_all(self) -> None:
        """Nothing is handed out any more: wait for what was, and no longer than the holding has patience.

        What waits in the queue for a record that failed too often is not waited for: that one is not handed out again either.
        """
        hands = self._hands
        hands.no_hand_out()
        self.queue.finish()
        while True:
            self._look()
            await self._save()
            patience, held_by = hands.patience, self.queue.held_by
            with self._lock:
                out = self._ledger.out(before=held_by)
                self._asleep = True
            if not out:
                return
            if patience <= 0:
                log.warning("%d records are given up, and processed again", out, extra=hands.fields)
                return
            await self._turn(patience, failed=False)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        self.queue.end()

    # --- where the program's code runs -----------------------------------------------------------------------------------

    def _next(self) -> Emitted[Record] | None:
        """What is handed out now."""
        with self._lock:
            now = self._loop.time()
            if self._stops():
                return None
            emitted = self._ledger.again(now)
            if emitted is not None:
                return emitted
            while self._has_room() and not self._stops():
                if self._records is None:
                    self._records = self._hands.next_batch()
                    if self._records is None:
                        return None
                    self._left = iter(self._records)
                record = next(self._left, None)
                if record is not None:
                    after = record.offset + 1
                    return self._ledger.emit(record.place, record, now, more=self._records.whole(after) < after)
                # Not always its end: it is cut where another thread has stopped it, as the shard is wanted.
                self._ledger.reach(self._records.done)
                self._records = None
        return None

    def _tell_late(self) -> None:
        with self._lock:
            late, self._late = self._late, []
        for record in late:
            self._tell("late", self._processor.late, record)

    def _tell(self, what: str, method: Callable[[Record], None], record: Record) -> None:
        """The processor hears what becomes of a record, whatever it makes of it."""
        try:
            method(record)
        except BaseException:
            log.exception("%s of %s failed; it changes nothing", what, record.name, extra=self._hands.fields)

    def _hand_out(self) -> None:
        """In a thread."""
        self._tell_late()
        for _ in range(self._options.batch_size):
            if (emitted := self._next()) is None:
                return
            ack = Ack(emitted.record, emitted.tries, self._settled)
            if self._is_bad(emitted):
                self._bury(emitted, ack)
                continue
            try:
                check_done("process", self._processor.process(emitted.record, ack), may_be_async=True)
            except BaseException as error:  # noqa: BLE001 - a program may raise anything
                self._raised(ack, error)

    async def _hand_out_coroutines(self) -> None:
        """On the loop of the program's coroutines."""
        self._tell_late()
        for _ in range(self._options.batch_size):
            if (emitted := self._next()) is None:
                return
            ack = Ack(emitted.record, emitted.tries, self._settled)
            bad = self._is_bad(emitted)
            attempt = (emitted.place, emitted.tries)
            self._tasks[attempt] = task = asyncio.create_task(self._one_coroutine(emitted, ack, bad=bad))
            task.add_done_callback(partial(self._over, attempt))

    def _over(self, attempt: tuple[Place, int], _: object) -> None:
        del self._tasks[attempt]

    async def _end_coroutines(self) -> None:
        """On that loop: cancel those that run, and wait until they have ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._processor.end_calls()

    async def _one_coroutine(self, emitted: Emitted[Record], ack: Ack, *, bad: bool) -> None:
        try:
            if bad:
                await asyncio.to_thread(self._bury, emitted, ack)
            else:
                with contained("process"):
                    await self._processor.process(emitted.record, ack)
        except asyncio.CancelledError as error:
            ack.fail(error)
            raise
        except Exception as error:  # noqa: BLE001 - a program may raise anything
            self._raised(ack, error)

    def _raised(self, ack: Ack, error: BaseException) -> None:
        """From the thread, or the loop, where it is processed. What is raised of a record that is over already changes nothing;
        it is told once with its place in the program."""
        name, fields = ack.record.name, self._hands.fields
        if ack.fail(error):
            level = logging.WARNING if ack.tries == 1 else logging.DEBUG
            log.log(level, "%s failed, try %d: %s", name, ack.tries, text_of(error), extra=fields, exc_info=error)
        else:
            level = logging.DEBUG if self._raised_in_vain else logging.WARNING
            self._raised_in_vain = True
            log.log(
                level,
                "process of %s raised, after that was acknowledged, had failed or was late: it changes nothing, and more of"
                " this kind is in the log at level DEBUG: %s",
                name,
                text_of(error),
                extra=fields,
                exc_info=error,
            )

    def _is_bad(self, emitted: Emitted[Record]) -> bool:
        """Whether it failed so often that it is not processed again. Raises BadRecordError where that ends the worker."""
        tries = self._options.tries
        if not tries or emitted.failures < tries or self.queue.keeps(emitted.place):
            return False
        if self._options.bad_records == "fail":
            shard = self._hands.shard.name
            others = "skip" if is_of_kinesis(shard) else "skip or dead-letter"
            raise BadRecordError(
                f"{emitted.record.name} of shard {shard} failed {tries} times: {emitted.reason}; to go past such records set"
                f" bad_records to {others}"
            )
        return True

    def _bury(self, emitted: Emitted[Record], ack: Ack) -> None:
        """It is not processed again: it goes where bad records go, and is tried again as long as it cannot."""
        tries, shard = self._options.tries, self._hands.shard.name
        if self._options.bad_records == "dead-letter":
            assert self._dead_letters is not None
            try:
                self._dead_letters.bury(shard, emitted.record, emitted.reason, tries)
            except Exception as error:  # noqa: BLE001 - whatever keeps Kafka from having it may be over
                topic, fields = self._options.dead_letters, self._hands.fields
                log.warning("record %d is not in topic %s yet: %s", emitted.offset, topic, error, extra=fields)
                ack.fail(emitted.reason)
                return
        self._hands.count_bad(BURIED if self._dead_letters is not None else SKIPPED)
        self._tell("gone", self._processor.gone, emitted.record)
        ack()
        log.error(
            "%s of shard %s failed %d times, and is %s: %s",
            emitted.record.name,
            shard,
            tries,
            f"in topic {self._options.dead_letters}" if self._options.dead_letters else "passed over",
            emitted.reason,
            extra=self._hands.fields,
        )

    # --- from any thread -------------------------------------------------------------------------------------------------

    def _settled(self, record: Record, attempt: int, reason: str | None, bad: bool) -> bool:
        now = self._loop.time()
        with self._lock:
            if self._closed:
                return False
            if reason is None:
                counts = self._ledger.ack(record.place, attempt, now)
                self._finished += counts
            else:
                limit = self._options.tries
                counts = self._ledger.fail(record.place, attempt, reason, now, limit=limit, bad=bad)
                self._failed += counts
            wake, self._asleep = counts and self._asleep, self._asleep and not counts
        if wake:
            self.wake()
        return counts

    def wake(self) -> None:
        """Something has changed: look at it."""
        try:
            self._loop.call_soon_threadsafe(self._hands.turned.set)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
