"""Traces of a real Spark application and of the real coordinator over a real broker, as a collector gets them over OTLP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dev.cluster import Cluster
from shardherd.telemetry.tracing import start
from tests.harness.long import long
from tests.harness.otlp import Received, collecting
from tests.integration.spark.drivers import START, Site
from tests.integration.spark.real import RealCoordinator
from tests.integration.spark.test_consumers import Stream

PHASES = {"latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitBatch", "commitOffsets"}


@long
def test_a_micro_batch_can_be_followed_from_the_driver_into_the_commit_of_its_offsets(
    tmp_path: Path, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [f"{topic}/{number}" for number in range(4)]
    with collecting() as collector:

        def durable() -> list[Received]:
            """Those of which all is known."""
            return [
                each
                for each in collector.named("micro-batch", shardherd__outcome="durable")
                if "spark.batch" in each.attributes
            ]

        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=demo",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }.items():
            monkeypatch.setenv(name, value)  # a driver inherits them
        traces = start(os.environ, "shardherd-operator", {})
        assert traces is not None
        with RealCoordinator(cluster.kafka_bootstrap, topic, traces) as coordinator:
            site = Site(tmp_path, cluster.kafka_bootstrap, coordinator.url)
            try:
                coordinator.want(1)
                driver = site.start("clicks-0", token=coordinator.admit("clicks-0"))
                coordinator.wait_until(lambda: set(coordinator.held()) == set(shards), "one holds all", START)
                with Stream(site.bootstrap, topic, 4) as stream:
                    site.wait_until(lambda: {row[0] for row in site.rows()} == set(shards), "every shard is read")
                    # Rows are there before their micro-batch is over, and what Spark tells of it comes later still.
                    site.wait_until(lambda: durable() != [], "a micro-batch is durable, and its span has come")
                    stream.stop()
                assert driver.terminate() == 0
            finally:
                site.close()
        traces.close()

    assert {each.service for each in durable()} == {"clicks"}
    assert {each.parent for each in durable()} == {b""}
    assert {each.attributes["shardherd.group"] for each in durable()} == {"demo/clicks"}
    first = durable()[0]
    assert first.headers["x-tenant"] == "demo"
    assert set(collector.below(first)) - {"checkpoint"} >= {"latestOffset", "walCommit", "addBatch"}
    assert set(collector.below(first)) <= PHASES | {"checkpoint"}

    sent = collector.children(first, "checkpoint")[0]
    answered = collector.children(sent, "checkpoint")[0]
    assert (sent.service, answered.service) == ("clicks", "shardherd-operator")
    assert {each.trace for each in (sent, answered)} == {first.trace}
    assert sorted(collector.below(answered)) == ["commit offsets", "decide"]
    assert answered.attributes["shardherd.consumer"] == "clicks-0"
    assert answered.attributes["shardherd.outcome"] == "ok"

    beats = collector.named("heartbeat")
    assert {each.service for each in beats} == {"clicks", "shardherd-operator"}
    asked = next(each for each in beats if each.service == "shardherd-operator" and "write ownership" in collector.below(each))
    assert collector.below(asked)[:2] == ["decide", "write ownership"]
