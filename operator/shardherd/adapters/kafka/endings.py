"""Where the partitions of a group are closed that is to read its topics up to a time, and no further.

Called by the group's source for every look. It says the end of each partition: that of its first record at or after the time,
or of its log where it has none by then. Nothing else ends a partition of Kafka. The coordinator keeps what is said first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Protocol

from shardherd.adapters.kafka.catalogue import Look
from shardherd.core.model.nouns import Offset, ShardId, ShardInfo
from shardherd.core.model.times import rfc3339
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka.partitions import Partition, milliseconds, partition_of


class Logs(Protocol):
    """What a cluster's leaders say now of the logs of partitions, as `Catalogue` has it."""

    async def log_ends(self, look: Look, wanted: Set[Partition]) -> Mapping[Partition, Offset]: ...

    async def since(self, look: Look, wanted: Set[Partition], milliseconds: int) -> Mapping[Partition, Offset]: ...


class Endings:
    """The ends of one group's shards. `timestamp` is in seconds since 1970, `clock` the time of day."""

    def __init__(self, timestamp: float, logs: Logs, clock: Callable[[], float] = time.time) -> None:
        self._timestamp = timestamp
        self._logs = logs
        self._clock = clock
        self._ends: dict[tuple[ShardId, str], Offset] = {}
        """By the shard and the id of its topic: one that is made anew has an end of its own."""
        self._last: dict[ShardId, ShardInfo] = {}
        """What was said last of each shard, which is said again while nothing of it has changed."""

    async def closed(self, look: Look, shards: Iterable[ShardInfo]) -> tuple[tuple[ShardInfo, ...], tuple[ShardId, ...]]:
        """These shards with their ends, and those of which it could not be learned yet. Raises SourceUnavailableError."""
        if self._clock() < self._timestamp:
            raise SourceUnavailableError(
                f"spec.source.kafka.endingTimestamp {rfc3339(self._timestamp)} is not past: what is written until then is not"
                " known yet, and the group begins to read then. To begin earlier, create it with a time that is past"
            )
        there = tuple(shards)
        if missing := [info for info in there if _key(info) not in self._ends]:
            await self._look_up(look, missing)
        ends = self._ends
        known = tuple(self._closed(info, ends[key]) for info in there if (key := _key(info)) in ends)
        return known, tuple(info.shard for info in there if _key(info) not in ends)

    def _closed(self, info: ShardInfo, end: Offset) -> ShardInfo:
        # Retention may have deleted all that there was before it.
        made = info._replace(begin=min(info.begin, end), end=end, open=False)
        if self._last.get(info.shard) != made:
            self._last[info.shard] = made
        return self._last[info.shard]

    async def _look_up(self, look: Look, missing: Sequence[ShardInfo]) -> None:
        wanted = frozenset(partition_of(info.shard) for info in missing)
        try:
            # First, and not of the look: that may be older than the time, and what comes after this is of after it.
            log_ends = await self._logs.log_ends(look, wanted)
            found = await self._logs.since(look, wanted, milliseconds(self._timestamp))
        except SourceUnavailableError:
            if not self._ends:
                raise
            return  # a broker does not answer that leads all of these: the others are read
        for info in missing:
            partition = partition_of(info.shard)
            if partition in log_ends and partition in found:
                self._ends[_key(info)] = found[partition] if found[partition] >= 0 else log_ends[partition]


def _key(info: ShardInfo) -> tuple[ShardId, str]:
    return info.shard, info.source_id
