"""Transactions of Kafka, one for each shard, over one connection: who may write, where the output stands, records, the end.

Spark's Kafka sink fences and reads positions with it on the driver and writes with it in the executors' workers; a worker's
`KafkaOutput` does both. The requests are sent one by one, so that each failure is known as one that another try may mend, as
somebody else's having taken over, or as one that stands. It decides nothing about which records are written.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import kafka.errors as errors
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.core.planning.durability import Durability
from shardherd.source.encoding.record_encoding import Batch, Producer
from shardherd.source.kafka.cluster_connection import TRANSIENT, ClusterConnection, SourceRefusedError
from shardherd.source.kafka.connection_manager import error_text
from shardherd.source.kafka.coordinators import GROUP, TRANSACTION, Wire, ask_coordinator
from shardherd.source.kafka.partitions import partition_of, shard_of
from shardherd.transactions import topic_lookup
from shardherd.transactions.outcomes import ConflictError, SinkError, Stored

log = logging.getLogger(__name__)

T = TypeVar("T")

DELIVERY_TIMEOUT = 120.0
"""Seconds for which a step is tried again, as Kafka's `delivery.timeout.ms` has it, before the micro-batch fails."""

ABORT_TIMEOUT = 5.0
"""Seconds for ending what failed. If that fails too, the next producer of the shard ends it, or the brokers."""

MARGIN = 30.0
"""Seconds beyond that until a step counts as hanging: longer than one request may take."""

ACKNOWLEDGED_BY_ALL = -1
ACKNOWLEDGE_TIMEOUT_MS = 10_000
"""How long a broker waits for its replicas; then it says so, and the batch is sent again."""

RETRY_FIRST, RETRY_MAX = 0.05, 1.0

FENCED = (
    errors.ProducerFencedError,
    errors.InvalidProducerEpochError,
    errors.InvalidProducerIdMappingError,
    errors.InvalidTxnStateError,
    errors.OutOfOrderSequenceNumberError,
    errors.TransactionCoordinatorFencedError,
    errors.UnknownProducerIdError,
)
"""This producer is not the one any more: it is given up, and the positions tell what has become of its transaction."""

TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)

# Newer versions of these requests change who adds partitions and the group to the transaction, and who counts the epoch up.
_ADD_VERSION, _COMMIT_VERSION, _END_VERSION, _PRODUCE_VERSION = 3, 4, 4, 9

_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_CommitTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_ProduceTopic = ProduceRequest.TopicProduceData


class WriteRefusedError(SinkError):
    """Kafka refuses a step for good, for example for lack of rights. Says what to do."""


class UnreachableError(SinkError):
    """Kafka could not be reached, or did not do a step in time."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where one sink of one ConsumerGroup writes: records to `topic`, positions as offsets of the group `group`.

    `transaction_timeout` is in seconds: after it, the brokers themselves abort what was begun and not ended. `topic_ids` are
    those of the shards' topics, as far as they are known: a position says of which one it is.
    """

    topic: str
    group: str
    transaction_timeout: float
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def transactional_id(self, shard: str) -> str:
        return f"{self.group}.{shard}"

    def stored(self, shard: str, position: int, epoch: int) -> Stored:
        """A position of the topic that there is."""
        return Stored(position, epoch, self.topic_ids.get(shard, ""))

    def granted(self, shard: str, stood: Stored | None, start: int, epoch: int) -> Stored:
        """Where who was given the shard under `epoch` begins, having opened a transaction before which the output `stood`.

        `start` is where the group has it read. Another position than the one that stood must be committed, so that no older
        grant writes from then on.
        """
        begin = self.stored(shard, start, 0)
        stood = stood or begin
        if stood.epoch >= epoch:
            return stood
        # A position of the topic that had this name before says nothing of this one.
        return self.stored(shard, stood.position if stood.topic_id == begin.topic_id else start, epoch)


@dataclass(slots=True, eq=False)
class Transaction:
    """What one producer writes of one shard. `stood`: where the output was when every earlier producer was fenced."""

    shard: ShardId
    transactional_id: str
    producer: Producer
    stood: Stored | None
    added: set[int] = field(default_factory=set)
    open: bool = False

    def again(self) -> Transaction:
        """The next one of the same producer, after this one was committed."""
        return Transaction(self.shard, self.transactional_id, self.producer, self.stood)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer.id,
            "producer_epoch": self.producer.epoch,
        }


class Transactions(ClusterConnection):
    """Writes to one cluster. What `begin_...` starts goes on beside others; the function that it returns waits for it."""

    def __init__(self, bootstrap_servers: str, security: Security, *, timeout: float = DELIVERY_TIMEOUT) -> None:
        super().__init__(bootstrap_servers, security, name="shardherd-sink")
        self._timeout = timeout
        self._coordinators: dict[tuple[int, str], int] = {}

    def look(self, output: Output, shards: Iterable[ShardId]) -> tuple[dict[ShardId, Stored], set[ShardId]]:
        """Where the output stands, as far as nobody is about to move it; and the shards of which somebody is."""
        wanted = tuple(shards)
        return self._step(f"read the positions of group {output.group!r}", lambda wire: self._look(wire, output, wanted))()

    def begin_open(self, output: Output, shard: ShardId) -> Callable[[], Transaction]:
        """Fence every earlier producer of the shard, end what it left open, and see where the output stands then."""
        return self._step(f"begin to write {shard}", lambda wire: self._open(wire, output, shard))

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has, 0 if there is none of this name."""
        return self._step(f"look up the topic {topic!r}", lambda wire: topic_lookup.partitions_of(wire, topic))()

    def durability(self, topic: str) -> Durability:
        """Whether records of this topic survive a broker, as far as we may know its settings."""
        return self._step(
            f"look at the replicas of the topic {topic!r}", lambda wire: topic_lookup.durability_of(wire, topic)
        )()

    def begin_send(self, output: Output, transaction: Transaction, rounds: list[list[Batch]]) -> Callable[[], None]:
        """Send one batch for each partition after the other, each round when all of the one before are acknowledged."""
        what = f"write records of {transaction.shard} to the topic {output.topic!r}"
        return self._step(what, lambda wire: self._send(wire, output, transaction, rounds))

    def begin_commit(self, output: Output, transaction: Transaction, stored: Stored) -> Callable[[], None]:
        """Move the position and commit both. What was sent must be acknowledged. ConflictError if it may have happened."""
        return self._step(
            f"commit records of {transaction.shard}", lambda wire: self._commit(wire, output, transaction, stored)
        )

    def abort(self, transaction: Transaction) -> None:
        """End it without its records, so that no reader waits for it. What fails here the next producer does."""
        if not transaction.open:
            return
        try:
            self._step(
                f"abort the transaction of {transaction.shard}",
                lambda wire: self._end(wire, transaction, committed=False),
                ABORT_TIMEOUT,
            )()
        except SinkError as error:
            log.info("left to its next producer: %s", error)

    def _step(self, what: str, work: Callable[[Wire], Awaitable[T]], within: float | None = None) -> Callable[[], T]:
        limit = self._timeout if within is None else within

        async def judged() -> T:
            wire = Wire(self._manager, self._coordinators, limit)
            try:
                return await self._again(wire, lambda: work(wire))
            except FENCED as error:
                raise ConflictError(f"cannot {what}: another producer has taken over ({error_text(error)})") from error
            except TRANSIENT as error:
                raise UnreachableError(
                    f"Kafka at {self.bootstrap_servers}: cannot {what} within {limit:g} s: {error_text(error)}{self._why()}"
                ) from error
            except errors.KafkaError as error:
                raise WriteRefusedError(
                    f"Kafka at {self.bootstrap_servers}: cannot {what}: {error_text(error)}{_remedy(error)}"
                ) from error
            except SourceRefusedError as error:  # what is written is looked up as what is read
                raise WriteRefusedError(
                    f"Kafka at {self.bootstrap_servers}: cannot {what}: it does not show the topic to this client; allow it"
                    " DESCRIBE and WRITE"
                ) from error

        return self.begin(judged, limit + MARGIN, ())

    async def _again(self, wire: Wire, work: Callable[[], Awaitable[T]]) -> T:
        """A step, from its beginning, until it is through: each one may be done twice."""
        delay = RETRY_FIRST
        while True:
            try:
                await self._connect()
                return await work()
            except TRANSIENT as error:
                self._found &= isinstance(error, errors.BrokerResponseError)
                if wire.expired(delay):
                    raise
            await wire.sleep(delay)
            delay = min(2 * delay, RETRY_MAX)

    async def _look(self, wire: Wire, output: Output, shards: Iterable[ShardId]) -> tuple[dict[ShardId, Stored], set[ShardId]]:
        topics = defaultdict(list)
        for shard in shards:
            topic, number = partition_of(shard)
            topics[topic].append(number)
        wanted = [_FetchGroup.OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in topics.items()]
        response, _ = await ask_coordinator(
            wire,
            output.group,
            lambda: OffsetFetchRequest(
                groups=[_FetchGroup(group_id=output.group, topics=wanted)], require_stable=True, min_version=8, max_version=8
            ),
            lambda answer: int(answer.groups[0].error_code),
            GROUP,
        )
        found: dict[ShardId, Stored] = {}
        moving: set[ShardId] = set()
        for topic in response.groups[0].topics:
            for each in topic.partitions:
                error = errors.for_code(each.error_code)
                shard = shard_of(topic.name, each.partition_index)
                if error is errors.UnstableOffsetCommitError:
                    moving.add(shard)
                elif error is not errors.NoError:
                    raise error(f"the position of {shard}")
                elif each.committed_offset >= 0:
                    epoch, topic_id = _noted(each.metadata or "")
                    # Who knows of no id, or knew of none, means the topic that there is.
                    of = topic_id if topic_id and shard in output.topic_ids else output.topic_ids.get(shard, "")
                    found[shard] = Stored(int(each.committed_offset), epoch, of)
        return found, moving

    async def _open(self, wire: Wire, output: Output, shard: ShardId) -> Transaction:
        transactional_id = output.transactional_id(shard)
        response, _ = await ask_coordinator(
            wire,
            transactional_id,
            lambda: InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=int(output.transaction_timeout * 1000),
                producer_id=-1,
                producer_epoch=-1,
                min_version=3,
                max_version=5,
            ),
            lambda answer: int(answer.error_code),
            TRANSACTION,
        )
        # What the one before has committed is decided now, and its markers come within milliseconds.
        found, moving = await self._look(wire, output, [shard])
        if moving:
            raise errors.UnstableOffsetCommitError(f"the position of {shard}")
        return Transaction(shard, transactional_id, Producer(response.producer_id, response.producer_epoch), found.get(shard))

    async def _send(self, wire: Wire, output: Output, transaction: Transaction, rounds: list[list[Batch]]) -> None:
        if new := sorted({each.partition for batches in rounds for each in batches} - transaction.added):
            await self._add(wire, output, transaction, new)
        while rounds:
            left = {each.partition: each for each in rounds[0]}
            while left:
                wrong = await self._produce(output, transaction, left)
                if not left:
                    break
                # The same bytes once more: the brokers know their sequence numbers, and drop what they have.
                if wrong is None or wire.expired(RETRY_FIRST):
                    raise wrong or errors.KafkaTimeoutError("no answer")
                await wire.sleep(RETRY_FIRST)
            rounds.pop(0)

    async def _add(self, wire: Wire, output: Output, transaction: Transaction, partitions: list[int]) -> None:
        transaction.open = True
        await ask_coordinator(
            wire,
            transaction.transactional_id,
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_topics=[_Topic(name=output.topic, partitions=partitions)],
                max_version=_ADD_VERSION,
                **{f"v3_and_below_{name}": value for name, value in transaction.identity.items()},
            ),
            lambda answer: _first(
                part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ),
            TRANSACTION,
        )
        transaction.added.update(partitions)

    async def _produce(self, output: Output, transaction: Transaction, left: dict[int, Batch]) -> errors.KafkaError | None:
        """Send what is left, and take from it what is acknowledged. The last error that another try may mend."""
        leaders, troubles = await self.by_leader(shard_of(output.topic, number) for number in left)
        by_node: dict[int, list[Any]] = defaultdict(list)
        for (_, number), node in leaders.items():
            by_node[node].append(_ProduceTopic.PartitionProduceData(index=number, records=left[number].data))
        futures = [
            self.send_to(
                ProduceRequest(
                    transactional_id=transaction.transactional_id,
                    acks=ACKNOWLEDGED_BY_ALL,
                    timeout_ms=ACKNOWLEDGE_TIMEOUT_MS,
                    topic_data=[_ProduceTopic(name=output.topic, partition_data=parts)],
                    min_version=3,
                    max_version=_PRODUCE_VERSION,
                ),
                node,
            )
            for node, parts in by_node.items()
        ]
        for future in futures:
            try:
                response = await future
            except TRANSIENT as error:
                troubles.append(error)
                self._found &= isinstance(error, errors.BrokerResponseError)
                continue
            for part in (part for topic in response.responses for part in topic.partition_responses):
                kind = errors.for_code(part.error_code)
                if kind in (errors.NoError, errors.DuplicateSequenceNumberError):
                    left.pop(part.index, None)
                elif issubclass(kind, TRANSIENT):
                    troubles.append(kind(f"partition {part.index}"))
                else:
                    raise kind(f"partition {part.index}: {part.error_message or kind.description}")
        if troubles:
            self._manager.cluster.request_update()
        return troubles[-1] if troubles else None

    async def _commit(self, wire: Wire, output: Output, transaction: Transaction, stored: Stored) -> None:
        topic, number = partition_of(transaction.shard)
        entry = _CommitTopic.TxnOffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=stored.position,
            committed_leader_epoch=-1,
            committed_metadata=_metadata(stored),
        )
        transaction.open = True
        identity = transaction.identity
        await ask_coordinator(
            wire,
            transaction.transactional_id,
            lambda: AddOffsetsToTxnRequest(group_id=output.group, max_version=_ADD_VERSION, **identity),
            lambda answer: int(answer.error_code),
            TRANSACTION,
        )
        await ask_coordinator(
            wire,
            output.group,
            lambda: TxnOffsetCommitRequest(
                group_id=output.group,
                topics=[_CommitTopic(name=topic, partitions=[entry])],
                max_version=_COMMIT_VERSION,
                **identity,
            ),
            lambda answer: _first(part.error_code for topic in answer.topics for part in topic.partitions),
            GROUP,
        )
        # From here on nobody but the brokers knows whether it has happened, if the answer is lost.
        try:
            await self._again(wire, lambda: self._end(wire, transaction, committed=True))
        except TRANSIENT as error:
            raise ConflictError(
                f"whether records of {transaction.shard} were committed is not known: {error_text(error)}"
            ) from error

    async def _end(self, wire: Wire, transaction: Transaction, *, committed: bool) -> None:
        await ask_coordinator(
            wire,
            transaction.transactional_id,
            lambda: EndTxnRequest(committed=committed, max_version=_END_VERSION, **transaction.identity),
            lambda answer: int(answer.error_code),
            TRANSACTION,
        )
        transaction.open = False


def _first(codes: Iterable[int]) -> int:
    """The first error, but rather one that says why than one that says that something else was wrong."""
    found = sorted((code for code in codes if code), key=lambda code: code == errors.OperationNotAttemptedError.errno)
    return found[0] if found else 0


def _metadata(stored: Stored) -> str:
    of = {"topicId": stored.topic_id} if stored.topic_id else {}
    return json.dumps({"epoch": stored.epoch, **of, "v": 1}, sort_keys=True)


def _noted(metadata: str) -> tuple[int, str]:
    """Under which epoch a position was written, and of the topic with which id; 0 and empty if it was set by hand."""
    try:
        found = json.loads(metadata)
        return (int(found["epoch"]), str(found.get("topicId", ""))) if isinstance(found, Mapping) else (0, "")
    except (ValueError, KeyError, TypeError):
        return 0, ""


def _remedy(error: BaseException) -> str:
    match error:
        case errors.TransactionalIdAuthorizationFailedError():
            return "; allow the application's user WRITE on the transactional ids that begin with shardherd."
        case errors.GroupAuthorizationFailedError():
            return "; allow the application's user READ on the groups that begin with shardherd."
        case errors.TopicAuthorizationFailedError():
            return "; allow the application's user WRITE on the output topic, and READ on the source's"
        case errors.ClusterAuthorizationFailedError():
            return "; allow the application's user IDEMPOTENT_WRITE on the cluster"
        case errors.InvalidTransactionTimeoutError():
            return "; transaction_timeout is above the brokers' transaction.max.timeout.ms: lower it"
        case errors.UnsupportedVersionError():
            return "; this sink needs brokers of Kafka 3.0 or newer"
        case errors.InvalidRecordError():
            return "; a compacted topic takes no record without a key"
        case _ if isinstance(error, TOO_LARGE):
            return "; raise max.message.bytes of the topic above the size of its records, or write smaller ones"
    return ""
