"""Asynchronous calls for the records of a shard, whose results are emitted in order or as they come: Flink's asynchronous I/O.

A user's AsyncOperator is one more RecordProcessor to `delivery`: a record is done once its results are emitted. The order is
`core.consumer.awaiting`'s rule, how a call ends that of `consumer.calls`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from shardherd.consumer.calls import results_of, wrong_settings
from shardherd.consumer.contained import contained, text_of
from shardherd.core.consumer.awaiting import Awaiting, Call, Watermark
from shardherd.core.model.nouns import Place
from shardherd.worker.crew import is_async
from shardherd.worker.options import WorkerOptionError
from shardherd.worker.record_processor import Ack, RecordProcessor
from shardherd.worker.records import Record

log = logging.getLogger(__name__)

Pair = tuple[Record, Ack]

MOMENT = 0.01
"""Fewest seconds until a watermark that could not be emitted is tried again."""


class AsyncOperator(RecordProcessor):
    """Calls `invoke` for up to `max_pending` records of a shard at once, and `emit` for each result, one after the other.

    `ordered`: results come in the order of their records; else as soon as they are there. `timeout` seconds for a call with all
    of its `retries`, each `pause` seconds after a failure; 0: none. A record whose call or whose `emit` fails is processed
    again, after those that were called for meanwhile. In whatever order results come, none passes a watermark.
    """

    ordered: bool = True
    timeout: float = 0.0
    retries: int = 0
    pause: float = 0.1

    async def invoke(self, record: Record) -> Iterable[Any]:
        """The results for a record: none, one or many. Waits only by `await`, as all calls share a loop."""
        raise NotImplementedError

    async def emit(self, result: Any) -> None:
        """A result goes on. Called again if its record is."""
        raise NotImplementedError

    def watermark(self, record: Record) -> int | None:  # noqa: ARG002
        """Asked once of each record, in order: a time, if nothing earlier follows it. By default there are no watermarks."""
        return None

    async def emit_watermark(self, time: int) -> None:
        """It goes on: all results up to its record were emitted, and none of a later one. Called again if it fails."""

    def timed_out(self, record: Record) -> Iterable[Any]:  # noqa: ARG002
        """The results of a call whose time is over. By default it has failed."""
        raise TimeoutError(f"no result within {self.timeout:g} s")

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check(cls, cls.__name__)

    _queue: Awaiting[Pair, Any] | None = None
    _emitter: asyncio.Task[None] | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _ended = False

    @cached_property
    def _calls(self) -> dict[Place, Call[Pair, Any]]:
        """The newest call of each record that has a place."""
        return {}

    @cached_property
    def _failed(self) -> dict[Place, Call[Pair, Any]]:
        """The newest call of each record that is to be called for again."""
        return {}

    @cached_property
    def _unasked(self) -> set[Place]:
        """The records of which it is not known whether a watermark follows them."""
        return set()

    async def process(self, record: Record, ack: Ack) -> None:
        # Called in the order in which records are handed out, up to here.
        if self._queue is None:
            # Each watermark but the first has a record before it that is pending.
            self._queue = Awaiting(2 * self.max_pending + 1, ordered=self.ordered)
            self._loop = asyncio.get_running_loop()
        queue, failed = self._queue, self._failed.pop(record.place, None)
        call = self._calls[record.place] = queue.begin((record, ack), after=failed)
        if failed is None:
            self._unasked.add(record.place)
        try:
            if record.place in self._unasked:
                self._ask(queue, call)
            results = await results_of(
                self.invoke,
                record,
                timeout=self.timeout,
                retries=self.retries,
                pause=self.pause,
                timed_out=self.timed_out,
            )
        except asyncio.CancelledError:
            self._fail(queue, call)
            raise
        except Exception:
            self._fail(queue, call)
            self._emit_what_is_ready(queue)
            raise
        queue.finish(call, results)
        self._emit_what_is_ready(queue)

    def _ask(self, queue: Awaiting[Pair, Any], call: Call[Pair, Any]) -> None:
        """For the watermark of a record, which has its place by now: it holds up those of later ones, also if this fails."""
        record, _ = call.element
        with contained("watermark"):
            time = self.watermark(record)
        self._unasked.remove(record.place)
        if time is not None:
            queue.watermark(Watermark(time), after=call)

    def late(self, record: Record) -> None:
        """What its call still brings does not count: it must neither keep a place nor have others wait for it."""
        if self._queue is not None and (call := self._calls.get(record.place)) is not None:
            self._fail(self._queue, call)
            self._emit_what_is_ready(self._queue)

    def gone(self, record: Record) -> None:
        # Called in a thread, where nothing of this may be touched.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._give_up, record.place)

    def _give_up(self, place: Place) -> None:
        """The record is not called for again: what waits for it goes on."""
        self._unasked.discard(place)
        call = self._failed.pop(place, None) or self._calls.pop(place, None)
        if self._queue is not None and call is not None:
            self._queue.drop(call)
            self._emit_what_is_ready(self._queue)

    async def end_calls(self) -> None:
        self._ended = True
        if self._emitter is not None:
            self._emitter.cancel()
            await asyncio.wait([self._emitter])

    def _fail(self, queue: Awaiting[Pair, Any], call: Call[Pair, Any]) -> None:
        """Its record is called for again, unless it is already."""
        place = call.element[0].place
        if self._calls.get(place) is call:
            del self._calls[place]
            self._failed[place] = call
            queue.fail(call)

    def _emit_what_is_ready(self, queue: Awaiting[Pair, Any]) -> None:
        """By a task of its own: that of a record may be cancelled, and what it emits is mostly that of others."""
        if self._emitter is None and not self._ended:
            self._emitter = asyncio.create_task(self._emit_all(queue))

    async def _emit_all(self, queue: Awaiting[Pair, Any]) -> None:
        try:
            while (ready := queue.emit()) is not None:
                if isinstance(ready, Watermark):
                    await self._pass_on(ready)
                else:
                    await self._emit(queue, ready)
        finally:
            self._emitter = None

    async def _pass_on(self, watermark: Watermark) -> None:
        """Nothing is emitted after it before it is."""
        while True:
            try:
                with contained("emit_watermark"):
                    return await self.emit_watermark(watermark.time)
            except Exception as error:
                log.warning("watermark %d is not emitted yet, trying on: %s", watermark.time, text_of(error), exc_info=error)
                await asyncio.sleep(max(self.pause, MOMENT))

    async def _emit(self, queue: Awaiting[Pair, Any], ready: Call[Pair, Any]) -> None:
        record, ack = ready.element
        try:
            for result in ready.results:
                with contained("emit"):
                    await self.emit(result)
        except BaseException as error:
            self._fail(queue, ready)
            counts = ack.fail(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            level = logging.WARNING if counts and ack.tries == 1 else logging.DEBUG
            log.log(level, "results of %s are not emitted, try %d: %s", record.name, ack.tries, text_of(error), exc_info=error)
        else:
            if not ack():
                # It comes again: its time was over meanwhile.
                self._fail(queue, ready)
            elif self._calls.get(record.place) is ready:
                del self._calls[record.place]


def check(operator: Any, name: str) -> None:
    """Whether an AsyncOperator, or a class of them, can be what its attributes say. Raises WorkerOptionError."""
    settings = {each: getattr(operator, each) for each in ("ordered", "timeout", "retries", "pause")}
    # What a class computes, each of its operators is asked for.
    defaults = {name: getattr(AsyncOperator, name) for name, value in settings.items() if isinstance(value, property)}
    for setting, wrong in wrong_settings(**settings | defaults):
        raise WorkerOptionError(f"{setting} of {name} {wrong}")
    # What it returns is awaited, also after it has written: each time that failed, the result would be written again.
    for what in ("emit", "emit_watermark"):
        if not is_async(inspect.unwrap(getattr(operator, what))):
            raise WorkerOptionError(f"{what} of {name} must be a coroutine, not a function: write `async def {what}`")
    for what in ("watermark", "timed_out"):
        if is_async(getattr(operator, what)):
            raise WorkerOptionError(f"{what} of {name} must be a function, not a coroutine: write `def {what}`")
