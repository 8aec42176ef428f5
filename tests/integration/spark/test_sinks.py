"""Sinks that are exactly once, under real Spark: a holder that stands still while its shards move, a driver that is killed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic

from dev.cluster.postgresql import PostgreSQL
from tests.harness.long import long
from tests.integration.spark.drivers import START, Driver, Site, produce
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_consumers import warm

APPLICATION = Path(__file__).with_name("sink_application.py")

Rows = Callable[[], Counter[tuple[str, int]]]


def told(site: Site, driver: Driver) -> list[dict[str, list[int]]]:
    """What `ranges` has told each micro-batch of this run."""
    return [json.loads(line) for line in (site.sink / f"ranges-{driver.name}").read_text().splitlines()]


class Step:
    """A step of one run at which it stands still."""

    def __init__(self, site: Site, driver: Driver, step: str) -> None:
        self._file = site.sink / f"{step}-{driver.name}"
        self._there = site.sink / f"at-{step}-{driver.name}"

    def block(self) -> None:
        self._file.touch()

    def reached(self) -> bool:
        return self._there.exists()

    def free(self) -> None:
        self._file.unlink()

    def forget(self) -> None:
        """It was there: the next time it is to say so anew."""
        self._there.unlink()


def each_record_once(
    site: Site, coordinator: ScriptedCoordinator, topic: str, rows: Rows, commit: Callable[[Driver], Any], **settings: str
) -> None:
    """A holder stands still before its commit, its shards move, and it comes back; their new holder is killed after its own."""
    shards = [f"{topic}/{number}" for number in range(4)]
    settings["TEST_APPLICATION"] = str(APPLICATION)
    first = site.start("clicks-0", 1, "a-token", **settings)
    second = site.start("clicks-1", 1, "a-token", **settings)
    warm(coordinator, first, second)
    coordinator.grant("clicks-0", *shards)
    written = produce(site.bootstrap, topic, 4, 100)
    coordinator.wait_until(lambda: sum(coordinator.positions().values()) == 400, "the first hundred of each are durable")
    assert rows() == written

    before = commit(first)
    before.block()
    written += produce(site.bootstrap, topic, 4, 50, first=100)
    site.wait_until(before.reached, "the first holder is about to commit")
    first.process.send_signal(signal.SIGSTOP)
    coordinator.grant("clicks-1", *shards)
    coordinator.died("clicks-0")
    coordinator.wait_until(lambda: sum(coordinator.positions().values()) == 600, "its shards were read by the second")
    assert rows() == written
    before.free()
    first.process.send_signal(signal.SIGCONT)
    again = "reading the sink's positions again"
    site.wait_until(lambda: again in first.log.read_text(), "the first one was refused")
    assert rows() == written

    after = Step(site, second, "after-commit")
    after.block()
    written += produce(site.bootstrap, topic, 4, 50, first=150)
    site.wait_until(after.reached, "the second has committed, and nobody knows of it")
    second.kill()
    site.wait_until(lambda: not second.children(), "its JVM and its workers end with it")
    third = site.start("clicks-1", 2, "a-token", **settings)
    coordinator.wait_until(lambda: sum(coordinator.positions().values()) == 800, "the next run has finished", START)
    site.wait_until(lambda: rows() == written, "each record is there once")

    was, now = told(site, second)[-1], told(site, third)[0]
    assert {shard: each[:2] for shard, each in now.items()} == {shard: each[:2] for shard, each in was.items()}, (
        "it is replayed"
    )
    assert all(now[shard][2] > was[shard][2] for shard in was), "under epochs of its own"
    assert third.terminate() == 0


@long
def test_a_delta_table_has_each_record_once(site: Site, coordinator: ScriptedCoordinator, topic: str) -> None:
    table = site.folder / "table"

    def rows() -> Counter[tuple[str, int]]:
        found = DeltaTable(str(table)).to_pyarrow_table(columns=["shard", "offset", "value"]).to_pylist()
        assert all(row["value"] == f"{row['shard'].rpartition('/')[2]}:{row['offset']}" for row in found)
        return Counter((row["shard"], row["offset"]) for row in found)

    each_record_once(site, coordinator, topic, rows, lambda driver: Step(site, driver, "before-commit"), TEST_TABLE=str(table))


def committed(bootstrap: str, topic: str) -> list[Any]:
    """The records of a topic of three partitions, as a consumer reads them that reads committed ones."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False)
    try:
        parts = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        found: list[Any] = []
        while any(consumer.position(part) < ends[part] for part in parts):
            for batch in consumer.poll(timeout_ms=200).values():
                found += batch
        return found
    finally:
        consumer.close()


@pytest.fixture
def output(site: Site, topic: str) -> str:
    """A topic of three partitions to write to."""
    admin = KafkaAdminClient(bootstrap_servers=site.bootstrap)
    admin.create_topics([NewTopic(f"{topic}-out", 3, 1)])
    admin.close()
    return f"{topic}-out"


@long
def test_a_topic_has_each_record_once(site: Site, coordinator: ScriptedCoordinator, topic: str, output: str) -> None:
    def rows() -> Counter[tuple[str, int]]:
        texts = (each.value.decode().split(":") for each in committed(site.bootstrap, output))
        return Counter((f"{topic}/{partition}", int(offset)) for partition, offset in texts)

    each_record_once(
        site,
        coordinator,
        topic,
        rows,
        lambda driver: Step(site, driver, "before-commit"),
        TEST_TABLE=output,
        TEST_KAFKA="yes",
    )


class Insert:
    """The moment at which one run begins to insert: a trigger of the table makes it wait for a lock."""

    def __init__(self, server: PostgreSQL, run: str) -> None:
        self._run = run
        self._connection = psycopg.connect(server.conninfo, autocommit=True)

    def block(self) -> None:
        self._connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (self._run,))

    def reached(self) -> bool:
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return self._connection.execute(waits).fetchone() != (0,)

    def free(self) -> None:
        self._connection.close()


WAITS = """
CREATE TABLE clicks (shard text, "offset" bigint, value text, timestamp timestamptz);
CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(hashtext(current_setting(''test.run''))); RETURN NULL; END';
CREATE TRIGGER waits BEFORE INSERT ON clicks EXECUTE FUNCTION waits();
"""


@long
def test_a_table_of_postgresql_has_each_record_once(
    site: Site, coordinator: ScriptedCoordinator, topic: str, postgresql: PostgreSQL
) -> None:
    with psycopg.connect(postgresql.conninfo) as connection:
        connection.execute(WAITS)

    def rows() -> Counter[tuple[str, int]]:
        with psycopg.connect(postgresql.conninfo) as connection:
            found = connection.execute('SELECT shard, "offset", value FROM clicks').fetchall()
        assert all(value == f"{shard.rpartition('/')[2]}:{offset}" for shard, offset, value in found)
        return Counter((shard, offset) for shard, offset, _ in found)

    each_record_once(
        site,
        coordinator,
        topic,
        rows,
        lambda driver: Insert(postgresql, driver.name),
        TEST_TABLE="clicks",
        TEST_POSTGRESQL=postgresql.conninfo,
    )
