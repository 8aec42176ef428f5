"""Which of the errors that a broker answers with end a query, and which are worth another try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, SourceRefusedError
from shardherd.source.kafka.fetch_memory import FetchMemory, Turns
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.kafka.leader_epochs import LogChecks
from shardherd.source.kafka.partitions import partition_of
from shardherd.source.kafka.replicas import Replicas

A = ShardId("clicks/0")


class Done:
    """What kafka-python's manager gives for a coroutine, once that has ended."""

    def __init__(self, coroutine: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.value, self.exception = None, None
        try:
            # It waits for nothing, and a loop may be running.
            coroutine().send(None)
        except StopIteration as over:
            self.value = over.value
        except kafka_errors.KafkaError as error:
            self.exception = error

    def add_both(self, callback: Callable[[object], None]) -> None:
        callback(None)


def brokers(code: int) -> Brokers:
    """Connections to one broker, which answers every request for a shard with this error."""
    part = SimpleNamespace(partition_index=0, error_code=code)
    topic = SimpleNamespace(topic="clicks", name="clicks", topic_id=None, partitions=[part])
    answer = SimpleNamespace(error_code=0, responses=[topic], topics=[topic])

    async def send(_request: object, *, node_id: int) -> Any:
        return answer

    async def by_leader(_shards: object) -> Any:
        return {partition_of(A): 1}, []

    cluster = SimpleNamespace(request_update=lambda: None, topic_id=lambda _: None, leader_epoch_for_partition=lambda _: None)
    made: Any = Brokers.__new__(Brokers)
    made._manager = SimpleNamespace(send=send, cluster=cluster, call_soon=Done, failures=lambda: ())
    made.committed, made.by_leader, made.bootstrap_servers = False, by_leader, "kafka:9092"
    made._found, made._silent, made._turns, made._replicas = True, frozenset(), Turns(), Replicas()
    return made  # type: ignore[no-any-return]


def asked_in_a_thread(brokers: Brokers) -> list[Fetched]:
    return brokers.begin_fetch({A: 5}, 1.0)()


def asked_on_an_event_loop(brokers: Brokers) -> list[Fetched]:
    return asyncio.run(brokers.fetch({A: 5}, 1.0, shard_bytes={A: 1}, memory=FetchMemory(), checks=LogChecks()))


both_ways = pytest.mark.parametrize("fetch", [asked_in_a_thread, asked_on_an_event_loop])


@both_ways
@pytest.mark.parametrize("error", [kafka_errors.UnknownError, kafka_errors.NotLeaderForPartitionError])
def test_what_may_be_over_at_the_next_try_is_no_refusal(error: Any, fetch: Callable[[Brokers], object]) -> None:
    with pytest.raises(BrokersUnavailableError, match="shard clicks/0"):
        fetch(brokers(error.errno))
    with pytest.raises(BrokersUnavailableError, match="shard clicks/0"):
        brokers(error.errno).end_offsets((A,), 1.0)


@both_ways
@pytest.mark.parametrize("error", [kafka_errors.TopicAuthorizationFailedError, kafka_errors.InvalidTopicError])
def test_what_stays_so_is_a_refusal(error: Any, fetch: Callable[[Brokers], object]) -> None:
    with pytest.raises(SourceRefusedError, match=f"shard clicks/0: Kafka refuses to read it: {error.__name__}"):
        fetch(brokers(error.errno))
    with pytest.raises(SourceRefusedError, match=f"shard clicks/0: Kafka refuses its end: {error.__name__}"):
        brokers(error.errno).end_offsets((A,), 1.0)
