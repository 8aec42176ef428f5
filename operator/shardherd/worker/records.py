"""A batch of records of one shard, as `process` gets it: columns, of which single records are made only when it is iterated.

Made by `fetched`, cut short by `holding`. It decides which of its records count as processed once `process` has returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding.record_columns import schema_of

Header: TypeAlias = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp` is in milliseconds since 1970; what is None was null in Kafka."""

    offset: Offset
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...]


COLUMNS = ("offset", "key", "value", "timestamp", "headers")

NOTHING = pa.RecordBatch.from_pylist([], schema=schema_of(COLUMNS))


class Records:
    """Records of one shard in the order of their offsets, from `position` on; `next` is where to go on after all of them.

    Between two offsets there may be a gap (compaction, transactions), also before `position` and `next`: `next` is not the
    last offset and one. To iterate it makes a `Record` of each; `table` has all of them as columns, and makes none.
    """

    def __init__(self, shard: ShardId, table: pa.RecordBatch, position: Offset, next_: Offset) -> None:
        self.shard = shard
        self.table = table
        self.position = position
        self.next = next_
        self._stopped = False
        self._cut: Offset | None = None
        # Of each iteration that has not come to its end, the record in hand.
        self._in_hand: list[list[Offset]] = []

    def __len__(self) -> int:
        return self.table.num_rows

    def __iter__(self) -> Iterator[Record]:
        """One by one. It ends early, after the record in hand, when the shard has to be given up: the rest is not lost."""
        at = [self.position]
        self._in_hand.append(at)
        for record in self._made():
            if self._stopped:
                self._cut = record.offset if self._cut is None else min(self._cut, record.offset)
                break
            at[0] = record.offset
            yield record
        self._in_hand = [each for each in self._in_hand if each is not at]

    def __repr__(self) -> str:
        return f"<{len(self)} records of {self.shard} from {self.position} up to {self.next}>"

    def begin(self) -> None:
        """It is handed out, maybe again: what an attempt before has left open does not count."""
        self._in_hand = []

    def stop(self) -> None:
        """The shard has to be given up: who iterates gets no further record. Called by any thread."""
        self._stopped = True

    @property
    def done(self) -> Offset:
        """Where to go on if all that was given out is processed: `next`, unless an iteration has ended early."""
        return self.next if self._cut is None else self._cut

    @property
    def finished(self) -> Offset:
        """What is surely processed while `process` runs: not the record in hand of a loop, nor what a loop left out."""
        return min((self.done, *(each[0] for each in self._in_hand)))

    def since(self, position: Offset) -> Records:
        """The same without the records before a position in it."""
        first = int(np.searchsorted(self.table.column("offset").to_numpy(), position))
        return Records(self.shard, self.table.slice(first), position, self.next)

    def _made(self) -> Iterator[Record]:
        columns = self.table.select(list(COLUMNS)).columns
        offsets, keys, values, times, headers = columns
        millis = (times.view(pa.int64()).to_numpy() // 1000).tolist()
        if headers.null_count == len(headers):
            all_headers: list[tuple[Header, ...]] = [()] * len(headers)
        else:
            all_headers = [tuple((each["key"], each["value"]) for each in row or ()) for row in headers.to_pylist()]
        return map(Record, offsets.to_numpy().tolist(), keys.to_pylist(), values.to_pylist(), millis, all_headers)


def records_of(shard: ShardId, records: Iterable[Record], position: Offset, next_: Offset) -> Records:
    """A batch of records that are there already."""
    rows = [
        {
            "offset": record.offset,
            "key": record.key,
            "value": record.value,
            "timestamp": record.timestamp * 1000,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in records
    ]
    return Records(shard, pa.RecordBatch.from_pylist(rows, schema=schema_of(COLUMNS)), position, next_)
