"""Groups that read a topic up to a time, on a real broker: their shards wait, end, and are read once more (rows 2, 8 and 7)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from tests.harness.broker import Broker
from tests.integration.local.herd import Herd
from tests.integration.local.test_workers import PYTHON

SPARK: dict[str, Any] = {
    "mainApplicationFile": "/opt/app/ranges_application.py",
    "checkpoint": {"path": "/notes/checkpoints"},
    "driver": {"memory": "640m"},
}
BEFORE, AFTER = 40, 20
"""Records of each partition of before the time, and of those that follow."""

ENDS_AT = int(time.time()) - 1800


@pytest.fixture
def herd(tmp_path: Path, broker: Broker, herd: Herd) -> Iterator[Herd]:
    """A topic of two partitions with all that there is in them."""
    found = Herd(tmp_path / "two", broker.bootstrap, herd.name + "-two", shards=2)
    for partition in range(2):
        write(found, partition, BEFORE, AFTER)
    yield found
    found.close()


def write(herd: Herd, partition: int, before: int, after: int) -> None:
    """Records of before the time, and then others."""
    producer = KafkaProducer(bootstrap_servers=herd.bootstrap, acks="all")
    for number in range(before + after):
        at = ENDS_AT - 600 + number if number < before else ENDS_AT + number - before
        producer.send(herd.name, value=b"%d" % number, partition=partition, timestamp_ms=at * 1000).get(60)
    producer.close()


def grow(herd: Herd, partitions: int) -> None:
    """The topic has so many partitions from now on."""
    admin = KafkaAdminClient(bootstrap_servers=herd.bootstrap)
    admin.create_partitions({herd.name: partitions})
    herd.until("there are new ones", lambda: len(admin.describe_topics([herd.name])[0]["partitions"]) == partitions)
    admin.close()


def states(herd: Herd) -> dict[str, int]:
    """How many shards are in each state, as the coordinator says."""
    return dict(Counter(each["state"] for each in herd.shards()))


def records(herd: Herd, *counts: int) -> set[tuple[str, int]]:
    """So many of the first records of each partition."""
    return {(f"{herd.name}/{partition}", offset) for partition, count in enumerate(counts) for offset in range(count)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("application", [pytest.param(PYTHON, id="workers"), pytest.param(SPARK, id="Spark")])
def test_what_was_written_up_to_a_time_is_read_and_nothing_else(herd: Herd, application: dict[str, Any]) -> None:
    def declare(**more: Any) -> tuple[str, ...]:
        kafka = {"endingTimestamp": datetime.fromtimestamp(ENDS_AT, UTC).isoformat(), "growth": {"settle": "5s"}}
        manifest = herd.declare(
            replicas=2, ordered=True, sessionTimeout="15s", source={"kafka": kafka}, application=application, **more
        )
        return ("-f", str(manifest), "--bootstrap", herd.bootstrap, "--app-dir", str(Path(__file__).parent))

    herd.up(*declare())
    herd.until("both partitions are over", lambda: states(herd) == {"OVER": 2})
    assert Counter(herd.read()) == Counter(records(herd, BEFORE, BEFORE))
    assert [(each["checkpoint"], each["end"], each["lagRecords"]) for each in herd.shards()] == [(BEFORE, BEFORE, 0)] * 2

    herd.kill_operator()
    grow(herd, 4)
    for partition in (2, 3):
        write(herd, partition, 10, 5)
    herd.up()
    herd.until("the new partitions wait for those that had their keys", lambda: states(herd) == {"OVER": 2, "WAIT": 2})
    herd.until("they are over, too", lambda: states(herd) == {"OVER": 4})
    whole = records(herd, BEFORE, BEFORE, 10, 10)
    assert Counter(herd.read()) == Counter(whole)

    herd.run("apply", *declare(paused=True, reset={"id": "again", "to": "Earliest"}))
    herd.until("none is over", lambda: len(herd.shards()) == 4 and "OVER" not in states(herd))
    assert Counter(herd.read()) == Counter(whole)
    herd.run("apply", *declare(paused=False, reset={"id": "again", "to": "Earliest"}))
    herd.until("all are over again", lambda: states(herd) == {"OVER": 4})
    assert Counter(herd.read()) == Counter(dict.fromkeys(whole, 2))
