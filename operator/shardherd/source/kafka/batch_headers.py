"""What the headers of record batches show: how large records are, and how old.

Called where micro-batches are planned (for `maxBytesPerTrigger`), and by the agent (for its metrics). It asks for the headers
of batches only and decodes no record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Protocol

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding.record_layout import CODEC_MASK, CONTROL
from shardherd.source.kafka.fetching import Fetched

SAMPLE_BYTES = (1024, 32 * 1024, 2 * 1024 * 1024)
"""Bytes that are fetched of a shard: a header is enough, but Kafka sends whole batches only. That of the first shard comes
whatever its size; the others are asked for once more with room for larger ones, up to more than Kafka takes by default."""

HEADER = struct.Struct(">8xi9xh12xq14xi")
"""Length, attributes, newest time (milliseconds) and number of records of a batch (format 2): its first 61 bytes."""

LEGACY_HEADER = struct.Struct(">8xi4x2b")
"""Length, format and attributes of a message of format 0 or 1, which says nowhere how many others it holds compressed."""

LEGACY_TIME = struct.Struct(">18xq")
"""Time (milliseconds) of a message of format 1. That of one that holds others need not be theirs."""

FORMAT_AT = 16
"""Where all formats say which one they are."""

BATCH_OVERHEAD = 12
"""Bytes of a batch before its length counts."""


class Sampled(Protocol):
    """Where records are: `brokers.Brokers`."""

    def begin_fetch(
        self, positions: Mapping[ShardId, Offset], timeout: float, *, shard_bytes: int
    ) -> Callable[[], list[Fetched]]: ...


def sizes_at(brokers: Sampled, positions: Mapping[ShardId, Offset], timeout: float) -> dict[ShardId, float]:
    """Bytes a record, compressed, of the batch at each position. Raises BrokersUnavailableError, SourceRefusedError."""
    found = _headers(brokers, positions, timeout)
    return {shard: (length + BATCH_OVERHEAD) / records for shard, (length, _, records) in found.items() if records > 0}


def event_times(brokers: Sampled, positions: Mapping[ShardId, Offset], timeout: float) -> dict[ShardId, float]:
    """Seconds since 1970 of the newest record in the batch at each position. Raises as `sizes_at`."""
    return {shard: newest / 1000 for shard, (_, newest, _) in _headers(brokers, positions, timeout).items() if newest >= 0}


def _headers(brokers: Sampled, positions: Mapping[ShardId, Offset], timeout: float) -> dict[ShardId, tuple[int, int, int]]:
    """Bytes, newest time and number of records of each. A compressed message of formats 0 and 1 counts for one record."""
    found: dict[ShardId, tuple[int, int, int]] = {}
    left = positions
    for size in SAMPLE_BYTES:
        parts = brokers.begin_fetch(left, timeout, shard_bytes=size)()
        found |= {part.shard: header for part in parts if (header := _header(part.data)) is not None}
        left = {part.shard: part.asked for part in parts if not part.said}
        if not left:
            break
    return found


def _header(data: bytes) -> tuple[int, int, int] | None:
    """Of the first batch that has records of users, or else of the first one."""
    first, at = None, 0
    while len(data) - at >= LEGACY_HEADER.size:
        if data[at + FORMAT_AT] == 2:
            if len(data) - at < HEADER.size:
                break
            length, attributes, newest, records = HEADER.unpack_from(data, at)
        else:
            length, magic, attributes = LEGACY_HEADER.unpack_from(data, at)
            plain = magic == 1 and not attributes & CODEC_MASK and len(data) - at >= LEGACY_TIME.size
            (newest,), records = LEGACY_TIME.unpack_from(data, at) if plain else (-1,), 1
            attributes = 0  # that of a mark means something else there
        header = (length, newest, records)
        if records > 0 and not attributes & CONTROL:
            return header
        first = first or header
        at += BATCH_OVERHEAD + max(0, length)
    return first
