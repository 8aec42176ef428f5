"""Groups that read a topic up to a time, on a real broker: their shards wait, end, and are read once more (rows 2, 8 and 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness.backfill import ENDS_AT, grow, write
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


@pytest.fixture
def herd(tmp_path: Path, broker: Broker, herd: Herd) -> Iterator[Herd]:
    """A topic of two partitions with all that there is in them."""
    found = Herd(tmp_path / "two", broker.bootstrap, herd.name + "-two", shards=2)
    for partition in range(2):
        write(found.bootstrap, found.name, partition, BEFORE, AFTER)
    yield found
    found.close()


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
        kafka = {"endingTimestamp": datetime.fromtimestamp(ENDS_AT, UTC).isoformat(), "growth": {"settle": "10s"}}
        manifest = herd.declare(
            replicas=2, ordered=True, sessionTimeout="15s", source={"kafka": kafka}, application=application, **more
        )
        return ("-f", str(manifest), "--bootstrap", herd.bootstrap, "--app-dir", str(Path(__file__).parent))

    herd.up(*declare())
    herd.until("both partitions are over", lambda: states(herd) == {"OVER": 2})
    assert Counter(herd.read()) == Counter(records(herd, BEFORE, BEFORE))
    assert [(each["checkpoint"], each["end"], each["lagRecords"]) for each in herd.shards()] == [(BEFORE, BEFORE, 0)] * 2

    herd.kill_operator()
    grow(herd.bootstrap, herd.name, 4, herd.until)
    for partition in (2, 3):
        write(herd.bootstrap, herd.name, partition, 10, 5)
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
