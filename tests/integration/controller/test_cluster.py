"""The real adapter of the controller's cluster keeps the contract of the port, and reads what only a real one has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from kubernetes.client.configuration import Configuration

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.cluster import KubernetesCluster
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError
from tests.contract.objects import MANIFESTS, ClusterContract, Json, ObjectsLab, read
from tests.harness.cluster import Names
from tests.harness.definition import define_resource
from tests.integration.contract.labs import eventually
from tests.integration.controller.bench import unique


class RealObjectsLab(ObjectsLab):
    """Makes objects through the API server."""

    def __init__(self, api: KubernetesApi, namespace: str, names: Names) -> None:
        self.api = api
        self.namespace = namespace
        self._names = names
        self._groups = f"/apis/shardherd.dev/v1alpha1/namespaces/{namespace}/consumergroups"

    async def group(self) -> Json:
        kafka = {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}
        application = {"image": "example/clicks:1", "mainApplicationFile": "/app.py"}
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": self._names.fresh("contract")},
            "spec": {"source": {"kafka": kafka}, "application": application},
        }
        made: Json = await self.api.acall("POST", self._groups, body)
        return made

    async def delete_group(self, name: str) -> None:
        await self.api.acall("DELETE", f"{self._groups}/{name}")

    async def pod(self, group: str, name: str) -> Json:
        body = {
            "metadata": {"name": name, "labels": {"shardherd.dev/consumergroup": group}},
            "spec": {"containers": [{"name": "driver", "image": "example/clicks:1"}], "terminationGracePeriodSeconds": 0},
        }
        made: Json = await self.api.acall("POST", f"/api/v1/namespaces/{self.namespace}/pods", body)
        return made


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[KubernetesApi]:
    define_resource(cluster)
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    yield api
    api.close()


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, names: Names) -> Iterator[str]:
    name = unique(names, "objects")
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


class TestKubernetesCluster(ClusterContract):
    @pytest.fixture
    def cluster_port(self, api: KubernetesApi) -> KubernetesCluster:
        return KubernetesCluster(api)

    @pytest.fixture
    def lab(self, api: KubernetesApi, namespace: str, names: Names) -> RealObjectsLab:
        return RealObjectsLab(api, namespace, names)

    async def test_fields_that_others_set_stay(
        self, cluster_port: KubernetesCluster, lab: RealObjectsLab, cluster: Cluster
    ) -> None:
        resource = await lab.group()
        name = resource["metadata"]["name"]
        await cluster_port.apply(MANIFESTS.service(resource))
        await asyncio.to_thread(cluster.kubectl, "-n", lab.namespace, "annotate", "service", name, "theirs=kept")
        await cluster_port.apply(MANIFESTS.service(resource))
        service = await lab.api.acall("GET", f"/api/v1/namespaces/{lab.namespace}/services/{name}")
        assert service["metadata"]["annotations"]["theirs"] == "kept"

    async def test_what_is_invalid_is_refused_in_the_servers_words(
        self, cluster_port: KubernetesCluster, lab: RealObjectsLab
    ) -> None:
        manifest = MANIFESTS.stateful_set(await lab.group(), 1)
        manifest["spec"]["serviceName"] = "not/a/name"
        manifest["spec"]["selector"] = {"matchLabels": {"other": "x"}}
        with pytest.raises(ClusterRefusedError, match="`selector` does not match template `labels`"):
            await cluster_port.apply(manifest)

    async def test_why_pods_are_missing_is_read_from_events(self, cluster_port: KubernetesCluster, lab: RealObjectsLab) -> None:
        resource = await lab.group()
        # The service account of these pods does not exist.
        manifest = MANIFESTS.stateful_set(resource, 1)
        manifest["spec"]["template"]["spec"]["serviceAccountName"] = "nobody"
        await cluster_port.apply(manifest)

        async def warned() -> bool:
            return bool((await read(cluster_port, resource)).warnings)

        await eventually(warned)
        warnings = (await read(cluster_port, resource)).warnings
        reason, message = warnings[-1]
        assert reason == "FailedCreate"
        assert 'serviceaccount "nobody" not found' in message


async def test_an_api_server_that_is_not_there_is_unavailable(api: KubernetesApi) -> None:
    nowhere = Configuration()
    nowhere.host = "https://127.0.0.1:1"
    gone = KubernetesApi(nowhere)
    try:
        # All objects of a group are asked for at once: any of them may be the first to have no answer.
        with pytest.raises(ClusterUnavailableError, match=r"no answer from the API server to GET /apis?/"):
            await KubernetesCluster(gone).read("default", "clicks")
    finally:
        gone.close()
