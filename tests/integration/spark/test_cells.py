"""Keyed state that moves with its shards: real Spark applications and a real broker, and a coordinator that is played.

In every run `tests/integration/local/test_cells.py` has cells move under the real coordinator.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from tests.harness.long import long
from tests.integration.spark.drivers import START, Driver, Site
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_consumers import warm

APPLICATION = Path(__file__).with_name("cell_application.py")
CELLS = 2
KEYS = 12

BATCHES = 12
"""Micro-batches after which Spark has taken a snapshot: it does so in every tenth."""

SOON = 45.0
"""Seconds: Spark's own setting stores one a minute after the query has begun."""


def run(site: Site, consumer: str, start: int = 1, **extra: str) -> Driver:
    settings = {"TEST_APPLICATION": str(APPLICATION), "SHARDHERD_STATE_LOCATION": str(site.folder / "state"), **extra}
    return site.start(consumer, start, "a-token", **settings)


def two_consumers(site: Site, coordinator: ScriptedCoordinator) -> tuple[Driver, Driver]:
    """Both may be given cells."""
    coordinator.cells = CELLS
    first, second = run(site, "clicks-0"), run(site, "clicks-1")
    warm(coordinator, first, second)
    return first, second


def shards_of(topic: str, cell: int) -> list[str]:
    return [f"{topic}/{number}" for number in range(4) if number % CELLS == cell]


class Records:
    """Records with keys, each key in one partition: what has been written, and so what must be counted."""

    def __init__(self, site: Site, topic: str) -> None:
        self.counts: Counter[str] = Counter()
        self.total = 0
        self._topic = topic
        self._producer = KafkaProducer(bootstrap_servers=site.bootstrap, acks="all")

    def write(self, count: int) -> None:
        for _ in range(count):
            number = self.total % KEYS
            key = f"k{number}"
            self._producer.send(self._topic, key=key.encode(), value=str(self.total).encode(), partition=number % 4)
            self.counts[key] += 1
            self.total += 1
        self._producer.flush()


def told(site: Site) -> list[dict[str, Any]]:
    """What each micro-batch has written last, by cell and batch id."""
    found = [json.loads(path.read_text()) for path in site.sink.glob("*.*.json")]
    return sorted(found, key=lambda each: (each["cell"], each["batch"]))


def counts(site: Site) -> dict[str, int]:
    """The last count of each key."""
    return {row["key"]: row["count"] for batch in told(site) for row in batch["rows"]}


def durable(coordinator: ScriptedCoordinator) -> int:
    return sum(coordinator.positions().values())


@long
def test_cells_move_forth_and_back_with_their_state_and_no_count_is_wrong(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    first, second = two_consumers(site, coordinator)
    records = Records(site, topic)
    for cell in range(CELLS):
        coordinator.grant("clicks-0", *shards_of(topic, cell))
    records.write(240)
    coordinator.wait_until(lambda: durable(coordinator) == 240, "the first consumer mirrors what Spark has finished", START)
    assert counts(site) == records.counts

    coordinator.grant("clicks-1", *shards_of(topic, 1))
    records.write(240)
    coordinator.wait_until(lambda: durable(coordinator) == 480, "a cell goes on at the second consumer")
    coordinator.grant("clicks-0", *shards_of(topic, 1))
    records.write(120)
    coordinator.wait_until(lambda: durable(coordinator) == 600, "and comes back")
    assert counts(site) == records.counts

    coordinator.grant("clicks-1", *shards_of(topic, 0), *shards_of(topic, 1))
    assert first.terminate() == 0, first.log.read_text()[-3000:]
    assert coordinator.left == ["clicks-0"]
    records.write(120)
    coordinator.wait_until(lambda: durable(coordinator) == 720, "all cells go on where the drained consumer has stopped")

    assert counts(site) == records.counts
    by_cell = {cell: [each for each in told(site) if each["cell"] == cell] for cell in range(CELLS)}
    for batches in by_cell.values():
        assert [each["batch"] for each in batches] == list(range(len(batches))), "batch ids go on"
    assert {each["run"] for each in by_cell[1]} == {first.name, second.name}
    for shard, position in coordinator.positions().items():
        read = [each["ranges"][shard][:2] for each in told(site) if shard in each["ranges"]]
        assert [start for start, _ in read] == [0, *(stop for _, stop in read[:-1])]
        assert read[-1][1] == position
    assert (site.sink / f"ended-{first.name}").exists(), "run_cells has returned"
    assert second.terminate() == 0


@long
def test_a_snapshot_of_the_state_is_stored_soon_and_the_next_holder_goes_on_from_it(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    first, second = two_consumers(site, coordinator)
    records = Records(site, topic)
    coordinator.grant("clicks-0", *shards_of(topic, 0))
    for _ in range(BATCHES):
        records.write(KEYS)
        half = records.total // 2
        coordinator.wait_until(lambda half=half: durable(coordinator) == half, "a micro-batch more is finished", START)
    stored = site.folder / "state"
    coordinator.wait_until(lambda: any(stored.rglob("*.zip")), "a snapshot is stored")
    began = min(path.stat().st_mtime for path in stored.rglob("*.changelog"))
    assert min(path.stat().st_mtime for path in stored.rglob("*.zip")) - began < SOON

    # Without them nothing but a snapshot has the first counts.
    for version in range(1, BATCHES - 1):
        for path in stored.rglob(f"{version}_*.changelog"):
            path.unlink()
    coordinator.grant("clicks-1", *shards_of(topic, 0))
    records.write(KEYS)
    coordinator.wait_until(lambda: durable(coordinator) == records.total // 2, "the cell goes on")
    assert counts(site) == {key: count for key, count in records.counts.items() if int(key[1:]) % 2 == 0}
    assert first.terminate() == 0
    assert second.terminate() == 0
