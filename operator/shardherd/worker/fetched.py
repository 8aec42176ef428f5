"""What one Fetch brought of a shard, and how it is cut into batches for `process`.

Made by `fetching`, queued by `stream`, cut by `holding` in the thread that processes: what waits is as Kafka has sent it, and
only what is in hand is decompressed. Decides how large a batch is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.records import NOTHING, Records


@dataclass(frozen=True, slots=True)
class Part:
    """A shard's part of an answer: what it has from `asked` up to `next`, in `size` bytes as they were sent.

    `end` is where the shard ended when it was sent. `tables` decodes the records, in order, those that are visible. An
    answer without records has none and `next` is `asked`, or above it if those before it are lost.
    """

    shard: ShardId
    asked: Offset
    next: Offset
    end: Offset
    size: int
    tables: Callable[[], Iterable[pa.RecordBatch]]


def batches(part: Part, most: int) -> Iterator[Records]:
    """The records of a part, at most so many at a time. The last batch reaches up to the part's end.

    A part without a visible record gives one batch without any: there is something to go past. Raises what decoding does.
    """
    held: Records | None = None
    at = part.asked
    for table in part.tables():
        for first in range(0, table.num_rows, most):
            if held is not None:
                yield held
            piece = table.slice(first, most)
            next_ = piece.column("offset")[-1].as_py() + 1
            held, at = Records(part.shard, piece, at, next_), next_
    if held is None:
        yield Records(part.shard, NOTHING, part.asked, part.next)
    else:
        # What follows the last record is no record: a transaction's marker, or what compaction has left of one.
        yield Records(part.shard, held.table, held.position, part.next)
