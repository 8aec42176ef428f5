"""Where the demo and the end-to-end tests happen: one instance of the real cluster, and the tools to act on it.

Called by the steps. It wraps `dev.cluster` and adds what a shardherd user would bring: namespaces that enforce Pod Security, a
name for the broker, a shared folder, the installed chart. Each method may be called again and does only what is missing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient

from dev.cluster.cluster import Cluster
from dev.cluster.everything import build_everything
from dev.demo.figures import Sample, page
from dev.demo.kube import Json, Kube, is_ready
from dev.demo.place import REPOSITORY, Position, positions
from dev.demo.report import DemoError, Reporter, await_that

SYSTEM = "shardherd-system"
RELEASE = "shardherd"
OPERATOR_IMAGE = "shardherd/operator:dev"
SPARK_IMAGE = "shardherd/spark:dev"
IMAGE_USER = 10001
METRICS_PORT = 9090
LEADER = "app.kubernetes.io/component=operator,shardherd.dev/leader=true"


@dataclass
class Lab:
    """One instance, by name."""

    name: str
    reporter: Reporter
    _images_changed: bool = False

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.name)

    @cached_property
    def kube(self) -> Kube:
        return Kube(self.cluster.tools.kubectl, self.cluster.environment())

    @property
    def state(self) -> Path:
        """Folder of what the demo keeps; it goes with the instance."""
        return self.cluster.state / "demo"

    @property
    def kafka_bootstrap(self) -> str:
        return self.cluster.kafka_bootstrap

    @property
    def shared(self) -> Path:
        """The folder that pods see as a shared volume."""
        return self.cluster.state / "volumes"

    def start(self) -> None:
        """The instance with node, broker and Prometheus, and the two images in it; every tool is built before records flow."""
        build_everything()
        self.cluster.up(node=True, kafka=True, prometheus=True)
        for image in (OPERATOR_IMAGE, SPARK_IMAGE):
            self._images_changed |= self.cluster.load_image(image)

    def make_namespace(self, name: str) -> None:
        """A namespace that enforces Pod Security `restricted`, with the broker under the name `kafka`."""
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        host, port = self.cluster.kafka_bootstrap.rsplit(":", 1)
        self.kube.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
            *service_to(host, int(port), {"name": "kafka", "namespace": name}, 9092),
        )

    def make_volume(self, namespace: str, claim: str) -> Path:
        """A claim bound to a folder of this machine that the image's user may write to; returns the folder.

        It returns once the claim is bound: a pod that the scheduler refused a moment before that may wait for its next look
        at such pods, which is minutes away.
        """
        folder = self.shared / namespace / claim
        folder.mkdir(parents=True, exist_ok=True)
        # fsGroup does nothing on a hostPath: the folder itself belongs to the image's user.
        os.chown(folder, IMAGE_USER, IMAGE_USER)
        for parent in (folder.parent, self.shared, self.cluster.state):
            parent.chmod(parent.stat().st_mode | 0o011)
        size = {"storage": "10Gi"}
        modes = ["ReadWriteMany"]
        self.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{namespace}-{claim}"},
                "spec": {
                    "capacity": size,
                    "accessModes": modes,
                    "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(folder), "type": "Directory"},
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim, "namespace": namespace},
                "spec": {
                    "accessModes": modes,
                    "storageClassName": "",
                    "volumeName": f"{namespace}-{claim}",
                    "resources": {"requests": size},
                },
            },
        )
        wanted = "--for=jsonpath={.status.phase}=Bound"
        self.kube.run("wait", wanted, f"pvc/{claim}", "-n", namespace, "--timeout=60s", timeout=90)
        return folder

    def install(self, namespaces: Sequence[str]) -> None:
        """`helm install` of the chart, or an upgrade of the release that is there, and wait until the operator leads."""
        values = {
            "image": {"repository": OPERATOR_IMAGE.partition(":")[0], "tag": OPERATOR_IMAGE.partition(":")[2]},
            "applicationNamespaces": list(namespaces),
            "page": {"enabled": True},
        }
        chart = str(REPOSITORY / "charts" / "shardherd")
        file = self.state / "values.json"
        self.state.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
        installed = json.loads(self.cluster.helm("list", "-n", SYSTEM, "-o", "json", "--filter", f"^{RELEASE}$"))
        if installed:
            self.reporter.say(f"helm upgrade {RELEASE} charts/shardherd (it is installed already)")
            self.cluster.helm("upgrade", RELEASE, chart, "-n", SYSTEM, "-f", str(file))
            if self._images_changed:
                # The tag `dev` stays the same when the image changes.
                self.kube.run("rollout", "restart", f"deployment/{RELEASE}", "-n", SYSTEM)
        else:
            self.reporter.say(f"helm install {RELEASE} charts/shardherd --namespace {SYSTEM}")
            self.cluster.helm("install", RELEASE, chart, "-n", SYSTEM, "-f", str(file))
        self._images_changed = False
        done = self.kube.attempt("rollout", "status", f"deployment/{RELEASE}", "-n", SYSTEM, "--timeout=120s", timeout=130)
        if done.returncode != 0:
            raise DemoError(f"the operator did not become ready: {done.stderr.strip()}\n{self.kube.explain(SYSTEM)}")
        self.operator_pod()

    def operator_pod(self) -> dict[str, Any]:
        """The pod of the operator that leads, once it is ready."""
        return await_that(
            "the operator that leads is ready",
            lambda: next((p for p in self.kube.pods(SYSTEM, LEADER) if is_ready(p)), None),
            within=60,
            explain=lambda: self.kube.explain(SYSTEM),
        )

    def operator_metrics(self) -> list[Sample]:
        """What the operator's /metrics page says now."""
        return page(f"http://{self.operator_pod()['status']['podIP']}:{METRICS_PORT}/metrics")

    def kill_operator(self) -> None:
        """SIGKILL to the leading operator's process. Returns when one leads again: the other one, or this one started anew."""
        pod = self.operator_pod()
        name = pod["metadata"]["name"]
        pid = self.child_of_init(SYSTEM, name)
        self.reporter.say(f"kubectl exec -n {SYSTEM} {name} -- kill -9 {pid}    (the operator)")
        self.kube.shell(SYSTEM, name, f"kill -9 {pid}")
        before = _start_of(pod)
        await_that(
            "an operator leads again",
            lambda: _start_of(self.operator_pod()) != before,
            within=90,
            explain=lambda: self.kube.explain(SYSTEM),
        )

    def kill_process(self, namespace: str, pod: str, pid: int) -> tuple[float, float]:
        """SIGKILL to what tini runs in a pod, its `child_of_init`; when it was sent at the earliest, and at the latest."""
        earliest = time.time()
        # The shell says when it sends the signal: to get that far takes kubectl a second on a busy machine.
        done = self.kube.shell(namespace, pod, f"date +%s.%N; kill -9 {pid}")
        if said := done.stdout.split():
            earliest = float(said[0])
        if done.returncode not in (0, 137):
            raise DemoError(f"the driver of {pod} could not be killed: {done.stderr.strip()}")
        return earliest, time.time()

    def child_of_init(self, namespace: str, pod: str) -> int:
        """The process id, inside a pod, of what tini runs: tini is 1 and cannot be killed from inside."""
        script = 'for p in /proc/[0-9]*; do read -r _ _ _ parent _ < $p/stat; [ "$parent" = 1 ] && echo ${p#/proc/}; done; :'
        found = self.kube.shell(namespace, pod, script)
        if not found.stdout.split():
            raise DemoError(f"no child of process 1 was found in {namespace}/{pod}: {found.stderr.strip()}")
        return min(int(pid) for pid in found.stdout.split())

    def create_topic(self, topic: str, partitions: int) -> None:
        """A new topic."""
        with self._admin() as admin:
            admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True)

    def grow_topic(self, topic: str, partitions: int) -> None:
        """More partitions for a topic."""
        with self._admin() as admin:
            admin.create_partitions({topic: partitions})

    def delete_topic(self, topic: str) -> None:
        """Delete a topic if there is one, and wait until its name is free."""
        with self._admin() as admin:
            if topic in admin.list_topics():
                admin.delete_topics([topic])
            await_that(f"topic {topic} is gone", lambda: topic not in admin.list_topics(), within=30)

    def _admin(self) -> closing[KafkaAdminClient]:
        """A client for topics. Kafka's own tool starts a JVM each time: beside Spark on two cores it takes up to 16 s."""
        return closing(KafkaAdminClient(bootstrap_servers=self.kafka_bootstrap))

    def committed(self, group: str) -> dict[str, int]:
        """The committed offset of each shard that has one, as Kafka itself says."""
        return {shard: found.committed for shard, found in self.describe_group(group).items() if found.committed >= 0}

    def describe_group(self, group: str) -> dict[str, Position]:
        """`kafka-consumer-groups --describe`, by shard."""
        return positions(self.cluster.kafka_tool("kafka-consumer-groups", "--describe", "--group", group), group)

    def delete_group(self, group: str) -> None:
        """Delete the Kafka group's offsets, if there are any."""
        if group in self.cluster.kafka_tool("kafka-consumer-groups", "--list").split():
            self.cluster.kafka_tool("kafka-consumer-groups", "--delete", "--group", group)


def service_to(host: str, target: int, metadata: Json, port: int) -> tuple[Json, Json]:
    """A Service of this port that leads to an address and port outside of the cluster."""
    name = metadata["name"]
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"name": name, "port": port, "targetPort": target}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": name, "port": target}],
            "endpoints": [{"addresses": [host]}],
        },
    )


def _start_of(pod: dict[str, Any]) -> tuple[str, int]:
    """Which start of which pod this is."""
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]
