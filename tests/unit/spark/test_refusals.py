"""Which of the errors that a broker answers with end a query, and which are worth another try."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest

from shardherd.core.model import ShardId
from shardherd.spark.brokers import LATEST, Brokers, SourceRefusedError, topic_partition

A = ShardId("clicks/0")


def brokers(code: int) -> Brokers:
    """Connections to one broker, which answers every request for a shard with this error."""
    part = SimpleNamespace(partition_index=0, error_code=code)
    topic = SimpleNamespace(topic="clicks", name="clicks", topic_id=None, partitions=[part])
    answer = SimpleNamespace(error_code=0, responses=[topic], topics=[topic])

    def send(_request: object, *, node_id: int) -> asyncio.Future[Any]:
        answered = asyncio.get_running_loop().create_future()
        answered.set_result(answer)
        return answered

    async def by_leader(_shards: object) -> Any:
        return {1: [(A, topic_partition(A))]}, []

    cluster = SimpleNamespace(request_update=lambda: None, topic_id=lambda _: None)
    made: Any = Brokers.__new__(Brokers)
    made._manager, made.committed, made._by_leader = SimpleNamespace(send=send, cluster=cluster), False, by_leader
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [kafka_errors.UnknownError, kafka_errors.NotLeaderForPartitionError])
async def test_what_may_be_over_at_the_next_try_is_no_refusal(error: Any) -> None:
    with pytest.raises(error, match="shard clicks/0"):
        await brokers(error.errno)._fetch({A: 5}, 1024)
    found, troubles = await brokers(error.errno)._list({1: [(A, topic_partition(A))]}, LATEST)
    assert (found, [type(trouble) for trouble in troubles]) == ({}, [error])


@pytest.mark.parametrize("error", [kafka_errors.TopicAuthorizationFailedError, kafka_errors.InvalidTopicError])
async def test_what_stays_so_is_a_refusal(error: Any) -> None:
    with pytest.raises(SourceRefusedError, match=f"shard clicks/0: Kafka refuses to read it: {error.__name__}"):
        await brokers(error.errno)._fetch({A: 5}, 1024)
    with pytest.raises(SourceRefusedError, match=f"shard clicks/0: Kafka refuses its end: {error.__name__}"):
        await brokers(error.errno)._list({1: [(A, topic_partition(A))]}, LATEST)
