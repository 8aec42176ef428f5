"""One shard that is held: its processor, its batches one after the other, and its end. Made by `worker` for each grant.

It decides when a batch is handed out and what becomes of one that failed; for how long one is waited for is `calling`'s
decision. It must not fetch, and knows of grants only what the shard in hand says. All of it but the program's own code runs on
one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from shardherd.client.in_hand import ShardInHand
from shardherd.clock import boot_time
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import Offset
from shardherd.core.model.positions import whole_number
from shardherd.worker.callbacks import Callbacks
from shardherd.worker.calling import Calling, GivenUpError
from shardherd.worker.crew import Call, CancelledInCrewError, is_async
from shardherd.worker.delivery import Delivery
from shardherd.worker.fetched import Part, batches
from shardherd.worker.metrics import Held
from shardherd.worker.options import WorkerOptionError
from shardherd.worker.processor import AnyProcessor, AsyncCheckpoint, Checkpoint, Saves
from shardherd.worker.queueing import QueueingProcessor
from shardherd.worker.record_processor import RecordProcessor
from shardherd.worker.records import Records
from shardherd.worker.surroundings import Surroundings
from shardherd.worker.telling import Telling
from shardherd.worker.too_long import shortened
from shardherd.worker.trying import Trying
from shardherd.worker.unfinished import check_done

log = logging.getLogger(__name__)

IN_A_ROW = 0.02
"""Seconds for which a thread goes on with its shard's next batches by itself: to come back costs as much as a small one."""


class UnreadableError(Exception):
    """What was fetched cannot be decoded. Its cause names the shard and the offset."""


class Holding:
    """A shard in hand, from its first record to its last. `turned` is set by whoever changes something that it waits for.
    Others read `name`; `busy`, whether a batch is in hand or is to be tried again, and `trouble`, why the last attempt failed.
    """

    def __init__(self, around: Surroundings, shard: ShardInHand) -> None:
        self.name = shard.name
        self.turned = asyncio.Event()
        self.busy = False
        self.trouble = ""
        self._around, self._consumer, self.options = around, around.consumer, around.options
        self.shard = shard
        self._calling = Calling(around, shard, self.turned, self._stop)
        self._telling = Telling(around.listener, shard, self._calling, around.counts)
        self._trying = Trying(around.counts, lambda: self._calling.fields)
        callbacks = Callbacks(shard, around.crew, around.counts, around.telling)
        self._saves = Saves(shard, self._upto, asyncio.get_running_loop(), callbacks)
        self._part: Part | None = None
        self._cut: Iterator[Records] = iter(())
        self._records: Records | None = None
        self._delivery: Delivery | None = None
        # Calls of process that have ended since they were counted, records of all but the last, and up to where records were.
        self._calls = self._past = 0
        self._counted = shard.position
        self._counted_by_position = not is_of_kinesis(shard.name)
        # All before it is done, although nobody but the thread that did it knows.
        self._reached = shard.position

    async def run(self) -> None:
        """Until the shard is to be given up, or this run of the consumer ends. Raises UnreadableError, CancelledError."""
        around, name = self._around, self.shard.name
        around.stream.open(name, self.shard.position, self.turned.set, lambda: self.shard.end)
        try:
            processor: AnyProcessor | None = None
            try:
                processor = await self._begin()
                if isinstance(processor, RecordProcessor):
                    await self._deliver(processor)
                elif processor is not None:
                    await self._process_all(processor)
            finally:
                await self._end(processor)
        except (FencedEpochError, ConsumerStoppedError) as over:
            log.info("stops processing: %s", over, extra=self._calling.fields)
        finally:
            self._saves.close()
            around.slots.leave(self.turned)
            around.stream.close(name)
        if self._calling.cancelled:
            raise asyncio.CancelledError

    def _leaving(self) -> bool:
        # A call, as it changes while others run: what mypy knows of a property lasts.
        return self._calling.leaving

    def _stop(self) -> None:
        """Who iterates over the batch in hand gets no further record."""
        if (records := self._records) is not None:
            records.stop()

    @property
    def cancelled(self) -> bool:
        """Whether this run is over, so that it is there only because something of the program has not ended."""
        return self._calling.cancelled

    def picture(self) -> Held:
        """The shard now, for who scrapes."""
        in_hand = len(self._records or ()) if self._delivery is None else self._delivery.pending
        queued = (0, 0) if self._delivery is None else self._delivery.queue.queued
        stream, trouble = self._around.stream, bool(self.trouble)
        if self._counted_by_position:
            return Held(self.name, self.shard.done, stream.end_of(self.name), in_hand, trouble, *queued)
        seconds = stream.seconds_behind(self.name)
        return Held(self.name, None, None, in_hand, trouble, *queued, seconds_behind=seconds)

    # --- from begin to end -----------------------------------------------------------------------------------------------

    async def _begin(self) -> AnyProcessor | None:
        """A processor that is initialized; None if the shard is to be given up before."""
        while (left := self._around.adrift.get(self.shard.name)) is not None and not self._leaving():
            # An earlier batch of this shard, which was given up, still runs: never two hands on one shard.
            next(iter(left)).ended.add_done_callback(self._calling.turns)
            await self._calling.turn()
        while not self._leaving():
            if not self._around.slots.take(self.turned):
                await self._calling.turn()
                continue
            # Also what a processor sets up may wait for something that is away.
            self.busy, what = True, "on_assigned"
            try:
                try:
                    await self._telling.assigned()
                    what = "initialize"
                    processor: AnyProcessor = await self._calling.finished(self._around.crew.call(self._around.factory))
                    self._around.lend(processor, self.shard)
                    await self._calling.finished(self._calling.begin(processor.initialize, self.shard.name))
                finally:
                    self._around.slots.give_back()
            except GivenUpError:
                return None
            except WorkerOptionError:
                raise
            except Exception as error:  # noqa: BLE001 - a program may raise anything
                await self._failed(what, error)
            else:
                self._succeeded()
                return processor
        return None

    async def _process_all(self, processor: AnyProcessor) -> None:
        process = self._on_loop if is_async(processor.process) else self._in_thread
        work = partial(process, processor, self._saves.as_seen_by(processor.process))
        while not self._leaving():
            if self._consumer.paused or not self._has_next() or not self._around.slots.take(self.turned):
                await self._calling.turn()
                continue
            try:
                try:
                    result = await self._processed(work)
                finally:
                    await self._done(self._reached)
                gets_on = await self._went_on(result)
            except GivenUpError:
                return
            except UnreadableError:
                raise
            except Exception as error:
                if self._leaving():
                    if isinstance(error, FencedEpochError | ConsumerStoppedError):
                        raise
                    if isinstance(error, CancelledInCrewError):
                        return
                # Of a shard that stays it is a failure as any other: a program may raise anything.
                self._keep_what_was_saved()
                await self._failed("process", error)
            else:
                if gets_on:
                    self._succeeded()
                else:
                    await self._failed("process", None)

    async def _deliver(self, processor: RecordProcessor) -> None:
        """The records are acknowledged one by one."""
        kept = processor.kept() if isinstance(processor, QueueingProcessor) else None
        if kept is not None:
            self._around.stream.skip(self.name, kept.next)
        self._delivery = Delivery(self, processor, self._around.dead_letters, kept)
        with contextlib.suppress(GivenUpError):
            await self._delivery.run()

    async def _end(self, processor: AnyProcessor | None) -> None:
        """The listener and the processor hear that the shard goes; not the latter where some of the shard still runs."""
        if self._calling.given_up:
            self._saves.close()
            if isinstance(processor, QueueingProcessor):
                self._calling.leave_adrift(self._calling.begin(processor.abandoned))
            await self._telling.lost()
            return
        self._calling.halted, self._records = True, None
        # It takes no slot any more: who stands behind it in the line must not wait for its shutdown.
        self._around.slots.leave(self.turned)
        if processor is None and not self._telling.owed:
            return
        self.busy, slots = True, self._around.shutdown_slots
        took = await self._calling.slot_for_shutdown()
        try:
            await self._telling.revoked(self._saves)
            if processor is not None and not self._calling.given_up:
                await self._shut_down(processor)
        except GivenUpError:
            return
        except (FencedEpochError, ConsumerStoppedError) as over:
            log.info("shutdown could not save: %s", over, extra=self._calling.fields)
        except Exception:
            self._around.counts.failures["shutdown"] += 1
            log.exception("shutdown failed; what is done is saved all the same", extra=self._calling.fields)
        finally:
            if took:
                slots.give_back()

    async def _shut_down(self, processor: AnyProcessor) -> None:
        checkpoint = self._saves.as_seen_by(processor.shutdown)
        try:
            await self._calling.finished(self._calling.begin(processor.shutdown, checkpoint))
        except GivenUpError:
            raise
        except Exception:
            if isinstance(processor, QueueingProcessor):
                # It was cancelled, maybe before it began. This is not: while something is sent the shard is in hand.
                await self._calling.finished(Call(self._calling.begin(processor.abandoned).ended))
            raise

    # --- one batch -------------------------------------------------------------------------------------------------------

    def _has_next(self) -> bool:
        """Whether there is something to process; takes it out of the stream."""
        if self._part is None:
            self._part = self._around.stream.pop(self.shard.name)
            if self._part is None:
                return False
            cut = batches(self._part, self.options.batch_size)
            self._cut = shortened(cut, self.options.max_value_bytes, self._around.counts)
        return True

    async def _processed(self, work: Callable[[], Any]) -> Any:
        """What `process` has returned for the next batch. The slot that was taken is given back."""
        begun = boot_time()
        try:
            self._consumer.check()
            self.busy = True
            return await self._calling.finished(self._calling.begin(work))
        finally:
            self._around.slots.give_back()
            self._around.counts.took(boot_time() - begun, self._calls)
            self._count(self._past)
            self._calls = self._past = 0

    def _in_thread(self, processor: AnyProcessor, checkpoint: Checkpoint | AsyncCheckpoint) -> Any:
        until = boot_time() + IN_A_ROW
        while True:
            records = self._next()
            result = processor.process(records, checkpoint) if records else None
            self._calls += bool(records)
            check_done("process", result, may_be_async=True)
            if result is not None or not self._goes_on_by_itself(records, until):
                return result
            self._past += len(records)
            self._reached, self._records = records.next, None

    async def _on_loop(self, processor: AnyProcessor, checkpoint: Checkpoint | AsyncCheckpoint) -> Any:
        records = self._next()
        result = await processor.process(records, checkpoint) if records else None
        self._calls += bool(records)
        return result

    def _goes_on_by_itself(self, records: Records, until: float) -> bool:
        """Whether the thread that has done this batch may begin the next one at once. Called there: it only looks."""
        part = self._part
        whole = part is not None and records.done == records.next < part.next
        return whole and boot_time() < until and not self._leaving() and not self._consumer.paused

    def _next(self) -> Records:
        """The batch in hand, which is the next one if there is none. Called where it is processed."""
        if self._records is None:
            try:
                self._records = next(self._cut)
            except Exception as error:
                raise UnreadableError(str(error)) from error
        if self._calling.halted:
            self._records.stop()
        self._records.begin()
        return self._records

    async def _went_on(self, result: Any) -> bool:
        """Take in what `process` has returned. Whether it got on; if not, trying again at once would lead nowhere."""
        records = self._in_hand()
        if result is None:
            await self._done(records.done)
            self._go_to(records.done)
            return True
        result = whole_number(result, "process must return None or")
        # What is done may be durable at any moment, or be on its way: nobody can go back behind it.
        if not self.shard.done <= result <= records.next:
            again = max(self.shard.done, records.position)
            raise ValueError(
                f"process returned position {result} of shard {records.shard}, which is not between what is done,"
                f" {self.shard.done}, and the end of the batch, {records.next}: the batch is tried again from {again}"
            )
        position = self._uncut(result, records)
        await self._done(position)
        self._go_to(position)
        return position > records.position

    def _keep_what_was_saved(self) -> None:
        """What a batch that failed has declared done is not tried again."""
        if self._records is not None and self.shard.done > self._records.position:
            self._go_to(min(self.shard.done, self._records.next))

    async def _done(self, position: Offset) -> None:
        if (reached := max(position, self.shard.done)) > self._counted:
            if self._counted_by_position:
                self._around.counts.records += reached - self._counted
            self._counted = reached
        if position > self.shard.done:
            await self.shard.save_checkpoint(position, now=False)

    def _go_to(self, position: Offset) -> None:
        """Process on from here: within the batch in hand, or after it."""
        records = self._in_hand()
        if position < records.next:
            self._records = records.since(position)
            self._count(len(records) - len(self._records))
        else:
            self._count(len(records))
            self._records = None
            if self._part is not None and records.next >= self._part.next:
                self._drop_part()
                self._around.stream.done(self.shard.name)

    def _count(self, done: int) -> None:
        """So many records more are done: counted here where positions do not count them."""
        if not self._counted_by_position:
            self._around.counts.records += done

    def _drop_part(self) -> None:  # with what cuts it, which would keep what was decoded until the next part
        self._part, self._cut = None, iter(())

    def _in_hand(self) -> Records:
        assert self._records is not None
        return self._records

    def _upto(self, position: Offset | None) -> Offset:
        """What is done when a program saves: never what was not given out to it. Raises ValueError."""
        done, records = max(self.shard.done, self._reached), self._records
        if position is None:
            return done if records is None else max(done, records.finished)
        end = done if records is None else max(done, records.next)
        if position > end:
            raise ValueError(f"shard {self.name} was given out up to {end}; a checkpoint at {position} would pass what was not")
        return position if records is None else self._uncut(position, records)

    def _uncut(self, position: Offset, records: Records) -> Offset:
        """`records.next` is still the end of a batch that was cut short: the rest was not given out."""
        return min(records.whole(position), max(records.done, self.shard.done))

    # --- for a delivery, which hands out record after record ------------------------------------------------------------------

    @property
    def fields(self) -> dict[str, Any]:
        return self._calling.fields

    @property
    def leaving(self) -> bool:
        return self._leaving()

    @property
    def over(self) -> bool:
        return self._calling.over

    @property
    def patience(self) -> float:
        return self._calling.patience

    def may_hand_out(self, *, new: bool) -> bool:
        """Whether the delivery's turn has come, with something `new` if that is asked for. Then `ran` gives its slot back."""
        paused = self._consumer.paused and not self._leaving()  # what is begun is finished
        if paused or (new and not self._has_next()):
            self.no_hand_out()
            return False
        return self._around.slots.take(self.turned)

    def no_hand_out(self) -> None:
        """There is nothing to hand out: it stands in no line."""
        self._around.slots.leave(self.turned)

    def next_batch(self) -> Records | None:
        """The next records that have come. Called where they are handed out. Raises UnreadableError."""
        part = self._part
        if part is None:
            return None
        records, self._records = self._next(), None
        if records.next >= part.next:
            self._drop_part()
        return records

    def batch_is_out(self) -> None:
        """All records of the last batch were handed out: what was fetched with them takes no more of the memory."""
        if self._part is None:
            self._around.stream.done(self.name)

    def count(self, *, records: int, failures: int) -> None:
        """So many records more are done, and so many tries have failed."""
        self._around.counts.records += records
        if failures:
            self._around.counts.failures["process"] += failures

    def count_bad(self, outcome: str) -> None:
        """A record is not processed any more. From any thread."""
        self._around.counts.bad(outcome)

    async def ran(self, work: Callable[[], Any]) -> Any:
        """Run this where the program's code runs, in the slot that was taken."""
        try:
            # What is begun is finished, also while the consumer drains.
            if not self._leaving() or self.over or self._consumer.session.end_if_too_silent():
                self._consumer.check()
            return await self._calling.finished(self._calling.begin(work))
        finally:
            self._around.slots.give_back()

    async def ended(self, work: Callable[[], Any]) -> None:
        """Run this, which ends what was cancelled. What has not ended after a moment is given up, where that may be."""
        with contextlib.suppress(GivenUpError):
            await self._calling.finished(self._calling.begin(work), cancelled=True)

    async def turn(self, seconds: float | None) -> None:
        await self._calling.turn(seconds)

    # --- trying again ---------------------------------------------------------------------------------------------------------

    def _succeeded(self) -> None:
        self._trying.succeeded()
        self.busy, self.trouble = False, ""

    async def _failed(self, what: str, error: Exception | None) -> None:
        """Say what has failed, and wait for a while. Without an error it went back to where it began."""
        self.busy = True
        of = repr(self._records) if self._records is not None and what == "process" else f"shard {self.shard.name}"
        self.trouble, pause = self._trying.failed(what, of, error)
        loop = asyncio.get_running_loop()
        until = loop.time() + pause
        while not self._leaving() and (left := until - loop.time()) > 0:
            await self._calling.turn(left)
