"""Requests to a Kafka cluster about its topics, their partitions and leaders, and their offsets; for operator and readers.

Called by the operator's discovery, by `brokers` for whoever reads, and by `listing`. Requests go out by `send`, one to
each broker that is concerned, on kafka-python's loop. It says what was answered and what was not; whether an error ends
anything is the caller's to decide, and so is how old an answer may be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as errors
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

from shardherd.source.kafka.partitions import Partition

Send = Callable[[Any, int], Awaitable[Any]]
"""Sends a request to a broker. Raises a KafkaError."""

_Topic = MetadataRequest.MetadataRequestTopic
_OffsetsTopic = ListOffsetsRequest.ListOffsetsTopic
_EpochTopic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic


@dataclass(slots=True)
class Topics:
    """What the metadata say of topics. `ids` are empty from brokers before Kafka 2.8; `refused` are topics with an error.

    `leaders` are the nodes that lead partitions, `leaderless` are partitions that nobody leads now; `racks` are those of nodes.
    `internal` are Kafka's own topics.
    """

    ids: dict[str, str] = field(default_factory=dict)
    refused: dict[str, type[errors.BrokerResponseError]] = field(default_factory=dict)
    leaders: dict[Partition, int] = field(default_factory=dict)
    leaderless: set[Partition] = field(default_factory=set)
    racks: dict[int, str] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)


def topics_request(names: Iterable[str] | None) -> MetadataRequest:
    """A request for these topics, or for all there are. Asking for a topic does not make it."""
    wanted = None if names is None else [_Topic(name=name) for name in names]
    # Ids are in version 10 and above; older brokers answer an older version without.
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def add_topics(found: Topics, response: Any, wanted: Callable[[str, bool], bool]) -> None:
    """Add what an answer says of the topics that are `wanted`, by their name and whether they are Kafka's own."""
    for topic in response.topics:
        name = topic.name
        if not wanted(name, topic.is_internal):
            continue
        if topic.error_code:
            found.refused[name] = errors.for_code(topic.error_code)
            continue
        found.ids[name] = _id_of(topic)
        if topic.is_internal:
            found.internal.add(name)
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                found.leaders[name, partition.partition_index] = partition.leader_id
            else:
                found.leaderless.add((name, partition.partition_index))
    found.racks.update((broker.node_id, broker.rack) for broker in response.brokers if broker.rack)


def _id_of(topic: Any) -> str:
    found = getattr(topic, "topic_id", None)
    return "" if found is None or not getattr(found, "int", 1) else str(found)


@dataclass(slots=True)
class Answers:
    """An offset of each partition whose leader gave one, and the epoch under which it leads where it says so.

    `refused` are the other partitions of the answers, with their error; `failed` are the brokers that gave no answer.
    """

    offsets: dict[Partition, int] = field(default_factory=dict)
    epochs: dict[Partition, int] = field(default_factory=dict)
    refused: dict[Partition, type[errors.BrokerResponseError]] = field(default_factory=dict)
    failed: dict[int, errors.KafkaError] = field(default_factory=dict)


async def offsets(
    send: Send, leaders: Mapping[Partition, int], at: int | Mapping[Partition, int], *, committed: bool
) -> Answers:
    """The first offset of each partition at or after a time (milliseconds, EARLIEST or LATEST), -1 if it has none.

    `committed`: read_committed, where a partition ends before its first open transaction.
    """
    requests = {}
    for node, by_topic in by_node(leaders).items():
        topics = [
            _OffsetsTopic(
                name=topic,
                partitions=[
                    _OffsetsTopic.ListOffsetsPartition(
                        partition_index=number,
                        current_leader_epoch=-1,
                        timestamp=at if isinstance(at, int) else at[topic, number],
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic.items()
        ]
        # From version 2 on a request has the isolation level.
        requests[node] = ListOffsetsRequest(isolation_level=int(committed), topics=topics, min_version=1 + committed)
    found = Answers()
    async for response in _answers(send, requests, found):
        for topic in response.topics:
            name = topic.name
            for part in topic.partitions:
                if part.error_code:
                    found.refused[name, part.partition_index] = errors.for_code(part.error_code)
                    continue
                found.offsets[name, part.partition_index] = part.offset
                if part.leader_epoch >= 0:
                    found.epochs[name, part.partition_index] = part.leader_epoch
    return found


async def epoch_end_offsets(
    send: Send, leaders: Mapping[Partition, int], now: Mapping[Partition, int], epochs: Mapping[Partition, int]
) -> Answers:
    """Where the log of each partition of `epochs` ended under leaders up to that epoch; -1 if that cannot be known.

    `now` are the epochs under which they are led, as far as we know.
    """
    requests = {}
    for node, by_topic in by_node({partition: leaders[partition] for partition in epochs if partition in leaders}).items():
        topics = [
            _EpochTopic(
                topic=topic,
                partitions=[
                    _EpochTopic.OffsetForLeaderPartition(
                        partition=number, current_leader_epoch=now[topic, number], leader_epoch=epochs[topic, number]
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic.items()
        ]
        requests[node] = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
    found = Answers()
    async for response in _answers(send, requests, found):
        for topic in response.topics:
            for part in topic.partitions:
                if part.error_code:
                    found.refused[topic.topic, part.partition] = errors.for_code(part.error_code)
                else:
                    found.offsets[topic.topic, part.partition] = part.end_offset
    return found


async def _answers(send: Send, requests: Mapping[int, Any], found: Answers) -> AsyncIterator[Any]:
    """What the brokers answer, in the order of the requests, which are all sent first."""
    sent = [(node, send(request, node)) for node, request in requests.items()]
    for node, answer in sent:
        try:
            response = await answer
        except errors.KafkaError as error:
            found.failed[node] = error
            continue
        yield response


def by_node(leaders: Mapping[Partition, int]) -> dict[int, dict[str, list[int]]]:
    """The partitions of each node, by topic."""
    nodes: dict[int, dict[str, list[int]]] = {}
    for (topic, partition), node in leaders.items():
        nodes.setdefault(node, {}).setdefault(topic, []).append(partition)
    return nodes
