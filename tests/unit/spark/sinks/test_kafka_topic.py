"""The Kafka sink's checks before it writes, over brokers that say what they are told to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.core.planning.durability import Durability, Level
from shardherd.spark.sinks import kafka_topic
from shardherd.spark.sinks.exactly_once import Writings
from shardherd.spark.sinks.kafka_rows import WriteJob
from shardherd.spark.sinks.kafka_topic import KafkaSink
from shardherd.transactions.kafka_transactions import Output
from shardherd.transactions.outcomes import SinkError, Stored
from tests.harness.micro_batches import A, K, N, of

SCHEMA = StructType([StructField("shard", StringType()), StructField("offset", LongType()), StructField("value", StringType())])


class Written:
    """Brokers whose groups stand at 20 everywhere, so that nothing is left to be written."""

    def partitions(self, topic: str) -> int:
        return 3

    def durability(self, topic: str) -> Durability:
        return Durability(Level.OK, "3 replicas")

    def look(self, output: Output, shards: Iterable[ShardId]) -> tuple[Mapping[ShardId, Stored], set[ShardId]]:
        return dict.fromkeys(shards, Stored(20, 1)), set()


def nothing(job: WriteJob) -> Iterable[Any]:
    raise AssertionError("nothing is to be written")


@pytest.mark.parametrize(
    "others", [{"topic": "a.b"}, {"topic": "a", "name": "b"}, {"topic": "c", "group_id": "shardherd.group-uid.a.b"}]
)
def test_sinks_that_share_their_positions_are_told_apart_by_no_topic(
    others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second one would find the positions of the first, and leave out all of its own records."""
    monkeypatch.setattr(kafka_topic, "connection", lambda *_: Written())
    shared = Writings()
    first = KafkaSink("a", lambda: ("x:9092,y:9092", Security()), name="b", writings=shared)
    second = KafkaSink(access=lambda: ("y:9092,x:9092", Security()), writings=shared, **others)
    batch = of({A: (0, 20, 1)})
    assert first.output_group(batch) == second.output_group(batch)
    first.write_by(nothing, SCHEMA, batch)
    with pytest.raises(SinkError, match=r"was written in micro-batch 1 already.*give each sink a name of its own"):
        second.write_by(nothing, SCHEMA, batch)


@pytest.mark.parametrize("ranges", [{}, {K: (N, N + 20, 1)}])
def test_shards_of_kinesis_are_refused_as_they_have_no_offset_of_kafka(ranges: dict[str, tuple[int, int, int]]) -> None:
    schema = StructType([StructField(name, StringType()) for name in ("shard", "sequenceNumber", "value")])
    with pytest.raises(
        SinkError, match=r"a shard of Kinesis has neither.*at least once, or to a table by shardherd.spark.sinks"
    ):
        KafkaSink("a", lambda: ("x:9092", Security())).write_by(nothing, schema, of(ranges))


def test_sinks_of_different_topics_are_written_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topic, "connection", lambda *_: Written())
    shared, batch = Writings(), of({A: (0, 20, 1)})
    for topic in ("a", "b"):
        KafkaSink(topic, lambda: ("x:9092", Security()), writings=shared).write_by(nothing, SCHEMA, batch)
