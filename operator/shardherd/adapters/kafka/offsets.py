"""Durable positions of one group: the offsets of its Kafka group, written in transactions under one transactional id.

Called by the coordinator through `OffsetStore`. The requests are sent one by one on the connection that the groups of a cluster
share, so that every failure is known as "surely not written", "fenced" or "unknown"; a producer of its own per group would cost
threads and blur that. Decides nothing about who may commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import kafka.errors as errors
from kafka.protocol.consumer import OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.producer import AddOffsetsToTxnRequest, EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest

from shardherd.adapters.kafka.connection import KafkaConnection, Wire
from shardherd.core.model.nouns import KafkaSource, Offset, ShardId
from shardherd.ports import CommitFencedError, OutcomeUnknownError, SourceUnavailableError, UnknownShardsError
from shardherd.source.kafka.coordinators import TRANSACTION, ask_coordinator
from shardherd.source.kafka.partitions import partition_of, shard_of

TAKE_OVER_TIMEOUT = 15.0
"""Seconds; a fresh cluster creates its transaction log first."""

READ_TIMEOUT = 10.0
COMMIT_TIMEOUT = 10.0
"""Seconds; a commit takes some 10 ms on a healthy cluster."""

TRANSACTION_TIMEOUT_MS = 60_000
"""After this long the broker itself aborts a transaction that we left open."""

LARGEST, OVERHEAD = 512 * 1024, 64
"""Bytes that one request changes at most, and those of an offset beside its names: brokers store 1 MiB at once by default."""

_FENCED = (
    errors.ProducerFencedError,
    errors.InvalidProducerEpochError,
    errors.InvalidProducerIdMappingError,
    errors.TransactionCoordinatorFencedError,
)

# Newer versions of these requests change who adds the group to the transaction and who counts the epoch up.
_ADD_VERSION = _COMMIT_VERSION = _END_VERSION = 4


@dataclass(frozen=True)
class _Producer:
    """The identity under which the broker accepts our commits."""

    id: int
    epoch: int


class KafkaOffsetStore:
    """OffsetStore on a Kafka group, fenced by the transactional id `shardherd.<Kafka group id>`."""

    def __init__(self, connection: KafkaConnection, source: KafkaSource, leave: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self._group = source.group_id
        self._transactional_id = f"shardherd.{source.group_id}"
        self._leave = leave
        self._closed = False
        self._producer: _Producer | None = None
        self._dirty = False
        self._writing = asyncio.Lock()

    async def take_over(self) -> None:
        """Fence every earlier writer and end its open transaction. Raises SourceUnavailableError."""
        async with self._writing:
            self._producer = await self._connection.run(
                f"take over the offsets of group {self._group!r}", lambda wire: self._init(wire, None), TAKE_OVER_TIMEOUT
            )
            self._dirty = False

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        """The committed offsets of these shards; none is pending when this returns. Raises SourceUnavailableError."""
        return {shard: offset for shard, (offset, _) in (await self._read(shards)).items()}

    async def notes(self, shards: Sequence[ShardId]) -> Mapping[ShardId, str]:
        """The metadata of the committed offsets of these shards. Raises SourceUnavailableError."""
        return {shard: note for shard, (_, note) in (await self._read(shards)).items() if note}

    async def _read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, tuple[Offset, str]]:
        topics = _by_topic(shards)
        if not topics:
            return {}
        what = f"read the offsets of group {self._group!r}"
        async with self._writing:
            if self._dirty:
                # Our failed transaction would keep the positions in it unreadable until the broker aborts it.
                await self._connection.run(what, self._clean, READ_TIMEOUT)
        return await self._connection.run(what, lambda wire: self._fetch(wire, topics), READ_TIMEOUT)

    async def commit(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> None:
        """Write the offsets in one transaction, with the notes as their metadata.

        Raises CommitFencedError if another producer has taken the transactional id, OutcomeUnknownError if the last step may
        have happened, UnknownShardsError if the broker does not have some of the partitions, SourceUnavailableError if the last
        step surely did not happen.
        """
        async with self._writing:
            if self._producer is None:
                raise CommitFencedError(f"the offsets of Kafka group {self._group!r} were not taken over yet")
            what = f"commit offsets of group {self._group!r}"
            asked = _Step()
            parts = [_topics({shard: offsets[shard] for shard in part}, notes) for part in self._parts(offsets, notes)]
            try:
                await self._connection.run(what, lambda wire: self._transaction(wire, parts, asked), COMMIT_TIMEOUT)
            except SourceUnavailableError as error:
                self._dirty = True
                if isinstance(error.__cause__, _FENCED):
                    raise CommitFencedError(
                        f"another producer has taken over transactional id {self._transactional_id!r}: {error}"
                    ) from error
                if asked.unknown:
                    raise UnknownShardsError(str(error), frozenset(asked.unknown)) from error
                if asked.to_commit and not isinstance(error.__cause__, errors.InvalidTxnStateError):
                    raise OutcomeUnknownError(f"{error}; it may have happened") from error
                raise
            except BaseException:
                self._dirty = True
                raise

    async def forget(self, shards: Sequence[ShardId]) -> None:
        """Delete the committed offsets of these shards. Kafka has deleted those of a deleted topic already, and says so.

        Raises SourceUnavailableError.
        """
        what = f"delete offsets of group {self._group!r}"
        kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
        for part in self._parts(shards, {}) if shards else ():
            topics = [
                kind(name=topic, partitions=[kind.OffsetDeleteRequestPartition(partition_index=number) for number in numbers])
                for topic, numbers in _by_topic(part).items()
            ]
            await self._connection.run(what, partial(self._delete, topics=topics), COMMIT_TIMEOUT)

    async def _delete(self, wire: Wire, topics: list[Any]) -> None:
        await ask_coordinator(
            wire,
            self._group,
            lambda: OffsetDeleteRequest(group_id=self._group, topics=topics),
            lambda answer: int(answer.error_code) or _first_error(answer, errors.UnknownTopicOrPartitionError.errno),
            accept=(errors.GroupIdNotFoundError,),
        )

    def _parts(self, shards: Iterable[ShardId], notes: Mapping[ShardId, str]) -> list[list[ShardId]]:
        """The shards by request: a broker stores what one request changes as one batch, and refuses one that is too large."""
        parts: list[list[ShardId]] = [[]]
        size = 0
        for shard in shards:
            one = len(self._group) + len(shard) + len(notes.get(shard, "").encode()) + OVERHEAD
            if parts[-1] and size + one > LARGEST:
                parts.append([])
                size = 0
            parts[-1].append(shard)
            size += one
        return parts

    async def _transaction(self, wire: Wire, parts: list[list[Any]], asked: _Step) -> None:
        if self._dirty:
            await self._clean(wire, fenced=False)
        producer = self._producer
        if producer is None:
            raise errors.InvalidProducerEpochError("the offsets were not taken over")
        identity = {"transactional_id": self._transactional_id, "producer_id": producer.id, "producer_epoch": producer.epoch}
        await self._txn(wire, lambda: AddOffsetsToTxnRequest(group_id=self._group, max_version=_ADD_VERSION, **identity))
        for topics in parts:
            answer, _ = await ask_coordinator(
                wire,
                self._group,
                partial(TxnOffsetCommitRequest, group_id=self._group, topics=topics, max_version=_COMMIT_VERSION, **identity),
                lambda answer: _first_error(answer, errors.UnknownTopicOrPartitionError.errno),
            )
            asked.unknown |= _unknown(answer)
        if asked.unknown:
            raise errors.UnknownTopicOrPartitionError(", ".join(sorted(asked.unknown)[:5]))
        asked.to_commit = True
        await self._txn(wire, lambda: EndTxnRequest(committed=True, max_version=_END_VERSION, **identity))

    async def _clean(self, wire: Wire, *, fenced: bool = True) -> None:
        """After a failed transaction: end it, and have its late requests refused by a new epoch under our own id.

        If somebody else has taken over, there is nothing to clean; that is an error only without `fenced`.
        """
        try:
            self._producer = await self._init(wire, self._producer)
        except _FENCED:
            if not fenced:
                raise
        self._dirty = False

    async def _init(self, wire: Wire, producer: _Producer | None) -> _Producer:
        """A producer identity; of `producer` its next epoch, which is refused if somebody else took over meanwhile."""
        current = producer or _Producer(-1, -1)
        response = await self._txn(
            wire,
            lambda: InitProducerIdRequest(
                transactional_id=self._transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                producer_id=current.id,
                producer_epoch=current.epoch,
                min_version=3,
                max_version=5,
            ),
        )
        return _Producer(response.producer_id, response.producer_epoch)

    async def _txn(self, wire: Wire, request: Callable[[], Any]) -> Any:
        response, _ = await ask_coordinator(
            wire, self._transactional_id, request, lambda answer: int(answer.error_code), TRANSACTION
        )
        return response

    async def _fetch(self, wire: Wire, topics: Mapping[str, list[int]]) -> dict[ShardId, tuple[Offset, str]]:
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        wanted = [group.OffsetFetchRequestTopics(name=name, partition_indexes=parts) for name, parts in topics.items()]
        response, _ = await ask_coordinator(
            wire,
            self._group,
            lambda: OffsetFetchRequest(
                groups=[group(group_id=self._group, topics=wanted)], require_stable=True, min_version=8, max_version=8
            ),
            lambda answer: int(answer.groups[0].error_code) or _first_error(answer.groups[0]),
        )
        return {
            shard_of(topic.name, partition.partition_index): (
                int(partition.committed_offset),
                str(partition.metadata or ""),
            )
            for topic in response.groups[0].topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    async def close(self) -> None:
        """Leave the connection to the other groups."""
        if not self._closed:
            self._closed = True
            await self._leave()


@dataclass
class _Step:
    """How far a transaction came: what the broker does not have of it, and whether it may have been asked to commit it."""

    unknown: set[ShardId] = field(default_factory=set)
    to_commit: bool = False


def _topics(offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> list[Any]:
    topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    by_topic: dict[str, list[Any]] = {}
    for shard, offset in offsets.items():
        topic, partition = partition_of(shard)
        entry = topic_type.TxnOffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=notes.get(shard, ""),
        )
        by_topic.setdefault(topic, []).append(entry)
    return [topic_type(name=topic, partitions=partitions) for topic, partitions in by_topic.items()]


def _by_topic(shards: Sequence[ShardId]) -> dict[str, list[int]]:
    """The numbers of these partitions, by topic."""
    topics: dict[str, list[int]] = {}
    for shard in shards:
        topic, partition = partition_of(shard)
        topics.setdefault(topic, []).append(partition)
    return topics


def _unknown(response: Any) -> set[ShardId]:
    """The partitions that the broker says it does not have."""
    return {
        shard_of(topic.name, partition.partition_index)
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code == errors.UnknownTopicOrPartitionError.errno
    }


def _first_error(response: Any, *accepted: int) -> int:
    """The first partition's error code that is neither 0 nor accepted, else 0."""
    codes = (int(partition.error_code) for topic in response.topics for partition in topic.partitions)
    return next((code for code in codes if code and code not in accepted), 0)
