"""What a Fetch brought of a shard, and how it is cut into batches for `process`.

Made by `fetching`, queued by `stream`, cut by `holding` in the thread that processes: what waits is as Kafka has sent it, and
only what is in hand is decompressed. Decides how large a batch is, and which answers are processed as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding.record_batches import CorruptRecordsError, Scan
from shardherd.source.decoding.record_rows import Rows
from shardherd.worker.records import COLUMNS, Records, Whole, records_of

if TYPE_CHECKING:
    import pyarrow as pa

TOGETHER = 2000
"""Records up to which small batches become Python objects at one go: to begin costs as much as a hundred records. Of more the
processor's cache would not be left with what is made when it is used."""

SMALL = 256 * 1024
"""Bytes up to which answers that wait are processed as one."""


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Records of Kafka as they were sent, from `start` up to `stop`, in answers that follow each other.

    To call it decodes them, about `most` bytes at a time.
    """

    shard: ShardId
    answers: tuple[Scan, ...]
    start: Offset
    stop: Offset
    most: int

    def __call__(self) -> Iterator[Rows]:
        if len(self.answers) == 1:
            yield from self._decoded(self.answers[0], self.start)
            return
        start = self.start
        try:
            for rows in self._decoded(record_batches.joined(self.answers), start):
                start = int(rows.offsets[-1]) + 1
                yield rows
        except CorruptRecordsError:
            # What is before the damage is given first, as it would be if the answers had not waited.
            for answer in self.answers:
                yield from self._decoded(answer, start)

    def _decoded(self, answer: Scan, start: Offset) -> Iterator[Rows]:
        return record_batches.decode_rows(self.shard, answer, start, self.stop, COLUMNS, most=self.most)

    def is_followed_by(self, later: Undecoded) -> bool:
        """Whether both can be decoded as one: all of this one is wanted, and nothing of it is in the other one, too."""
        last, first = self.answers[-1], later.answers[0]
        return last.next_offset <= self.stop and record_batches.follows(last, first)


@dataclass(frozen=True, slots=True)
class Part:
    """A shard's part of an answer: what it has from `asked` up to `next`, in `size` bytes as they were sent.

    `end` is where the shard ended when it was sent. `tables` decodes the records, in order, those that are visible: rows, or
    Arrow batches of COLUMNS. An answer without records has none and `next` is `asked`, or above it if those before it are lost.

    A source whose positions count no records says by `end` only whether there is more, and by `behind` for how many seconds of
    records; `cut` makes its batches.
    """

    shard: ShardId
    asked: Offset
    next: Offset
    end: Offset
    size: int
    tables: Callable[[], Iterable[Rows | pa.RecordBatch]] = tuple
    behind: float | None = None
    cut: Callable[[Part, int], Iterator[Records]] | None = None


def take(waiting: deque[Part], most: int = SMALL) -> Part:
    """Take out what came first, and what follows it as far as both are at most so many bytes.

    Who is slower than records come would otherwise have an answer for each record, and pay for each what a thousand cost.
    """
    first = last = waiting.popleft()
    parts, size = [first], first.size
    while waiting and size + waiting[0].size <= most and _is_followed_by(last, waiting[0]):
        last = waiting.popleft()
        parts.append(last)
        size += last.size
    if first is last:
        return first
    undecoded = [each.tables for each in parts if isinstance(each.tables, Undecoded)]
    answers = tuple(answer for each in undecoded for answer in each.answers)
    tables = replace(undecoded[0], answers=answers, stop=undecoded[-1].stop)
    return replace(last, asked=first.asked, size=size, tables=tables)


def _is_followed_by(earlier: Part, later: Part) -> bool:
    one, other = earlier.tables, later.tables
    return isinstance(one, Undecoded) and isinstance(other, Undecoded) and one.is_followed_by(other)


def batches(part: Part, most: int) -> Iterator[Records]:
    """The records of a part, at most so many at a time. The last batch reaches up to the part's end.

    A part without a visible record gives one batch without any: there is something to go past. Raises what decoding does.
    """
    if part.cut is not None:
        yield from part.cut(part, most)
        return
    held: Records | None = None
    at = part.asked
    at_once = most * max(1, TOGETHER // most)
    tables = iter(part.tables())
    while True:
        try:
            table = next(tables, None)
        except CorruptRecordsError:
            if held is not None:
                yield held
            raise
        if table is None:
            break
        rows = table if isinstance(table, Rows) else _rows(part.shard, table)
        for begin in range(0, rows.count, at_once):
            whole = Whole(rows if rows.count <= at_once else rows.slice(begin, at_once))
            count, offsets = whole.rows.count, whole.rows.offsets
            for first in range(0, count, most):
                if held is not None:
                    yield held
                next_ = int(offsets[min(first + most, count) - 1]) + 1
                held, at = Records(part.shard, whole, at, next_, first=first, most=most), next_
    if held is None:
        yield records_of(part.shard, (), part.asked, part.next)
    else:
        # What follows the last record is no record: a transaction's marker, or what compaction has left of one.
        yield held.up_to(part.next)


def _rows(shard: ShardId, table: pa.RecordBatch) -> Rows:
    """Of a fetcher whose records are there as Arrow already."""
    from shardherd.source.decoding.record_columns import rows_of_arrow

    return rows_of_arrow(shard, table)
