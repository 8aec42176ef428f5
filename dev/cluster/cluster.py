"""Decides in which order an instance is started and removed. Called by the command line, by test fixtures and by the demo.

An instance is a real Kubernetes (etcd, API server, controller manager; with a node also scheduler, containerd, kubelet,
kube-proxy and CoreDNS), and if wanted a Kafka broker and a Prometheus. It never reads the caller's KUBECONFIG.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from dev.cluster import certificates, cgroups, config, daemons, images, network, probes, sysctls
from dev.cluster.control import Control
from dev.cluster.errors import ClusterError, tail
from dev.cluster.paths import Layout, clusters
from dev.cluster.processes import ProcessRecord
from dev.cluster.progress import step
from dev.cluster.registry import Addresses, allocate, check_name, registry, routes_of_machine
from dev.cluster.tools import BUSYBOX_IMAGE, PAUSE_IMAGE, Tools
from dev.cluster.waiting import wait_for

# Fixed by the programs; each instance sees a folder of its own there.
PRIVATE_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log")

KAFKA_TOOLS = {
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}


class Cluster:
    """One instance by its name. Making the object starts nothing; `up` may be called again to add what is missing."""

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        self.layout = Layout(name)
        self.tools = Tools()
        self._control = Control(self.layout)

    # --- what a caller reads ------------------------------------------------------------------------------------------

    @cached_property
    def addresses(self) -> Addresses:
        """The instance's addresses; ClusterError if it was never started."""
        with registry().open() as content:
            index = content["instances"].get(self.name)
        if index is None:
            raise ClusterError(f"instance {self.name!r} does not exist: `python3 -m dev.cluster up --name {self.name}`")
        return Addresses(index)

    @property
    def state(self) -> Path:
        return self.layout.state

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def node_name(self) -> str:
        return f"{self.name}-node"

    @property
    def node_address(self) -> str:
        return self.addresses.node

    @property
    def api_url(self) -> str:
        return f"https://{self.node_address}:{config.API_PORT}"

    @property
    def kafka_bootstrap(self) -> str:
        return f"{self.node_address}:{config.KAFKA_PORT}"

    @property
    def kafka_detour(self) -> tuple[str, str]:
        """Where the broker may be reached by a way of one's own: the address that it tells who comes so, and its own."""
        port = config.KAFKA_DETOUR_PORT
        return f"{self.addresses.machine}:{port}", f"{self.node_address}:{port}"

    @property
    def prometheus_url(self) -> str:
        return f"http://{self.node_address}:{config.PROMETHEUS_PORT}"

    def alive(self) -> bool:
        return self._control.alive()

    def status(self) -> dict[str, int]:
        """Running processes with their pids inside the instance; empty if it is not up."""
        return self._control.running() if self.alive() else {}

    # --- up and down --------------------------------------------------------------------------------------------------

    def up(self, *, kafka: bool = True, prometheus: bool = False, node: bool = True) -> None:
        """Start what is asked for and does not run, and return when all of it is ready.

        Without `node` there is no scheduler and no kubelet: pods are accepted and stay Pending.
        """
        if os.geteuid() != 0:
            raise ClusterError("an instance has namespaces, mounts and cgroups of its own: only root can start it")
        _ = self.tools.packages, self.tools.etcd, self.tools.kubernetes
        if node:
            _ = self.tools.coredns, self.tools.pause
        if kafka:
            _ = self.tools.kafka
        with self._locked(), step(f"starting instance {self.name!r}"):
            if not self.alive():
                self._remove_remains()
                self._create()
            if not self.kubeconfig.exists():
                raise ClusterError(f"instance {self.name!r} is half made: `python3 -m dev.cluster down --name {self.name}`")
            self._start(kafka=kafka, prometheus=prometheus, node=node)

    def down(self) -> None:
        """Remove the instance: processes, mounts, network, cgroups and state. Nothing happens if there is none."""
        with self._locked():
            with registry().open() as content:
                known = self.name in content["instances"]
            if known or self.state.exists():
                with step(f"removing instance {self.name!r}"):
                    self._remove_remains()
                    with registry().open() as content:
                        content["instances"].pop(self.name, None)
                        if not content["instances"]:
                            _give_back(content)
                    self.__dict__.pop("addresses", None)
        (clusters() / f"{self.name}.lock").unlink(missing_ok=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time starts or removes an instance."""
        clusters().mkdir(parents=True, exist_ok=True)
        path = clusters() / f"{self.name}.lock"
        while True:
            with path.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # `down` removes the file: a lock on a removed file excludes nobody.
                if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                    yield
                    return

    def _create(self) -> None:
        layout = self.layout
        with registry().open() as content:
            addresses = allocate(self.name, content["instances"], routes_of_machine())
            content["instances"][self.name] = addresses.index
            _borrow(content)
        self.__dict__["addresses"] = addresses
        folders = {path: layout.state / path.strip("/").replace("/", "-") for path in PRIVATE_FOLDERS}
        for folder in (layout.run, layout.logs, layout.config / "cni", layout.state / "volumes", *folders.values()):
            folder.mkdir(parents=True, exist_ok=True)
        certificates.write(layout.certificates, addresses, self.node_name)
        self._write_config(addresses)
        cgroups.create(self.name)
        # The machine's name servers are out of reach: a process that asks them waits for seconds (Kafka does, at its start).
        files = {f"/etc/{name}": layout.config / name for name in ("hosts", "resolv.conf")}
        pid = self._control.launch({**folders, **files})
        network.connect(addresses, pid)
        # Last, because its presence says that the instance is whole.
        self._write(
            layout.kubeconfig, certificates.kubeconfig(layout.certificates, "admin", self.api_url, f"shardherd-{self.name}")
        )

    def _write_config(self, addresses: Addresses) -> None:
        layout = self.layout
        files = {
            "containerd.toml": config.containerd(layout),
            "cni/10-pods.conflist": config.cni(addresses),
            "kubelet.json": config.kubelet(layout, addresses, cgroups.folder_name(self.name)),
            "kube-proxy.json": config.kube_proxy(layout, addresses, self.node_name),
            "Corefile": config.corefile(layout),
            "kafka.properties": config.kafka(layout, addresses),
            "prometheus.yml": config.prometheus(),
            "hosts": f"127.0.0.1 localhost\n{addresses.node} {self.node_name} {Control.hostname(self.name)}\n",
            "resolv.conf": f"nameserver {addresses.node}\n",
        }
        for who in ("controller-manager", "scheduler", "proxy", "coredns", "kubelet"):
            files[f"{who}.kubeconfig"] = certificates.kubeconfig(layout.certificates, who, self.api_url, self.name)
        for name, content in files.items():
            self._write(layout.config / name, content)

    @staticmethod
    def _write(path: Path, content: str) -> None:
        path.touch(mode=0o600)
        path.write_text(content)

    def _start(self, *, kafka: bool, prometheus: bool, node: bool) -> None:
        tools, layout, control = self.tools, self.layout, self._control
        api = probes.ApiServer(self.api_url, layout.certificates)
        control.start(daemons.etcd(tools, layout))
        control.start(daemons.apiserver(tools, layout, self.addresses))
        if node:
            control.start(daemons.containerd(layout))
        if kafka:
            self._format_kafka()
            control.start(daemons.kafka(tools, layout))
        self._await("the API server", "kube-apiserver", api.healthy)
        control.start(daemons.controller_manager(tools, layout))
        if node:
            control.start(daemons.scheduler(tools, layout))
            control.start(daemons.coredns(tools, layout))
            control.start(daemons.kube_proxy(tools, layout))
            self._await("containerd", "containerd", self._containerd_ready)
            if not images.present(layout.containerd_socket, [PAUSE_IMAGE, BUSYBOX_IMAGE]):
                images.load_archive(layout.containerd_socket, tools.pause)
            control.start(daemons.kubelet(tools, layout, self.addresses, self.node_name))
        if prometheus:
            control.start(daemons.discovery(layout, self.api_url))
            control.start(daemons.prometheus(layout))
        self._await("the controller manager", "kube-controller-manager", api.accounts_ready)
        if node:
            self._await("the node", "kubelet", lambda: api.node_ready(self.node_name))
            dns = f"http://{self.node_address}:{config.COREDNS_READY_PORT}/ready"
            self._await("CoreDNS", "coredns", lambda: probes.http_ready(dns))
        if kafka:
            self._await_kafka()
        if prometheus:
            self._await("Prometheus", "prometheus", lambda: probes.http_ready(f"{self.prometheus_url}/-/ready"))

    def _await(self, what: str, daemon: str, condition: Callable[[], str | None]) -> None:
        """Await a condition; a process that ended fails at once, with the end of its log."""

        def checked() -> str | None:
            reason = condition()
            if reason and (failure := self._control.failure(daemon)):
                raise ClusterError(f"{what} did not start: {failure}\n{tail(self.layout.log(daemon))}")
            return reason

        wait_for(f"readiness of {what}", checked, self.layout.log(daemon))

    def _containerd_ready(self) -> str | None:
        done = images.ctr(self.layout.containerd_socket, "version", check=False)
        return None if done.returncode == 0 else done.stderr.strip()

    def _remove_remains(self) -> None:
        """Remove whatever there is of the instance, also of one that was half made or died with the machine."""
        record = ProcessRecord.read(self.layout.record)
        if record is not None:
            record.kill()
            wait_for(
                "the end of the instance's processes",
                lambda: "still there" if record.alive() else None,
                self.layout.log("node"),
            )
        with registry().open() as content:
            index = content["instances"].get(self.name)
        if index is not None:
            network.remove(Addresses(index))
        cgroups.remove(self.name, self.layout.log("node"))
        for folder in (self.layout.run, self.state):
            if folder.exists():
                shutil.rmtree(folder)
        if self.layout.run.parent.exists() and not any(self.layout.run.parent.iterdir()):
            self.layout.run.parent.rmdir()

    # --- tools --------------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """The environment for kubectl, helm and clients: the caller's, but this instance and no other."""
        kept = {key: value for key, value in os.environ.items() if not re.match(r"KUBE|HELM_|KUBERNETES_", key)}
        helm = {f"HELM_{kind}_HOME": str(self.state / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        return {**kept, **helm, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.state / "kube-cache")}

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 120.0) -> str:
        """Standard output of kubectl; ClusterError with what it said on failure. `input` is its standard input."""
        return self._tool([str(self.tools.kubectl), *arguments], input, timeout)

    def helm(self, *arguments: str, timeout: float = 300.0) -> str:
        """Standard output of helm; ClusterError with what it said on failure."""
        return self._tool([str(self.tools.helm), *arguments], None, timeout)

    def kafka_tool(self, tool: str, *arguments: str, input: str | None = None, timeout: float = 120.0) -> str:
        """Standard output of one of Kafka's own command-line tools, pointed at this instance's broker."""
        if tool not in KAFKA_TOOLS:
            raise ClusterError(f"unknown Kafka tool {tool!r}: one of {', '.join(sorted(KAFKA_TOOLS))}")
        command = daemons.java(self.tools, KAFKA_TOOLS[tool], "--bootstrap-server", self.kafka_bootstrap, *arguments)
        return self._tool(list(command), input, timeout)

    def _tool(self, command: list[str], given: str | None, timeout: float) -> str:
        done = subprocess.run(
            command, input=given or "", env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            said = (done.stderr + done.stdout).strip()
            raise ClusterError(f"`{Path(command[0]).name} {' '.join(command[1:])}` ended with {done.returncode}: {said}")
        return done.stdout

    def load_image(self, tag: str) -> bool:
        """Bring an image of the builder's store into the node, under the same name. False if it was there already."""
        return images.load(self.layout.containerd_socket, tag)

    # --- parts that tests stop and start ------------------------------------------------------------------------------

    def start_kafka(self) -> None:
        self._control.start(daemons.kafka(self.tools, self.layout))
        self._await_kafka()

    def stop_kafka(self) -> None:
        """End the broker cleanly; its data stays."""
        self._control.stop("kafka")

    def restart_kafka(self) -> None:
        self.stop_kafka()
        self.start_kafka()

    def start_played_nodes(self, count: int) -> None:
        """A scheduler, and nodes whose kubelets kwok plays; of an instance that has no node of its own."""
        _ = self.tools.kwok
        self._control.start(daemons.scheduler(self.tools, self.layout))
        self._control.start(daemons.kwok(self.tools, self.layout))
        names = [f"played-{number}" for number in range(count)]
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names]
        self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        api = probes.ApiServer(self.api_url, self.layout.certificates)
        for name in names:
            self._await(f"the played node {name}", "kwok", functools.partial(api.node_ready, name))

    def signal(self, daemon: str, number: int) -> None:
        """Send a signal (SIGSTOP, SIGCONT, SIGKILL) to one of the processes that `status` lists."""
        self._control.signal(daemon, number)

    def _format_kafka(self) -> None:
        if (self.state / "kafka-data" / "meta.properties").exists():
            return
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        properties = str(self.layout.config / "kafka.properties")
        command = daemons.java(self.tools, "kafka.tools.StorageTool", "format")
        self._tool([*command, "--config", properties, f"--cluster-id={identity}"], None, 60.0)

    def _await_kafka(self) -> None:
        host = self.node_address
        self._await("Kafka", "kafka", lambda: probes.broker_ready(host, config.KAFKA_PORT))


def _borrow(content: dict[str, Any]) -> None:
    """Remember what the first instance changes on the machine: folders that it makes, settings that the kubelet writes."""
    for path in PRIVATE_FOLDERS:
        if not Path(path).exists():
            Path(path).mkdir(parents=True)
            content["created"].append(path)
    if not content["sysctls"]:
        content["sysctls"] = sysctls.read()


def _give_back(content: dict[str, Any]) -> None:
    """Undo `_borrow`, after the last instance."""
    for path in content["created"]:
        if Path(path).is_dir() and not any(Path(path).iterdir()):
            Path(path).rmdir()
    sysctls.write(content["sysctls"])
    content["created"], content["sysctls"] = [], {}
