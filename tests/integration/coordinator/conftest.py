"""Fixtures: one namespace with the resource's definition, and a rig for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.harness.cluster import Names
from tests.harness.definition import define_resource
from tests.integration.contract.labs import KafkaLab, KubernetesLab
from tests.integration.coordinator.rig import Rig
from tests.integration.coordinator.workers import Workers


@pytest.fixture(scope="module")
def kubernetes(cluster: Cluster) -> Iterator[KubernetesLab]:
    define_resource(cluster)
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    yield KubernetesLab(api)
    api.close()


@pytest.fixture(scope="module")
def namespace(kubernetes: KubernetesLab, names: Names) -> Iterator[str]:
    name = kubernetes.namespace(names.fresh("coordinator"))
    yield name
    kubernetes.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
async def rig(cluster: Cluster, kubernetes: KubernetesLab, namespace: str) -> AsyncIterator[Rig]:
    kafka = KafkaLab(cluster.kafka_bootstrap)
    rig = Rig(cluster, kubernetes, kafka, namespace)
    yield rig
    await rig.close()
    await kafka.close()


@pytest.fixture
def name(names: Names) -> str:
    """A fresh name for a test's group."""
    return names.fresh("clicks")


@pytest.fixture
async def topic(rig: Rig, name: str) -> str:
    """A topic of 4 partitions of the test's own."""
    topic = f"{rig.namespace}-{name}"
    await rig.kafka.create(topic, 4)
    return topic


@pytest.fixture
def opened() -> Iterator[list[Workers]]:
    """Workers that are ended with the test, however it ends."""
    opened: list[Workers] = []
    yield opened
    for workers in opened:
        workers.close()
