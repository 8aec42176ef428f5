"""Keyed state on one machine: whatever happens to the group, the tables are those of one query that never moved."""

from __future__ import annotations

import random
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dev.cluster.postgresql import PostgreSQL
from tests.harness.broker import Broker
from tests.harness.cluster import Tell
from tests.harness.keyed.application import CELLS, QUERIES
from tests.harness.keyed.schedule import Step, schedule
from tests.harness.long import long
from tests.harness.postgresql import postgresql
from tests.integration.local.keyed import Keyed, KeyedHerd
from tests.simulation import seeds

__all__ = ["postgresql"]

SCHEDULES = 20

WINDOWS = list(QUERIES).index("windows")
"""The cell whose query has micro-batches without records, for windows that are over."""


@pytest.fixture
def keyed(tmp_path: Path, broker: Broker) -> Iterator[Keyed]:
    found = Keyed(tmp_path, broker.bootstrap, f"keyed-{uuid.uuid4().hex[:6]}")
    yield found
    found.close()


def rows_are_those_of_one_query(keyed: Keyed, seed: int, most: int, tell: Tell) -> None:
    begin, steps = schedule(seed, most)
    tell(f"seed {seed}: {begin} consumers, then {', '.join(str(step) for step in steps)}")
    keyed.rows_are_those_of_one_query(begin, steps)


def test_in_every_schedule_everything_happens_and_one_consumer_at_least_is_left() -> None:
    for seed in range(200):
        begin, steps = schedule(seed, 2)
        assert sorted(each.what for each in steps) == ["double", "grow", "kill", "operator", "shrink"]
        consumers = [begin]
        for each in steps:
            consumers.append(consumers[-1] + {"grow": 1, "shrink": -1}.get(each.what, 0))
            assert each.victim < consumers[-1]
        assert set(consumers) == {1, 2}


@pytest.mark.timeout(600)
def test_cells_write_what_one_query_writes_whatever_happens_to_the_group(keyed: Keyed, tell: Tell) -> None:
    seed, _ = seeds.of_commit()
    # One that Spark has logged, and runs again without asking a reader.
    failing = keyed.group.notes / f"fail-without-records-{WINDOWS}"
    failing.parent.mkdir(parents=True)
    failing.touch()
    rows_are_those_of_one_query(keyed, seed, 2, tell)
    assert not failing.exists(), "a micro-batch without records has failed once"
    assert "FileAlreadyExistsException" not in keyed.group.said(), (
        "what the storage is tried with is no error of the application"
    )
    keyed.batch_ids_go_on()


@long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(SCHEDULES))
def test_cells_write_what_one_query_writes_after_any_schedule(keyed: Keyed, tell: Tell, number: int) -> None:
    rows_are_those_of_one_query(keyed, random.SystemRandom().randrange(seeds.MOST), 3, tell)


EVERYTHING = (
    Step("grow", settled=True),
    Step("kill", settled=True),
    Step("operator", settled=False),
    Step("double", settled=True),
    Step("operator", settled=True),
    Step("shrink", settled=False),
)


@long
@pytest.mark.timeout(900)
def test_tables_of_postgresql_have_what_one_query_writes_whatever_happens_to_the_group(
    keyed: Keyed, postgresql: PostgreSQL
) -> None:
    columns = {
        "windows": 'key text, "window" bigint, n bigint, sum bigint',
        "firsts": "key text, third bigint",
        "pairs": "key text, number bigint, view bigint",
        "numbers": "key text, number bigint",
    }

    def run(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgresql.conninfo) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    for name, each in columns.items():
        run(f"CREATE TABLE {name} ({each})")
    keyed.group.environment = {"TEST_POSTGRESQL": postgresql.conninfo}
    keyed.written = lambda: {name: Counter(run(f"SELECT * FROM {name}")) for name in columns}

    keyed.rows_are_those_of_one_query(1, EVERYTHING)
    keyed.batch_ids_go_on()


@long
@pytest.mark.timeout(900)
def test_topics_have_what_one_query_writes_whatever_happens_to_the_group(keyed: Keyed) -> None:
    topics = {name: f"{keyed.group.name}-{name}" for name in QUERIES}
    keyed.records.create(topics.values())
    keyed.group.environment = {"TEST_TOPIC": keyed.group.name}
    keyed.written = lambda: {name: keyed.records.rows_in(topic) for name, topic in topics.items()}

    keyed.rows_are_those_of_one_query(1, EVERYTHING)
    keyed.batch_ids_go_on()


@long
@pytest.mark.timeout(900)
def test_a_rollout_replaces_every_pod_and_the_cells_go_on_with_their_state(keyed: Keyed) -> None:
    group = keyed.group

    def roll_out(_: Step) -> None:
        keyed.settle()
        before = uids(group)
        group.apply(group.manifest(keyed.records, 2, COLOUR="blue"))
        keyed.records.write_round()
        group.until("both pods are others", lambda: len(uids(group)) == 2 and not uids(group) & before)
        keyed.settle()

    keyed.rows_are_those_of_one_query(2, [Step("double", settled=True)], roll_out)

    keyed.batch_ids_go_on()
    assert len({each.incarnation for each in keyed.history()}) == 4, "each consumer has written, before and after"


@long
@pytest.mark.timeout(600)
def test_an_ordered_group_keeps_its_order_and_its_state_while_its_topic_grows(keyed: Keyed) -> None:
    group, records = keyed.group, keyed.records
    group.settle = "5s"
    keyed.begin(2)
    records.write_round()
    keyed.settle()
    keyed.await_read(0)
    fails = [group.notes / f"fail-{number}" for number in range(CELLS)]
    for each in fails:
        each.touch()
    records.write_round()

    keyed.take(Step("double", settled=False))
    records.write_round()
    new = [f"{records.clicks}/{number}" for number in range(CELLS, 2 * CELLS)]
    group.until("the new shards wait", lambda: waiting(group) == new)
    group.kill_operator()
    for each in fails:
        each.unlink()
    keyed.settle()
    keyed.await_read(records.rounds - 1)
    records.write_end()
    running = keyed.one_query()
    keyed.await_read(records.rounds - 1)
    wanted = running.rows()
    group.until("all rows are there", lambda: keyed.found() == wanted)
    group.end()

    assert keyed.found() == wanted
    keyed.batch_ids_go_on()
    keyed.new_shards_waited()


def waiting(group: KeyedHerd) -> list[str]:
    return sorted(each["shard"] for each in group.shards() if each["state"] == "WAIT")


def uids(group: KeyedHerd) -> set[str]:
    return {str(pod["metadata"]["uid"]) for pod in group.pods().values()}


@long
@pytest.mark.timeout(900)
def test_a_failing_cell_and_one_whose_state_is_lost_are_told_of_and_a_reset_begins_all_anew(keyed: Keyed) -> None:
    fails, loses = 1, 2
    group, records = keyed.group, keyed.records
    keyed.begin(1)
    records.write_round()
    keyed.settle()
    keyed.await_read(0)
    (group.notes / f"fail-{fails}").touch()
    records.write_round()
    said = group.message("CellsFailing")
    assert said.startswith(
        f"The query of cell {fails} fails and is started again; the other cells are read. See the log of {group.name}-0"
    )
    keyed.await_read(1, but=fails)
    (group.notes / f"fail-{fails}").unlink()
    keyed.await_read(1)
    group.until("it is told of no more", lambda: group.condition("CellsFailing") == "False")

    group.run("kill", f"{group.name}-0")
    shutil.rmtree(group.location(loses))
    records.write_round()
    said = group.message("StateLost")
    assert said.startswith(f"the state of cell {loses} is gone, or older than the positions: nobody is granted the shards.")
    keyed.await_read(2, but=loses)

    reset = {"id": "anew", "to": "Earliest", "discardState": True}
    group.apply(group.manifest(records, 1, {"paused": True, "reset": reset}))
    group.until("the reset is made", lambda: group.status().get("reset", {}).get("state") == "Done")
    records.write_end()
    running = keyed.one_query()
    group.apply(group.manifest(records, 1, TEST_AVAILABLE_NOW="yes"))
    wanted = running.rows()
    group.until("all is read anew", lambda: keyed.found(1) == wanted)
    group.until("the application has ended by itself", lambda: ended_well(group))
    group.end()
    assert keyed.found(1) == wanted


def ended_well(group: KeyedHerd) -> bool:
    """Whether the driver has ended with exit code 0."""
    statuses = group.pods()[f"{group.name}-0"]["status"].get("containerStatuses", [{}])
    return bool(statuses[0].get("lastState", {}).get("terminated", {}).get("exitCode", 1) == 0)
