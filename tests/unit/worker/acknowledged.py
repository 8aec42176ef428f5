"""Processors for tests whose records are acknowledged one by one, and a place for records that failed too often."""

from __future__ import annotations

from collections.abc import Callable

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.record_processor import Ack, RecordProcessor
from shardherd.worker.records import Record


class Kept(RecordProcessor):
    """Keeps every acknowledgement for the test, unless `does` says what to do with one at once."""

    def __init__(self, does: Callable[[Record, Ack], object] | None = None) -> None:
        self.acks: dict[Offset, Ack] = {}
        self.given: list[Offset] = []
        self.shards: list[ShardId] = []
        self._does = does

    def initialize(self, shard: ShardId) -> None:
        self.shards.append(shard)

    def process(self, record: Record, ack: Ack) -> None:
        self.given.append(record.offset)
        self.acks[record.offset] = ack
        if self._does is not None:
            self._does(record, ack)

    def ack(self, *offsets: Offset) -> None:
        for offset in offsets:
            assert self.acks[offset]()


class Graveyard:
    """Dead letters in memory. The next so many writes fail."""

    def __init__(self, failing: int = 0) -> None:
        self.buried: list[tuple[ShardId, Offset, str, int]] = []
        self.failing = failing

    def bury(self, shard: ShardId, record: Record, reason: str, tries: int) -> None:
        if self.failing:
            self.failing -= 1
            raise ConnectionError("no broker")
        self.buried.append((shard, record.offset, reason, tries))
