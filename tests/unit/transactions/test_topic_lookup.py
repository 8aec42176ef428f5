"""What is made of brokers' answers about a topic that is written, above all by those that do not know it yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as errors
import pytest
from kafka.protocol.admin import DescribeConfigsRequest

from shardherd.core.planning.durability import Durability, Level
from shardherd.transactions import topic_lookup
from shardherd.transactions.topic_lookup import TOPIC_KNOWN, durability_of, partitions_of

UNKNOWN = SimpleNamespace(name="orders", error_code=errors.UnknownTopicOrPartitionError.errno, partitions=[])
REFUSED = SimpleNamespace(name="orders", error_code=errors.TopicAuthorizationFailedError.errno, partitions=[])
UNKNOWN_SETTINGS = SimpleNamespace(error_code=errors.UnknownTopicOrPartitionError.errno, configs=[])
NO_SETTINGS = SimpleNamespace(error_code=errors.TopicAuthorizationFailedError.errno, configs=[])


def topic(*in_sync: int, leader: int = 1) -> Any:
    """A topic of a partition for each number of replicas in sync, of three."""
    partitions = [SimpleNamespace(replica_nodes=[1, 2, 3], isr_nodes=list(range(each)), leader_id=leader) for each in in_sync]
    return SimpleNamespace(name="orders", error_code=0, partitions=partitions)


def settings(least: int) -> Any:
    return SimpleNamespace(error_code=0, configs=[SimpleNamespace(name="min.insync.replicas", value=str(least))])


class Brokers:
    """Answers of brokers, one after the other, the last one for ever, and a clock that only sleeping moves."""

    def __init__(self, *topics: Any, told: Any = NO_SETTINGS) -> None:
        self.coordinators: dict[tuple[int, str], int] = {}
        self.now = 0.0
        self._topics = self._one_by_one(topics)
        self._told = self._one_by_one(told if isinstance(told, tuple) else (told,))

    async def send(self, request: Any, node: int | str | None = None) -> Any:
        if isinstance(request, DescribeConfigsRequest):
            return SimpleNamespace(results=[next(self._told)])
        return SimpleNamespace(topics=[next(self._topics)])

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def expired(self, after: float = 0.0) -> bool:
        return self.now + after >= 120

    @staticmethod
    def _one_by_one(topics: tuple[Any, ...]) -> Iterator[Any]:
        yield from topics
        while True:
            yield topics[-1]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(*topics: Any, told: Any = NO_SETTINGS) -> Brokers:
        found = Brokers(*topics, told=told)
        monkeypatch.setattr(topic_lookup, "boot_time", lambda: found.now)
        return found

    return made


def test_a_topic_that_a_broker_does_not_know_yet_is_looked_at_when_it_does(brokers: Any) -> None:
    assert asyncio.run(partitions_of(brokers(UNKNOWN, UNKNOWN, topic(3, 3)), "orders")) == 2
    assert asyncio.run(durability_of(brokers(UNKNOWN, UNKNOWN, topic(3, 3), told=settings(2)), "orders")) == Durability(
        Level.OK, "3 replicas, of which producers with acks=all need 2"
    )


def test_a_topic_that_no_broker_knows_in_time_has_no_partitions_and_its_replicas_are_asked_for_again(brokers: Any) -> None:
    nobody = brokers(UNKNOWN)

    assert asyncio.run(partitions_of(nobody, "orders")) == 0
    assert TOPIC_KNOWN <= nobody.now <= TOPIC_KNOWN + 1
    with pytest.raises(errors.UnknownTopicOrPartitionError, match="topic 'orders'"):
        asyncio.run(durability_of(brokers(UNKNOWN), "orders"))


def test_settings_that_another_broker_does_not_know_yet_are_looked_at_when_it_does(brokers: Any) -> None:
    late = brokers(topic(3), told=(UNKNOWN_SETTINGS, UNKNOWN_SETTINGS, settings(2)))
    said = Durability(Level.OK, "3 replicas, of which producers with acks=all need 2")

    assert asyncio.run(durability_of(late, "orders")) == said
    with pytest.raises(errors.UnknownTopicOrPartitionError, match="the settings of topic 'orders'"):
        asyncio.run(durability_of(brokers(topic(3), told=UNKNOWN_SETTINGS), "orders"))


def test_settings_that_we_may_not_see_are_left_out(brokers: Any) -> None:
    assert asyncio.run(durability_of(brokers(topic(3, 3)), "orders")) == Durability(Level.OK, "3 replicas")


def test_the_partition_with_the_fewest_replicas_in_sync_counts_and_one_without_a_leader(brokers: Any) -> None:
    assert asyncio.run(durability_of(brokers(topic(3, 1, 2), told=settings(2)), "orders")) == Durability(
        Level.BAD,
        "1 of 3 are in sync, and min.insync.replicas is 2: producers with acks=all cannot write",
        "see which brokers are away, or behind",
    )
    assert asyncio.run(durability_of(brokers(topic(3, leader=-1)), "orders")) == Durability(
        Level.BAD, "1 partition has no leader, and can be neither read nor written", "start the brokers that have them"
    )


@pytest.mark.parametrize("ask", [partitions_of, durability_of])
def test_any_other_refusal_is_told(brokers: Any, ask: Any) -> None:
    with pytest.raises(errors.TopicAuthorizationFailedError, match="topic 'orders'"):
        asyncio.run(ask(brokers(REFUSED), "orders"))
