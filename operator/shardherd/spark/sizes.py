"""How many bytes the next records of shards have, for `maxBytesPerTrigger`: from the headers of their next batches.

Called where micro-batches are planned: in the agent, and without a ConsumerGroup in the query's process. It asks for little and
decodes no record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Protocol

from shardherd.core.model import Offset, ShardId
from shardherd.spark.brokers import Fetched

SAMPLE_BYTES = 1024
"""Bytes that are fetched of a shard to learn the size of its records: the header of its next batch is enough."""

BATCH_HEADER = struct.Struct(">8xi45xi")
"""Length and number of records of a batch (format 2), in its first 61 bytes."""

BATCH_OVERHEAD = 12
"""Bytes of a batch before its length counts."""


class Sampled(Protocol):
    """Where records are: `brokers.Brokers`."""

    def begin_fetch(
        self, positions: Mapping[ShardId, Offset], timeout: float, *, shard_bytes: int
    ) -> Callable[[], list[Fetched]]: ...


def sizes_at(brokers: Sampled, positions: Mapping[ShardId, Offset], timeout: float) -> dict[ShardId, float]:
    """Bytes a record, compressed, of the batch at each position. Raises BrokersUnavailableError."""
    found: dict[ShardId, float] = {}
    for part in brokers.begin_fetch(positions, timeout, shard_bytes=SAMPLE_BYTES)():
        if len(part.data) >= BATCH_HEADER.size:
            length, records = BATCH_HEADER.unpack_from(part.data)
            if records > 0:
                found[part.shard] = (length + BATCH_OVERHEAD) / records
    return found
