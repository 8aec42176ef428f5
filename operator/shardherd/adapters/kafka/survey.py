"""What brokers say of the topics that a group reads: replicas, settings, the producers that they know. Asked for by `doctor`.

Called by `connector`. Nothing is written. What may not be read is None, with the broker's words in its place; what it means for
a group is the caller's to judge. Of a producer's own settings a broker is told nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as errors
from kafka.errors import KafkaError
from kafka.protocol.admin import DescribeConfigsRequest, DescribeProducersRequest

from shardherd.adapters.kafka.catalogue import Interest
from shardherd.adapters.kafka.connection import KafkaConnection, Wire
from shardherd.source.kafka import lookup
from shardherd.source.kafka.connection_manager import error_text
from shardherd.source.kafka.partitions import Partition

WITHIN = 10.0
"""Seconds until no further request is sent."""

SETTINGS = (
    "cleanup.policy", "max.message.bytes", "message.timestamp.type", "min.insync.replicas", "retention.bytes", "retention.ms",
)  # fmt: skip
"""The settings of a topic that are asked for: what they say matters to who reads it."""

_TOPIC = 2
"""The number of topics among the kinds of things that have settings."""

NO_TRANSACTION = -1
"""In the place of the offset at which a producer's open transaction begins."""


@dataclass(frozen=True, slots=True)
class Producers:
    """The producers with an id, which idempotent and transactional ones have, that wrote to a topic lately.

    `open`: in how many partitions one has a transaction open; `quiet_since`: when the one that has been quiet for longest wrote
    there last, in seconds since 1970.
    """

    known: int = 0
    open: int = 0
    quiet_since: float | None = None


@dataclass(frozen=True, slots=True)
class TopicSurvey:
    """One topic. `replicas` and `in_sync` are the fewest of a partition; `leaderless` partitions are led by nobody."""

    name: str
    partitions: int
    replicas: int
    in_sync: int
    leaderless: int = 0
    settings: Mapping[str, str] | None = None
    settings_refused: str = ""
    producers: Producers | None = None
    producers_refused: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """The topics of one group, by name; of those that are `missing`, why. `version` is what a broker's protocol tells of it."""

    version: str
    brokers: int
    topics: tuple[TopicSurvey, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


async def survey(connection: KafkaConnection, interest: Interest) -> Survey:
    """Ask. Raises SourceUnavailableError."""
    return await connection.run("look at topics", lambda wire: _survey(wire, interest), WITHIN)


async def _survey(wire: Wire, interest: Interest) -> Survey:
    names = None if interest.pattern else interest.topics
    response = await wire.send(lookup.topics_request(names))
    wanted = [topic for topic in response.topics if interest.matches(topic.name, internal=topic.is_internal)]
    missing = {topic.name: errors.for_code(topic.error_code).__name__ for topic in wanted if topic.error_code}
    there = sorted((topic for topic in wanted if not topic.error_code), key=lambda topic: str(topic.name))
    settings, settings_refused = await _settings(wire, [topic.name for topic in there])
    leaders = {
        (topic.name, partition.partition_index): partition.leader_id
        for topic in there
        for partition in topic.partitions
        if partition.leader_id >= 0
    }
    producers, producers_refused = await _producers(wire, leaders)
    return Survey(
        wire.version,
        len(response.brokers),
        tuple(
            TopicSurvey(
                topic.name,
                partitions=len(topic.partitions),
                replicas=min(len(partition.replica_nodes) for partition in topic.partitions),
                in_sync=min(len(partition.isr_nodes) for partition in topic.partitions),
                leaderless=sum(partition.leader_id < 0 for partition in topic.partitions),
                settings=settings.get(topic.name),
                settings_refused=settings_refused.get(topic.name, ""),
                producers=producers.get(topic.name),
                producers_refused=producers_refused.get(topic.name, ""),
            )
            for topic in there
            if topic.partitions
        ),
        missing,
    )


async def _settings(wire: Wire, topics: Iterable[str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The settings of each topic, or why it has none."""
    kind = DescribeConfigsRequest.DescribeConfigsResource
    asked = [kind(resource_type=_TOPIC, resource_name=name, configuration_keys=list(SETTINGS)) for name in topics]
    if not asked:
        return {}, {}
    try:
        response = await wire.send(DescribeConfigsRequest(resources=asked))
    except KafkaError as error:
        return {}, {each.resource_name: error_text(error) for each in asked}
    found = {each.resource_name: each for each in response.results}
    settings = {
        name: {setting.name: setting.value for setting in each.configs if setting.value is not None}
        for name, each in found.items()
        if not each.error_code
    }
    return settings, {name: _refusal(each) for name, each in found.items() if each.error_code}


async def _producers(wire: Wire, leaders: Mapping[Partition, int]) -> tuple[dict[str, Producers], dict[str, str]]:
    """The producers that the leaders of each topic's partitions know, or why they do not say."""
    kind = DescribeProducersRequest.TopicRequest
    states: dict[str, list[Any]] = {topic: [] for topic, _ in leaders}
    refused: dict[str, str] = {}
    for node, by_topic in lookup.by_node(leaders).items():
        request = DescribeProducersRequest(
            topics=[kind(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
        )
        try:
            response = await wire.send(request, node)
        except KafkaError as error:
            refused |= dict.fromkeys(by_topic, f"broker {node}: {error_text(error)}")
            continue
        for topic in response.topics:
            for partition in topic.partitions:
                states[topic.name] += partition.active_producers or ()
                if partition.error_code:
                    refused[topic.name] = _refusal(partition)
    return {topic: _known(found) for topic, found in states.items() if topic not in refused}, refused


def _known(states: Iterable[Any]) -> Producers:
    found = list(states)
    opened = [each.last_timestamp / 1000 for each in found if each.current_txn_start_offset != NO_TRANSACTION]
    return Producers(len({each.producer_id for each in found}), len(opened), min(opened, default=None))


def _refusal(answer: Any) -> str:
    name = errors.for_code(answer.error_code).__name__
    return f"{name}: {answer.error_message}" if answer.error_message else name
