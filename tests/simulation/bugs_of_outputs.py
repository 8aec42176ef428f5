"""Bugs that are planted into the outputs of a worker, one at a time: see `bugs`.

Those who look for them run schedules of workers only, all of which send to outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardherd.core.consumer.output_queue import OutputQueue
from shardherd.worker.outputs import Outputs
from shardherd.worker.sending import Sending

Patch = tuple[Any, str, Any]


def _acknowledged_when_queued() -> list[Patch]:
    real = Outputs._add

    def add(self: Any, record: Any, ack: Any, kept: Any) -> Any:
        ack()
        return real(self, record, ack, kept)

    return [(Outputs, "_add", add)]


def _rest_is_forgotten() -> list[Patch]:
    """What an output did not take of a batch is not sent again."""
    real = OutputQueue.settle

    def settle(self: Any, output: int, _: Any, now: float, *, limit: int = 0) -> Any:
        return real(self, output, (), now, limit=limit)

    return [(OutputQueue, "settle", settle)]


def _done_by_the_first() -> list[Patch]:
    """A record is done when one of two outputs has it."""
    real = OutputQueue.finished

    def finished(self: Any) -> Any:
        for each in self.unfinished():
            if each.left != sum(lane.bit for lane in self._lanes):
                each.left = 0
        return real(self)

    return [(OutputQueue, "finished", finished)]


def _done_when_handed_over() -> list[Patch]:
    """A record is done when it was handed to the first output, which may fail at it."""
    real = OutputQueue.batch

    def batch(self: Any, output: int, now: float) -> Any:
        found = real(self, output, now)
        for each in found or ():
            each.left = 0
        return found

    return [(OutputQueue, "batch", batch)]


def _queue_is_not_emptied() -> list[Patch]:
    """What is in the queue when the shard is to go counts as sent."""
    real = Outputs.finish

    def finish(self: Any) -> None:
        for each in self._queue.unfinished() if self._queue is not None else ():
            each.left = 0
        real(self)

    return [(Outputs, "finish", finish)]


def _failed_batch_is_taken() -> list[Patch]:
    return [(Sending, "_fail", lambda self, batch, _: self._settle(batch, {}, 0))]


def _all_is_sent_again() -> list[Patch]:
    """After a partial failure, to who has it, too."""
    real = Sending._settle

    def settle(self: Any, batch: Any, refused: Any, limit: int, **named: Any) -> None:
        real(self, batch, {each.place: each.record for each in batch} if refused else {}, limit, **named)

    return [(Sending, "_settle", settle)]


def _new_ones_pass_the_rest() -> list[Patch]:
    real = OutputQueue.__init__

    def init(self: Any, outputs: int, *, in_order: bool = True, **named: Any) -> None:
        del in_order
        real(self, outputs, in_order=False, **named)

    return [(OutputQueue, "__init__", init)]


def _sent_before_it_is_durable() -> list[Patch]:
    async def commit(self: Any, position: int) -> bool:
        with self._lock:
            acks = [self._acks.pop(place) for place in [each for each in self._acks if each < (position, 0)]]
        for ack in acks:
            ack()
        return True

    return [(Outputs, "_commit", commit)]


def _sent_at_most_once_and_again() -> list[Patch]:
    """What an output fails at is sent again, though its position is durable."""

    async def send(self: Any, batch: Any, commit: Any) -> None:
        if not await commit(max(each.offset for each in batch) + 1):
            self._fail(batch, RuntimeError("it is not durable yet"))
            return
        try:
            refused = await self._write(batch)
        except Exception as error:  # noqa: BLE001 - as in the real one
            self._fail(batch, error)
            return
        self._settle(batch, refused, 0)

    return [(Sending, "_send_at_most_once", send)]


def _position_is_one_ahead() -> list[Patch]:
    """An output has one record more than it says."""
    real = OutputQueue.reach
    return [(OutputQueue, "reach", lambda self, output, position: real(self, output, position + 1))]


def _late_acknowledgement_sends_again() -> list[Patch]:
    """What all outputs have is sent once more when its acknowledgement came too late."""
    real = Outputs.process

    def process(self: Any, record: Any, ack: Any) -> None:
        self._over.discard(record.place)
        real(self, record, ack)

    return [(Outputs, "process", process)]


def _late_is_bad() -> list[Patch]:
    """What waits for an output that hangs is buried, as it was not acknowledged in time so often."""
    return [(Outputs, "keeps", lambda *_: False)]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    "a record of outputs done when it is queued": _acknowledged_when_queued,
    "the rest of a batch that was taken in part forgotten": _rest_is_forgotten,
    "a record done when one of two outputs has it": _done_by_the_first,
    "a record done when its batch is handed to an output": _done_when_handed_over,
    "a queue not emptied when its shard goes": _queue_is_not_emptied,
    "a batch that an output failed at done": _failed_batch_is_taken,
    "a batch that was taken in part sent again as a whole": _all_is_sent_again,
    "new records sent before those that were not taken": _new_ones_pass_the_rest,
    "a batch sent at most once before its position is durable": _sent_before_it_is_durable,
    "a batch sent at most once and again": _sent_at_most_once_and_again,
    "an output that has one record more than it says": _position_is_one_ahead,
    "what all outputs have sent again when its acknowledgement was late": _late_acknowledgement_sends_again,
    "a record that an output takes long for buried": _late_is_bad,
}
