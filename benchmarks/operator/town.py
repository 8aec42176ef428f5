"""The real control plane, broker and operators that are measured, and the groups that are made. Measures nothing.

An instance of `dev.cluster` of its own, with a scheduler and nodes whose kubelets kwok plays; operators are processes of this
machine with the rights that the chart gives them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kafka import KafkaAdminClient

from dev.cluster import Cluster
from dev.cluster.ports import free_ports
from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.harness.definition import define_resource

ROOT = Path(__file__).resolve().parents[2]
RELEASE = NAMESPACE = "bench"
GROUPS = f"/apis/shardherd.dev/v1alpha1/namespaces/{NAMESPACE}/consumergroups"
NODES = 10
PARTITIONS_AT_ONCE = 2000
"""Partitions that one request makes: a broker refuses many more."""

WRITERS = 8
"""Requests to make groups that are under way at once."""


@dataclass
class Operator:
    """One operator's process."""

    number: int
    environment: dict[str, str]
    log: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    metrics_port: int = field(default_factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = self.environment | {
            "SHARDHERD_POD_NAME": f"operator-{self.number}",
            "SHARDHERD_API_PORT": str(self.port),
            "SHARDHERD_METRICS_PORT": str(self.metrics_port),
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*self.command(), "operator"], env=environment, stderr=log, stdout=log)

    @staticmethod
    def command() -> list[str]:
        """The operator; SHARDHERD_BENCH_PROFILE names a file for a profile of all its threads by cProfile's output."""
        profile = os.environ.get("SHARDHERD_BENCH_PROFILE")
        return [sys.executable, "-m", *(["benchmarks.operator.profiled", profile] if profile else ["shardherd"])]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def said(self, words: str) -> int:
        """How many lines of its log have these words."""
        return self.log.read_text(errors="replace").count(words)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(60)


class Town:
    """Everything that is measured on."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(self._kubeconfig())
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}",
            "KUBECONFIG": str(kubeconfig),
            "SHARDHERD_NAMESPACE": NAMESPACE,
            "SHARDHERD_WATCH_NAMESPACES": NAMESPACE,  # as the chart has it
            "SHARDHERD_LEASE_NAME": f"{RELEASE}-shardherd",
            # The same for all of them, as the Service's is: pods are told of it.
            "SHARDHERD_COORDINATOR_URL": f"http://{RELEASE}-shardherd.{NAMESPACE}.svc:8080",
            **environment_of_the_image(),
        }
        self.operators = [Operator(number, environment, folder / f"operator-{number}.log") for number in (0, 1)]

    def _kubeconfig(self) -> str:
        """The operator's own: the chart's account and no more."""
        cluster = self.cluster
        define_resource(cluster)
        cluster.kubectl("create", "namespace", NAMESPACE)
        chart = (
            "template",
            RELEASE,
            str(ROOT / "charts" / "shardherd"),
            "--namespace",
            NAMESPACE,
            "--set",
            "crds.enabled=false",
            "--set",
            "image.repository=none",
            "--set",
            f"applicationNamespaces={{{NAMESPACE}}}",  # the account of the applications, without which there are no pods
        )
        kinds = re.compile("Role|ServiceAccount")
        rendered = [item for item in yaml.safe_load_all(cluster.helm(*chart)) if item and kinds.search(item["kind"])]
        cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(rendered))
        token = cluster.kubectl("-n", NAMESPACE, "create", "token", f"{RELEASE}-shardherd", "--duration=6h").strip()
        content = yaml.safe_load(cluster.kubeconfig.read_text())
        content["users"] = [{"name": "operator", "user": {"token": token}}]
        content["contexts"][0]["context"]["user"] = "operator"
        return yaml.safe_dump(content)

    def create_topics(self, partitions: dict[str, int]) -> None:
        """Topics by name, with so many partitions each."""
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.kafka_bootstrap, request_timeout_ms=120_000)
        try:
            wanted = {
                name: {"num_partitions": min(count, PARTITIONS_AT_ONCE), "replication_factor": 1}
                for name, count in partitions.items()
            }
            admin.create_topics(wanted, timeout_ms=120_000)
            admin.wait_for_topics(list(wanted), timeout_ms=120_000)
            for name, count in partitions.items():
                for so_many in range(2 * PARTITIONS_AT_ONCE, count + PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE):
                    admin.create_partitions({name: min(so_many, count)}, timeout_ms=120_000)
        finally:
            admin.close()

    def create_topics_in_parts(self, names: Sequence[str], partitions: int) -> None:
        """So many topics of the same size that one request could not make them."""
        at_once = max(1, PARTITIONS_AT_ONCE // partitions)
        for first in range(0, len(names), at_once):
            self.create_topics(dict.fromkeys(names[first : first + at_once], partitions))

    def create_group(self, name: str, kafka: dict[str, Any], **scaling: Any) -> None:
        """One group, whose source says `kafka` besides the servers."""
        self.api.call("POST", GROUPS, self._group(name, kafka, scaling))

    def stored(self, group: str) -> float:
        """KiB in the ConfigMaps that the operator keeps for a group."""
        maps = self.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps")["items"]
        owned = [each for each in maps if any(owner["name"] == group for owner in each["metadata"].get("ownerReferences", ()))]
        return sum(len(json.dumps(each)) for each in owned) / 1024

    def create_groups(self, names: Sequence[str], topics: Sequence[str], **scaling: Any) -> None:
        """One group for each name, with the topics in turn, as quickly as the API server takes them."""

        def create(number: int) -> None:
            self.create_group(names[number], {"topics": [topics[number % len(topics)]]}, **scaling)

        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(create, range(len(names))))

    def _group(self, name: str, source: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
        kafka = {"bootstrapServers": self.cluster.kafka_bootstrap, **source}
        application = {"image": "example/clicks:1", "mainApplicationFile": "/app.py", "executor": {"instances": 0}}
        return {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name},
            "spec": {"source": {"kafka": kafka}, "scaling": {"shardsPerConsumer": 1, **scaling}, "application": application},
        }


def environment_of_the_image() -> dict[str, str]:
    """What the operator's image sets besides the paths of its own."""
    stage = (ROOT / "Dockerfile").read_text().partition(" AS operator\n")[2].partition("\nFROM ")[0]
    return dict(re.findall(r"^ENV (\w+)=(\S+)$", stage, re.MULTILINE))


@contextlib.contextmanager
def town(name: str, folder: Path) -> Iterator[Town]:
    """A fresh one, removed at the end."""
    cluster = Cluster(name)
    cluster.down()
    cluster.up(kafka=True, prometheus=False, node=False)
    made: Town | None = None
    try:
        cluster.start_played_nodes(NODES)
        made = Town(cluster, folder)
        yield made
    finally:
        if made is not None:
            for operator in made.operators:
                operator.end()
            made.api.close()
        cluster.down()


def wait_until(what: str, holds: Any, within: float, every: float = 0.1) -> float:
    """Seconds until this holds. Raises TimeoutError."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > within:
            raise TimeoutError(f"{what}: not within {within:g} s")
        time.sleep(every)
    return time.monotonic() - begun
