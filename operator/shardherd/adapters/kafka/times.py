"""When records were written that a group has yet to read: their timestamps, from one bounded Fetch of each broker.

Called by the source of a group. A broker gives whole batches only, so that what it costs is bounded by bytes; a batch that
finds no room is asked for with more of it the next time. Nothing is decompressed: what a batch expands to is up to who wrote
it, and the operator reads the topics of many. Holds, for a group, how much room its topics need.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import kafka.errors as errors
from kafka.protocol.consumer import FetchRequest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from shardherd.adapters.kafka.connection import Wire
from shardherd.source.kafka.partitions import Partition

log = logging.getLogger(__name__)

MOST_BYTES = 2 * 1024 * 1024
"""Most bytes of one answer. (One batch may be larger: a broker gives the first one whatever its size.)"""

LEAST_ROOM, MOST_ROOM = 16 * 1024, MOST_BYTES
"""Bytes that are read of a partition: a batch of producers with Kafka's defaults, up to those of the largest batches."""

_HORIZON = 0x40
"""The attribute of a batch whose first timestamp says when compaction may drop it, not when anything was written."""


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """What the bytes of a partition show about the first record that may be read from a position on.

    `written` in milliseconds since 1970, None if it is not known or there is no such record; `next` is where the bytes end.
    """

    found: bool
    written: int | None
    next: int
    largest: int = 0


class Aborted(NamedTuple):
    """An aborted transaction: who wrote it, and where it begins."""

    producer_id: int
    first_offset: int


class RecordTimes:
    """Looks at records for one group, whose topics' batches it gets to know the sizes of."""

    def __init__(self, *, read_committed: bool) -> None:
        self._read_committed = read_committed
        self._room: dict[str, int] = {}

    async def read(self, wire: Wire, wanted: Mapping[Partition, tuple[int, int]]) -> dict[Partition, float | None]:
        """The times in seconds since 1970 of the records at these (leader, offset), as the port says it."""
        nodes: dict[int, dict[Partition, int]] = {}
        for partition, (node, offset) in wanted.items():
            nodes.setdefault(node, {})[partition] = offset
        found: dict[Partition, float | None] = {}
        for node, offsets in nodes.items():
            response = await wire.send(self._request(offsets), node)
            if response.error_code:
                raise errors.for_code(response.error_code)(f"reading the times of records at broker {node}")
            found |= self._learn(offsets, response)
        return found

    def _request(self, offsets: Mapping[Partition, int]) -> FetchRequest:
        """In the order of `offsets`: what comes first finds room first."""
        kind = FetchRequest.FetchTopic
        topics: dict[str, list[Any]] = {}
        for (topic, number), offset in offsets.items():
            room = self._room.get(topic, LEAST_ROOM)
            part = kind.FetchPartition(
                partition=number,
                current_leader_epoch=-1,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                partition_max_bytes=room,
            )
            topics.setdefault(topic, []).append(part)
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=MOST_BYTES,
            isolation_level=int(self._read_committed),
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic=name, partitions=parts) for name, parts in topics.items()],
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            # From 13 on topics go by their ids.
            max_version=12,
        )

    def _learn(self, offsets: Mapping[Partition, int], response: Any) -> dict[Partition, float | None]:
        found: dict[Partition, float | None] = {}
        largest: dict[str, int] = {}
        short: set[str] = set()
        size = 0
        for answer in response.responses:
            for part in answer.partitions:
                partition = (answer.topic, part.partition_index)
                if part.error_code:
                    log.debug("the times of %s/%s: %s", *partition, errors.for_code(part.error_code).__name__)
                    continue
                end = part.last_stable_offset if self._read_committed else part.high_watermark
                aborted = [Aborted(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
                first = _first_record(
                    partition, part.records or b"", offsets[partition], aborted if self._read_committed else ()
                )
                size += len(part.records or b"")
                largest[answer.topic] = max(largest.get(answer.topic, LEAST_ROOM), first.largest)
                if first.written is not None:
                    found[partition] = first.written / 1000.0
                elif not first.found and first.next >= end:
                    found[partition] = None
                elif not first.found:
                    short.add(answer.topic)
        for topic, needed in largest.items():
            room = self._room.get(topic, LEAST_ROOM)
            # A partition that said nothing although the answer had room for it has a batch that is larger than was asked for.
            larger = topic in short and size + room <= MOST_BYTES
            self._room[topic] = min(4 * room if larger else needed, MOST_ROOM)
        return found


def _first_record(partition: Partition, data: bytes, position: int, aborted: Sequence[Aborted]) -> FirstRecord:
    try:
        return first_written(data, position, aborted)
    except errors.KafkaError as error:
        log.debug("the time of %s/%s at %s: %s", *partition, position, error)
        return FirstRecord(found=True, written=None, next=position)


def first_written(data: bytes, position: int, aborted: Sequence[Aborted]) -> FirstRecord:
    """What these batches tell of the first record from `position` on that is none of `aborted` and no mark of a transaction.

    Raises a KafkaError for bytes that are no batches.
    """
    waiting = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    gone: set[int] = set()
    reached, largest = position, 0
    for batch in MemoryRecords(data):
        largest = max(largest, batch.size_in_bytes)
        if not isinstance(batch, DefaultRecordBatch):
            reached = max(reached, batch.base_offset + 1)
            found, written = _legacy_time_in(batch, position)
            if found:
                return FirstRecord(True, written, reached, largest)
            continue
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            gone.add(waiting.pop().producer_id)
        reached = max(reached, batch.next_offset)
        if batch.is_control_batch:
            gone.discard(batch.producer_id)
        elif batch.last_offset >= position and batch.records_count and not _aborted(batch, gone):
            found, written = _time_in(batch, position)
            if found:
                return FirstRecord(True, written, reached, largest)
    return FirstRecord(False, None, reached, largest)


def _aborted(batch: DefaultRecordBatch, gone: set[int]) -> bool:
    return bool(batch.is_transactional) and batch.producer_id in gone


def _time_in(batch: DefaultRecordBatch, position: int) -> tuple[bool, int | None]:
    """Whether the batch has a record from `position` on, and when that was written, None if it is not known.

    Of a compressed batch that is read in part it is the first record's time, as if they had been written in order.
    """
    horizon = bool(batch.attributes & _HORIZON)
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        return True, _known(batch.max_timestamp)
    compressed = batch.compression_type != batch.CODEC_NONE
    if not horizon and (position <= batch.base_offset or compressed):
        return True, _known(batch.first_timestamp)
    if compressed:
        return True, None
    for record in batch:
        if record.offset >= position:
            return True, _known(record.timestamp)
    return False, None


def _legacy_time_in(batch: Any, position: int) -> tuple[bool, int | None]:
    """The same of a message of the formats before Kafka 0.11. Of a compressed one, which has others in it, nothing is known."""
    if batch.compression_type:
        return True, None
    return next(((True, _known(record.timestamp)) for record in batch if record.offset >= position), (False, None))


def _known(timestamp: int | None) -> int | None:
    """Records may have none, which is -1 on the wire."""
    return timestamp if timestamp is not None and timestamp >= 0 else None
