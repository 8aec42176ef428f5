"""Kinds of state that move with a cell: unmatched sides of a join, timers, and values with a time to live; all of it real."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.harness.long import long
from tests.integration.spark.drivers import START, Site
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_cells import CELLS, durable
from tests.integration.spark.test_consumers import warm

APPLICATION = Path(__file__).with_name("cell_states_application.py")
TTL = 5.0

Record = tuple[str, str]
Rows = list[list[Any]]


def rows(site: Site) -> Rows:
    """What all micro-batches have written, in their order."""
    batches = sorted((int(path.name.split(".")[1]), json.loads(path.read_text())) for path in site.sink.glob("*.*.json"))
    return [row for _, batch in batches for row in batch["rows"]]


@long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("query", "before", "after", "written"),
    [
        (
            "outer",
            [("a", "l:5"), ("b", "l:6"), ("a", "r:7"), ("c", "r:8")],
            [("z", "l:100"), ("z", "r:100")],
            [["a", "a"], ["b", None], [None, "c"], ["z", "z"]],
        ),
        ("timers", [("a", "x:5"), ("b", "x:6"), ("a", "x:7")], [("z", "x:100")], [["a", 2], ["b", 1]]),
        ("ttl", [("a", "x:1"), ("a", "x:2")], [("a", "x:3")], [["a", 2, 2], ["a", 1, 3]]),
    ],
)
def test_what_waits_in_a_cells_state_comes_to_its_end_at_the_next_holder(
    site: Site,
    coordinator: ScriptedCoordinator,
    topic: str,
    query: str,
    before: list[Record],
    after: list[Record],
    written: Rows,
) -> None:
    coordinator.cells = CELLS
    producer = KafkaProducer(bootstrap_servers=site.bootstrap, acks="all", linger_ms=500)

    def send(records: list[Record]) -> None:
        for key, value in records:
            producer.send(topic, key=key.encode(), value=value.encode(), partition=1)
        producer.flush()

    settings = {
        "TEST_APPLICATION": str(APPLICATION),
        "TEST_QUERY": query,
        "TEST_TTL": str(TTL),
        "SHARDHERD_STATE_LOCATION": str(site.folder / "state"),
    }
    first, second = (site.start(name, 1, "a-token", **settings) for name in ("clicks-0", "clicks-1"))
    warm(coordinator, first, second)
    send(before)
    coordinator.grant("clicks-0", f"{topic}/1", f"{topic}/3")
    coordinator.wait_until(lambda: durable(coordinator) == len(before), "the first consumer has read", START)
    forgotten_at = time.monotonic() + TTL

    coordinator.grant("clicks-1", f"{topic}/1", f"{topic}/3")
    site.wait_until(lambda: time.monotonic() > forgotten_at, "what has a time to live is forgotten")
    send(after)
    site.wait_until(lambda: len(rows(site)) >= len(written), "all rows are there", START)
    assert sorted(rows(site), key=str) == sorted(written, key=str)
    assert second.terminate() == 0, second.log.read_text()[-3000:]
    assert first.terminate() == 0
    assert sorted(rows(site), key=str) == sorted(written, key=str)
    runs = {json.loads(path.read_text())["run"] for path in site.sink.glob("*.*.json")}
    assert runs == {first.name, second.name}
    producer.close()
