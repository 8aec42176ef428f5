"""Asynchronous calls for the records of a shard, whose results are emitted in order or as they come: Flink's asynchronous I/O.

A user's AsyncOperator is one more RecordProcessor to `delivery`: a record is done once its results are emitted. The order is
`core.consumer.awaiting`'s rule, how a call ends that of `consumer.calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from shardherd.consumer.calls import results_of
from shardherd.core.consumer.awaiting import Awaiting, Call, Watermark
from shardherd.core.model.nouns import Place
from shardherd.worker.record_processor import Ack, RecordProcessor
from shardherd.worker.records import Record
from shardherd.worker.uncancelled import uncancelled

Pair = tuple[Record, Ack]


class AsyncOperator(RecordProcessor):
    """Calls `invoke` for up to `max_pending` records of a shard at once, and `emit` for each result, one after the other.

    `ordered`: results come in the order of their records; else as soon as they are there. `timeout` seconds for a call with all
    of its `retries`, each `pause` seconds after a failure; 0: none. A record whose call or whose `emit` fails is processed
    again, after those that were called for meanwhile.
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

    def timed_out(self, record: Record) -> Iterable[Any]:  # noqa: ARG002
        """The results of a call whose time is over. By default it has failed."""
        raise TimeoutError(f"no result within {self.timeout:g} s")

    _queue: Awaiting[Pair, Any] | None = None
    _emitting = False

    @cached_property
    def _calls(self) -> dict[Place, Call[Pair, Any]]:
        """The newest call of each record that has a place."""
        return {}

    async def process(self, record: Record, ack: Ack) -> None:
        # Called in the order in which records are handed out, up to here.
        if self._queue is None:
            self._queue = Awaiting(self.max_pending, ordered=self.ordered)
        queue = self._queue
        call = self._calls[record.place] = queue.begin((record, ack))
        try:
            results = await results_of(
                self._invoked,
                record,
                timeout=self.timeout,
                retries=self.retries,
                pause=self.pause,
                timed_out=self.timed_out,
            )
        except asyncio.CancelledError:
            self._drop(queue, call)
            raise
        except Exception:
            self._drop(queue, call)
            await self._emit_all(queue)
            raise
        queue.finish(call, results)
        await self._emit_all(queue)

    def late(self, record: Record) -> None:
        """What its call still brings does not count: it must neither keep a place nor have others wait for it."""
        if self._queue is not None and (call := self._calls.get(record.place)) is not None:
            self._drop(self._queue, call)

    def _drop(self, queue: Awaiting[Pair, Any], call: Call[Pair, Any]) -> None:
        queue.drop(call)
        place = call.element[0].place
        if self._calls.get(place) is call:
            del self._calls[place]

    async def _invoked(self, record: Record) -> Iterable[Any]:
        with uncancelled("invoke"):
            return await self.invoke(record)

    async def _emit_all(self, queue: Awaiting[Pair, Any]) -> None:
        """Emit what is ready, unless somebody does."""
        if self._emitting:
            return
        self._emitting = True
        try:
            while (ready := queue.emit()) is not None:
                if not isinstance(ready, Watermark):
                    await self._emit(ready)
        finally:
            self._emitting = False

    async def _emit(self, ready: Call[Pair, Any]) -> None:
        record, ack = ready.element
        if self._calls.get(record.place) is ready:
            del self._calls[record.place]
        try:
            for result in ready.results:
                with uncancelled("emit"):
                    await self.emit(result)
        except Exception as error:  # noqa: BLE001 - a program may raise anything
            ack.fail(error)
        else:
            ack()
