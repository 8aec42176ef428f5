"""Bugs that are planted into the worker, one at a time: see `bugs`. Those who look for them run schedules of workers only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardherd.client.consumer import AsyncConsumer
from shardherd.core.consumer.awaiting import Awaiting
from shardherd.core.consumer.holdings import Holdings
from shardherd.core.consumer.pending import Pending
from shardherd.core.consumer.trees import Acker, Verdict
from shardherd.core.model.nouns import Phase
from shardherd.worker.asynchronous import AsyncOperator
from shardherd.worker.delivery import Delivery
from shardherd.worker.holding import Holding
from shardherd.worker.records import Records
from shardherd.worker.stream import Stream
from shardherd.worker.telling import Telling
from shardherd.worker.trees import _Forest
from shardherd.worker.worker import Processing

Patch = tuple[Any, str, Any]


def _lost_future() -> list[Patch]:
    """The results of a call are there, and nobody emits them."""
    return [(Awaiting, "finish", lambda *_: True)]


def _out_of_order() -> list[Patch]:
    real = Awaiting.__init__

    def init(self: Any, capacity: int, **_: Any) -> None:
        real(self, capacity, ordered=False)

    return [(Awaiting, "__init__", init)]


def _failed_call_keeps_its_place() -> list[Patch]:
    return [(Awaiting, "fail", lambda *_: None)]


def _emitted_is_done_before_the_sink_has_it() -> list[Patch]:
    async def emit(self: Any, _queue: Any, ready: Any) -> None:
        _, ack = ready.element
        ack()
        for result in ready.results:
            await self.emit(result)

    return [(AsyncOperator, "_emit", emit)]


def _pause_is_forgotten() -> list[Patch]:
    """What waits of a shard is not counted, so that it is read on however much there is."""
    real = Stream.pop

    def pop(self: Any, shard: Any) -> Any:
        part = real(self, shard)
        self._queues[shard].size = 0
        return part

    return [(Stream, "pop", pop), (Stream, "_share", property(lambda _: 1 << 40))]


def _pause_without_an_end() -> list[Patch]:
    """What is processed of a shard still takes its place of the memory."""
    return [(Stream, "done", lambda *_: None)]


def _acks_a_failed_child() -> list[Patch]:
    return [(_Forest, "fail", lambda self, tuple_, _: self.ack(tuple_))]


def _begins_from_zero() -> list[Patch]:
    """The value of a tree does not begin with the id of its root: it is done before its root is."""
    real = Acker.start

    def start(self: Any, root: int, task: int) -> Any:
        if self.knows(root) and not self._values[self._place(root)]:
            return real(self, root, task) if self._place(root) % 2 else self._end(root, Verdict.DONE)
        return real(self, root, task)

    return [(Acker, "start", start)]


def _early_ack() -> list[Patch]:
    """A tuple that its stage keeps is acknowledged when that returns."""
    real = _Forest._run

    def run(self: Any, tuple_: Any, work: Any, *, manual: bool) -> None:
        del manual
        real(self, tuple_, work, manual=False)

    return [(_Forest, "_run", run)]


def _record_is_done_without_its_children() -> list[Patch]:
    real = _Forest.emit

    def emit(self: Any, stage: str, value: Any, anchors: Any) -> None:
        real(self, stage, value, anchors)
        for anchor in anchors:
            anchor.emitted = 0

    return [(_Forest, "emit", emit)]


def _highest_is_committed() -> list[Patch]:
    return [(Pending, "position", property(lambda self: self._next[0]))]


def _ack_after_a_failure_counts() -> list[Patch]:
    return [(Pending, "_under_way", lambda self, place, _: self._all.get(place))]


def _failed_record_is_forgotten() -> list[Patch]:
    real = Pending.fail

    def fail(self: Any, *arguments: Any, **named: Any) -> bool:
        counts = real(self, *arguments, **named)
        self._failed.clear()
        return counts

    return [(Pending, "fail", fail)]


def _lost_acknowledgement_is_waited_for() -> list[Patch]:
    def expire(self: Any, _: float) -> list[Any]:
        self._look_at = None
        return []

    return [(Pending, "expire", expire)]


def _new_ones_pass_failed_ones() -> list[Patch]:
    return [(Pending, "room", property(lambda self: len(self._all) < self._most))]


def _pending_without_a_bound() -> list[Patch]:
    return [(Pending, "room", property(lambda self: not (self._in_order and (self._failed or self._again is not None))))]


def _buried_before_it_is_durable() -> list[Patch]:
    real = Delivery._bury

    def bury(self: Any, emitted: Any, ack: Any) -> None:
        ack()
        real(self, emitted, ack)

    return [(Delivery, "_bury", bury)]


def _failed_batch_is_done() -> list[Patch]:
    def keep(self: Any) -> None:
        if self._records is not None:
            self._go_to(self._records.done)

    return [(Holding, "_keep_what_was_saved", keep)]


def _rest_of_a_batch_that_was_cut_short_is_done() -> list[Patch]:
    return [(Records, "done", property(lambda self: self.next))]


def _what_is_in_hand_is_saved() -> list[Patch]:
    """A save in the middle of a batch counts all of it."""

    def upto(self: Any, position: Any) -> Any:
        records = self._records
        return self.shard.done if records is None else max(self.shard.done, records.next)

    return [(Holding, "_upto", upto)]


def _released_in_hand() -> list[Patch]:
    return [(Holdings, "_being_read", lambda *_: False)]


def _says_that_it_reads() -> list[Patch]:
    """Whatever it waits for."""
    return [(Processing, "about", lambda _: Phase.READING)]


def _told_too_early() -> list[Patch]:
    async def durable(_self: Any, _grant: Any, _offset: Any) -> None:
        await asyncio.sleep(0)

    return [(AsyncConsumer, "durable", durable)]


def _goes_without_a_word() -> list[Patch]:
    """The listener is not told that a shard goes."""

    async def revoked(_self: Any, _saves: Any) -> None:
        await asyncio.sleep(0)

    return [(Telling, "revoked", revoked)]


def _revoked_once_it_is_gone() -> list[Patch]:
    """The listener is told that a shard is about to go after it has gone."""
    real = Telling.revoked

    async def revoked(self: Any, saves: Any) -> None:
        self._calling._consumer.holdings.put_back(self._shard._grant)
        self._calling._consumer.session.changed()
        await real(self, saves)

    return [(Telling, "revoked", revoked)]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    "a lost future": _lost_future,
    "results out of order": _out_of_order,
    "a call that failed keeps its place": _failed_call_keeps_its_place,
    "a result done before the sink has it": _emitted_is_done_before_the_sink_has_it,
    "a pause forgotten": _pause_is_forgotten,
    "a pause without an end": _pause_without_an_end,
    "ack of a failed child": _acks_a_failed_child,
    "XOR zero before root": _begins_from_zero,
    "early ACK": _early_ack,
    "a record done without its children": _record_is_done_without_its_children,
    "the highest finished offset committed": _highest_is_committed,
    "an ack after a failure counts": _ack_after_a_failure_counts,
    "a failed record forgotten": _failed_record_is_forgotten,
    "a lost ack waited for for ever": _lost_acknowledgement_is_waited_for,
    "new records pass failed ones": _new_ones_pass_failed_ones,
    "pending records without a bound": _pending_without_a_bound,
    "a dead letter done before it is durable": _buried_before_it_is_durable,
    "a failed batch counts as done": _failed_batch_is_done,
    "the rest of a batch that was cut short counts as done": _rest_of_a_batch_that_was_cut_short_is_done,
    "a save counts what is in hand": _what_is_in_hand_is_saved,
    "a shard of a worker released in hand": _released_in_hand,
    "a worker that waits for its sink says that it reads": _says_that_it_reads,
    "a save said to be durable too early": _told_too_early,
    "a listener not told that a shard goes": _goes_without_a_word,
    "a listener told once a shard is gone": _revoked_once_it_is_gone,
}
