"""Sends the records of a shard to outputs in batches, by a bounded queue, as Filebeat does. A record is done once all have it.

A user's Outputs is one more RecordProcessor to `delivery`, whose ledger has the position. It decides when a record is
acknowledged, by the guarantee, and the order in which things begin and end; when a batch is sent is
`core.consumer.output_queue`'s rule, what a failed one means `sending`'s, what outlives the process `queue_file`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import reprlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shardherd.consumer.contained import contained
from shardherd.core.consumer.output_queue import OutputQueue
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import Offset, Place, ShardId
from shardherd.worker.crew import is_async
from shardherd.worker.guarantees import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DROP,
    EXACTLY_ONCE,
    WAIT,
    OutputsError,
    check,
    check_name,
    check_of_kinesis,
    check_output,
    check_output_of_kinesis,
)
from shardherd.worker.kafka_output import KafkaOutput
from shardherd.worker.output import Output, ShardGrant
from shardherd.worker.queue_file import CLEAN_AFTER, Kept, QueueFile, clean
from shardherd.worker.queueing import Lent, QueueingProcessor
from shardherd.worker.record_processor import Ack
from shardherd.worker.records import Record, Records, records_of, size_of
from shardherd.worker.sending import Batch, Sending, called
from shardherd.worker.unfinished import check_done

log = logging.getLogger(__name__)

_BEGAN = time.time()

_ADJUSTED = 60.0
"""Seconds by which the wall clock may be put back while files wait to be deleted."""

_BYTES = bytes | bytearray | memoryview


class Outputs(QueueingProcessor):
    """Sends each record to all `outputs`, which are classes of `Output`, or functions that make one.

    `guarantee`: "at-least-once"; "at-most-once": the position is durable before a batch is sent, and what an output does not
    take is dropped; "exactly-once": outputs keep the position with the records, see `TransactionalOutput`.

    `batch_size`: most records of a batch, which is sent with so many, or once the first has waited for `batch_wait` seconds, or
    when the queue is full. A call of an output that takes longer than `write_timeout` seconds hangs, and is told of.
    `queue_bytes`: about how many bytes may be in the queue, beside the options' `max_pending` records. `queue_directory`: a
    folder for files in which the queue outlives the process, each of at most `queue_file_bytes`; empty: in memory only.
    `when_full`: "wait", or "drop": records that do not fit are dropped, and counted.
    """

    outputs: Sequence[Callable[[], Output]] = ()
    guarantee: str = AT_LEAST_ONCE
    batch_size: int = 2048
    batch_wait: float = 1.0
    write_timeout: float = 60.0
    queue_bytes: int = 16 * 1024 * 1024
    queue_directory: str = ""
    queue_file_bytes: int = 64 * 1024 * 1024
    when_full: str = WAIT

    def select(self, record: Record) -> Record | None:
        """What is sent of a record, under its place; None: nothing is, and the record is done."""
        return record

    def acknowledged(self, records: Sequence[Record]) -> None:
        """All outputs have these records now: each once, in order where the option `in_order` says so. Must not block."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check(cls)

    # Before the first record: what another thread asks then has an answer.
    _lent: Lent
    _queue: OutputQueue[Record] | None = None
    _kept: dict[Offset, Kept] = {}  # noqa: RUF012 - of the class, and never changed
    _file: QueueFile | None = None
    _cleaning: asyncio.Task[None] | None = None
    _defect: BaseException | None = None
    _sendings: Sequence[Sending] = ()
    _tasks: Sequence[asyncio.Task[None]] = ()
    _open: list[Output] = []  # noqa: RUF012 - as above
    _ended = False
    _committed: Offset = 0
    _last_trouble = ""

    @property
    def full(self) -> bool:
        if self.when_full == DROP:
            return False
        return self._queue is not None and (self._queue.full or self._file_is_full())

    @property
    def queued(self) -> tuple[int, int]:
        return (0, 0) if self._queue is None else (len(self._queue), self._queue.size)

    @property
    def held_by(self) -> Place | None:
        if self._queue is None:
            return None
        with self._lock:
            return self._queue.held_by

    def keeps(self, place: Place) -> bool:
        """See QueueingProcessor."""
        queue = self._need_queue()
        with self._lock:
            return place in self._over or (place in queue and not queue.is_bad(place))

    @property
    def trouble(self) -> str:
        return "; ".join(each.trouble for each in self._sendings if each.trouble)

    @property
    def defect(self) -> BaseException | None:
        return self._defect

    # --- its begin and its end: what is behind begins first, and ends last ---------------------------------------------------

    def lend(self, lent: Lent) -> None:
        if is_of_kinesis(lent.shard.name):
            check_of_kinesis(self, lent.shard.name)
        self._lent = lent

    async def initialize(self, shard: ShardId) -> None:
        """See Processor. Who overrides it calls it."""
        lent, options = self._lent, self._lent.options
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._acks: dict[Place, Ack] = {}
        # What all have, unless its acknowledgement counted: then it was too late, and it is given again.
        self._over: set[Place] = set()
        self._wake: Callable[[], None] = lambda: None
        self._file, self._kept = await self._opened_file(), {}
        if self._file is not None:
            self._kept = {each.record.offset: each for each in self._file.kept}
        self._open = []
        try:
            for make in self.outputs:
                with contained("an output, as it was made,"):
                    output = make()
                if is_of_kinesis(shard):
                    check_output_of_kinesis(type(output), type(self).__name__, shard)
                check_output(type(output), self.guarantee, in_order=options.in_order)
                check_name(output.name, type(output).__name__)
                if isinstance(output, KafkaOutput):
                    output.reach(lent.kafka)
                check_done(f"open of {type(output).__name__}", await called(lent.crew, output.open, shard), may_be_async=True)
                self._open.append(output)
            self._begin_sending(tuple(self._open), most=options.max_pending - (self.when_full == DROP))
        except (Exception, asyncio.CancelledError):  # and not where the loop is gone, on which it could be awaited
            await self._close_all()
            raise

    async def shutdown(self, checkpoint: Any) -> None:
        """See Processor. Who overrides it calls it."""
        pairs = list(zip(self._sendings, self._tasks, strict=True))
        for sending, task in pairs:
            # What is committed and was not sent would be lost. All else comes again, and only a thread cannot be stopped.
            sending.stop(after_all=self.guarantee == AT_MOST_ONCE)
            if self.guarantee != AT_MOST_ONCE and is_async(sending.write):
                task.cancel()
        try:
            await asyncio.wait(self._tasks)
            await self._close_all()
        except asyncio.CancelledError:
            await self.abandoned()
            raise
        if not checkpoint.lost:
            await checkpoint.save(now=True)

    async def abandoned(self) -> None:
        """See QueueingProcessor. What is sent now is cancelled; a function is waited for, or another would write beside it."""
        for sending, task in zip(self._sendings, self._tasks, strict=True):
            sending.stop()
            if not task.done():
                task.cancel()
                log.warning("output %s: what it still does does not count", sending.name, extra=self._lent.fields)
        # Where the run is over the next one may go on with it.
        await self._close_file(wanted=self._lent.shard.wanted and not self._lent.shard.lost)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._close_all()

    async def _opened_file(self) -> QueueFile | None:
        if not self.queue_directory:
            return None
        lent, shard, folder = self._lent, self._lent.shard, Path(self.queue_directory)
        open_ = partial(
            QueueFile,
            folder,
            lent.group,
            shard.name,
            epoch=shard.epoch,
            held_since=shard.held_since,
            position=shard.position,
            most=self.queue_file_bytes,
        )
        file: QueueFile = await lent.crew.call(open_).ended
        if file.warning:
            log.warning("%s", file.warning, extra=lent.fields)
        self._cleaning = self._loop.create_task(self._clean(folder))
        return file

    async def _clean(self, folder: Path) -> None:
        """Delete what shards have left that do not come back, once the process has run for so long that they would have."""
        lent = self._lent
        await asyncio.sleep(max(0.0, _BEGAN + CLEAN_AFTER - time.time()) + _ADJUSTED)
        for path in await lent.crew.call(partial(clean, folder, lent.group, began=_BEGAN)).ended:
            log.info("%s is deleted: its shard has not come back", path, extra=lent.fields)

    def _begin_sending(self, outputs: Sequence[Output], *, most: int) -> None:
        lent, options = self._lent, self._lent.options
        if not outputs:
            raise OutputsError(f"{type(self).__name__} has no outputs: name at least one class in `outputs`")
        if most < 1:
            raise OutputsError(f"when_full is {DROP!r}, which takes max_pending of 2 or more, not {options.max_pending}")
        queue: OutputQueue[Record] = OutputQueue(
            len(outputs),
            most=most,
            most_bytes=self.queue_bytes,
            batch_size=self.batch_size,
            batch_wait=self.batch_wait,
            in_order=options.in_order,
        )
        sendings = []
        for number, output in enumerate(outputs):
            transactional = self.guarantee == EXACTLY_ONCE
            shard = lent.shard
            grant = ShardGrant(lent.group, shard.name, shard.epoch, shard.position, shard.source_id) if transactional else None
            sending = Sending(
                output,
                number,
                queue,
                lock=self._lock,
                crew=lent.crew,
                counts=lent.counts,
                fields=lent.fields,
                limit=options.tries,
                patience=self.write_timeout,
                settled=self._settled,
                commit=self._commit if self.guarantee == AT_MOST_ONCE else None,
                grant=grant,
            )
            sendings.append(sending)
        names = [each.name for each in sendings]
        if len(set(names)) < len(names):
            raise OutputsError(f"outputs need names of their own, not {', '.join(names)}: set `name` in their classes")
        self._queue, self._sendings = queue, sendings
        self._tasks = [self._loop.create_task(self._guarded(each)) for each in sendings]

    async def _guarded(self, sending: Sending) -> None:
        try:
            with contained(f"output {sending.name}"):
                await sending.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the delivery raises it
            self._defect = error
            self._wake()

    async def _close_all(self) -> None:
        while self._open:
            output = self._open.pop()
            try:
                result = await called(self._lent.crew, output.close)
                check_done(f"close of {type(output).__name__}", result, may_be_async=True)
            except Exception:
                log.exception("output %s could not be closed", type(output).__name__, extra=self._lent.fields)
        await self._close_file(wanted=self._lent.shard.wanted)

    async def _close_file(self, *, wanted: bool) -> None:
        """Nobody needs it any more if the shard goes to another consumer, or if there is nothing in it."""
        with self._lock:
            file, self._file = self._file, None
        if self._cleaning is not None:
            self._cleaning.cancel()
        if file is not None:
            gone = wanted or (self._queue is not None and not len(self._queue))
            await self._lent.crew.call(partial(file.close, delete=gone)).ended

    # --- for the delivery -----------------------------------------------------------------------------------------------------

    def kept(self) -> Records | None:
        if not self._kept:
            return None
        records, shard = [each.record for each in self._kept.values()], self._lent.shard
        return records_of(shard.name, records, shard.position, records[-1].offset + 1)

    def begin(self, save: Callable[[], Awaitable[None]], wake: Callable[[], None]) -> None:
        self._save, self._wake = save, wake

    def process(self, record: Record, ack: Ack) -> None:
        """See RecordProcessor."""
        queue = self._need_queue()
        with self._lock:
            kept = self._kept.pop(record.offset, None)
            known, over = record.place in queue, record.place in self._over
            self._over.discard(record.place)
            if known:
                self._acks[record.place] = ack
                queue.again(record.place)
        if over:
            ack()
            return
        if known:
            self._look()
            return
        with self._hole_unless_queued(record):
            selected = record if kept is not None else self._selected(record)
            queued = selected is not None and self._add(selected, ack, kept)
        if selected is None:
            ack()
        elif queued:
            self._look()

    def finish(self) -> None:
        if self._queue is not None:
            with self._lock:
                self._queue.flushing = True
            self._look()

    def end(self) -> None:
        if self._queue is not None and not self._ended:
            self._ended = True
            self._on_loop(self._stop_all)

    def _stop_all(self) -> None:
        for each in self._sendings:  # what is committed and was not sent would be lost
            each.stop(after_all=self.guarantee == AT_MOST_ONCE)

    def gone(self, record: Record) -> None:
        """See RecordProcessor."""
        queue = self._need_queue()
        with self._lock:
            queue.drop(record.place)
            self._over.discard(record.place)
            self._acks.pop(record.place, None)
            if self._file is not None:
                self._file.gone(record.offset)
        self._look()

    @contextlib.contextmanager
    def _hole_unless_queued(self, record: Record) -> Iterator[None]:
        """Another run must not take what follows in the file for all that there is."""
        try:
            yield
        except BaseException:
            with self._lock:
                if self._file is not None:
                    self._file.hole(record.offset)
            raise
        with self._lock:
            if self._file is not None:
                self._file.no_hole(record.offset)

    def _selected(self, record: Record) -> Record | None:
        selected: Any = self.select(record)
        if selected is None:
            return None
        if not isinstance(selected, Record):
            raise TypeError(
                "select must return the record that is sent, which may be another one under the same offset, or None to send"
                f" none, not {reprlib.repr(selected)}"
            )
        if selected.place != record.place:
            raise ValueError(f"select must keep `offset` and `sub`: it was given {record.name}, and returned {selected.name}")
        if self._file is not None and selected is not record and (wrong := _unkept(selected)):
            raise TypeError(
                f"select returned {selected.name} with {wrong}: with queue_directory a file could not give that back"
            )
        return selected

    def _add(self, record: Record, ack: Ack, kept: Kept | None) -> bool:
        """Whether somebody should look at what is to be sent, or is finished."""
        queue, now, size = self._need_queue(), self._loop.time(), size_of(record)
        taken = [] if kept is None else [each.number for each in self._sendings if each.name in kept.taken]
        with self._lock:
            fits = not (queue.full or self._file_is_full())
            if fits or kept is not None or self.when_full == WAIT:
                if self._file is not None and kept is None:
                    if self._file.overgrown:
                        self._file.rewrite(self._unfinished())
                    self._file.append(record)
                self._acks[record.place] = ack
                return queue.add(record.place, record, size, now, taken=taken)
        self._lent.counts.sent("queue", dropped=1)
        ack()
        return False

    def _file_is_full(self) -> bool:
        """What is in it already and was not handed out yet takes no more of it."""
        return self._file is not None and not self._kept and self._file.full

    def _unfinished(self) -> list[Kept]:
        """What a file has to keep: also what all have, while something before it holds the position."""
        names = [(1 << each.number, each.name) for each in self._sendings]
        return [
            Kept(each.record, frozenset(name for bit, name in names if not each.left & bit))
            for each in self._need_queue().unfinished()
            if not each.lost
        ]

    def _need_queue(self) -> OutputQueue[Record]:
        assert self._queue is not None
        return self._queue

    def _look(self) -> None:
        """There may be something to send, or something is finished. From any thread."""
        self._on_loop(self._looked)

    def _looked(self) -> None:
        self._finish()
        for each in self._sendings:
            each.turned.set()

    def _on_loop(self, work: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    # --- for the sendings, on the program's loop ------------------------------------------------------------------------------

    def _settled(self, sending: Sending, taken: Batch, bad: Batch) -> None:
        with self._lock:
            if self._file is not None:
                self._file.taken(sending.name, [each.offset for each in taken])
            acks = [self._acks.get(each.place) for each in bad]
        for ack in acks:
            if ack is not None:
                ack.fail(sending.trouble, bad=True)
        self._finish()
        if bad or self.trouble != self._last_trouble:
            self._last_trouble = self.trouble
            self._wake()

    def _finish(self) -> None:
        """Acknowledge what all outputs have."""
        queue = self._need_queue()
        with self._lock:
            was_full = self.full
            finished = queue.finished()
            if self._file is not None:
                self._file.over(each.offset for each in finished)
            acks = {each.place: ack for each in finished if (ack := self._acks.pop(each.place, None)) is not None}
            self._over.update(acks)
        counting = [place for place, ack in acks.items() if ack()]
        with self._lock:
            self._over.difference_update(counting)
        if was_full and not self.full:
            self._wake()
        if records := [each.record for each in finished if not each.lost]:
            try:
                self.acknowledged(records)
            except BaseException:  # an exit, too: an output would take nothing more
                log.exception("acknowledged failed; the records are done all the same", extra=self._lent.fields)

    async def _commit(self, position: Offset) -> Offset:
        """Everything before this is acknowledged; up to where that is durable, which a record that is not done holds up.

        Raises FencedEpochError, ConsumerStoppedError, CoordinatorUnavailableError.
        """
        if position <= self._committed:
            return position
        with self._lock:
            acks = [self._acks.pop(place) for place in [each for each in self._acks if each < (position, 0)]]
        for ack in acks:
            ack()
        await self._save()
        self._committed = max(self._committed, min(position, self._lent.shard.durable))
        return self._committed


def _unkept(record: Record) -> str:
    """What of a record a file would not give back, and what it must be; empty if it gives all of it."""
    if not all(isinstance(each, _BYTES | None) for each in (record.key, record.value)):
        return "a key or a value that are no bytes"
    if type(record.timestamp) is not int:
        return f"a timestamp that is no whole number of milliseconds, but {reprlib.repr(record.timestamp)}"
    if not isinstance(record.headers, tuple | list) or not all(_is_header(each) for each in record.headers):
        return f"headers that are no pairs of a text and bytes, or None, but {reprlib.repr(record.headers)}"
    return ""


def _is_header(pair: object) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], _BYTES | None)
