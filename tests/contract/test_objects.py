"""The twin of the controller's cluster keeps the contract of the port."""

from __future__ import annotations

import itertools

import pytest

from tests.contract.objects import ClusterContract, Json, ObjectsLab
from tests.harness.memory_cluster import MemoryCluster
from tests.unit.controller.builders import resource


class MemoryObjectsLab(ObjectsLab):
    """Puts objects where the twin keeps them."""

    namespace = "shop"

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)

    async def group(self) -> Json:
        number = next(self._numbers)
        made = resource(uid=f"11111111-0000-0000-0000-{number:012d}")
        made["metadata"]["name"] = f"group-{number}"
        self._cluster.put("ConsumerGroup", made)
        return made

    async def delete_group(self, name: str) -> None:
        self._cluster.remove("ConsumerGroup", self.namespace, name)

    async def pod(self, group: str, name: str) -> Json:
        metadata = {
            "name": name,
            "namespace": "shop",
            "uid": f"uid-of-{name}",
            "labels": {"shardherd.dev/consumergroup": group},
        }
        made = {"metadata": metadata, "status": {}}
        self._cluster.put("Pod", made)
        return made


class TestMemoryCluster(ClusterContract):
    @pytest.fixture
    def cluster_port(self) -> MemoryCluster:
        return MemoryCluster()

    @pytest.fixture
    def lab(self, cluster_port: MemoryCluster) -> MemoryObjectsLab:
        return MemoryObjectsLab(cluster_port)
