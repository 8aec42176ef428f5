"""Two real Spark applications share a real topic under the real coordinator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dev.cluster import Cluster
from tests.harness.long import long
from tests.integration.spark.drivers import START, Site
from tests.integration.spark.real import SETTINGS, RealCoordinator
from tests.integration.spark.test_consumers import Stream


@long
def test_consumers_share_the_shards_and_one_takes_over_what_another_drains(
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
            with Stream(site.bootstrap, topic, 4) as stream:
                site.wait_until(lambda: {row[0] for row in site.rows()} == set(shards), "every shard is read")

                coordinator.want(1)
                assert drivers[1].terminate() == 0
                took = coordinator.wait_until(lambda: coordinator.held() == dict.fromkeys(shards, "clicks-0"), "one holds all")
                assert took < SETTINGS.session_timeout / 2, "nobody waited for its silence"
                written = stream.stop()
            site.wait_until(lambda: site.counted().total() >= written.total(), "the rest is read")
            assert site.counted() == written, "a planned stop loses and repeats nothing"

            drivers[0].kill()
            coordinator.died("clicks-0", 1)
            coordinator.wait_until(
                lambda: not coordinator.held(), "with the proof of its death its shards are free", SETTINGS.session_timeout / 2
            )
        finally:
            site.close()
