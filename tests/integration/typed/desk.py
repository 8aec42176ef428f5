"""Where the documentation's commands are typed: a checkout with what `make release` makes, and a shell whose kubectl and helm
are the real ones and lead to a real API server, and whose shardherd is loaded once.

There is no node. Pods of the chart's Deployment are said to be ready; what they would run is one operator, a process of this
machine with the environment that the chart gives it. Pods of groups are played, by plain consumers. Asserts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dev.cluster import Cluster
from dev.demo.report import await_that
from dev.release import chart
from dev.release.source import working_tree
from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.copies import ConfigMapCopies
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, Offset, ShardId
from tests.harness.ctrl_c import CTRL_C_ENDS
from tests.harness.kubelet import PlayedKubelet
from tests.harness.played import PlayedNode
from tests.harness.preloaded import Preloaded
from tests.harness.typed import ROOT, Command
from tests.integration.controller.bench import fill_topic
from tests.integration.controller.process import OperatorProcess

SYSTEM = "shardherd-system"
SERVED = ("streams", "shop", "demo")
"""The namespaces in which the documentation has groups."""
NAMESPACES = {"docs/command-line.md": "shop", "spark_apps/clickstream/README.md": "demo"}
"""Of the kubeconfig's context, by page; else `streams`."""
ENDLESS = re.compile(r"^(kubectl )?shardherd (page|top)\b")
"""What goes on until Ctrl-C."""
INSTEAD = {
    # In place of the time that a new authority takes to spread: that it is made.
    "sleep 600": "until kubectl get secret shardherd-tls -n shardherd-system -o yaml | grep -q tls.key; do :; done",
}
PLACEHOLDERS = {"<name>": "clickstream", "<account>": "ops"}
MARK = "\x1e"


@dataclass(frozen=True)
class Outcome:
    """How a command ended. `url` is what was found at the address that it had printed."""

    code: int
    out: str
    err: str = ""
    url: str = ""


class PlayedDeployment(PlayedNode):
    """Says of each pod of the operator's Deployment that it is ready, at this machine's address."""

    def __init__(self, api: KubernetesApi, address: str) -> None:
        super().__init__(api, SYSTEM, "app.kubernetes.io/component=operator")
        self._address = address

    def _see(self, pod: Mapping[str, Any]) -> None:
        if pod.get("status", {}).get("phase") == "Running":
            return
        (image,) = (each["image"] for each in pod["spec"]["containers"])
        container = {"name": "operator", "ready": True, "restartCount": 0, "image": image, "imageID": image}
        status = {
            "phase": "Running",
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{**container, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
        }
        self._patch(pod, {"status": status}, "/status")

    def _stop_all(self) -> None:
        """Nothing runs."""


class Desk:
    """Types commands, and has what a reader has who came as far as to type them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.checkout = folder / "checkout"
        self.outcomes: dict[Command, Outcome] = {}
        """How each command ended that was typed."""
        self._bin = folder / "bin"
        self._preloaded = Preloaded(folder / "preloaded")
        self._logs = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Desk:
        self._clear()
        self.checkout.mkdir()
        dist = self.checkout / "dist"
        chart.package(working_tree(ROOT, os.environ), dist, self.cluster.tools.helm)
        shutil.copytree(ROOT / "spark_apps", self.checkout / "spark_apps")
        for manifest in (self.checkout / "spark_apps").glob("*/consumergroup.yaml"):
            self._fill(manifest)
        self._bin.mkdir()
        for name, program in (("kubectl", self.cluster.tools.kubectl), ("helm", self.cluster.tools.helm)):
            (self._bin / name).symlink_to(program)
        self._stack.enter_context(self._preloaded)
        self.api = KubernetesApi.from_kubeconfig(self.cluster.kubeconfig)
        self._stack.callback(self.api.close)
        self._stack.callback(self._clear)
        self._stack.enter_context(PlayedDeployment(self.api, self.cluster.addresses.machine).running())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _clear(self) -> None:
        """Remove what was installed here, now or by a run that was cut off."""
        for release, namespace in (("shardherd", SYSTEM), ("shardherd-a", "shardherd-a"), ("shardherd-b", "shardherd-b")):
            self.cluster.helm("uninstall", release, "-n", namespace, "--ignore-not-found")
        self.forget("crd/consumergroups.shardherd.dev")
        self.forget(
            *(f"namespace/{each}" for each in (SYSTEM, *SERVED, "shardherd-a", "shardherd-b", "streams-a", "streams-b"))
        )

    def forget(self, *objects: str) -> None:
        """Delete objects, and wait until they are gone."""
        self.cluster.kubectl("delete", *objects, "--ignore-not-found", "--timeout=100s")

    def _fill(self, manifest: Path) -> None:
        """Write into a manifest where Kafka is, and that consumers report often: the tests need not wait for them."""
        text = manifest.read_text().replace("kafka:9092", self.cluster.kafka_bootstrap)
        manifest.write_text(re.sub(r"^spec:$", "spec:\n  heartbeatInterval: 500ms", text, flags=re.MULTILINE))

    # --- what runs ----------------------------------------------------------------------------------------------------

    def run_operator(self) -> None:
        """Have the release serve the groups' namespaces, and run its operator with the environment of its pods."""
        served = ",".join(SERVED)
        for namespace in SERVED[1:]:
            self.cluster.kubectl("create", "namespace", namespace)
        archive = next((self.checkout / "dist").glob("*.tgz"))
        values = (f"applicationNamespaces={{{served}}}", "tls.acceptPlain=true", "page.enabled=true", "replicaCount=1")
        options = [word for value in values for word in ("--set", value)]
        self.cluster.helm("upgrade", "shardherd", str(archive), "-n", SYSTEM, "--reuse-values", *options)
        self.cluster.kubectl("rollout", "status", "deployment/shardherd", "-n", SYSTEM, "--timeout=60s")
        (pod,) = await_that("one operator's pod is left", self._operators, within=60)
        declared = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"] if "value" in each}
        declared.pop("SHARDHERD_TERMINATION_LOG")
        for port in ("SHARDHERD_API_PORT", "SHARDHERD_METRICS_PORT"):
            declared.pop(port)
        token = self.cluster.kubectl("create", "token", "shardherd", "-n", SYSTEM, "--duration=2h").strip()
        operator = OperatorProcess(self.cluster, SYSTEM, self._logs, token=token)
        self._stack.callback(operator.close)
        operator.start(**declared, SHARDHERD_POD_NAME=pod["metadata"]["name"], SHARDHERD_POD_UID=pod["metadata"]["uid"])
        url = f"http://127.0.0.1:{operator.api_port}"
        for namespace in SERVED:
            self._stack.enter_context(PlayedKubelet(self.api, namespace, url, starting=0.1).running())
        self._lead_to_it(pod["metadata"]["name"], "shardherd", "api-tls", 8443)
        self._lead_to_it(pod["metadata"]["name"], "shardherd-page", "page", 8082)
        self._stack.callback(self.cluster.kubectl, "delete", "shcg", "--all", "-A", "--timeout=60s")

    def _lead_to_it(self, pod: str, service: str, name: str, port: int) -> None:
        """Where the API server's proxy to a Service leads: nobody says so of pods that no node has."""
        address = {"ip": self.cluster.addresses.machine, "targetRef": {"kind": "Pod", "name": pod, "namespace": SYSTEM}}
        found = {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": service, "namespace": SYSTEM},
            "subsets": [{"addresses": [address], "ports": [{"name": name, "port": port}]}],
        }
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(found))

    def _operators(self) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{SYSTEM}/pods"
        found = self.api.call("GET", path, query={"labelSelector": "app.kubernetes.io/component=operator"})["items"]
        return found if len(found) == 1 else []

    def bring_groups(self) -> None:
        """The topics, the manifest of the README as a file, the group `clicks`, and an account that may call the operator."""
        for topic, shards in (("clickstream", 12), ("clicks", 4)):
            fill_topic(self.cluster, topic, shards, 1300)
            self._stack.callback(self.cluster.kafka_tool, "kafka-topics", "--delete", "--topic", topic)
        blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        (text,) = (each for each in blocks if "kind: ConsumerGroup" in each)
        manifest = self.checkout / "consumergroup.yaml"
        manifest.write_text(text)
        self._fill(manifest)
        clicks = yaml.safe_load(manifest.read_text())
        clicks["metadata"] = {"name": "clicks", "namespace": "shop"}
        clicks["spec"]["source"]["kafka"]["topics"] = ["clicks"]
        clicks["spec"]["scaling"]["shardsPerConsumer"] = 2
        self.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(clicks))
        for namespace in ("streams", "shop"):
            where = ("-n", namespace, "create")
            self.cluster.kubectl(*where, "serviceaccount", "ops")
            verbs = ("--verb=get,update", "--resource=consumergroups.shardherd.dev/checkpoints")
            self.cluster.kubectl(*where, "role", "ops", *verbs)
            self.cluster.kubectl(*where, "rolebinding", "ops", "--role=ops", f"--serviceaccount={namespace}:ops")

    def copy_positions(self) -> None:
        """As the operator does within minutes: positions are stored that all shards have passed."""
        resource = self.api.call("GET", "/apis/shardherd.dev/v1alpha1/namespaces/streams/consumergroups/clickstream")
        identity = GroupIdentity("streams", "clickstream", resource["metadata"]["uid"])
        copies = PositionCopies({ShardId(f"clickstream/{number}"): Offset(1) for number in range(12)})
        asyncio.run(ConfigMapCopies(self.api).save_copies(identity, copies, ""))

    def await_ready(self, namespace: str, group: str) -> None:
        """Until all shards of a group are read."""
        wait = ("wait", f"consumergroups.shardherd.dev/{group}", "-n", namespace, "--for=condition=Ready")
        self.cluster.kubectl(*wait, "--timeout=120s")

    # --- typing -------------------------------------------------------------------------------------------------------

    def type(self, commands: Sequence[Command]) -> None:
        """Type the commands of a block, one after the other, in one shell that ends at the first that fails."""
        environment = self._environment(commands[0].page)
        plain = [each for each in commands if not ENDLESS.match(each.text)]
        if plain:
            self._type(plain, environment)
        for command in commands:
            if ENDLESS.match(command.text) and all(self.outcomes[each].code == 0 for each in plain if each in self.outcomes):
                self.outcomes[command] = self._interrupt(command, environment)

    def _type(self, commands: Sequence[Command], environment: Mapping[str, str]) -> None:
        lines = ["set -euo pipefail"]
        for number, command in enumerate(commands):
            mark = f"printf '{MARK}{number}\\n'"
            lines += [mark, f"{mark} >&2", _filled(command.text)]
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=self._folder(commands[0].page),
            env={**environment, "PATH": f"{self._preloaded.bin}:{environment['PATH']}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said = [dict(part.split("\n", 1) for part in text.split(MARK)[1:]) for text in (done.stdout, done.stderr)]
        for number, command in enumerate(commands[: len(said[0])]):
            code = done.returncode if number == len(said[0]) - 1 else 0
            self.outcomes[command] = Outcome(code, said[0][str(number)], said[1].get(str(number), ""))

    def _interrupt(self, command: Command, environment: Mapping[str, str]) -> Outcome:
        """Type a command that goes on, wait until it has said something, and press Ctrl-C."""
        process = subprocess.Popen(
            # Without a shell between: the program itself gets the signal.
            [*CTRL_C_ENDS, *shlex.split(_filled(command.text))],
            cwd=self.checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        end = threading.Timer(60, process.kill)
        end.start()
        first = process.stdout.readline()
        found = re.match(r"http://\S+", first)
        page = ""
        if found:
            with urllib.request.urlopen(found[0], timeout=30) as response:
                page = response.read().decode()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        end.cancel()
        return Outcome(process.returncode, first + out, err, page)

    def _folder(self, page: str) -> Path:
        """Where the page is read: an example has its files beside it."""
        return self.checkout / (Path(page).parent if page.startswith("spark_apps/") else "")

    def _environment(self, page: str) -> dict[str, str]:
        """Of a shell whose kubeconfig leads to this API server, into the namespace that the page is about."""
        config, namespace = yaml.safe_load(self.cluster.kubeconfig.read_text()), NAMESPACES.get(page, "streams")
        for context in config["contexts"]:
            context["context"]["namespace"] = namespace
        file = self._logs / f"kubeconfig-{namespace}"
        file.write_text(json.dumps(config))
        path = f"{self._bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**self.cluster.environment(), "KUBECONFIG": str(file), "PATH": path, "PYTHONUNBUFFERED": "1"}


def _filled(text: str) -> str:
    """A command as the reader types it, with something in place of each placeholder."""
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    return INSTEAD.get(text, text)
