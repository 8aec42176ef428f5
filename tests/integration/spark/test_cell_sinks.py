"""Results of cells in sinks, under real Spark: a holder that stands still while its cells move, and a driver that is killed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import psycopg
from deltalake import DeltaTable

from dev.cluster.postgresql import PostgreSQL
from tests.harness.long import long
from tests.integration.spark.drivers import START, Site
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_cells import CELLS, Records, durable, run, shards_of
from tests.integration.spark.test_consumers import warm
from tests.integration.spark.test_sinks import Step, committed, output

__all__ = ["output"]

APPLICATION = Path(__file__).with_name("cell_sink_application.py")

Counts = Counter[tuple[str, int]]
"""How often a key's count is among the results."""


class Output(NamedTuple):
    """Where the counts go: what tells the application, and what is there."""

    settings: Mapping[str, str]
    counts: Callable[[], Counts]


def in_delta(site: Site) -> Output:
    table = str(site.folder / "table")

    def counts() -> Counts:
        found = DeltaTable(table).to_pyarrow_table().to_pylist()
        return Counter((row["key"], row["count"]) for row in found)

    return Output({"TEST_TABLE": table}, counts)


def in_a_topic(site: Site, topic: str) -> Output:
    def counts() -> Counts:
        texts = (each.value.decode().split(":") for each in committed(site.bootstrap, topic))
        return Counter((key, int(count)) for key, count in texts)

    return Output({"TEST_TABLE": topic, "TEST_KAFKA": "yes"}, counts)


def in_postgresql(server: PostgreSQL) -> Output:
    with psycopg.connect(server.conninfo) as connection:
        connection.execute("CREATE TABLE counts (key text, count bigint)")

    def counts() -> Counts:
        with psycopg.connect(server.conninfo) as connection:
            return Counter(connection.execute("SELECT key, count FROM counts").fetchall())

    return Output({"TEST_TABLE": "counts", "TEST_POSTGRESQL": server.conninfo}, counts)


def check(output: Output, records: Records) -> None:
    """Each count of each key is there once, up to how many records there were."""
    found = output.counts()
    assert set(found.values()) == {1}, "a micro-batch was written twice, or two were counted from the same state"
    assert {key: max(n for each, n in found if each == key) for key, _ in found} == records.counts


def each_count_once(site: Site, coordinator: ScriptedCoordinator, topic: str, output: Output) -> None:
    """A holder stands still before its commit, its cells move, and it comes back; their next holder is killed there."""
    coordinator.cells = CELLS
    records = Records(site, topic)
    settings = {**output.settings, "TEST_APPLICATION": str(APPLICATION)}
    first, second = run(site, "clicks-0", 1, **settings), run(site, "clicks-1", 1, **settings)
    warm(coordinator, first, second)
    every = [shard for cell in range(CELLS) for shard in shards_of(topic, cell)]
    coordinator.grant("clicks-0", *every)
    records.write(120)
    coordinator.wait_until(lambda: durable(coordinator) == 120, "the first records are counted", START)
    check(output, records)

    before = Step(site, first, "before-commit")
    before.block()
    records.write(120)
    site.wait_until(before.reached, "the first holder is about to commit")
    first.process.send_signal(signal.SIGSTOP)
    coordinator.grant("clicks-1", *every)
    coordinator.died("clicks-0")
    coordinator.wait_until(lambda: durable(coordinator) == 240, "the second one counts on from the same state", START)
    check(output, records)
    before.free()
    first.process.send_signal(signal.SIGCONT)
    refused, ended = (
        "reading the sink's positions again",
        "make sure only one streaming job runs on a specific checkpoint location",
    )
    said = first.log.read_text
    site.wait_until(lambda: said().count(refused) >= CELLS, "the sink has refused the first one")
    site.wait_until(lambda: said().count(ended) >= CELLS, "and Spark has ended its queries")
    check(output, records)

    killed = Step(site, second, "before-commit")
    killed.block()
    records.write(60)
    site.wait_until(killed.reached, "the second one is about to commit")
    second.kill()
    site.wait_until(lambda: not second.children(), "its JVM and its workers end with it")
    third = run(site, "clicks-1", 2, **settings)
    coordinator.wait_until(lambda: durable(coordinator) == 300, "the next run has finished that micro-batch", START)
    check(output, records)
    assert third.terminate() == 0


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
