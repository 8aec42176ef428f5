"""Sends one output its batches, one after the other, on the loop of the program's coroutines. Made by `outputs` for each.

It decides what a batch that failed means for the guarantee: it is sent again, or dropped, or the output is asked what it has.
Which records are in a batch, and when, is `core.consumer.output_queue`'s rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import reprlib
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from shardherd.consumer.contained import contained, named, text_of
from shardherd.consumer.waiting import within
from shardherd.core.consumer.output_queue import OutputQueue, Queued
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.core.model.nouns import Offset, Place
from shardherd.core.model.positions import whole_number
from shardherd.worker.counts import Counts
from shardherd.worker.crew import Crew, is_async
from shardherd.worker.options import FIRST_RETRY, LAST_RETRY
from shardherd.worker.output import Output, ShardGrant, TransactionalOutput
from shardherd.worker.records import Record

log = logging.getLogger(__name__)

Batch = list[Queued[Record]]


async def called(crew: Crew, method: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a method of an output, which is a function or a coroutine. Raises CancelledByProgramError.

    Who is cancelled meanwhile is so once a function has returned, and not before: what it still does must not seem to be over.
    """
    if is_async(method):
        with contained(getattr(method, "__name__", "it")):
            return await method(*arguments)
    ended, cancelled = crew.call(partial(method, *arguments)).ended, None
    while not ended.done():
        try:
            await asyncio.wait((ended,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return ended.result()


class Sending:
    """One output and its part of the queue, which is touched under `lock`.

    `settled` is called after each batch: with what was taken of it, and what was refused too often. `commit` makes everything
    before a position durable, and says up to where it is; where it is given, records are sent at most once. `limit`: how often
    a record may be refused; 0: without one. A call that takes longer than `patience` hangs. `trouble`: why the output takes
    nothing now.
    """

    def __init__(
        self,
        output: Output,
        number: int,
        queue: OutputQueue[Record],
        *,
        lock: threading.Lock,
        crew: Crew,
        counts: Counts,
        fields: Mapping[str, Any],
        limit: int,
        patience: float,
        settled: Callable[[Sending, Batch, Batch], None],
        commit: Callable[[Offset], Awaitable[Offset]] | None = None,
        grant: ShardGrant | None = None,
    ) -> None:
        self.output = output
        self.number = number
        self.name = output.name or type(output).__name__
        self.trouble = ""
        self.turned = asyncio.Event()
        self._queue, self._lock, self._crew, self._counts = queue, lock, crew, counts
        self._fields = dict(fields)
        self._limit = limit
        self._patience = patience
        self._settled, self._commit, self._grant = settled, commit, grant
        self._stopping = self._draining = False
        # Of a transactional output: its position, once it is known.
        self._known = False
        self._position: Offset | None = None
        self._failures = 0
        # It has said of a batch what cannot be: its position may pass records that it does not have, and counts no more.
        self._unclear = ""

    @property
    def write(self) -> Callable[..., Any]:
        """The method of the output that takes records."""
        return self.output.write if self._grant is None else self._transactional.write_once

    def stop(self, *, after_all: bool = False) -> None:
        """Begin no further batch; or end when there is none any more."""
        self._draining, self._stopping = self._draining or after_all, self._stopping or not after_all
        self.turned.set()

    async def run(self) -> None:
        """Until it is to stop, and the batch in hand has ended."""
        while not self._stopping:
            if self._grant is not None and not self._known and not await self._ask():
                continue
            now = asyncio.get_running_loop().time()
            with self._lock:
                before = self._queue.retried
                batch = self._queue.batch(self.number, now)
                again = self._queue.retried - before
                seconds = None if batch else self._queue.due_in(self.number, now)
            if not batch:
                if self._draining and seconds is None:
                    return
                await within(self.turned, seconds)
                self.turned.clear()
                continue
            self._counts.sent(self.name, retried=again)
            try:
                await self._send(batch)
            except (FencedEpochError, ConsumerStoppedError) as over:  # nothing can be committed any more
                log.info("output %s: sends no more: %s", self.name, over, extra=self._fields)
                return

    async def _send(self, batch: Batch) -> None:
        if self._commit is not None:
            await self._send_at_most_once(batch, self._commit)
            return
        try:
            refused = await self._write(batch)
        except Exception as error:  # noqa: BLE001 - a program may raise anything
            self._known = False
            self._fail(batch, error)
            return
        self._settle(batch, refused, self._limit)

    async def _write(self, batch: Batch) -> dict[Place, Record]:
        """What the output did not take."""
        records = [each.record for each in batch]
        if self._grant is not None:
            position = batch[-1].offset + 1
            with self._watched("write_once", batch):
                result = await called(self._crew, self.write, records, self._grant, self._position, position)
            if result is not None:
                self._unclear = _wrong(self.output, "write_once", result, "None, or raise where it does not take all records")
                raise TypeError(self._unclear)
            self._position = position
            return {}
        with self._watched("write", batch):
            result = await called(self._crew, self.write, records)
        return _refused(self.output, batch, result)

    async def _send_at_most_once(self, batch: Batch, commit: Callable[[Offset], Awaitable[Offset]]) -> None:
        """Nothing is sent whose position is not durable, and nothing twice."""
        try:
            after = max(each.offset for each in batch) + 1  # which is not the last one where `in_order` is false
            durable = await commit(after)
        except (FencedEpochError, ConsumerStoppedError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever keeps the position from being durable may be over
            self._fail(batch, error)
            return
        # What is durable nobody else sends, also where a record behind it keeps the rest from being so.
        safe, refused = [each for each in batch if each.offset < durable], dict[Place, Record]()
        try:
            refused = await self._write(safe) if safe else {}
        except Exception as error:  # noqa: BLE001 - a program may raise anything
            refused = {each.place: each.record for each in safe}
            log.warning("output %s: %d records are dropped: %s", self.name, len(safe), text_of(error), extra=self._fields)
        self._counts.sent(self.name, dropped=len(refused))
        for each in safe:
            each.lost = each.lost or each.place in refused
        if len(safe) == len(batch):
            self._settle(batch, {}, 0, dropped=len(refused))
            return
        why = f"the position is {durable} and not {after} yet, as a record before that is not done"
        self._fail(batch, RuntimeError(why), safe, dropped=len(refused))
        if self._draining:
            raise ConsumerStoppedError(f"nothing more is handed out, and {why}")

    @property
    def _transactional(self) -> TransactionalOutput:
        assert isinstance(self.output, TransactionalOutput)
        return self.output

    async def _ask(self) -> bool:
        """Ask a transactional output what it has. Whether it has answered."""
        try:
            if self._unclear:
                raise TypeError(self._unclear)
            with self._watched("position", []):
                said = await called(self._crew, self._transactional.position, self._grant)
            must = f"position of {type(self.output).__name__} must return None or"
            self._position = None if said is None else whole_number(said, must)
        except Exception as error:  # noqa: BLE001 - a program may raise anything
            self._failures += 1
            pause = min(LAST_RETRY, FIRST_RETRY * 2 ** min(self._failures - 1, 30))
            self._tell(f"does not say its position: {named(error)}", pause)
            clock = asyncio.get_running_loop().time
            until = clock() + pause
            while not self._stopping and (left := until - clock()) > 0:
                self.turned.clear()
                await within(self.turned, left)
            return False
        self._known, self._failures = True, 0
        with self._lock:
            if self._position is not None:
                self._queue.reach(self.number, self._position)
        self._settled(self, [], [])
        return True

    def _settle(self, batch: Batch, refused: Mapping[Place, Record], limit: int, *, dropped: int = 0) -> None:
        now = asyncio.get_running_loop().time()
        with self._lock:
            bad = self._queue.settle(self.number, refused, now, limit=limit)
            if self._grant is not None and self._position is not None:
                # A record that is given again, as its acknowledgement came too late, is not written again.
                self._queue.reach(self.number, self._position)
        taken = [each for each in batch if each.place not in refused]
        self._counts.sent(self.name, taken=len(taken) - dropped)
        if refused:
            first, _ = min(refused)
            self._tell(f"did not take {len(refused)} of {len(batch)} records, the first at {first}", None)
        elif self.trouble:
            log.info("output %s: takes records again", self.name, extra=self._fields)
            self.trouble = ""
        self._settled(self, taken, bad)

    def _fail(self, batch: Batch, error: Exception, sent: Batch | None = None, *, dropped: int = 0) -> None:
        """Nothing of the batch was taken but for what was `sent`."""
        sent = sent or []
        places = {each.place for each in sent}
        left = [each for each in batch if each.place not in places]
        with self._lock:
            pause = self._queue.fail(self.number, asyncio.get_running_loop().time(), places)
        self._counts.sent(self.name, taken=len(sent) - dropped)
        self._tell(f"took none of {len(left)} records from {left[0].offset} on: {named(error)}", pause)
        self._settled(self, sent, [])

    @contextlib.contextmanager
    def _watched(self, method: str, batch: Batch) -> Iterator[None]:
        """Say so when the call hangs, and again when it has taken twice as long. It is not ended: it may have been done."""
        loop = asyncio.get_running_loop()
        began, about = loop.time(), f", with {len(batch)} records from {batch[0].offset} on" if batch else ""
        timers: list[asyncio.TimerHandle] = []

        def hangs(seconds: float) -> None:
            if seconds == self._patience:
                self._counts.failed(method)
            self.trouble = (
                f"output {self.name}: {method} has not returned for {seconds:g} s{about}: it hangs, or the sink is away"
            )
            log.warning("%s", self.trouble, extra=self._fields)
            self._settled(self, [], [])
            timers[:] = [loop.call_at(began + 2 * seconds, hangs, 2 * seconds)]

        timers.append(loop.call_at(began + self._patience, hangs, self._patience))
        try:
            yield
        finally:
            timers[0].cancel()

    def _tell(self, what: str, pause: float | None) -> None:
        self.trouble = f"output {self.name}: {what}"
        again = "what is left is sent again" if pause is None else f"trying again in {pause:g} s"
        log.warning("%s; %s", self.trouble, again, extra=self._fields)


def _refused(output: Output, batch: Batch, result: object) -> dict[Place, Record]:
    """The records that `write` says that it did not take. Raises TypeError for what says nothing, ValueError for others."""
    if result is None:
        return {}
    # A text and a mapping are collections, too, of what is no record; and what is to be iterated is work that is not done.
    if (
        not isinstance(result, Collection)
        or isinstance(result, str | bytes | Mapping)
        or not all(isinstance(each, Record) for each in result)
    ):
        must = "None where it has taken all records, or a list of those of the batch that it has not taken"
        raise TypeError(_wrong(output, "write", result, must))
    refused = {record.place: record for record in result}
    given = {each.place: each.record for each in batch}
    # Where several have one offset, one that was made anew without its `sub` would be taken for another.
    shared = len({offset for offset, _ in given}) < len(given)
    if unknown := [record for place, record in refused.items() if place not in given or (shared and record != given[place])]:
        offsets = sorted(record.offset for record in unknown)
        raise ValueError(
            f"write returned records that it was not given, of the offsets {offsets}: have it return those themselves"
        )
    return refused


def _wrong(output: Output, method: str, result: object, must: str) -> str:
    """What is said of a result that nothing can be made of."""
    if inspect.iscoroutine(result):
        result.close()  # it is known by now that it was not awaited
    found = f"{reprlib.repr(result)}, of type {type(result).__name__}"
    return f"{method} of {type(output).__name__} returned {found}, and must return {must}"
