"""Operators that choose namespaces by their labels, as processes, on a real API server and a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import ApiError, KubernetesApi
from shardherd.client import ConsumerClient
from shardherd.core.model.errors import ShardherdError, UnknownGroupError
from shardherd.core.model.nouns import ConsumerId, Heartbeat, Incarnation
from shardherd.core.model.selectors import parse
from tests.chart.rendering import IMAGE
from tests.harness.cluster import Names, Tell
from tests.harness.kubelet import PlayedKubelet
from tests.harness.long import long
from tests.harness.selectors import LABELS, REFUSED, SELECTORS
from tests.integration.controller.bench import CHART, fill_topic, unique, until
from tests.integration.controller.process import OperatorProcess, operating

Json = dict[str, Any]

LABEL = "shardherd.dev/operator"
SHARDS = 4
AT_ONCE = 10.0
"""Seconds within which a label is followed, on a machine that does much besides."""


class Tenant:
    """A namespace of a tenant, with the accounts of applications and one group of two consumers in it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.topic = cluster, name, f"{name}-clicks"
        self.shards = [f"{self.topic}/{number}" for number in range(SHARDS)]
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        cluster.kubectl("create", "namespace", name)
        only = ("--show-only", "templates/applications.yaml", "--set", f"applicationNamespaces={{{name}}}")
        accounts = cluster.helm("template", name, str(CHART), "--namespace", name, *IMAGE, *only)
        cluster.kubectl("apply", "-f", "-", input=accounts)
        fill_topic(cluster, self.topic, SHARDS, 1)

    def label(self, value: str) -> None:
        """Have the operator of this value serve it; empty: none."""
        change = f"{LABEL}={value}" if value else f"{LABEL}-"
        self.cluster.kubectl("label", "namespace", self.name, change, "--overwrite")

    def group(self, **declared: Any) -> None:
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": "clicks"},
            "spec": {
                "source": {"kafka": {"bootstrapServers": self.cluster.kafka_bootstrap, "topics": [self.topic]}},
                "scaling": {"shardsPerConsumer": 2},
                "heartbeatInterval": "1s",
                "initialAssignmentDelay": "1s",
                "cleanup": "Delete",
                "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py", "executor": {"instances": 0}},
                **declared,
            },
        }
        self.api.call("POST", f"/apis/shardherd.dev/v1alpha1/namespaces/{self.name}/consumergroups", body)

    def find(self, kind: str, name: str, base: str = "/api/v1") -> Json | None:
        try:
            found: Json = self.api.call("GET", f"{base}/namespaces/{self.name}/{kind}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found

    def objects(self) -> dict[str, str]:
        """Everything that the group has in Kubernetes, and its UID."""
        kinds = "consumergroups,statefulsets,services,poddisruptionbudgets,configmaps,pods"
        columns = "custom-columns=KIND:.kind,NAME:.metadata.name,UID:.metadata.uid"
        lines = self.cluster.kubectl("-n", self.name, "get", kinds, "-o", columns, "--no-headers").splitlines()
        return {f"{kind} {name}": uid for kind, name, uid in (line.split() for line in lines)}

    def stateful_set(self) -> Json | None:
        return self.find("statefulsets", "clicks", "/apis/apps/v1")

    def told(self) -> dict[str, str]:
        """Whom each pod calls."""
        pods = self.api.call("GET", f"/api/v1/namespaces/{self.name}/pods")["items"]
        return {
            pod["metadata"]["name"]: next(
                item["value"] for item in pod["spec"]["containers"][0]["env"] if item["name"] == "SHARDHERD_COORDINATOR_URL"
            )
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    def positions(self) -> dict[str, int]:
        """The committed positions, as Kafka has them."""
        group = f"{self.name}.clicks"
        rows = [
            line.split()
            for line in self.cluster.kafka_tool("kafka-consumer-groups", "--describe", "--group", group).splitlines()
        ]
        return {f"{row[1]}/{row[2]}": int(row[3]) for row in rows if row[:1] == [group] and row[3].isdigit()}

    def answer(self, operator: OperatorProcess) -> str:
        """What this operator says to a heartbeat of the first consumer, as a pod of the namespace sends it."""
        consumer = self.find("pods", "clicks-0")
        metadata = (consumer or self._somebody())["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        path = f"/api/v1/namespaces/{self.name}/serviceaccounts/shardherd-spark/token"
        made = self.api.call("POST", path, {"spec": {"audiences": ["shardherd"], "boundObjectRef": bound}})
        token = str(made["status"]["token"])
        group = self.find("consumergroups", "clicks", "/apis/shardherd.dev/v1alpha1") or {}
        incarnation = Incarnation(metadata["uid"], 1)
        beat = Heartbeat(ConsumerId("clicks-0"), incarnation, 1, 0, group_uid=group["metadata"]["uid"])
        with ConsumerClient(url_of(operator), self.name, "clicks", lambda: token) as client:
            try:
                client.heartbeat(beat, 0)
            except ShardherdError as error:
                return f"{error.code}: {error.message}"
            finally:
                if consumer is None:
                    # It has no node, and goes at once.
                    self.cluster.kubectl("-n", self.name, "delete", "pod", "somebody")
        return "it is answered"

    def _somebody(self) -> Json:
        spec = {"serviceAccountName": "shardherd-spark", "containers": [{"name": "main", "image": "example/main:1"}]}
        body = {"metadata": {"name": "somebody"}, "spec": spec}
        made: Json = self.api.call("POST", f"/api/v1/namespaces/{self.name}/pods", body)
        return made


def url_of(operator: OperatorProcess) -> str:
    return f"http://127.0.0.1:{operator.api_port}"


def not_served(tenant: Tenant, selector: str) -> str:
    return (
        f"UnknownGroup: group {tenant.name}/clicks is not served by this operator: it serves namespaces with labels that match"
        f" '{selector}', and those of '{tenant.name}' do not; label the namespace, or have the operator that serves it replace"
        " this pod"
    )


def choosing(cluster: Cluster, names: Names, folder: Path, selector: str) -> Iterator[OperatorProcess]:
    """An operator that serves namespaces by a selector, with the rights that the chart gives it."""
    folder.mkdir()
    chosen = f"watchNamespaceSelector.matchLabels.{LABEL.replace('.', '[.]')}={selector.partition('=')[2]}"
    options = ("--set", chosen.replace("[.]", "\\."))
    with operating(cluster, unique(names, "chooses"), folder, *options) as process:
        environment = {"SHARDHERD_WATCH_NAMESPACES": "", "SHARDHERD_WATCH_NAMESPACE_SELECTOR": selector}
        process.start(**environment, SHARDHERD_COORDINATOR_URL=url_of(process))
        yield process


@pytest.fixture
def selectors(names: Names) -> tuple[str, str]:
    """Two that choose different namespaces, and none of another run."""
    return (f"{LABEL}={unique(names, 'a')}", f"{LABEL}={unique(names, 'b')}")


@pytest.fixture
def tenant(cluster: Cluster, names: Names) -> Iterator[Tenant]:
    made = Tenant(cluster, unique(names, "tenant"))
    yield made
    made.api.close()
    cluster.kubectl("delete", "namespace", made.name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def first(cluster: Cluster, names: Names, tmp_path: Path, selectors: tuple[str, str]) -> Iterator[OperatorProcess]:
    yield from choosing(cluster, names, tmp_path / "first", selectors[0])


@pytest.fixture
def second(cluster: Cluster, names: Names, tmp_path: Path, selectors: tuple[str, str]) -> Iterator[OperatorProcess]:
    yield from choosing(cluster, names, tmp_path / "second", selectors[1])


def value(selector: str) -> str:
    return selector.partition("=")[2]


def test_a_label_has_the_groups_of_a_namespace_served_and_its_end_leaves_all_as_it_is(
    first: OperatorProcess, selectors: tuple[str, str], tenant: Tenant
) -> None:
    tenant.group()
    assert tenant.answer(first) == not_served(tenant, selectors[0])
    assert tenant.stateful_set() is None

    tenant.label(value(selectors[0]))
    until(tenant.stateful_set, first.log.read_text, within=AT_ONCE)
    kubelet = PlayedKubelet(tenant.api, tenant.name, "")
    with kubelet.running():
        until(lambda: all(kubelet.of(shard) for shard in tenant.shards), lambda: (kubelet.failures, first.log.read_text()))
    group = f'consumergroup="clicks",namespace="{tenant.name}"'
    assert group in first.metrics()

    tenant.label("")
    until(lambda: tenant.answer(first) == not_served(tenant, selectors[0]), first.log.read_text, within=AT_ONCE)
    until(lambda: group not in first.metrics(), lambda: [line for line in first.metrics().splitlines() if group in line])
    objects, positions = tenant.objects(), tenant.positions()
    assert set(tenant.shards) == set(positions)
    assert {"ConsumerGroup clicks", "StatefulSet clicks", "Service clicks", "ConfigMap clicks-state", "Pod clicks-0"} <= set(
        objects
    )

    tenant.cluster.kubectl("-n", tenant.name, "label", "statefulset", "clicks", "shardherd.dev/consumergroup-")
    tenant.cluster.kubectl("-n", tenant.name, "annotate", "consumergroup", "clicks", "an-edit=1")
    # What it would do about that, it would have done by the time that it serves another namespace.
    other = Tenant(tenant.cluster, f"{tenant.name}-other")
    try:
        other.group()
        other.label(value(selectors[0]))
        until(other.stateful_set, first.log.read_text, within=AT_ONCE)
        assert (tenant.objects(), tenant.positions()) == (objects, positions)
        assert first.warned() == []
        tenant.cluster.kubectl("delete", "namespace", other.name)
        until(lambda: f'namespace="{other.name}"' not in first.metrics(), first.metrics)
    finally:
        other.api.close()
    assert "ERROR" not in {line["level"] for line in first.logged()}


@long
def test_a_namespace_that_is_labelled_for_another_operator_moves_with_all_that_its_groups_have(
    first: OperatorProcess, second: OperatorProcess, selectors: tuple[str, str], tenant: Tenant, tell: Tell
) -> None:
    a, b = selectors
    tenant.group()
    tenant.label(value(a))
    until(tenant.stateful_set, first.log.read_text, within=AT_ONCE)
    kubelet = PlayedKubelet(tenant.api, tenant.name, "", survives=(UnknownGroupError,))
    said = lambda: (kubelet.failures, kubelet.lives, first.log.read_text(), second.log.read_text())  # noqa: E731

    def read_on() -> None:
        before = {shard: len(kubelet.of(shard)) for shard in tenant.shards}
        until(lambda: all(len(kubelet.of(shard)) > count + 2 for shard, count in before.items()), said, within=120)

    with kubelet.running():
        read_on()
        kept = {name: uid for name, uid in tenant.objects().items() if not name.startswith("Pod ")}
        assert set(tenant.told().values()) == {url_of(first)}

        tenant.label(value(b))
        begun = time.monotonic()
        until(lambda: set(tenant.told().values()) == {url_of(second)} and len(tenant.told()) == 2, said)
        replaced = time.monotonic() - begun
        read_on()
        read = time.monotonic() - begun
        tell(f"moved to another operator: pods replaced after {replaced:.1f} s, all shards read after {read:.1f} s")
        assert {name: uid for name, uid in tenant.objects().items() if not name.startswith("Pod ")} == kept
        assert tenant.answer(first) == not_served(tenant, a)
        assert "not served" not in tenant.answer(second)
    for shard in tenant.shards:
        found = kubelet.of(shard)
        assert [item.begin for item in found] == list(range(found[0].begin, found[0].begin + len(found)))
    assert "4 shards stored" in second.log.read_text()
    assert "shardherd_leader 1.0" in first.metrics()
    assert {line["level"] for line in (*first.logged(), *second.logged())} <= {"INFO", "WARNING"}


def test_the_api_server_reads_selectors_as_the_settings_do(cluster: Cluster, names: Names) -> None:
    prefix = unique(names, "chosen")
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    for name, labels in LABELS.items():
        metadata = {"name": f"{prefix}-{name}", "labels": {**labels, "of": prefix}}
        api.call("POST", "/api/v1/namespaces/default/configmaps", {"metadata": metadata})

    def chosen(selector: str) -> str:
        query = {"labelSelector": f"of={prefix},{selector}"}
        items = api.call("GET", "/api/v1/namespaces/default/configmaps", query=query)["items"]
        return " ".join(name for name in LABELS if f"{prefix}-{name}" in {item["metadata"]["name"] for item in items})

    try:
        assert {selector: chosen(selector) for selector in SELECTORS} == SELECTORS
        for selector in REFUSED:
            if selector.strip(",") == selector and selector:
                with pytest.raises(ApiError, match="400"):
                    chosen(selector)
        assert parse("team").matches(LABELS["a"])
    finally:
        cluster.kubectl("delete", "configmaps", "-l", f"of={prefix}")
        api.close()
