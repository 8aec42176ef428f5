"""`helm upgrade` and `helm rollback` of the chart while consumers read: the real chart, Deployment controller and broker.

There is no release before this one. What is upgraded from is this chart under an older version, as it was before TLS: another
image, other values, and another template of the operators' pods.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.chart.rendering import IMAGE, REPOSITORY
from tests.harness.cluster import Names
from tests.harness.deployment import PlayedOperators
from tests.harness.kubelet import PlayedKubelet
from tests.harness.long import long
from tests.harness.service import LeaderService
from tests.integration.controller.bench import CHART, GROUPS, RESOURCE, fill_topic, unique, until
from tests.integration.controller.process import free_port

Json = dict[str, Any]
T = TypeVar("T")

SHARDS, RECORDS = 4, 4000
OLD, NEW = "0.0.9", "0.1.0"


class Release:
    """The chart in a namespace of its own, serving another one, in which a group of two consumers reads."""

    def __init__(self, cluster: Cluster, names: Names, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.name, self.shop = unique(names, "up"), unique(names, "shop")
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        self.topic = unique(names, "upgraded")
        self.shards = [f"{self.topic}/{number}" for number in range(SHARDS)]
        for namespace in (self.name, self.shop):
            cluster.kubectl("create", "namespace", namespace)
        fill_topic(cluster, self.topic, SHARDS, RECORDS)

    def chart(self, version: str) -> Path:
        """This chart under a version."""
        copy = self.folder / f"chart-{version}"
        if not copy.exists():
            shutil.copytree(CHART, copy)
            described = yaml.safe_load((copy / "Chart.yaml").read_text()) | {"version": version, "appVersion": version}
            (copy / "Chart.yaml").write_text(yaml.safe_dump(described))
        return copy

    def helm(self, command: str, version: str, *options: str) -> None:
        namespaces = ("watchNamespaces", "applicationNamespaces")
        places = [part for each in namespaces for part in ("--set", f"{each}={{{self.shop}}}")]
        chart = (self.name, str(self.chart(version)), "--namespace", self.name)
        self.cluster.helm(command, *chart, *IMAGE, *places, "--take-ownership", *options)

    def kubeconfig(self) -> Path:
        """The operators' own."""
        token = self.cluster.kubectl("-n", self.name, "create", "token", f"{self.name}-shardherd", "--duration=2h").strip()
        content = yaml.safe_load(self.cluster.kubeconfig.read_text())
        content["users"] = [{"name": "operator", "user": {"token": token}}]
        content["contexts"][0]["context"]["user"] = "operator"
        file = self.folder / "kubeconfig"
        file.write_text(yaml.safe_dump(content))
        return file

    def rolled_out(self, revision: str) -> None:
        """Wait until both operators are of this revision of the Deployment, and no other is left."""
        deployment = f"/apis/apps/v1/namespaces/{self.name}/deployments/{self.name}-shardherd"

        def done() -> bool:
            found = self.api.call("GET", deployment)
            status = found.get("status", {})
            current = found["metadata"]["annotations"].get("deployment.kubernetes.io/revision") == revision
            observed = status.get("observedGeneration") == found["metadata"]["generation"]
            counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
            return current and observed and counts == [2, 2, 2]

        until(done, lambda: self.api.call("GET", deployment).get("status"), within=180)

    def group(self, name: str) -> None:
        application = {"image": "example/clicks:1", "mainApplicationFile": "/app.py", "executor": {"instances": 0}}
        kafka = {"bootstrapServers": self.cluster.kafka_bootstrap, "topics": [self.topic]}
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name},
            "spec": {"source": {"kafka": kafka}, "scaling": {"shardsPerConsumer": 2}, "application": application},
        }
        self.api.call("POST", f"/apis/shardherd.dev/v1alpha1/namespaces/{self.shop}/{GROUPS}", body)

    def pods(self) -> dict[str, str]:
        """The consumers' pods and their UIDs."""
        items = self.api.call("GET", f"/api/v1/namespaces/{self.shop}/pods")["items"]
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}

    def status(self, name: str) -> Json:
        found: Json = self.api.call("GET", f"/apis/shardherd.dev/v1alpha1/namespaces/{self.shop}/{GROUPS}/{name}")
        shown: Json = found.get("status", {})
        return shown

    def definition(self) -> str:
        """The UID of the definition of ConsumerGroup."""
        return self.cluster.kubectl("get", "crd", RESOURCE, "-o", "jsonpath={.metadata.uid}")


@pytest.fixture
def release(cluster: Cluster, names: Names, tmp_path: Path) -> Iterator[Release]:
    made = Release(cluster, names, tmp_path)
    yield made
    # Helm owns the definition now, but keeps it; whoever comes next applies it.
    cluster.kubectl("delete", "namespace", made.shop, made.name, "--wait=false")
    made.api.close()


@long
@pytest.mark.timeout(900)
async def test_an_upgrade_and_a_rollback_restart_no_consumer_and_leave_no_shard_unread(release: Release) -> None:
    async def run(work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.to_thread(work, *arguments)

    await run(release.helm, "install", OLD, "--set", "tls.mode=disabled")
    operators = PlayedOperators(release.api, release.name, await run(release.kubeconfig), release.folder, free_port)
    service = LeaderService(release.api, release.name, operators.ports)
    await service.start()
    kubelet = PlayedKubelet(release.api, release.shop, service.url)

    def reads_on() -> None:
        """Every shard is read by the consumer that read it before."""
        before = {shard: len(kubelet.of(shard)) for shard in release.shards}
        until(
            lambda: all(len(kubelet.of(shard)) > count + 2 for shard, count in before.items()),
            lambda: (release.status("clicks"), kubelet.failures, operators.said()),
            within=120,
        )

    def holders() -> dict[str, set[str]]:
        return {shard: {found.consumer for found in kubelet.of(shard)} for shard in release.shards}

    def declared() -> list[str]:
        """What the group's StatefulSet says about its pods."""
        found = release.api.call("GET", f"/apis/apps/v1/namespaces/{release.shop}/statefulsets/clicks")
        assert found["spec"]["updateStrategy"] == {"type": "OnDelete"}
        annotations = found["spec"]["template"]["metadata"]["annotations"]
        return [annotations["shardherd.dev/template-hash"], str(found["spec"]["replicas"])]

    try:
        with operators.running():
            await run(release.rolled_out, "1")
            release.group("clicks")
            with kubelet.running():
                await run(reads_on)
                pods, definition, hashes = release.pods(), release.definition(), declared()
                settled = {shard: {kubelet.of(shard)[-1].consumer} for shard in release.shards}
                kubelet.ranges.clear()

                await run(release.helm, "upgrade", NEW, "--set", "podAnnotations.example=changed,log.level=DEBUG")
                await run(release.rolled_out, "2")
                await run(reads_on)
                upgraded = (release.pods(), release.definition(), declared(), holders())

                await run(release.cluster.helm, "rollback", release.name, "1", "--namespace", release.name)
                await run(release.rolled_out, "3")
                await run(reads_on)
                rolled_back = (release.pods(), release.definition(), declared(), holders())

                assert upgraded == rolled_back == (pods, definition, hashes, settled)
                assert [life for life in kubelet.lives if life.event == "deleted"] == []
                assert kubelet.fenced == []
                for shard in release.shards:
                    found = kubelet.of(shard)
                    assert [item.begin for item in found] == list(range(found[0].begin, found[0].begin + len(found)))
                release.cluster.kubectl("-n", release.shop, "delete", RESOURCE, "clicks", "--wait=false")
        assert operators.images == [f"{REPOSITORY}:{version}" for version in (OLD, OLD, NEW, NEW, OLD, OLD)]
    finally:
        await service.close()
    release.cluster.helm("uninstall", release.name, "--namespace", release.name)
    assert release.definition() == definition
