"""A batch of records of a Kinesis shard, and how what was fetched of one is cut into batches for `process`.

Made in the thread that processes, where aggregated records are taken apart. A position never stands inside an aggregated
record, so a batch begins and ends between records of Kinesis, and one that is cut short ends there too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import pyarrow as pa

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kinesis import shard_reader as kinesis
from shardherd.source.kinesis.columns import SCHEMA, batch_of
from shardherd.worker.fetched import Part
from shardherd.worker.records import NOTHING, Record, Records

COLUMNS = tuple(SCHEMA.names)

Rows = Callable[[], Sequence[kinesis.Record]]
"""What programs have put, of one answer, in order."""


class KinesisRecords(Records):
    """Records of one shard. `offset` of a record is its sequence number, which those of one aggregated record share.

    `table` has the columns of the source for Spark: sequence numbers are text there.
    """

    def __init__(self, shard: ShardId, rows: Sequence[kinesis.Record], position: Offset, next_: Offset) -> None:
        super().__init__(shard, NOTHING, position, next_)
        self._rows = rows
        self._numbers = [each.number for each in rows]
        self._cut: Offset | None = None
        # Of each iteration that has not come to its end, the record in hand.
        self._in_hand: list[list[Offset]] = []
        # Of each iteration that is inside an aggregated record, the number of that; and up to where one was given out wholly.
        self._inside: list[list[Offset]] = []
        self._given = position

    @cached_property
    def table(self) -> pa.RecordBatch:
        """All of them as the columns of the source for Spark."""
        return batch_of(self._rows, self.shard, COLUMNS)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        """One by one. It ends early as that of any source does, but never inside an aggregated record."""
        at, inside = [self.position], [self.next]
        # At once, as that of any source: one that has not begun has nothing done.
        self._in_hand = [*self._in_hand, at]
        self._inside = [*self._inside, inside]
        return self._loop(at, inside)

    def _loop(self, at: list[Offset], inside: list[Offset]) -> Iterator[Record]:
        numbers, before = self._numbers, None
        for place, row in enumerate(self._rows):
            number = numbers[place]
            if self._stopped and number != before:
                self._cut = number if self._cut is None else min(self._cut, number)
                break
            at[0] = before = number
            following = numbers[place + 1] if place + 1 < len(numbers) else self.next
            inside[0] = number if following == number else self.next
            self._given = max(self._given, following)
            millis = round(row.arrived.timestamp() * 1000)
            yield Record(number, row.key.encode(), row.data, millis, (), row.sub)
        self._in_hand = [each for each in self._in_hand if each is not at]
        self._inside = [each for each in self._inside if each is not inside]

    def begin(self) -> None:
        self._in_hand = []
        self._inside = []
        self._given = self.position

    @property
    def done(self) -> Offset:
        return self.next if self._cut is None else self._cut

    @property
    def finished(self) -> Offset:
        return min((self.done, *(each[0] for each in self._in_hand)))

    def whole(self, position: Offset) -> Offset:
        return min((position, *(each[0] for each in self._inside if each[0] >= self._given)))

    def since(self, position: Offset) -> Records:
        first = bisect_left(self._numbers, position)
        return KinesisRecords(self.shard, self._rows[first:], position, self.next)

    def up_to(self, next_: Offset) -> Records:
        return KinesisRecords(self.shard, self._rows, self.position, next_)


def cutting(rows: Rows) -> Callable[[Part, int], Iterator[Records]]:
    """Cuts a part with these rows into batches of at most so many, but that an aggregated record is never cut."""

    def cut(part: Part, most: int) -> Iterator[Records]:
        found = rows()
        at, first = part.asked, 0
        while True:
            end = min(first + most, len(found))
            while end < len(found) and end > first and found[end].sequence == found[end - 1].sequence:
                end -= 1  # not this aggregated record too
            if end == first and first < len(found):
                end = first + 1
                while end < len(found) and found[end].sequence == found[first].sequence:
                    end += 1  # nothing but this one, which is larger than a batch
            last = end == len(found)
            next_ = part.next if last else found[end - 1].number + 1
            yield KinesisRecords(part.shard, found[first:end], at, next_)
            if last:
                return
            at, first = next_, end

    return cut
