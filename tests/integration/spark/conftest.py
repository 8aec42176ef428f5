"""The coordinator that is played by a test, and the drivers that are started against it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from dev.cluster import Cluster
from tests.harness.cluster import Names
from tests.harness.quick_spark import _quick_spark
from tests.integration.spark.drivers import Site
from tests.integration.spark.scripted import ScriptedCoordinator

__all__ = ["_quick_spark"]


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator() as started:
        yield started


@pytest.fixture
def site(tmp_path: Path, cluster: Cluster, coordinator: ScriptedCoordinator) -> Iterator[Site]:
    made = Site(tmp_path, cluster.kafka_bootstrap, coordinator.url)
    yield made
    made.close()


@pytest.fixture
def topic(cluster: Cluster, names: Names) -> str:
    """A topic of four shards."""
    name = names.fresh(f"spark-{uuid.uuid4().hex[:8]}")  # an instance may be kept between runs
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)
    admin.create_topics([NewTopic(name, 4, 1)])
    admin.close()
    return name
