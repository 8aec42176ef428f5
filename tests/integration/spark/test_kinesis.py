"""The source reads Kinesis in a real Spark, without an operator: a stream that is split and merged while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import shardherd.spark
from shardherd.spark.workers import with_workers
from tests.harness.kinesis import PLAYED, REGION, PlayedKinesis, put, stream
from tests.harness.spark import make_session
from tests.integration.spark.drivers import until

KEYS = [f"key-{number}" for number in range(20)]


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    made = make_session(tmp_path / "spark", with_workers({"spark.master": "local[2]"}))
    shardherd.spark.register(made)
    yield made
    made.stop()


def test_a_stream_that_is_split_and_merged_is_read_completely_and_in_order(
    spark: SparkSession, kinesis: PlayedKinesis, tmp_path: Path
) -> None:
    for name in ("accessKeyId", "secretAccessKey"):
        (tmp_path / name).write_text("played")
    read: list[tuple[str, str, int]] = []

    def take(rows: DataFrame, _batch: int) -> None:
        read.extend((row["key"], row["shard"], row["n"]) for row in rows.collect())

    options = {
        "kinesis.stream": "orders",
        "kinesis.region": REGION,
        "kinesis.endpoint": kinesis.url,
        "kinesis.credentials": str(tmp_path),
    }

    def run() -> None:
        given = {**options, "startingOffsets": "earliest", "valueFormat": "json", "valueSchema": "n BIGINT"}
        rows = spark.readStream.format("shardherd").options(**given).load()
        columns = ("cast(key as string) as key", "shard", "value.n as n")
        query = rows.selectExpr(*columns).writeStream.foreachBatch(take)
        query.option("checkpointLocation", str(tmp_path / "log")).trigger(availableNow=True).start().awaitTermination()

    with stream(kinesis, "orders", 2) as client:
        written: dict[str, list[int]] = {key: [] for key in KEYS}

        def write(first: int) -> None:
            for number in range(first, first + 100):
                written[KEYS[number % len(KEYS)]].append(number)
            put(client, "orders", [(KEYS[at % len(KEYS)], b'{"n": %d}' % at) for at in range(first, first + 100)])

        write(0)
        run()
        assert len(read) == 100
        shards = _shards(client)
        client.split_shard(StreamName="orders", ShardToSplit=shards[0], NewStartingHashKey=str(2**126))
        write(100)
        client.merge_shards(StreamName="orders", ShardToMerge=_shards(client)[3], AdjacentShardToMerge=shards[1])
        write(200)
        run()
        once = spark.read.format("shardherd").options(**options).load()
        rows = once.select("shard", "sequenceNumber").collect()
    assert (len(rows), len({row["shard"] for row in rows}), {len(row["sequenceNumber"]) for row in rows}) == (300, 5, {56})
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    for key, _, number in read:
        found[key].append(number)
    assert found == written
    assert len({shard for _, shard, _ in read}) == 5


def test_the_tasks_of_a_query_and_its_driver_keep_to_the_limits_of_a_shard_together(
    spark: SparkSession, kinesis: PlayedKinesis, tmp_path: Path
) -> None:
    """With a limit of bytes the driver reads every record to find where a micro-batch ends, and a task reads it once more."""
    for name in ("accessKeyId", "secretAccessKey"):
        (tmp_path / name).write_text("played")
    read: list[int] = []
    options = {
        "kinesis.stream": "orders",
        "kinesis.region": REGION,
        "kinesis.endpoint": kinesis.url,
        "kinesis.credentials": str(tmp_path),
        "startingOffsets": "earliest",
        "maxBytesPerTrigger": "2000000",
    }
    with stream(kinesis, "orders", 1) as client:
        for at in range(10):
            put(client, "orders", [("key", b"%d:" % at + bytes(450_000))])
        PLAYED.limits = True
        rows = spark.readStream.format("shardherd").options(**options).load()
        numbers = rows.selectExpr("cast(split(cast(value as string), ':')[0] as int) as n")
        writer = numbers.writeStream.foreachBatch(lambda found, _: read.extend(row["n"] for row in found.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "log")).trigger(processingTime="0 seconds").start()
        try:
            until(lambda: len(read) >= 10 or query.exception() is not None, "all records are read", 120.0)
        finally:
            query.stop()
        refused = PLAYED.calls["throttled"]
    assert (read, refused) == (list(range(10)), 0), PLAYED.read


def _shards(client: Any) -> list[str]:
    return sorted(each["ShardId"] for each in client.list_shards(StreamName="orders")["Shards"])
