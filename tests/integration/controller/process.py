"""The operator as a process of its own, under the rights that the chart gives it, for the tests of a whole operator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dev.cluster import Cluster
from dev.cluster.ports import free_ports
from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.integration.controller.bench import ROOT, install_rights, until


class OperatorProcess:
    """`python -m shardherd operator` under the chart's service account, in a namespace of its own. `options` are helm's.

    With the token of an account it runs under that one, and installs no rights.
    """

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, *options: str, token: str = "") -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        self.log = folder / "operator.log"
        self._kubeconfig = folder / "kubeconfig"
        user = {"name": "operator", "user": {"token": token or install_rights(cluster, namespace, *options)}}
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config["users"] = [user]
        config["contexts"][0]["context"]["user"] = "operator"
        self._kubeconfig.write_text(yaml.safe_dump(config))
        self._process: subprocess.Popen[bytes] | None = None
        self.api_port = free_port()
        """The same at every start: those who call it find it again."""

    def reach_through(self, url: str) -> None:
        """From its next start on it reaches the API server at this address."""
        config = yaml.safe_load(self._kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": url}
        self._kubeconfig.write_text(yaml.safe_dump(config))

    def start(self, **settings: str) -> None:
        """Start it; returns once it leads and is ready."""
        self.metrics_port = free_port()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(self._kubeconfig),
            "SHARDHERD_NAMESPACE": self.namespace,
            "SHARDHERD_POD_NAME": "operator-0",
            "SHARDHERD_API_PORT": str(self.api_port),
            "SHARDHERD_METRICS_PORT": str(self.metrics_port),
            "SHARDHERD_WATCH_NAMESPACES": self.namespace,
            "SHARDHERD_LEASE_NAME": f"{self.namespace}-shardherd",
            **settings,
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "shardherd", "operator"], env=environment, stderr=log)
        until(lambda: self.http(self.metrics_port, "/metrics") == 200, self.log.read_text, within=120)
        until(lambda: "shardherd_leader 1.0" in self.metrics(), self.log.read_text)
        until(lambda: self.http(self.api_port, "/readyz") == 200, self.log.read_text)

    @property
    def pid(self) -> int:
        """The process that was started last."""
        assert self._process is not None
        return self._process.pid

    def wait(self, within: float = 60.0) -> int:
        """The exit code of the process."""
        assert self._process is not None
        return self._process.wait(within)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        os.kill(self.pid, number)
        return self.wait()

    def close(self) -> None:
        """End it in any case."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.api.close()

    def http(self, port: int, path: str) -> int | None:
        """The status of a GET, or None if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def metrics(self) -> str:
        """What a scrape shows."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as response:
            return str(response.read().decode())

    def memory(self) -> int:
        """Bytes that are resident."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    @property
    def groups(self) -> str:
        """Where the groups of its namespace are."""
        return f"/apis/shardherd.dev/v1alpha1/namespaces/{self.namespace}/consumergroups"

    def group(self, name: str, topic: str, declared: Mapping[str, Any] | None = None, **kafka: Any) -> None:
        """Make a group of this topic, two shards a consumer; `kafka` is more of its source, `declared` more of its spec."""
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name},
            "spec": {
                "source": {"kafka": {"bootstrapServers": self.cluster.kafka_bootstrap, "topics": [topic], **kafka}},
                "scaling": {"shardsPerConsumer": 2},
                "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py"},
                **(declared or {}),
            },
        }
        self.api.call("POST", self.groups, body)

    @property
    def lease(self) -> str:
        """Where the Lease is."""
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.namespace}-shardherd"

    def holder(self) -> str:
        """Who holds the Lease."""
        return str(self.api.call("GET", self.lease)["spec"]["holderIdentity"])

    def logged(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def warned(self) -> list[dict[str, Any]]:
        """What it said above information, but not that a busy machine kept it, or a write, from getting on for a while."""
        late = "all deadlines of consumers are that much later"
        return [line for line in self.logged() if line["level"] != "INFO" and not line["message"].endswith(late)]


def free_port() -> int:
    """A port that nobody listens on now, and that nobody else of this run is given, nor a client by the machine."""
    (port,) = free_ports(1)
    return port


@contextlib.contextmanager
def operating(cluster: Cluster, namespace: str, folder: Path, *options: str) -> Iterator[OperatorProcess]:
    """An operator that is not started yet, in a namespace that is made for it and goes with it."""
    cluster.kubectl("create", "namespace", namespace)
    process = OperatorProcess(cluster, namespace, folder, *options)
    try:
        yield process
    finally:
        process.close()
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
