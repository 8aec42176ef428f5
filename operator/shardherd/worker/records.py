"""A batch of records of one shard, as `process` gets it: columns, of which single records are made only when it is iterated.

Made by `fetched`, cut short by `holding`. It decides which of its records count as processed once `process` has returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from shardherd.core.model.nouns import Offset, Place, ShardId
from shardherd.source.decoding.record_rows import Rows, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

Header: TypeAlias = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp` is in milliseconds since 1970; what is None was null in Kafka.

    Of Kinesis `offset` is the sequence number, `key` the partition key, and `sub` the place in an aggregated record, from 0 on:
    its records have one `offset`, and a position passes all of them or none.
    """

    offset: Offset
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...]
    sub: int = 0

    @property
    def place(self) -> Place:
        """Where it is in its shard: no two records have the same."""
        return self.offset, self.sub

    @property
    def name(self) -> str:
        """Its place for users."""
        return f"record {self.offset}" + (f", sub {self.sub}" if self.sub else "")


OVERHEAD = 200
"""About how many bytes a record takes beside its key, its value and its headers."""


def size_of(record: Record) -> int:
    """About how many bytes it takes."""
    sizes = (len(name) + len(value or b"") for name, value in record.headers)
    return OVERHEAD + len(record.key or b"") + len(record.value or b"") + sum(sizes)


_Lists: TypeAlias = tuple[list[Offset], list[bytes | None], list[bytes | None], list[int], list[tuple[Header, ...]]]
"""Of every record its offset, key, value, time and headers."""

COLUMNS = ("offset", "key", "value", "timestamp", "headers")


class Whole:
    """Rows of which several batches are cut. Python objects of them are made once, by the first that is iterated."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @cached_property
    def columns(self) -> _Lists:
        rows = self.rows
        millis: list[int] = (rows.timestamps // 1000).tolist()
        return rows.offsets.tolist(), rows.keys.list(), rows.values.list(), millis, rows.headers.list()


NOTHING = Whole(rows_of(ShardId(""), [], [], [], [], [], []))


class _Loop:
    """One iteration. It runs without a line of Python for each record, so how far it is its iterators are asked."""

    def __init__(self, whole: Whole, first: int, stop: int) -> None:
        offsets, keys, values, times, headers = whole.columns
        self.over = False
        """Whether it was asked for a record that it did not give."""
        self._offsets = whole.rows.offsets[first:stop]
        self._left = offsets[first:stop]
        self._keys = iter(keys[first:stop])
        # Whether there is one more the first iterator says; the others are asked only then.
        there = chain(self._left, self._end())
        self.records = map(Record, there, self._keys, values[first:stop], times[first:stop], headers[first:stop])

    def _end(self) -> Iterator[Offset]:
        self.over = True
        yield from ()

    def stop(self) -> None:
        """It gives no further record. Called by any thread."""
        self._left.clear()

    @property
    def _given(self) -> int:
        return len(self._offsets) - length_hint(self._keys)

    @property
    def cut(self) -> Offset | None:
        """The first record that it did not give although it was asked for it."""
        given = self._given
        return int(self._offsets[given]) if self.over and given < len(self._offsets) else None

    @property
    def in_hand(self) -> Offset | None:
        """The record that it gave last."""
        given = self._given
        return int(self._offsets[given - 1]) if given else None


class Records:
    """Records of one shard in the order of their offsets, from `position` on; `next` is where to go on after all of them.

    Between two offsets there may be a gap (compaction, transactions), also before `position` and `next`: `next` is not the
    last offset and one. To iterate it makes a `Record` of each; `table` has all of them as columns, and makes none.
    """

    def __init__(
        self, shard: ShardId, whole: Whole, position: Offset, next_: Offset, *, first: int = 0, most: int | None = None
    ) -> None:
        """At most so many of the rows of `whole`, from the first one on that is given."""
        # By these it is known where to go on: a program reads them, and cannot set them.
        self._shard = shard
        self._position = position
        self._next = next_
        self._whole = whole
        self._first = first
        self._stop = whole.rows.count if most is None else min(first + most, whole.rows.count)
        self._stopped = False
        # Every iteration that may have ended early, and those that count of what is in hand.
        self._loops: list[_Loop] = []
        self._counted: list[_Loop] = []

    @property
    def shard(self) -> ShardId:
        """Whose records they are."""
        return self._shard

    @property
    def position(self) -> Offset:
        """Where they begin: all before is done, or in an earlier batch."""
        return self._position

    @property
    def next(self) -> Offset:
        """Where to go on after all of them."""
        return self._next

    @cached_property
    def table(self) -> pa.RecordBatch:
        """All of them as the columns COLUMNS. Arrow is imported here, for the first program that asks for it."""
        from shardherd.source.decoding.record_columns import arrow_of

        return arrow_of(self._whole.rows.slice(self._first, len(self)), COLUMNS)

    @property
    def longest(self) -> int:
        """Bytes of the longest value."""
        return int(np.diff(self._whole.rows.values.ends[self._first : self._stop + 1]).max(initial=0))

    def __len__(self) -> int:
        return self._stop - self._first

    def __iter__(self) -> Iterator[Record]:
        """One by one. It ends early, after the record in hand, when the shard has to be given up: the rest is not lost."""
        loop = _Loop(self._whole, self._first, self._stop)
        self._loops = [*(each for each in self._loops if not each.over or each.cut is not None), loop]
        self._counted = [*(each for each in self._counted if not each.over), loop]
        if self._stopped:  # looked at after it can be found by `stop`
            loop.stop()
        return loop.records

    def __repr__(self) -> str:
        return f"<{len(self)} records of {self.shard} from {self.position} up to {self.next}>"

    def begin(self) -> None:
        """It is handed out, maybe again: what an attempt before has left open does not count."""
        self._counted = []

    def stop(self) -> None:
        """The shard has to be given up: who iterates gets no further record. Called by any thread."""
        self._stopped = True
        for loop in self._loops:
            loop.stop()

    @property
    def done(self) -> Offset:
        """Where to go on if all that was given out is processed: `next`, unless an iteration has ended early."""
        return min((self.next, *(each.cut for each in self._loops if each.cut is not None)))

    @property
    def finished(self) -> Offset:
        """What is surely processed while `process` runs: not the record in hand of a loop, nor what a loop left out."""
        open_loops = [each for each in self._counted if not each.over]
        return min((self.done, *(self.position if each.in_hand is None else each.in_hand for each in open_loops)))

    def whole(self, position: Offset) -> Offset:
        """Where to go on if a program says that all before this position is processed: no later, while `process` runs."""
        return position

    def since(self, position: Offset) -> Records:
        """The same without the records before a position in it."""
        first = self._first + int(np.searchsorted(self._whole.rows.offsets[self._first : self._stop], position))
        return Records(self.shard, self._whole, position, self.next, first=first, most=self._stop - first)

    def up_to(self, next_: Offset) -> Records:
        """The same records, after which to go on elsewhere."""
        return Records(self.shard, self._whole, self.position, next_, first=self._first, most=len(self))


def records_of(shard: ShardId, records: Iterable[Record], position: Offset, next_: Offset) -> Records:
    """A batch of records that are there already."""
    given = list(records)
    rows = rows_of(
        shard,
        [each.offset for each in given],
        [each.timestamp * 1000 for each in given],
        [0] * len(given),
        [each.key for each in given],
        [each.value for each in given],
        [each.headers for each in given],
    )
    return Records(shard, Whole(rows), position, next_)
