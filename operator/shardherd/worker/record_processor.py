"""What a user writes whose records are acknowledged one by one: a processor, and the acknowledgement that it is given.

`delivery` calls both. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardherd.consumer.contained import named
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.processor import Checkpoint
from shardherd.worker.records import Record


class Ack:
    """What becomes of one record. It may be kept, and called later from any thread. Of its attributes none can be set."""

    __slots__ = ("_record", "_settle", "_tries")

    def __init__(self, record: Record, tries: int, settle: Callable[[Record, int, str | None, bool], bool]) -> None:
        self._record = record
        self._tries = tries
        self._settle = settle

    @property
    def record(self) -> Record:
        """Whose it is."""
        return self._record

    @property
    def tries(self) -> int:
        """How often the record was handed out, with this time."""
        return self._tries

    @property
    def offset(self) -> Offset:
        """That of its record."""
        return self._record.offset

    def __call__(self) -> bool:
        """The record is done. False: it does not count any more, as it failed before, or the shard is somebody else's."""
        return self._settle(self._record, self._tries, None, False)

    def fail(self, reason: str | BaseException = "", *, bad: bool = False) -> bool:
        """The record is to be processed again. False as above. `bad`: it has failed often enough, as far as `tries` says."""
        text = named(reason) if isinstance(reason, BaseException) else reason
        return self._settle(self._record, self._tries, text or "no reason was given", bad)


class RecordProcessor:
    """Processes the records of one shard, each of which is acknowledged. The shard's position is that of the lowest record that
    is not."""

    max_pending = 1000
    """Most records that are pending, as the worker's options say; set before the first one."""

    def initialize(self, shard: ShardId) -> Any:
        """As of `Processor`."""

    def process(self, record: Record, ack: Ack) -> Any:
        """Begin with a record, or process it. Nothing is done before `ack()` is called, here or later; `ack.fail()`, or to
        raise, has it processed again. Called serially, in the order of offsets but for records that failed.

        A coroutine is not waited for: those of up to `max_pending` records run at once.
        """
        raise NotImplementedError

    def gone(self, record: Record) -> None:
        """The record failed too often, and is not given any more: for processors that keep something of each."""

    def late(self, record: Record) -> None:
        """The record was not acknowledged in time, and will be given again: as `gone`, before anything else is given."""

    async def end_calls(self) -> None:
        """Nothing that coroutines of `process` have begun goes on after this: awaited on their loop, before `shutdown`."""

    def shutdown(self, checkpoint: Checkpoint) -> Any:
        """Called last, once what was handed out is done or not waited for any longer. What is done is saved without it."""
