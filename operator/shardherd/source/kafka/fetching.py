"""What comes of a Fetch for many shards of one broker: each shard's part of the answer.

`brokers` sends the requests, which are `raw_fetch`'s, and decides what an error means; `range_reader` and `lost_records` decide
what becomes of an answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding.transactions import Aborted
from shardherd.source.kafka.leader_epochs import Diverged


class Fetched(NamedTuple):
    """One shard's part of a Fetch answer: raw batches, and the shard's end as its leader saw it.

    Under read_committed the end is that of the decided transactions, and `aborted` are those that were aborted; `written` is
    the end with the open ones, as far as it is known.

    `topic_id` is that of the topic that was read, empty if the broker is too old to say. `start` is given if the offset
    asked for is outside the shard: the first offset that it still has. `diverged` is given if the log is not the one that the
    range was planned for; nothing was read of it then. Without data, and with an end above what was asked, the answer had no
    room for it.
    """

    shard: ShardId
    asked: Offset
    data: bytes
    end: Offset
    topic_id: str = ""
    start: Offset | None = None
    aborted: tuple[Aborted, ...] = ()
    written: Offset = -1
    diverged: Diverged | None = None

    @property
    def said(self) -> bool:
        """Whether it says anything of the shard: its records, or why there are none."""
        return bool(self.data) or self.start is not None or self.diverged is not None or self.end <= self.asked


def fetched(shard: ShardId, asked: Offset, part: Any, topic_id: str, *, committed: bool) -> Fetched:
    """A shard's part of an answer that is no error."""
    aborted = tuple(Aborted(each.producer_id, each.first_offset) for each in part.aborted_transactions or ())
    end = part.last_stable_offset if committed else part.high_watermark
    return Fetched(shard, asked, part.records or b"", end, topic_id, aborted=aborted, written=part.high_watermark)
