"""Two real Spark applications share a real topic under the real coordinator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dev.cluster import Cluster
from tests.integration.spark.drivers import START, Site, produce
from tests.integration.spark.real import RealCoordinator
from tests.integration.spark.test_consumers import Stream


def test_consumers_share_the_shards_and_take_over_from_one_that_drains_or_dies(
    tmp_path: Path, cluster: Cluster, topic: str
) -> None:
    shards = [f"{topic}/{number}" for number in range(4)]
    with RealCoordinator(cluster.kafka_bootstrap, topic) as coordinator:
        site = Site(tmp_path, cluster.kafka_bootstrap, coordinator.url)
        try:
            coordinator.want(2)
            drivers = [site.start(name, token=coordinator.admit(name)) for name in ("clicks-0", "clicks-1")]
            even = {"clicks-0": 2, "clicks-1": 2}
            coordinator.wait_until(lambda: Counter(coordinator.held().values()) == even, "each holds two", START)
            stream = Stream(site.bootstrap, topic, 4)
            site.wait_until(lambda: {row[0] for row in site.rows()} == set(shards), "every shard is read")

            coordinator.want(1)
            assert drivers[1].terminate() == 0
            took = coordinator.wait_until(lambda: coordinator.held() == dict.fromkeys(shards, "clicks-0"), "one holds all")
            assert took < 2.0

            written = stream.stop()
            site.wait_until(lambda: site.counted().total() >= written.total(), "the rest is read")
            assert site.counted() == written, "a planned stop loses and repeats nothing"

            (site.sink / f"hold-{drivers[0].name}").touch()
            written += produce(site.bootstrap, topic, 4, 10, first=max(number for _, number in written) + 1)
            site.wait_until(lambda: site.counted().total() > written.total() - 40, "a micro-batch hangs after its rows")
            drivers[0].kill()
            coordinator.died("clicks-0", 1)
            site.start("clicks-0", 2, token=coordinator.admit("clicks-0"))
            coordinator.wait_until(
                lambda: coordinator.held() == dict.fromkeys(shards, "clicks-0"), "its next run holds all", START
            )
            coordinator.wait_until(lambda: _lag(coordinator) == 0, "the next run finishes what the first began", START)
            assert set(site.counted()) == set(written)
            assert site.counted().total() <= written.total() + 40, "only the unfinished micro-batch is read again"
        finally:
            site.close()


def _lag(coordinator: RealCoordinator) -> int | None:
    view = coordinator.view()
    lags = [None] if view is None else [each.lag_records for each in view.shards]
    return None if None in lags else sum(lag or 0 for lag in lags)
