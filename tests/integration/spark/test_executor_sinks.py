"""Sinks that are exactly once, whose tasks run in executors that are killed when they have written a part of their rows."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import psycopg
import pyspark
from deltalake import DeltaTable

from dev.cluster.postgresql import PostgreSQL
from tests.harness.long import long
from tests.integration.spark.drivers import START, Site, produce
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_consumers import warm
from tests.integration.spark.test_executors import CONF, executors
from tests.integration.spark.test_sinks import APPLICATION, Rows, Step, committed, output

__all__ = ["output"]

TIMES = 2
ROWS = 10
"""In one of Arrow's batches: a task has 5 of them."""


def each_record_once(site: Site, coordinator: ScriptedCoordinator, topic: str, rows: Rows, **settings: str) -> None:
    """Executors are killed in the middle of their tasks; others run the same tasks again, of the same micro-batch."""
    shards = [f"{topic}/{number}" for number in range(4)]
    conf = {**CONF, "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS)}
    settings |= {
        "TEST_APPLICATION": str(APPLICATION),
        "TEST_TASKS": "yes",
        "SHARDHERD_SPARK_CONF": json.dumps(conf),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    driver = site.start("clicks-0", 1, "a-token", **settings)
    warm(coordinator, driver)
    coordinator.grant("clicks-0", *shards)
    written = produce(site.bootstrap, topic, 4, 50)
    coordinator.wait_until(lambda: coordinator.positions() == dict.fromkeys(shards, 50), "the first are durable", START)
    assert rows() == written

    for turn in range(1, TIMES + 1):
        step = Step(site, driver, "in-task")
        step.block()
        written += produce(site.bootstrap, topic, 4, 50, first=50 * turn)
        site.wait_until(step.reached, "a task has given rows to the sink", START)
        lost = executors(driver)
        assert lost
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        site.wait_until(lambda lost=lost: bool(executors(driver) - lost), "there is another executor")  # type: ignore[misc]
        step.free()
        end = dict.fromkeys(shards, 50 * (turn + 1))
        coordinator.wait_until(lambda end=end: coordinator.positions() == end, "all is durable", START)
        assert rows() == written, "each record is there once"
    assert {shard.epoch for shard in coordinator.shards.values()} == set(range(1, 5)), "no shard was granted anew"
    assert driver.terminate() == 0


@long
def test_a_delta_table_has_each_record_once(site: Site, coordinator: ScriptedCoordinator, topic: str) -> None:
    table = site.folder / "table"

    def rows() -> Counter[tuple[str, int]]:
        found = DeltaTable(str(table)).to_pyarrow_table(columns=["shard", "offset"]).to_pylist()
        return Counter((row["shard"], row["offset"]) for row in found)

    each_record_once(site, coordinator, topic, rows, TEST_TABLE=str(table))


@long
def test_a_topic_has_each_record_once(site: Site, coordinator: ScriptedCoordinator, topic: str, output: str) -> None:
    def rows() -> Counter[tuple[str, int]]:
        texts = (each.value.decode().split(":") for each in committed(site.bootstrap, output))
        return Counter((f"{topic}/{partition}", int(offset)) for partition, offset in texts)

    each_record_once(site, coordinator, topic, rows, TEST_TABLE=output, TEST_KAFKA="yes")


@long
def test_a_table_of_postgresql_has_each_record_once(
    site: Site, coordinator: ScriptedCoordinator, topic: str, postgresql: PostgreSQL
) -> None:
    with psycopg.connect(postgresql.conninfo) as connection:
        connection.execute('CREATE TABLE clicks (shard text, "offset" bigint, value text, timestamp timestamptz)')

    def rows() -> Counter[tuple[str, int]]:
        with psycopg.connect(postgresql.conninfo) as connection:
            return Counter(connection.execute('SELECT shard, "offset" FROM clicks').fetchall())

    each_record_once(site, coordinator, topic, rows, TEST_TABLE="clicks", TEST_POSTGRESQL=postgresql.conninfo)
