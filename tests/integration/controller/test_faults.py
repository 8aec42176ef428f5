"""The control plane in trouble, and consumers that read on.

One operator as a process of its own reaches the real API server through `ApiProxy`; its pods run plain consumers on the real
protocol, played by `PlayedKubelet`, which reaches the API server directly. A shard is never read by two, none is read from
behind its checkpoint, and after the trouble the group is as it is declared.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import ApiError
from tests.harness.api_proxy import ApiProxy
from tests.harness.cluster import Names
from tests.harness.kubelet import PlayedKubelet
from tests.integration.controller.bench import unique, until
from tests.integration.controller.process import OperatorProcess

SHARDS = 4

Json = dict[str, Any]


class Place:
    """An operator behind a proxy, a group of two consumers that read four shards, and what a test looks at."""

    def __init__(self, operator: OperatorProcess, proxy: ApiProxy, kubelet: PlayedKubelet, topic: str) -> None:
        self.operator = operator
        self.proxy = proxy
        self.kubelet = kubelet
        self.topic = topic
        self.shards = [f"{topic}/{number}" for number in range(SHARDS)]

    def path(self, kind: str, name: str = "") -> str:
        bases = {
            "statefulsets": "/apis/apps/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "consumergroups": "/apis/shardherd.dev/v1alpha1",
        }
        return f"{bases.get(kind, '/api/v1')}/namespaces/{self.operator.namespace}/{kind}/{name}".rstrip("/")

    def find(self, kind: str, name: str) -> Json:
        """The object; empty if there is none."""
        try:
            found: Json = self.operator.api.call("GET", self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        return found

    def delete(self, kind: str, name: str) -> None:
        self.operator.api.call("DELETE", self.path(kind, name), {"propagationPolicy": "Background"})

    def ready(self) -> bool:
        """Whether the group says that it is, of the newest generation."""
        found = self.find("consumergroups", "clicks")
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return current and any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", ()))

    def until_ready(self, within: float = 60.0) -> None:
        until(self.ready, self.explain, within)

    def until_read(self, since: float | None = None, within: float = 60.0) -> None:
        """Until every shard was read after that time, by default after now."""
        after = time.monotonic() if since is None else since
        until(
            lambda: all(any(each.at > after for each in self.kubelet.of(shard)) for shard in self.shards), self.explain, within
        )

    def pods(self) -> dict[str, str]:
        """UIDs of the group's pods by name."""
        found = self.operator.api.call("GET", self.path("pods"))["items"]
        return {
            item["metadata"]["name"]: item["metadata"]["uid"] for item in found if "deletionTimestamp" not in item["metadata"]
        }

    def nothing_lost_or_repeated(self) -> None:
        """Every record was read; and none was checkpointed twice."""
        for shard in self.shards:
            durable = self.kubelet.of(shard)
            assert all(later.begin >= earlier.end for earlier, later in itertools.pairwise(durable)), (shard, durable)
            fenced = [each for each in list(self.kubelet.fenced) if each.shard == shard]
            read = {each.begin for each in (*durable, *fenced)}
            assert read == set(range(durable[-1].end)), (shard, durable, fenced)

    def explain(self) -> object:
        status = self.find("consumergroups", "clicks").get("status", {})
        return status, self.pods(), self.kubelet.failures, self.operator.log.read_text()[-6000:]


@contextlib.contextmanager
def reading(cluster: Cluster, namespace: str, folder: Path, **settings: str) -> Iterator[Place]:
    proxy = ApiProxy(cluster.api_url, cluster.layout.certificates)
    proxy.start()
    operator = OperatorProcess(cluster, namespace, folder)
    kubeconfig = folder / "kubeconfig"
    content = yaml.safe_load(kubeconfig.read_text())
    content["clusters"][0]["cluster"] = {"server": proxy.url}
    kubeconfig.write_text(yaml.safe_dump(content))
    try:
        operator.start(**settings)
        topic = f"{namespace}-clicks"
        cluster.kafka_tool("kafka-topics", "--create", "--topic", topic, "--partitions", str(SHARDS))
        address = f"http://127.0.0.1:{operator.api_port}"
        with PlayedKubelet(operator.api, namespace, address, starting=0.2).running() as kubelet:
            place = Place(operator, proxy, kubelet, topic)
            operator.group("clicks", topic)
            place.until_ready()
            place.until_read()
            yield place
    finally:
        operator.close()
        proxy.close()


@pytest.fixture
def namespace(cluster: Cluster, names: Names) -> Iterator[str]:
    name = unique(names, "faults")
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def place(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Place]:
    with reading(cluster, namespace, tmp_path) as place:
        yield place


def test_watches_that_were_cut_off_and_forgotten_miss_nothing_in_the_end(place: Place) -> None:
    """What is deleted while no watch is open, and the server has forgotten it when they begin anew, is noticed."""
    place.proxy.faults.refuse_watches = True
    place.proxy.cut()
    place.delete("services", "clicks")
    place.delete("poddisruptionbudgets", "clicks")
    place.operator.group("gone", place.topic, groupId=f"{place.operator.namespace}.gone")
    place.delete("consumergroups", "gone")
    place.until_read()
    place.proxy.faults.refuse_watches = False
    until(lambda: place.find("services", "clicks") and place.find("poddisruptionbudgets", "clicks"), place.explain)
    until(lambda: not place.find("statefulsets", "gone"), place.explain)
    place.until_ready()
    place.nothing_lost_or_repeated()
