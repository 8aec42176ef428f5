"""Where the partitions of a group are closed that is to read its topics up to a time, and no further.

Called by the group's source for every look. It decides the end of each partition, once: that of its first record at or after
the time, or of its log where it has none by then. Nothing else ends a partition of Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set

from shardherd.adapters.kafka.catalogue import Look
from shardherd.core.model.nouns import Offset, ShardId, ShardInfo
from shardherd.core.model.times import rfc3339
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka.partitions import Partition, partition_of

Since = Callable[[Look, Set[Partition], int], Awaitable[Mapping[Partition, Offset]]]
"""The offset of the first record of each of these partitions at or after a time in milliseconds, -1 if it has none. A partition
without an answer is absent. Raises SourceUnavailableError."""


class Endings:
    """The ends of one group's shards. `timestamp` is in seconds since 1970, `clock` the time of day."""

    def __init__(self, timestamp: float, since: Since, clock: Callable[[], float] = time.time) -> None:
        self._timestamp = timestamp
        self._since = since
        self._clock = clock
        self._ends: dict[tuple[ShardId, str], Offset] = {}
        """By the shard and the id of its topic: one that is made anew has an end of its own."""

    async def closed(self, look: Look, shards: Iterable[ShardInfo]) -> tuple[tuple[ShardInfo, ...], tuple[ShardId, ...]]:
        """These shards with their ends, and those of which it could not be learned yet. Raises SourceUnavailableError."""
        if self._clock() < self._timestamp:
            raise SourceUnavailableError(
                f"spec.source.kafka.endingTimestamp {rfc3339(self._timestamp)} is not past: what is written until then is not"
                " known yet, and the group begins to read then. For an earlier beginning create it with a time that is past"
            )
        there = tuple(shards)
        if missing := [info for info in there if _key(info) not in self._ends]:
            await self._look_up(look, missing)
        ends = self._ends
        known = tuple(_closed(info, ends[key]) for info in there if (key := _key(info)) in ends)
        return known, tuple(info.shard for info in there if _key(info) not in ends)

    def capped(self, log_ends: Mapping[ShardId, Offset], shards: Sequence[ShardInfo]) -> dict[ShardId, Offset]:
        """Ends of logs, none above that of its shard."""
        ends = {info.shard: self._ends[key] for info in shards if (key := _key(info)) in self._ends}
        return {shard: min(end, ends.get(shard, end)) for shard, end in log_ends.items()}

    async def _look_up(self, look: Look, missing: Sequence[ShardInfo]) -> None:
        wanted = frozenset(partition_of(info.shard) for info in missing)
        found = await self._since(look, wanted, round(self._timestamp * 1000))
        for info in missing:
            if (offset := found.get(partition_of(info.shard))) is not None:
                # Without such a record it is where the log ended after that time: what comes late is not read.
                self._ends[_key(info)] = offset if offset >= 0 else info.end


def _key(info: ShardInfo) -> tuple[ShardId, str]:
    return info.shard, info.source_id


def _closed(info: ShardInfo, end: Offset) -> ShardInfo:
    # Retention may have deleted all that there was before it.
    return info._replace(end=max(end, info.begin), open=False)
