"""A Fetch and what comes of it: the request for many shards of one broker, and each shard's part of the answer.

`brokers` sends the requests and decides what an error means; `range_reader` and `lost_records` decide what becomes of an
answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding.transactions import Aborted
from shardherd.source.kafka.leader_epochs import Diverged
from shardherd.source.kafka.partitions import Partition
from shardherd.source.kafka.wide_reads import RawFetch

FETCH_WAIT = 0.5
"""Seconds that a broker holds a Fetch that has nothing to say."""

_Topic = RawFetch.FetchTopic
_Partition = _Topic.FetchPartition


@dataclass(frozen=True, slots=True)
class Fetched:
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


@dataclass(frozen=True, slots=True)
class Asked:
    """One shard of a request; `epoch` is the one under which its leader leads, as far as we know."""

    partition: Partition
    offset: Offset
    most: int
    epoch: int


def request_for(
    shards: Iterable[Asked], ids: Mapping[str, uuid.UUID | None], most: int, *, committed: bool, rack: str
) -> RawFetch:
    """One broker's request, for at most `most` bytes. `ids` are those of the topics, None where there is none."""
    topics: dict[str, list[Any]] = {}
    for each in shards:
        topic, number = each.partition
        topics.setdefault(topic, []).append(
            _Partition(
                partition=number,
                current_leader_epoch=each.epoch,
                fetch_offset=each.offset,
                last_fetched_epoch=-1,
                partition_max_bytes=each.most,
            )
        )
    return RawFetch(
        max_wait_ms=int(FETCH_WAIT * 1000),
        min_bytes=1,
        max_bytes=most,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=[_Topic(topic=name, topic_id=ids[name], partitions=parts) for name, parts in topics.items()],
        forgotten_topics_data=[],
        rack_id=rack,
        min_version=4,
        # From 13 on topics go by their ids, so that one which was made anew is never read in place of the old one.
        max_version=13 if all(ids[name] for name in topics) else 12,
    )


def fetched(shard: ShardId, asked: Offset, part: Any, topic_id: str, *, committed: bool) -> Fetched:
    """A shard's part of an answer that is no error."""
    aborted = tuple(Aborted(each.producer_id, each.first_offset) for each in part.aborted_transactions or ())
    end = part.last_stable_offset if committed else part.high_watermark
    return Fetched(shard, asked, part.records or b"", end, topic_id, aborted=aborted, written=part.high_watermark)
