"""The requests that write records in a transaction, as brokers get them that take all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from kafka.protocol.producer import ProduceRequest

from shardherd.core.model.nouns import ShardId
from shardherd.source.encoding.record_encoding import Batch, Producer
from shardherd.source.kafka.partitions import partition_of
from shardherd.transactions.kafka_transactions import Output, Transaction, Transactions

OUTPUT = Output("orders", "group", 60)


class Brokers(Transactions):
    """Three of them, each of which leads the partition of its number. They acknowledge all."""

    def __init__(self) -> None:
        # Not as its base does, which connects.
        self.requests: list[tuple[int, Any]] = []

    async def by_leader(self, shards: Iterable[ShardId]) -> tuple[dict[tuple[str, int], int], list[Any]]:
        return {each: each[1] for each in map(partition_of, shards)}, []

    def send_to(self, request: Any, node: int) -> Any:
        self.requests.append((node, request))

        async def answer() -> Any:
            parts = [
                SimpleNamespace(index=part.index, error_code=0) for topic in request.topic_data for part in topic.partition_data
            ]
            return SimpleNamespace(responses=[SimpleNamespace(partition_responses=parts)])

        return answer()


def test_records_are_acknowledged_by_all_replicas_in_sync_within_their_transaction() -> None:
    brokers, shard = Brokers(), ShardId("clicks/0")
    transaction = Transaction(shard, OUTPUT.transactional_id(shard), Producer(7, 3), None)
    left = {0: Batch(0, b"first", 1), 2: Batch(2, b"second", 1)}

    assert asyncio.run(brokers._produce(OUTPUT, transaction, left)) is None
    assert left == {}, "all are acknowledged"
    read = [(node, ProduceRequest.decode(request.encode(version=9), version=9)) for node, request in brokers.requests]
    assert [
        (node, each.acks, each.transactional_id, each.timeout_ms, [_sent(topic) for topic in each.topic_data])
        for node, each in read
    ] == [
        (0, -1, "group.clicks/0", 10_000, [("orders", [(0, b"first")])]),
        (2, -1, "group.clicks/0", 10_000, [("orders", [(2, b"second")])]),
    ]


def _sent(topic: Any) -> tuple[str, list[tuple[int, bytes]]]:
    return topic.name, [(part.index, bytes(part.records)) for part in topic.partition_data]
