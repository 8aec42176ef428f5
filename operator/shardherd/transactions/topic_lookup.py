"""What brokers say of a topic that is written: how many partitions it has, and whether records are safe in it.

Called by `kafka_transactions`, on kafka-python's loop. It decides how long a broker may know nothing of a topic: one that was
made a moment ago is known to each broker at another time. It does not decide which topics are refused; `topics` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import kafka.errors as errors
from kafka.protocol.admin import DescribeConfigsRequest

from shardherd.clock import boot_time
from shardherd.core.planning.durability import Durability, durability
from shardherd.source.kafka import lookup
from shardherd.source.kafka.coordinators import Wire

TOPIC_KNOWN = 3.0
"""Seconds after which every broker knows of a topic that was made: until then one may say that there is none."""

RETRY = 0.05
"""Seconds until a broker is asked again."""

_TOPICS = 2
"""The number of topics among the kinds of things that have settings."""

_LEAST = "min.insync.replicas"


async def partitions_of(wire: Wire, topic: str) -> int:
    """How many partitions the topic has, 0 if there is none of this name. Raises a KafkaError."""
    try:
        return len((await _metadata(wire, topic)).partitions)
    except errors.UnknownTopicOrPartitionError:
        return 0


async def durability_of(wire: Wire, topic: str) -> Durability:
    """Whether records of the topic survive a broker, as far as we may know its settings.

    Raises a KafkaError: UnknownTopicOrPartitionError, which another try may mend, if there is none of this name. Ask for its
    partitions first.
    """
    found = await _metadata(wire, topic)
    return durability(
        min((len(each.replica_nodes) for each in found.partitions), default=0),
        min((len(each.isr_nodes) for each in found.partitions), default=0),
        sum(each.leader_id < 0 for each in found.partitions),
        await _least_in_sync(wire, topic),
    )


async def _metadata(wire: Wire, topic: str) -> Any:
    async def ask() -> Any:
        (found,) = (await wire.send(lookup.topics_request([topic]))).topics
        return found

    found, error = await _known(wire, ask)
    if error is not errors.NoError:
        raise error(f"topic {topic!r}")
    return found


async def _least_in_sync(wire: Wire, topic: str) -> int:
    """`min.insync.replicas` of the topic, 0 if we may not know it."""
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPICS, resource_name=topic, configuration_keys=[_LEAST]
    )

    async def ask() -> Any:
        (described,) = (await wire.send(DescribeConfigsRequest(resources=[asked], max_version=4))).results
        return described

    # Another broker may answer than the one that knew the topic.
    described, error = await _known(wire, ask)
    if error is errors.UnknownTopicOrPartitionError:
        raise error(f"the settings of topic {topic!r}")
    return next((int(each.value) for each in described.configs if each.name == _LEAST), 0)


async def _known(wire: Wire, ask: Callable[[], Awaitable[Any]]) -> tuple[Any, type[errors.KafkaError]]:
    """An answer about a topic, and its error: asked for again, for a while, as long as a broker does not know the topic."""
    until = boot_time() + TOPIC_KNOWN
    while True:
        answer = await ask()
        error = errors.for_code(answer.error_code)
        if error is not errors.UnknownTopicOrPartitionError or boot_time() >= until or wire.expired(RETRY):
            return answer, error
        await wire.sleep(RETRY)
