"""The shards of one group in Kafka, and who else is in its Kafka group. Called by the coordinator through `ShardSource`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import kafka.errors as errors
from kafka.protocol.admin import DescribeGroupsRequest

from shardherd.adapters.kafka.catalogue import Catalogue, Interest
from shardherd.adapters.kafka.connection import KafkaConnection, Wire
from shardherd.adapters.kafka.endings import Endings
from shardherd.adapters.kafka.times import RecordTimes
from shardherd.core.model.nouns import KafkaSource, Offset, ShardId
from shardherd.ports import Discovered, SourceUnavailableError
from shardherd.source.kafka.coordinators import ask_coordinator
from shardherd.source.kafka.partitions import milliseconds, partition_of, shard_of

MEMBERS_TIMEOUT = 10.0
"""Seconds for the look at the group's members; a fresh cluster creates its internal topic first."""

TIMES_TIMEOUT = 5.0
"""Seconds for a look at records' times."""

_UNKNOWN = frozenset({"", "Dead"})
"""What a broker says of a group that it has never heard of, or that is of another protocol."""

_NOBODY = frozenset({"", "Empty", "Dead", "Unknown"})
"""States of a group that has no members."""


class KafkaShardSource:
    """ShardSource over the shared connection and catalogue of a cluster."""

    def __init__(
        self,
        connection: KafkaConnection,
        catalogue: Catalogue,
        source: KafkaSource,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._source = source
        self._interest = Interest(source.topics, source.topic_pattern)
        ending = source.ending_timestamp
        self._endings = None if ending is None else Endings(ending, catalogue)
        self._times = RecordTimes(read_committed=source.read_committed)
        self._registered = False
        self._leave = leave
        self._closed = False

    async def discover(self, *, sizes: bool = False, ends: bool = False) -> Discovered:
        """Every partition of the group's topics, by topic and number, always with its end. Raises SourceUnavailableError."""
        del ends
        if not self._registered:
            self._catalogue.register(self._interest)
            self._registered = True
        look = await self._catalogue.look(self._interest)
        servers = self._source.bootstrap_servers
        absent = [topic for topic in self._source.topics if topic in look.refused or topic not in look.topic_ids]
        missing = "; ".join(_refusal(topic, servers, look.refused.get(topic, "")) for topic in absent)
        unlooked = tuple(shard_of(*partition) for partition in sorted(look.leaderless) if look.of(self._interest, partition[0]))
        named = look.shards.keys() & self._source.topics
        topics = [topic for topic in look.shards if look.of(self._interest, topic)] if self._interest.pattern else sorted(named)
        # Where there is one topic, it is the look's own value.
        shards = (
            look.shards[topics[0]] if len(topics) == 1 else tuple(chain.from_iterable(look.shards[topic] for topic in topics))
        )
        if self._endings is not None:
            shards, without_end = await self._endings.closed(look, shards)
            unlooked = tuple(sorted({*unlooked, *without_end}))
        if not shards and (missing or unlooked):
            raise SourceUnavailableError(missing or f"Kafka at {servers}: {unlooked[0]} has no leader; start its broker")
        if not shards:
            raise SourceUnavailableError(
                f"no topic at {servers} matches spec.source.kafka.topicPattern {self._source.topic_pattern!r}; create one or"
                " correct the pattern"
            )
        if sizes:
            known = await self._catalogue.sizes(look)
            shards = tuple(info._replace(size=known.get(partition_of(info.shard))) for info in shards)
        return Discovered(shards, unlooked, missing)

    async def positions_at(self, timestamp: float) -> Mapping[ShardId, Offset]:
        """By the timestamps of the records, as Kafka keeps them: of their creation, or of their appending to the log."""
        await self.discover()
        look = await self._catalogue.look(self._interest)
        # Where a shard is closed, what is not found would be taken for behind its end.
        undecided = self._endings is not None
        found = await self._catalogue.first_since(look, self._interest, milliseconds(timestamp), undecided=undecided)
        return {shard_of(*partition): offset for partition, offset in found.items()}

    async def written_at(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float | None]:
        """One Fetch for each broker that leads some of them, of which `times` bounds the size. See the port."""
        leaders = self._catalogue.leaders(self._interest)
        wanted = {
            partition: (leaders[partition], offset)
            for partition, offset in ((partition_of(shard), offset) for shard, offset in positions.items())
            if partition in leaders
        }
        found = await self._connection.run(
            "read the times of records", lambda wire: self._times.read(wire, wanted), TIMES_TIMEOUT
        )
        return {shard_of(*partition): time for partition, time in found.items()}

    async def log_ends(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        """The high watermarks: an open transaction, which may hold records of before, does not end a log."""
        wanted = frozenset(partition_of(shard) for shard in shards)
        found = await self._catalogue.log_ends(await self._catalogue.look(self._interest), wanted)
        return {shard_of(*partition): end for partition, end in found.items()}

    async def live_members(self) -> tuple[str, ...]:
        """One description a member: client id and address. Raises SourceUnavailableError."""
        what, group = f"describe the group {self._source.group_id!r}", self._source.group_id
        described, node = await self._connection.run(what, self._describe, MEMBERS_TIMEOUT)
        if described.members:
            return tuple(sorted(_name(member) for member in described.members))
        if described.group_state not in _UNKNOWN:
            return ()
        # Groups of Kafka's newer protocols are not described by this request, but they are listed.
        listed = (await self._catalogue.groups(node)).get(group)
        return () if listed is None or listed.state in _NOBODY else (f"a group of type {listed.type} in state {listed.state}",)

    async def _describe(self, wire: Wire) -> tuple[Any, int]:
        """What the group's coordinator says of it, and which broker that is."""
        group = self._source.group_id
        response, node = await ask_coordinator(
            wire,
            group,
            lambda: DescribeGroupsRequest(groups=[group]),
            lambda answer: int(answer.groups[0].error_code),
            accept=(errors.GroupIdNotFoundError,),
        )
        return response.groups[0], node

    async def close(self) -> None:
        if self._registered:
            self._catalogue.unregister(self._interest)
            self._registered = False
        if not self._closed:
            self._closed = True
            await self._leave()


def _name(member: Any) -> str:
    return f"{member.client_id} at {str(member.client_host).lstrip('/')}"


def _refusal(topic: str, servers: str, error: str) -> str:
    if error in ("", errors.UnknownTopicOrPartitionError.__name__):
        return f"topic {topic!r} does not exist in Kafka at {servers}; create it or correct spec.source.kafka.topics"
    return (
        f"Kafka at {servers} does not show topic {topic!r}: {error}; allow the operator's user READ on it, or correct its name"
    )
