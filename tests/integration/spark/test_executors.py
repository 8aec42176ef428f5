"""A real Spark application whose executors are processes of their own, and are killed while it reads."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.harness.long import long
from tests.integration.spark.drivers import START, Driver, Site
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_consumers import Stream, read_by, warm

CONF = {
    "spark.master": "local-cluster[1,1,512]",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
}
TIMES = 3


def executors(driver: Driver) -> set[int]:
    """The executors of this application that live."""
    found = set()
    for pid in driver.children():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


@long
def test_executors_that_are_lost_cost_no_record_and_the_query_goes_on(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    shards = [f"{topic}/{number}" for number in range(4)]
    home = str(Path(pyspark.__file__).parent)
    driver = site.start("clicks-0", SHARDHERD_SPARK_CONF=json.dumps(CONF), SPARK_HOME=home)
    warm(coordinator, driver)
    with Stream(site.bootstrap, topic, 4) as stream:
        coordinator.grant("clicks-0", *shards)

        def read() -> dict[str, int]:
            return {shard: read_by(site, driver.name, shard) for shard in shards}

        site.wait_until(lambda: all(read().values()), "all shards are read", START)
        for _ in range(TIMES):
            lost = executors(driver)
            assert lost
            for pid in lost:
                os.kill(pid, signal.SIGKILL)
            site.wait_until(lambda lost=lost: bool(executors(driver) - lost), "there is another executor")  # type: ignore[misc]
            before = read()
            site.wait_until(
                lambda before=before: all(now > before[shard] for shard, now in read().items()),  # type: ignore[misc]
                "all shards are read on",
                START,
            )
        written = stream.stop()
    coordinator.wait_until(lambda: sum(coordinator.positions().values()) == written.total(), "all is checkpointed")
    assert site.counted() == written
    assert [path.name for path in site.sink.glob("started-*")] == [f"started-{driver.name}"]
    assert {shard.epoch for shard in coordinator.shards.values()} == set(range(1, 5)), "no shard was granted anew"
    assert driver.terminate() == 0
