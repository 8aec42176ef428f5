"""The twin of Kafka: topics with begin and end offsets, group offsets fenced by the latest writer, and group members.

Shared by every coordinator of a test, as a real cluster is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardherd.adapters.memory.faults import Faults
from shardherd.core.group.topics import PatternError, check, selects
from shardherd.core.model.nouns import GroupSpec, KafkaSource, Offset, ShardId, ShardInfo
from shardherd.core.model.times import rfc3339
from shardherd.ports import CommitFencedError, Discovered, SourceUnavailableError, UnknownShardsError


@dataclass
class MemoryKafka:
    """A cluster. `faults` knows "discover", "positions_at", "written_at", "log_ends", "live_members", "take_over", "read",
    "commit" and "forget".

    `rack` is that of every leader that `racks` does not name by its shard. Every record has `record_size` bytes; with 0 sizes
    are not shown.
    """

    faults: Faults = field(default_factory=Faults)
    topics: dict[str, list[list[int]]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    committed: dict[str, dict[ShardId, Offset]] = field(default_factory=dict)
    noted: dict[str, dict[ShardId, str]] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    reachable: bool = True
    commits: int = 0
    rack: str = ""
    racks: dict[ShardId, str] = field(default_factory=dict)
    record_size: int = 100
    leaderless: set[ShardId] = field(default_factory=set)
    """Partitions of which nobody knows how far they reach."""

    open_since: dict[ShardId, Offset] = field(default_factory=dict)
    """The first record of the first transaction that is open, of shards that have one."""

    times: dict[ShardId, list[float]] = field(default_factory=dict)
    """When each record was written, in seconds since 1970, by its offset; 0 for those that it does not name."""

    def create_topic(self, name: str, partitions: int) -> None:
        self.topics[name] = [[0, 0] for _ in range(partitions)]
        self.topic_ids[name] = f"id-of-{name}-{len(self.topic_ids)}"

    def grow_topic(self, name: str, partitions: int) -> None:
        """Raise the number of partitions to `partitions`."""
        self.topics[name] += [[0, 0] for _ in range(partitions - len(self.topics[name]))]

    def append(self, topic: str, partition: int, records: int) -> None:
        self.topics[topic][partition][1] += records


class MemoryConnector:
    """SourceConnector for a MemoryKafka."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka

    def source(self, spec: GroupSpec) -> MemoryShardSource:
        return MemoryShardSource(self._kafka, spec.kafka)

    def offsets(self, spec: GroupSpec) -> MemoryOffsetStore:
        return MemoryOffsetStore(self._kafka, spec.kafka)


class MemoryShardSource:
    """ShardSource of a MemoryKafka."""

    def __init__(self, kafka: MemoryKafka, source: KafkaSource) -> None:
        self._kafka = kafka
        self._source = source
        self._ends: dict[tuple[ShardId, str], Offset] = {}

    async def discover(self, *, sizes: bool = False, ends: bool = False) -> Discovered:
        del ends  # they are always there
        await _enter(self._kafka, "discover", self._source.bootstrap_servers)
        missing = "; ".join(
            f"topic {name!r} does not exist in Kafka at {self._source.bootstrap_servers}; create it or correct"
            " spec.source.kafka.topics"
            for name in self._source.topics
            if name not in self._kafka.topics
        )
        pattern = self._source.topic_pattern
        try:
            check(pattern)
        except PatternError as error:
            raise SourceUnavailableError(
                f"spec.source.kafka.topicPattern {pattern!r} is not a regular expression of RE2: {error}"
            ) from error
        names = [name for name in sorted(self._kafka.topics) if selects(self._source.topics, pattern, name)]
        if not names and missing:
            raise SourceUnavailableError(missing)
        if not names:
            raise SourceUnavailableError(
                f"no topic at {self._source.bootstrap_servers} matches spec.source.kafka.topicPattern {pattern!r}; create one"
                " or correct the pattern"
            )
        decided = self._kafka.open_since if self._source.read_committed else {}
        shards = tuple(
            ShardInfo(
                ShardId(f"{name}/{number}"),
                begin,
                decided.get(ShardId(f"{name}/{number}"), end),
                source_id=self._kafka.topic_ids[name],
                zone=self._kafka.racks.get(ShardId(f"{name}/{number}"), self._kafka.rack),
                size=(end - begin) * self._kafka.record_size if sizes and self._kafka.record_size else None,
            )
            for name in names
            for number, (begin, end) in enumerate(self._kafka.topics[name])
            if ShardId(f"{name}/{number}") not in self._kafka.leaderless
        )
        unlooked = tuple(shard for shard in sorted(self._kafka.leaderless) if shard.rpartition("/")[0] in names)
        if unlooked and not shards:
            raise SourceUnavailableError(
                f"Kafka at {self._source.bootstrap_servers}: {unlooked[0]} has no leader; start its broker"
            )
        if (ending := self._source.ending_timestamp) is not None:
            if ending > time.time():
                raise SourceUnavailableError(f"spec.source.kafka.endingTimestamp {rfc3339(ending)} is not past")
            shards = tuple(self._closed(info, ending) for info in shards)
        return Discovered(shards, unlooked, missing)

    def _closed(self, info: ShardInfo, ending: float) -> ShardInfo:
        name, _, number = info.shard.rpartition("/")
        log_end, times = self._kafka.topics[name][int(number)][1], self._kafka.times.get(info.shard, [])
        young = (offset for offset in range(info.begin, log_end) if offset < len(times) and times[offset] >= ending)
        end = self._ends.setdefault((info.shard, info.source_id), next(young, log_end))
        return info._replace(begin=min(info.begin, end), end=end, open=False)

    async def positions_at(self, timestamp: float) -> Mapping[ShardId, Offset]:
        await _enter(self._kafka, "positions_at", self._source.bootstrap_servers)
        found: dict[ShardId, Offset] = {}
        looked = await self.discover()
        if looked.unlooked:
            raise SourceUnavailableError(f"{looked.unlooked[0]} has no leader; start its broker")
        for info in looked.shards:
            times = self._kafka.times.get(info.shard, [])
            for offset in range(info.begin, info.end):
                if (times[offset] if offset < len(times) else 0.0) >= timestamp:
                    found[info.shard] = offset
                    break
        return found

    async def log_ends(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        await _enter(self._kafka, "log_ends", self._source.bootstrap_servers)
        there = {
            ShardId(f"{name}/{at}"): end for name, all_of in self._kafka.topics.items() for at, (_, end) in enumerate(all_of)
        }
        return {shard: there[shard] for shard in shards if shard in there and shard not in self._kafka.leaderless}

    async def written_at(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float | None]:
        await _enter(self._kafka, "written_at", self._source.bootstrap_servers)
        found: dict[ShardId, float | None] = {}
        for info in (await self.discover()).shards:
            position = positions.get(info.shard, -1)
            if position >= info.end:
                found[info.shard] = None
            elif position >= info.begin:
                times = self._kafka.times.get(info.shard, [])
                found[info.shard] = times[position] if position < len(times) else 0.0
        return found

    async def live_members(self) -> tuple[str, ...]:
        await _enter(self._kafka, "live_members", self._source.bootstrap_servers)
        return self._kafka.members.get(self._source.group_id, ())

    async def close(self) -> None:
        """Nothing to close."""


class MemoryOffsetStore:
    """OffsetStore of a MemoryKafka; each take_over makes every earlier store of the same group a fenced one."""

    def __init__(self, kafka: MemoryKafka, source: KafkaSource) -> None:
        self._kafka = kafka
        self._group = source.group_id
        self._servers = source.bootstrap_servers
        self._writer = 0

    async def take_over(self) -> None:
        await _enter(self._kafka, "take_over", self._servers)
        self._writer = self._kafka.writers[self._group] = self._kafka.writers.get(self._group, 0) + 1
        self._kafka.faults.leave("take_over")

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        await _enter(self._kafka, "read", self._servers)
        committed = self._kafka.committed.get(self._group, {})
        return {shard: committed[shard] for shard in shards if shard in committed}

    async def notes(self, shards: Sequence[ShardId]) -> Mapping[ShardId, str]:
        await _enter(self._kafka, "read", self._servers)
        committed = self._kafka.committed.get(self._group, {})
        noted = self._kafka.noted.get(self._group, {})
        return {shard: noted[shard] for shard in shards if shard in committed and shard in noted}

    async def commit(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> None:
        await _enter(self._kafka, "commit", self._servers)
        if self._writer == 0 or self._writer != self._kafka.writers.get(self._group):
            raise CommitFencedError(f"another producer has taken over transactional id 'shardherd.{self._group}'")
        unknown = frozenset(shard for shard in offsets if not self._has(shard))
        if unknown:
            raise UnknownShardsError(f"Kafka at {self._servers}: cannot commit: UnknownTopicOrPartitionError", unknown)
        self._kafka.committed.setdefault(self._group, {}).update(offsets)
        noted = self._kafka.noted.setdefault(self._group, {})
        for shard in offsets:
            noted.pop(shard, None)
        noted.update(notes)
        self._kafka.commits += 1
        self._kafka.faults.leave("commit")

    def _has(self, shard: ShardId) -> bool:
        topic, _, number = shard.rpartition("/")
        return int(number) < len(self._kafka.topics.get(topic, ()))

    async def forget(self, shards: Sequence[ShardId]) -> None:
        await _enter(self._kafka, "forget", self._servers)
        for shard in shards:
            self._kafka.committed.get(self._group, {}).pop(shard, None)
            self._kafka.noted.get(self._group, {}).pop(shard, None)

    async def close(self) -> None:
        """Nothing to close."""


async def _enter(kafka: MemoryKafka, operation: str, servers: str) -> None:
    if not kafka.reachable:
        raise SourceUnavailableError(f"no Kafka broker answers at {servers}")
    await kafka.faults.enter(operation)
