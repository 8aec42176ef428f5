"""What a survey takes from brokers' answers, and what it makes of those that refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from kafka.errors import IncompatibleBrokerVersion, NodeNotReadyError
from kafka.protocol.admin import DescribeConfigsRequest, DescribeProducersRequest
from kafka.protocol.metadata import MetadataRequest

from shardherd.adapters.kafka.catalogue import Interest
from shardherd.adapters.kafka.connection import KafkaConnection, Wire
from shardherd.adapters.kafka.survey import SETTINGS, Producers, Survey, TopicSurvey, survey

DENIED, UNKNOWN_TOPIC = 29, 3
"""Error codes: a topic may not be looked at, and does not exist."""


def partition(number: int, leader: int = 1, replicas: int = 3, in_sync: int = 3) -> SimpleNamespace:
    nodes = list(range(1, replicas + 1))
    return SimpleNamespace(partition_index=number, leader_id=leader, replica_nodes=nodes, isr_nodes=nodes[:in_sync])


def topic(name: str, *partitions: SimpleNamespace, error_code: int = 0, is_internal: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=name, partitions=partitions, error_code=error_code, is_internal=is_internal)


def producer(number: int, *, wrote: int = 1000, transaction: int = -1) -> SimpleNamespace:
    return SimpleNamespace(producer_id=number, last_timestamp=wrote, current_txn_start_offset=transaction)


class Brokers:
    """A connection to brokers with these topics; `settings` and `producers` by topic and partition, or an error code."""

    version = "4.1"

    def __init__(self, *topics: SimpleNamespace) -> None:
        self.topics = topics
        self.settings: dict[str, dict[str, str] | int] = {}
        self.producers: dict[tuple[str, int], list[SimpleNamespace] | int] = {}
        self.failing: dict[type, Exception] = {}
        self.sent: list[tuple[Any, Any]] = []

    async def run(self, _what: str, work: Callable[[Wire], Awaitable[Survey]], _timeout: float) -> Survey:
        return await work(cast(Wire, self))

    async def send(self, request: Any, node: Any = None) -> Any:
        self.sent.append((request, node))
        if type(request) in self.failing:
            raise self.failing[type(request)]
        if isinstance(request, MetadataRequest):
            return SimpleNamespace(brokers=[1, 2, 3], topics=self.topics)
        if isinstance(request, DescribeConfigsRequest):
            return SimpleNamespace(results=[self._settings(each.resource_name) for each in request.resources])
        assert isinstance(request, DescribeProducersRequest)
        return SimpleNamespace(
            topics=[
                SimpleNamespace(name=each.name, partitions=[self._producers(each.name, at) for at in each.partition_indexes])
                for each in request.topics
            ]
        )

    def _settings(self, name: str) -> SimpleNamespace:
        found = self.settings.get(name, {})
        refused = isinstance(found, int)
        configs = [] if isinstance(found, int) else [SimpleNamespace(name=key, value=value) for key, value in found.items()]
        return SimpleNamespace(resource_name=name, error_code=found if refused else 0, error_message="no", configs=configs)

    def _producers(self, name: str, number: int) -> SimpleNamespace:
        found = self.producers.get((name, number), [])
        code, active = (found, None) if isinstance(found, int) else (0, found)
        return SimpleNamespace(error_code=code, error_message=None, active_producers=active)


async def asked(brokers: Brokers, *topics: str, pattern: str = "") -> Survey:
    return await survey(cast(KafkaConnection, brokers), Interest(topics, pattern))


async def test_the_fewest_replicas_the_settings_and_the_producers_of_each_topic() -> None:
    brokers = Brokers(topic("clicks", partition(0), partition(1, leader=2, replicas=2, in_sync=1), partition(2, leader=-1)))
    brokers.settings["clicks"] = {"retention.ms": "1000", "min.insync.replicas": "2"}
    opened = producer(8, wrote=7000, transaction=41)
    brokers.producers = {
        ("clicks", 0): [producer(7), opened],
        ("clicks", 1): [producer(7), producer(8, wrote=9000, transaction=0)],
    }

    assert await asked(brokers, "clicks") == Survey(
        "4.1",
        3,
        (
            TopicSurvey(
                "clicks",
                partitions=3,
                replicas=2,
                in_sync=1,
                leaderless=1,
                settings={"retention.ms": "1000", "min.insync.replicas": "2"},
                producers=Producers(2, 2, 7.0),
            ),
        ),
    )
    described = {node: request.topics[0].partition_indexes for request, node in brokers.sent[2:]}
    assert described == {1: [0], 2: [1]}
    assert brokers.sent[1][0].resources[0].configuration_keys == list(SETTINGS)


async def test_a_pattern_takes_no_topic_of_kafkas_own_and_a_missing_one_is_named() -> None:
    found = await asked(Brokers(topic("clicks", partition(0)), topic("__clicks", partition(0), is_internal=True)), pattern=".*")
    assert [each.name for each in found.topics] == ["clicks"]

    found = await asked(Brokers(topic("gone", error_code=UNKNOWN_TOPIC)), "gone")
    assert (found.topics, found.missing) == ((), {"gone": "UnknownTopicOrPartitionError"})


async def test_what_may_not_be_read_is_none_with_the_brokers_words() -> None:
    brokers = Brokers(topic("clicks", partition(0)), topic("views", partition(0)))
    brokers.settings = {"clicks": DENIED, "views": {"retention.ms": "1"}}
    brokers.producers = {("clicks", 0): DENIED, ("views", 0): []}
    clicks, views = (await asked(brokers, "clicks", "views")).topics
    assert (clicks.settings, clicks.settings_refused) == (None, "TopicAuthorizationFailedError: no")
    assert (clicks.producers, clicks.producers_refused) == (None, "TopicAuthorizationFailedError")
    assert (views.settings, views.producers) == ({"retention.ms": "1"}, Producers())


async def test_brokers_that_do_not_know_a_request_are_asked_the_rest() -> None:
    brokers = Brokers(topic("clicks", partition(0)))
    brokers.failing = {
        DescribeConfigsRequest: IncompatibleBrokerVersion("too old"),
        DescribeProducersRequest: NodeNotReadyError("away"),
    }
    (clicks,) = (await asked(brokers, "clicks")).topics
    assert (clicks.settings, clicks.producers, clicks.replicas) == (None, None, 3)
    assert "too old" in clicks.settings_refused
    assert clicks.producers_refused.startswith("broker 1: ")
