"""A controller on a real API server, with the rights that the chart gives it and a coordinator that the test plays."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kafka import KafkaProducer
from kubernetes import config
from kubernetes.client.configuration import Configuration
from prometheus_client import CollectorRegistry

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import APPLY, MERGE_PATCH, ApiError, KubernetesApi
from shardherd.adapters.kubernetes.cluster import KubernetesCluster
from shardherd.adapters.kubernetes.events import KubernetesEvents
from shardherd.adapters.kubernetes.login import connection
from shardherd.adapters.kubernetes.object_cache import ObjectCache
from shardherd.clock import SystemClock
from shardherd.controller import handlers
from shardherd.controller.manifests import Manifests
from shardherd.controller.merge import merge
from shardherd.controller.reconcile import Controller
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSpec, GroupView, Incarnation
from shardherd.telemetry.operator_metrics import OperatorMetrics
from tests.chart.rendering import IMAGE
from tests.harness.cluster import Names
from tests.harness.definition import define_resource

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "shardherd"
GROUPS = "consumergroups"
RESOURCE = "consumergroups.shardherd.dev"

_BASES = {
    GROUPS: "/apis/shardherd.dev/v1alpha1",
    "statefulsets": "/apis/apps/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    **dict.fromkeys(("services", "pods", "events", "resourcequotas"), "/api/v1"),
}

Json = dict[str, Any]
T = TypeVar("T")


def until(what: Callable[[], T | None], explain: Callable[[], object] = lambda: "", within: float = 60.0) -> T:
    """What `what` returns once that is true; fails after `within` seconds, saying what there was instead."""
    deadline = time.monotonic() + within
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f"not true within {within} s: {explain()}"
        time.sleep(0.1)


def fill_topic(cluster: Cluster, name: str, shards: int, records: int) -> None:
    """Make a topic with so many records in each of its partitions."""
    cluster.kafka_tool("kafka-topics", "--create", "--topic", name, "--partitions", str(shards))
    producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap, linger_ms=50)
    for number in range(records):
        for partition in range(shards):
            producer.send(name, value=b"%d" % number, partition=partition)
    producer.close()


def unique(names: Names, prefix: str) -> str:
    """A name that no test of this run has, nor one of an earlier run against an instance that was kept."""
    return f"{names.fresh(prefix)}-{os.getpid()}"


class PlayedCoordination:
    """Coordination that shows every group what the test put in `pictures`, by its name. Called from the controller's thread."""

    def __init__(self) -> None:
        self.pictures: dict[str, GroupView] = {}
        self.specs: dict[str, list[GroupSpec]] = {}
        self.forgotten: list[str] = []
        self.deaths: list[tuple[str, ConsumerId, Incarnation]] = []

    def apply(self, spec: GroupSpec, *, new: bool = False) -> None:
        specs = self.specs.setdefault(spec.identity.name, [])
        if not specs or specs[-1] != spec:
            specs.append(spec)

    def forget(self, group: GroupIdentity) -> None:
        self.forgotten.append(group.name)

    def view(self, group: GroupIdentity) -> GroupView | None:
        return self.pictures.get(group.name)

    def views(self) -> Mapping[GroupIdentity, GroupView]:
        return {}

    def consumer_died(self, group: GroupIdentity, consumer: ConsumerId, incarnation: Incarnation) -> None:
        self.deaths.append((group.name, consumer, incarnation))


def install_rights(cluster: Cluster, namespace: str, *options: str) -> str:
    """Apply the chart's accounts and roles in this namespace, with more options of helm; returns the operator's token."""
    define_resource(cluster)
    chart = ("template", namespace, str(CHART), "--namespace", namespace, *IMAGE, "--set", "crds.enabled=false")
    rendered = cluster.helm(*chart, "--set", f"applicationNamespaces={{{namespace}}}", *options)
    kinds = re.compile("Role|Admission|ServiceAccount")
    wanted = [item for item in yaml.safe_load_all(rendered) if item and kinds.search(item["kind"])]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(wanted))
    return cluster.kubectl("-n", namespace, "create", "token", f"{namespace}-shardherd", "--duration=2h").strip()


def configuration_of(cluster: Cluster, token: str) -> Configuration:
    """How to reach the API server as the owner of this token."""
    loader: Any = config
    configuration = Configuration()
    loader.load_kube_config(config_file=str(cluster.kubeconfig), client_configuration=configuration)
    configuration.cert_file = configuration.key_file = None
    configuration.api_key = {"BearerToken": token}
    configuration.api_key_prefix = {"BearerToken": "Bearer"}
    return configuration


class ControllerBench:
    """The controller in its thread, one namespace, and what a test does to it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.coordination = PlayedCoordination()
        self.metrics = OperatorMetrics(CollectorRegistry())
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        self._configuration = configuration_of(cluster, install_rights(cluster, namespace))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failures: list[BaseException] = []

    def start(self) -> None:
        """Start watching; returns once it has begun."""
        api = KubernetesApi(self._configuration)
        clock = SystemClock()
        events = KubernetesEvents(api, clock, "bench")
        cache, ready = ObjectCache(), threading.Event()
        self._stop = stop = threading.Event()

        def make() -> Controller:
            manifests = Manifests("http://shardherd.system.svc:8080", "shardherd")
            return Controller(
                KubernetesCluster(api, cache, (self.namespace,)), self.coordination, events, clock, self.metrics, manifests
            )

        def update(kind: str, body: Mapping[str, Any], event: str | None) -> bool:
            return cache.update(kind, body, gone=event == "DELETED", listed=event is None)

        def run() -> None:
            try:
                handlers.run(make, lambda: connection(self._configuration), (self.namespace,), stop, ready, update)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.failures.append(error)
            finally:
                events.close()
                api.close()

        self._thread = threading.Thread(target=run, name="controller")
        self._thread.start()
        assert ready.wait(60), "Kopf did not get ready"

    def stop(self) -> None:
        """Stop as the operator does at SIGTERM."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive(), "Kopf did not stop"
        self._thread = None
        assert self.failures == []

    def kubectl(self, *arguments: str) -> str:
        """kubectl in the bench's namespace, for what a user would type."""
        return self.cluster.kubectl("-n", self.namespace, *arguments)

    def path(self, kind: str, name: str = "") -> str:
        """Where objects of this kind are in the bench's namespace."""
        collection = f"{_BASES[kind]}/namespaces/{self.namespace}/{kind}"
        return f"{collection}/{name}" if name else collection

    def create(self, kind: str, manifest: Mapping[str, Any]) -> None:
        """Make an object."""
        self.api.call("POST", self.path(kind), manifest)

    def delete(self, kind: str, name: str, policy: str = "Background") -> None:
        """Delete an object."""
        self.api.call("DELETE", self.path(kind, name), {"propagationPolicy": policy})

    def group(self, name: str, **spec: Any) -> None:
        """Make a group, or change it. One shard a consumer unless `spec` says otherwise."""
        ordinary = {
            "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}},
            "scaling": {"shardsPerConsumer": 1},
            "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py", "executor": {"instances": 0}},
        }
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": merge(ordinary, spec),
        }
        query = {"fieldManager": "test", "force": "true"}
        self.api.call("PATCH", self.path(GROUPS, name), body, query=query, content_type=APPLY)

    def find(self, kind: str, name: str) -> Json | None:
        """An object, or None."""
        try:
            found: Json = self.api.call("GET", self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def get(self, kind: str, name: str, within: float = 60.0) -> Json:
        """An object that is there now, or soon."""
        return until(lambda: self.find(kind, name), lambda: self.explain(name), within)

    def all(self, kind: str, **selectors: str) -> list[Json]:
        """All objects of a kind that these selectors match."""
        found: list[Json] = self.api.call("GET", self.path(kind), query=selectors)["items"]
        return found

    def pods(self, group: str) -> list[Json]:
        """The pods of a group that are not on their way out."""
        items = self.all("pods", labelSelector=f"shardherd.dev/consumergroup={group}")
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def until_pods(self, group: str, count: int) -> list[Json]:
        """The pods once there are exactly so many."""
        until(lambda: len(self.pods(group)) == count, lambda: self.explain(group))
        return self.pods(group)

    def condition(self, group: str, kind: str) -> Json:
        """A condition as it is now; empty if there is none yet."""
        found = self.find(GROUPS, group) or {}
        return next((item for item in found.get("status", {}).get("conditions", []) if item["type"] == kind), {})

    def until_condition(self, group: str, kind: str, status: str, reason: str) -> str:
        """The message of a condition once it has this status and reason."""

        def found() -> Json | None:
            condition = self.condition(group, kind)
            return condition if (condition.get("status"), condition.get("reason")) == (status, reason) else None

        return str(until(found, lambda: self.explain(group))["message"])

    def pod_status(self, pod: str, status: Json) -> None:
        """Say what a kubelet would say of a pod."""
        self.api.call("PATCH", f"{self.path('pods', pod)}/status", {"status": status}, content_type=MERGE_PATCH)

    def make_ready(self, pod: str) -> None:
        """The pod passes its readiness probe."""
        driver = {"name": "driver", "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
        running = {**driver, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        self.pod_status(
            pod, {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [running]}
        )

    def events(self, group: str) -> list[tuple[str, str, str]]:
        """Events about a group: type, reason, message."""
        items = self.all("events", fieldSelector=f"involvedObject.kind=ConsumerGroup,involvedObject.name={group}")
        return [(item["type"], item["reason"], item["message"]) for item in items]

    def explain(self, group: str) -> str:
        """What there is of a group, for a test that fails."""
        found = self.find(GROUPS, group) or {}
        conditions = [
            (c["type"], c["status"], c["reason"], c["message"]) for c in found.get("status", {}).get("conditions", [])
        ]
        pods = [(item["metadata"]["name"], item["status"]) for item in self.pods(group)]
        return f"conditions {conditions}, pods {pods}, told {self.coordination.specs.get(group)}"
