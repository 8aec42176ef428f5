"""The source without an operator, on a real broker and in a real Spark, one for all tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.base import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BooleanType

import shardherd.spark
from dev.cluster import Cluster
from shardherd.spark.schema import columns
from shardherd.spark.warming import start_workers
from shardherd.spark.workers import with_workers
from tests.harness.spark import make_session
from tests.integration.spark.drivers import produce, until
from tests.integration.spark.page import lines_of, ten_lines

T0 = 1_700_000_000_000
"""When the first record was written, in milliseconds."""

Create = Callable[..., str]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = with_workers({"spark.master": "local[2]", "spark.sql.streaming.noDataProgressEventInterval": "100"})
    made = make_session(tmp_path_factory.mktemp("spark"), settings)
    shardherd.spark.register(made)
    yield made
    made.stop()


@pytest.fixture
def create(cluster: Cluster) -> Iterator[Create]:
    """Makes a topic with so many partitions; returns its name."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)

    def make(partitions: int = 2, name: str = "") -> str:
        topic = name or f"alone-{uuid.uuid4().hex[:8]}"
        # Its records are years old, and a broker deletes such as soon as it looks, half a minute after it was started.
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs={"retention.ms": "-1"})])
        return topic

    yield make
    admin.close()


def written(cluster: Cluster, topic: str) -> list[tuple[Any, ...]]:
    """Three records in partition 0, a second apart; each as a row with every column."""
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]] = [
        (b"a", b"one", [("trace", b"\x01\x02"), ("trace", b"")]),
        (None, b"", []),
        (b"c", None, [("x", b"y")]),
    ]
    producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap)
    for number, (key, value, headers) in enumerate(records):
        producer.send(topic, value=value, key=key, headers=headers, partition=0, timestamp_ms=T0 + 1000 * number)
    producer.flush()
    producer.close()
    return [
        (
            key,
            value,
            topic,
            0,
            at,
            datetime.fromtimestamp(T0 / 1000 + at, UTC).replace(tzinfo=None),
            0,
            headers or None,
            f"{topic}/0",
        )
        for at, (key, value, headers) in enumerate(records)
    ]


class Sink:
    """The rows of a query's micro-batches, in order; the batch with number `fails` writes its rows and then fails."""

    def __init__(self, fails: int = -1) -> None:
        self.batches: list[list[tuple[str, int]]] = []
        self._fails = fails

    def __call__(self, batch: DataFrame, number: int) -> None:
        self.batches.append(sorted((row.shard, row.offset) for row in batch.select("shard", "offset").collect()))
        if number == self._fails:
            raise RuntimeError("the sink fails")

    @property
    def rows(self) -> list[tuple[str, int]]:
        return sorted(row for batch in self.batches for row in batch)


class Site:
    """Where queries of one test run: a Kafka and a checkpoint location."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark, self._bootstrap = spark, bootstrap
        self.location = folder / "checkpoint"

    def stream(self, options: Mapping[str, str], sink: Sink, *, available_now: bool = True) -> StreamingQuery:
        read = self._spark.readStream.format("shardherd").option("kafka.bootstrap.servers", self._bootstrap).options(**options)
        writer = read.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(self.location))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(self, options: Mapping[str, str], sink: Sink | None = None) -> Sink:
        """All there is, to the end."""
        sink = sink or Sink()
        self.stream(options, sink).awaitTermination()
        return sink

    def batch(self, schema: str = "", **options: str) -> DataFrame:
        read = self._spark.read.format("shardherd").option("kafka.bootstrap.servers", self._bootstrap).options(**options)
        return (read.schema(schema) if schema else read).load()


@pytest.fixture
def site(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Site:
    return Site(spark, cluster.kafka_bootstrap, tmp_path)


def rows_of(topic: str, *spans: tuple[int, int, int]) -> list[tuple[str, int]]:
    """Rows by partition, first and next offset."""
    return sorted((f"{topic}/{partition}", at) for partition, first, stop in spans for at in range(first, stop))


def test_a_batch_has_every_column(site: Site, cluster: Cluster, create: Create) -> None:
    topic = create(1)
    expected = written(cluster, topic)
    found = site.batch(subscribe=topic, includeHeaders="true")

    assert found.schema == columns(headers=True)
    assert [
        (*row[:7], row.headers and [tuple(each) for each in row.headers], row.shard)
        for row in found.orderBy("offset").collect()
    ] == expected


def test_a_batch_of_fewer_columns_in_another_order_and_in_more_tasks(site: Site, cluster: Cluster, create: Create) -> None:
    topic = create(2)
    produce(cluster.kafka_bootstrap, topic, 2, 50)
    found = site.batch("shard string, value binary, partition int not null", subscribe=topic, minPartitions="5")

    assert found.rdd.getNumPartitions() == 5
    assert site.batch(subscribe=topic).rdd.getNumPartitions() == 2
    assert sorted((row[0], row[1], row[2]) for row in found.collect()) == sorted(
        (f"{topic}/{partition}", f"{partition}:{at}".encode(), partition) for partition in range(2) for at in range(50)
    )
    assert site.batch(assign=json.dumps({topic: [1]})).count() == 50


def test_typed_values_arrive_as_spark_would_have_made_them(
    spark: SparkSession, site: Site, cluster: Cluster, create: Create
) -> None:
    topic = create(1)
    documents = [
        b'{"id":1,"at":"2021-03-04 05:06:07"}',
        None,
        b'{"id":"x","at":"2021-03-04T05:06:07Z"}',
        b"{'id':2,'tags':['a']}",
    ]
    producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap)
    for document in documents:
        producer.send(topic, key=b"k", value=document, partition=0)
    producer.flush()
    producer.close()
    schema = "id int, at timestamp, tags array<string>, _corrupt_record string"
    typed = {"subscribe": topic, "valueFormat": "json", "valueSchema": schema}
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    before = shardherd.spark.values_read(spark)
    try:
        found = site.batch(**typed).selectExpr("offset", "to_json(value)").orderBy("offset").collect()
        theirs = F.from_json(F.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": "_corrupt_record"})
        wanted = site.batch(subscribe=topic).select("offset", F.to_json(theirs)).orderBy("offset").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert [tuple(row) for row in found] == [tuple(row) for row in wanted]
    now = shardherd.spark.values_read(spark)
    assert (now.values - before.values, now.slow - before.slow, now.malformed - before.malformed) == (4, 2, 1)
    assert '"at":"2021-03-04T05:06:07.000-05:00"' in found[0][1], "the session's time zone, as the tasks learn it"
    dropped = site.batch("offset bigint, value struct<id: int>", **typed | {"valueSchema": "id int", "mode": "DROPMALFORMED"})
    assert sorted(tuple(row) for row in dropped.collect()) == [(0, (1,)), (1, None), (3, (2,))]
    with pytest.raises(Exception, match=rf"shard {topic}/0, offset 2: a value is malformed and option mode is FAILFAST"):
        site.batch(**typed | {"mode": "FAILFAST"}).collect()


def test_a_registrys_password_is_in_no_plan(spark: SparkSession, site: Site, create: Create) -> None:
    typed = {"valueFormat": "avro", "valueSchema": '"string"', "schemaRegistryUrl": "http://me:a-secret-word@127.0.0.1:9"}
    found = site.batch(subscribe=create(1), **typed)

    plan = found._jdf.queryExecution().toString()
    streamed = spark.readStream.format("shardherd").options(**typed).option("subscribe", "clicks")
    streamed_plan = streamed.option("kafka.bootstrap.servers", "k:1").load()._jdf.queryExecution().toString()

    assert "value" in plan
    assert "value" in streamed_plan
    assert "a-secret-word" not in plan + streamed_plan


def test_the_workers_that_are_started_ahead_are_those_that_read(
    spark: SparkSession, site: Site, cluster: Cluster, create: Create
) -> None:
    topic = create(2)
    produce(cluster.kafka_bootstrap, topic, 2, 10)

    def both_are_there() -> bool:
        start_workers(spark, 2).join()
        return len(workers(spark)) == 2

    until(both_are_there, "a task has begun before the other one was done, which would have left it its worker")
    ahead = workers(spark)

    assert site.batch(subscribe=topic).count() == 20

    assert workers(spark) == ahead
    variables = [Path(f"/proc/{worker}/environ").read_text().split("\0") for worker in ahead]
    assert ["PYTHON_UNIX_DOMAIN_ENABLED=True" in each for each in variables] == [True, True], "and not by TCP"


def test_a_worker_in_the_place_of_one_that_ended_has_imported_what_reading_takes(
    site: Site, spark: SparkSession, create: Create, cluster: Cluster
) -> None:
    """As after a minute without work, when Spark ends its workers."""
    topic = create(2)
    produce(cluster.kafka_bootstrap, topic, 2, 10)
    start_workers(spark, 2).join()
    for worker in workers(spark):
        # One at a time: what its parent has not waited for yet, Spark takes for alive.
        os.kill(int(worker), signal.SIGKILL)
        until(lambda gone=Path(f"/proc/{worker}"): not gone.exists(), "it is gone")  # type: ignore[misc]

    is_ready = F.udf(lambda _: "shardherd.spark.reader" in sys.modules, BooleanType(), useArrow=False)
    rows = spark.range(0, 2, 1, 2).select(is_ready("id").alias("ready")).collect()

    assert [row.ready for row in rows] == [True, True]
    assert site.batch(subscribe=topic).count() == 20


def workers(spark: SparkSession) -> set[str]:
    """The processes that run Python tasks of this session."""
    java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    daemons = _children(java, "-f", "shardherd.spark.daemon pyspark.worker$")
    return {worker for daemon in daemons for worker in _children(daemon)}


def _children(parent: object, *which: str) -> list[str]:
    return subprocess.run(["pgrep", "-P", str(parent), *which], stdout=subprocess.PIPE, text=True, check=False).stdout.split()


def test_what_is_wrong_is_said_when_the_query_is_made(site: Site, create: Create) -> None:
    with pytest.raises(AnalysisException, match=r"unknown option 'subscibe' .* did you mean subscribe"):
        site.batch(subscibe="clicks")
    with pytest.raises(AnalysisException, match="column 'offset' cannot be string: it is bigint here"):
        site.batch("offset string", subscribe="clicks").count()


def test_a_stream_that_starts_at_the_end_loses_nothing_that_comes_after_its_first_micro_batch(
    site: Site, cluster: Cluster, create: Create
) -> None:
    topic = create(1)
    produce(cluster.kafka_bootstrap, topic, 1, 10)
    sink = Sink()
    query = site.stream({"subscribe": topic}, sink, available_now=False)
    query.processAllAvailable()
    assert sink.rows == []
    produce(cluster.kafka_bootstrap, topic, 1, 3, first=10)
    query.processAllAvailable()
    progress = query.lastProgress
    query.stop()
    assert sink.rows == rows_of(topic, (0, 10, 13))
    assert progress is not None
    assert json.loads(str(progress.sources[0].latestOffset)) == {"ends": {f"{topic}/0": 13}}

    produce(cluster.kafka_bootstrap, topic, 1, 4, first=13)
    assert site.run({"subscribe": topic}).rows == rows_of(topic, (0, 13, 17)), "what came while it was down"


def test_the_first_micro_batch_is_read_again_exactly_when_it_failed(site: Site, cluster: Cluster, create: Create) -> None:
    """Its start is nowhere but in its end, and new records have come meanwhile."""
    topic = create(2)
    produce(cluster.kafka_bootstrap, topic, 2, 20)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "24"}
    failed = Sink(fails=0)
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        site.run(options, failed)
    produce(cluster.kafka_bootstrap, topic, 2, 7, first=20)

    again = site.run(options)

    assert again.batches[0] == failed.batches[0]
    assert again.rows == rows_of(topic, (0, 0, 27), (1, 0, 27))


def test_the_lines_of_the_documentation_run(site: Site, cluster: Cluster, create: Create, tmp_path: Path) -> None:
    topic = create(1)
    produce(cluster.kafka_bootstrap, topic, 1, 12)
    lines = ten_lines(cluster.kafka_bootstrap, topic, tmp_path)
    exec(lines, {})

    found = site._spark.read.parquet(str(tmp_path / "clicks")).orderBy("offset").collect()
    assert [tuple(row) for row in found] == [(f"{topic}/0", at, f"0:{at}") for at in range(12)]
    assert len([line for line in lines.splitlines() if line]) <= 10


def test_the_lines_that_read_a_day_run(spark: SparkSession, cluster: Cluster, create: Create) -> None:
    topic = create(1)
    written(cluster, topic)
    instead = {"localhost:9092": cluster.kafka_bootstrap, '"clicks"': f'"{topic}"'}
    times = {"1767225600000": str(T0 + 1), "1767312000000": str(T0 + 2001)}
    said: dict[str, object] = {"spark": spark}
    exec(lines_of("source.md", 1, **instead, **times), said)

    assert said["rows"] == 2


SAME = (
    {"startingOffsets": '{"TOPIC": {"0": 5, "1": -2}}', "endingOffsets": '{"TOPIC": {"0": -1, "1": 7}}'},
    {"startingTimestamp": str(T0 + 4000), "endingTimestamp": str(T0 + 9000)},
    {
        "startingOffsetsByTimestamp": f'{{"TOPIC": {{"0": {T0 + 3000}, "1": {T0 + 99_000}}}}}',
        "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsetsByTimestamp": f'{{"TOPIC": {{"0": {T0 + 8000}, "1": {T0 + 99_000}}}}}',
        "minPartitions": "5",
        "maxRecordsPerPartition": "3",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
        "kafka.isolation.level": "read_committed",
    },
)
"""Options under which Spark's own source and this one must give the same rows."""


def test_the_options_of_sparks_own_kafka_source_mean_the_same(
    spark: SparkSession, site: Site, cluster: Cluster, create: Create
) -> None:
    topic = create(2)
    producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap)
    for at in range(12):
        for partition in range(2):
            headers = [("n", b"%d" % at)] if at % 2 else None
            producer.send(topic, b"%d" % at, b"k", headers, partition, T0 + 1000 * at)
    producer.flush()
    producer.close()

    for options in SAME:
        given = {"subscribe": topic, **{name: text.replace("TOPIC", topic) for name, text in options.items()}}
        theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.kafka_bootstrap).options(**given).load()
        ours = site.batch(**given)
        assert ours.drop("shard").schema == theirs.schema
        rows = [sorted(map(tuple, each.collect()), key=lambda row: row[3:5]) for each in (ours.drop("shard"), theirs)]
        assert rows[0] == rows[1]
        assert 0 < len(rows[0]) < 24


def test_positions_of_sparks_own_kafka_source_are_taken_over_as_the_page_says(
    spark: SparkSession, site: Site, cluster: Cluster, create: Create, tmp_path: Path
) -> None:
    topic = create(2)
    produce(cluster.kafka_bootstrap, topic, 2, 20)
    old = Sink(fails=1)

    def write(batch: DataFrame, number: int) -> None:
        old(batch.selectExpr("concat(topic, '/', partition) as shard", "offset"), number)

    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", cluster.kafka_bootstrap)
    rows = read.option("subscribe", topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "16").load()
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "old"))
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        query.trigger(availableNow=True).start().awaitTermination()
    assert [len(batch) for batch in old.batches] == [16, 16], "the second one was begun and not finished"

    said: dict[str, str] = {}
    exec(lines_of("source-migration.md", 0, **{"/checkpoints/clicks": str(tmp_path / "old")}), said)
    new = site.run({"subscribe": topic, "startingOffsets": said["positions"]})

    assert sorted(old.batches[0] + new.rows) == rows_of(topic, (0, 0, 20), (1, 0, 20))
