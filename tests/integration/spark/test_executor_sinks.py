"""Sinks that are exactly once, with tasks in executors that are killed when they have written a part of their rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyspark
from deltalake import DeltaTable

from dev.cluster.postgresql import PostgreSQL
from tests.harness.long import long
from tests.integration.spark.drivers import START, Driver, Site, produce
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_cell_sinks import APPLICATION as CELL_APPLICATION
from tests.integration.spark.test_cell_sinks import Output, check, in_a_topic, in_delta, in_postgresql
from tests.integration.spark.test_cells import CELLS, Records, durable, run, shards_of
from tests.integration.spark.test_consumers import warm
from tests.integration.spark.test_executors import CONF, executors
from tests.integration.spark.test_sinks import APPLICATION, Rows, Step, committed, output

__all__ = ["output"]

TIMES = 2
ROWS = 10
"""In one of Arrow's batches: a task has 5 of them."""


def with_executors(application: Path) -> dict[str, str]:
    """The variables of a driver with an executor of its own, whose tasks stop in the middle."""
    conf = {**CONF, "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS)}
    return {
        "TEST_APPLICATION": str(application),
        "TEST_TASKS": "yes",
        "SHARDHERD_SPARK_CONF": json.dumps(conf),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }


@contextlib.contextmanager
def killed_in_a_task(site: Site, driver: Driver) -> Iterator[None]:
    """What is written meanwhile is in a task when its executors are killed. They have been replaced afterwards."""
    step = Step(site, driver, "in-task")
    step.block()
    yield
    site.wait_until(step.reached, "a task has given rows to the sink", START)
    lost = executors(driver)
    assert lost
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    site.wait_until(lambda: bool(executors(driver) - lost), "there is another executor")
    step.free()
    step.forget()


def each_record_once(site: Site, coordinator: ScriptedCoordinator, topic: str, rows: Rows, **settings: str) -> None:
    """Executors are killed in the middle of their tasks; others run the same tasks again, of the same micro-batch."""
    shards = [f"{topic}/{number}" for number in range(4)]
    driver = site.start("clicks-0", 1, "a-token", **settings, **with_executors(APPLICATION))
    warm(coordinator, driver)
    coordinator.grant("clicks-0", *shards)
    written = produce(site.bootstrap, topic, 4, 50)
    coordinator.wait_until(lambda: coordinator.positions() == dict.fromkeys(shards, 50), "the first are durable", START)
    assert rows() == written

    for turn in range(1, TIMES + 1):
        with killed_in_a_task(site, driver):
            written += produce(site.bootstrap, topic, 4, 50, first=50 * turn)
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


def each_count_once(site: Site, coordinator: ScriptedCoordinator, topic: str, output: Output) -> None:
    """Of cells, with their state in the executors."""
    coordinator.cells = CELLS
    records = Records(site, topic)
    driver = run(site, "clicks-0", 1, **output.settings, **with_executors(CELL_APPLICATION))
    warm(coordinator, driver)
    coordinator.grant("clicks-0", *(shard for cell in range(CELLS) for shard in shards_of(topic, cell)))
    records.write(120)
    coordinator.wait_until(lambda: durable(coordinator) == 120, "the first records are counted", START)
    check(output, records)

    for _ in range(TIMES):
        with killed_in_a_task(site, driver):
            records.write(120)
        coordinator.wait_until(lambda: durable(coordinator) == records.total, "all is counted on", START)
        check(output, records)
    assert driver.terminate() == 0


@long
def test_a_delta_table_has_each_micro_batch_of_a_cell_once(site: Site, coordinator: ScriptedCoordinator, topic: str) -> None:
    each_count_once(site, coordinator, topic, in_delta(site))


@long
def test_a_topic_has_each_micro_batch_of_a_cell_once(
    site: Site, coordinator: ScriptedCoordinator, topic: str, output: str
) -> None:
    each_count_once(site, coordinator, topic, in_a_topic(site, output))


@long
def test_a_table_of_postgresql_has_each_micro_batch_of_a_cell_once(
    site: Site, coordinator: ScriptedCoordinator, topic: str, postgresql: PostgreSQL
) -> None:
    each_count_once(site, coordinator, topic, in_postgresql(postgresql))
