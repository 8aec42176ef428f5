"""The demo on a cluster of the user's own: `make demo-cluster DEMO_CONTEXT=... IMAGE=... KAFKA_BOOTSTRAP=...`.

Called by `dev.demo.__main__`. It uses the context that is named and no other: that is copied into a kubeconfig of the demo's,
which every call gets, so nothing depends on what is current. All is made in one namespace of its own. `leave` removes that, the
topic, the Kafka group, and the definition if it came with the demo. Rows are not counted here, as that needs a volume which all
applications share: what is committed is compared with what was produced.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dev.demo.kube import Json, Kube, is_true
from dev.demo.report import DemoError, Reporter, await_that

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "shardherd"
APPLICATION = REPOSITORY / "spark_apps" / "clickstream" / "consumergroup.yaml"
NAMESPACE = "shardherd-demo"
RELEASE = "shardherd-demo"
TOPIC = "shardherd-demo"
GROUP = "clickstream"
PRODUCER = "producer"
RESOURCE = "consumergroups.shardherd.dev"
MARK = "shardherd.dev/demo"
BACKLOG, RATE = 200_000, 1_000
READY_S = 900.0
"""Seconds for the first applications: a cluster may have to pull the images first."""


@dataclass(frozen=True)
class Images:
    """`example.com/shardherd:dev` stands for example.com/shardherd/operator:dev and example.com/shardherd/spark:dev."""

    prefix: str
    tag: str

    @classmethod
    def of(cls, reference: str) -> Images:
        """Raises DemoError for one without a tag: what `latest` is nobody knows."""
        prefix, colon, tag = reference.rpartition(":")
        if not colon or "/" in tag:
            raise DemoError(
                f"IMAGE is {reference!r}; it must be a prefix and a tag: example.com/shardherd:dev stands for "
                "example.com/shardherd/operator:dev and example.com/shardherd/spark:dev"
            )
        return cls(prefix, tag)

    @property
    def operator(self) -> str:
        return f"{self.prefix}/operator"

    @property
    def spark(self) -> str:
        return f"{self.prefix}/spark:{self.tag}"


@dataclass(frozen=True)
class Visit:
    """One context of the user's kubeconfig (`source`; empty: ~/.kube/config), and where the demo keeps its copy of it."""

    context: str
    source: str
    reporter: Reporter
    state: Path

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    @property
    def kube(self) -> Kube:
        return Kube(tool("kubectl"), self.environment)

    def connect(self) -> None:
        """Copy the context. Raises DemoError if there is none of that name, or its cluster does not answer."""
        found = self._config("view", "--minify", "--flatten", "--raw", f"--context={self.context}")
        if found.returncode != 0:
            known = self._config("get-contexts", "-o", "name").stdout.split()
            raise DemoError(
                f"DEMO_CONTEXT is {self.context!r}: {found.stderr.strip()}; your kubeconfig has: {', '.join(known) or 'none'}"
            )
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(found.stdout)
        server = yaml.safe_load(found.stdout)["clusters"][0]["cluster"]["server"]
        version = json.loads(self.kube.run("version", "-o", "json"))["serverVersion"]["gitVersion"]
        self.reporter.say(f"context {self.context!r}: {server}, Kubernetes {version}")

    def _config(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`kubectl config` on the user's kubeconfig, which is only read."""
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        if self.source:
            environment["KUBECONFIG"] = self.source
        command = [str(tool("kubectl")), "config", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)

    def helm(self, *arguments: str) -> None:
        """Run helm. Raises DemoError with its words."""
        done = subprocess.run(
            [str(tool("helm")), *arguments], env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise DemoError(f"helm {arguments[0]} failed: {done.stderr.strip() or done.stdout.strip()}")

    def check_room(self) -> None:
        """Raises DemoError if something stands where the demo would put its own."""
        namespace = self.kube.find("namespace", NAMESPACE)
        if namespace is not None and not ours(namespace):
            raise DemoError(f"the cluster has a namespace {NAMESPACE} that is not of this demo; rename or remove it")
        if namespace is None and self.kube.find("crd", RESOURCE) is not None:
            raise DemoError(
                f"the cluster knows {RESOURCE} already, so another shardherd is or was installed in it, and the demo leaves it "
                "alone: use another cluster, or uninstall it and delete the definition"
            )

    def install(self, images: Images) -> None:
        """The namespace and the chart, which serves nothing but this namespace."""
        self.kube.apply(namespace())
        values = self.state / "values.json"
        values.write_text(json.dumps(chart_values(images)))
        self.reporter.say(f"helm upgrade --install {RELEASE} charts/shardherd --namespace {NAMESPACE}")
        self.helm("upgrade", "--install", RELEASE, str(CHART), "-n", NAMESPACE, "-f", str(values))
        self.patiently("rollout", "status", "deployment", "-l", f"app.kubernetes.io/instance={RELEASE}")

    def produce(self, images: Images, bootstrap: str) -> None:
        """The topic, and a pod that writes click events to it."""
        self.kube.run("delete", "pod", PRODUCER, "-n", NAMESPACE, "--ignore-not-found", "--timeout=60s", timeout=70)
        self.kube.apply(scripts(), producer(images, bootstrap))
        self.patiently("wait", "--for=condition=Ready", f"pod/{PRODUCER}")
        await_that(
            "the backlog is written", lambda: self.counts().get("backlogDone"), within=300, every=1, explain=self.explain
        )
        self.reporter.say(f"{BACKLOG:,} records are in topic {TOPIC} at {bootstrap}; from now on {RATE:,} more each second")

    def patiently(self, *arguments: str) -> None:
        """kubectl in the demo's namespace, for something that may take long. Raises DemoError that says what there is."""
        done = self.kube.attempt(*arguments, "-n", NAMESPACE, f"--timeout={READY_S:.0f}s", timeout=READY_S + 10)
        if done.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}\n{self.explain()}")

    def counts(self) -> Json:
        """What the producer has counted. Empty before its first report."""
        done = self.kube.shell(NAMESPACE, PRODUCER, "cat /tmp/counts.json")
        counts: Json = json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}
        if counts.get("failed"):
            raise DemoError(f"the producer failed: {counts['failed']}")
        return counts

    def topic(self, do: str, bootstrap: str, *arguments: str) -> str:
        """Run `dev.demo.topic` where the broker is reached."""
        words = ["python", "/demo/topic.py", do, "--bootstrap", bootstrap, "--topic", TOPIC, "--group", f"{NAMESPACE}.{GROUP}"]
        done = self.kube.shell(NAMESPACE, PRODUCER, " ".join([*words, *arguments]))
        if done.returncode != 0:
            raise DemoError(f"{' '.join(words[1:3])} failed: {done.stderr.strip()[-500:]}")
        return done.stdout

    def settled(self, shards: int, consumers: int) -> None:
        """Wait until so many applications read so many shards, and show it."""

        def reached() -> bool:
            group = self.kube.get(RESOURCE, GROUP, "-n", NAMESPACE)
            status = group.get("status", {})
            held = status.get("shards", {})
            calm = is_true(group, "Ready") and is_true(group, "Balanced")
            return calm and (held.get("total"), held.get("alreadyAlloc"), status.get("readyReplicas")) == (
                shards,
                shards,
                consumers,
            )

        await_that(f"{consumers} applications read {shards} shards", reached, within=READY_S, every=2, explain=self.explain)
        self.reporter.show(self.kube.run("get", "shcg,pods", "-n", NAMESPACE))

    def finish(self, bootstrap: str) -> bool:
        """The producer stops; whether everything produced is committed in the end."""
        self.kube.shell(NAMESPACE, PRODUCER, "kill -TERM $(cat /tmp/producer.pid)")
        await_that("the producer has stopped", lambda: self.counts().get("stopped"), within=120, every=1, explain=self.explain)
        produced: dict[str, int] = self.counts()["produced"]
        total = sum(produced.values())

        def committed() -> dict[str, list[int]] | None:
            found: dict[str, list[int]] = json.loads(self.topic("committed", bootstrap))
            read = {partition: offset for partition, (offset, end) in found.items() if end}
            return found if read == produced else None

        self.reporter.say(f"{total:,} records were produced; waiting until all of them are committed")
        positions = await_that("everything produced is committed", committed, within=READY_S, every=3, explain=self.explain)
        ends = sum(end for _, end in positions.values())
        self.reporter.show(
            f"produced {total:,}   end offsets {ends:,}   committed {sum(offset for offset, _ in positions.values()):,}"
        )
        return ends == total

    def explain(self) -> str:
        return self.kube.explain(NAMESPACE, GROUP)

    def remove(self, bootstrap: str) -> None:
        """Remove what the demo made here, and nothing else."""
        namespace = self.kube.find("namespace", NAMESPACE)
        if namespace is None:
            self.reporter.say(f"there is no namespace {NAMESPACE}: nothing of the demo is here")
            return
        if not ours(namespace):
            raise DemoError(f"namespace {NAMESPACE} is not of this demo; it is left alone")
        if self.kube.find("crd", RESOURCE) is not None:
            self.kube.run("delete", RESOURCE, GROUP, "-n", NAMESPACE, "--ignore-not-found", "--timeout=120s", timeout=130)
            pods = f"shardherd.dev/consumergroup={GROUP}"
            await_that("its pods are gone", lambda: not self.kube.pods(NAMESPACE, pods), within=180, explain=self.explain)
        bootstrap = bootstrap or self._bootstrap()
        if bootstrap and self.kube.find("pod", PRODUCER, "-n", NAMESPACE) is not None:
            self.kube.shell(NAMESPACE, PRODUCER, "kill -TERM $(cat /tmp/producer.pid) 2>/dev/null; sleep 1")
            self.topic("delete", bootstrap)
            self.reporter.say(f"topic {TOPIC} and Kafka group {NAMESPACE}.{GROUP} are gone from {bootstrap}")
        self.helm("uninstall", RELEASE, "-n", NAMESPACE, "--ignore-not-found", "--wait")
        self._remove_definition()
        self.kube.run("delete", "namespace", NAMESPACE, "--timeout=180s", timeout=190)
        shutil.rmtree(self.state)
        self.reporter.say(f"namespace {NAMESPACE} is gone")

    def _bootstrap(self) -> str:
        """Where the producer writes to."""
        found = self.kube.find("pod", PRODUCER, "-n", NAMESPACE)
        return "" if found is None else str(found["metadata"]["annotations"][f"{MARK}-bootstrap"])

    def _remove_definition(self) -> None:
        """The definition, if it came with the demo and nobody else has groups."""
        found = self.kube.find("crd", RESOURCE)
        if found is None:
            return
        release = found["metadata"].get("annotations", {}).get("meta.helm.sh/release-namespace")
        groups = self.kube.items(RESOURCE, "--all-namespaces")
        others = [each for each in groups if each["metadata"]["namespace"] != NAMESPACE]
        if release != NAMESPACE or others:
            self.reporter.say(f"{RESOURCE} stays: it is somebody else's, or somebody else has {len(others)} groups")
            return
        self.kube.run("delete", "crd", RESOURCE, "--timeout=60s", timeout=70)


def tool(name: str) -> Path:
    """kubectl or helm of the user's. Raises DemoError if it is not there."""
    found = shutil.which(name)
    if found is None:
        raise DemoError(f"{name} is not on your PATH; the demo on a cluster of yours uses your own")
    return Path(found)


def ours(namespace: Json) -> bool:
    """Whether the demo made it."""
    return str(namespace["metadata"].get("labels", {}).get(MARK, "")) == "true"


def namespace() -> Json:
    """The demo's namespace, which enforces Pod Security `restricted`."""
    labels = {MARK: "true", "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def chart_values(images: Images) -> Json:
    """One operator that serves this namespace alone."""
    return {
        "image": {"repository": images.operator, "tag": images.tag},
        "replicaCount": 1,
        "watchNamespaces": [NAMESPACE],
        "applicationNamespaces": [NAMESPACE],
        "rbac": {"aggregateClusterRoles": False},
    }


def scripts() -> Json:
    """The producer's program and the topic's, for a pod to run."""
    folder = Path(__file__).parent
    data = {name: (folder / name).read_text() for name in ("producer.py", "topic.py")}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PRODUCER, "namespace": NAMESPACE}, "data": data}


def producer(images: Images, bootstrap: str) -> Json:
    """The pod that makes the topic and writes to it, until it is told to stop; it stays, to be asked."""
    where = f"--bootstrap {bootstrap} --topic {TOPIC}"
    script = (
        f"python /demo/topic.py create {where} --partitions 8 || exit 1; "
        f"python /demo/producer.py {where} --backlog {BACKLOG} --rate {RATE} --state /tmp/counts.json & "
        "echo $! > /tmp/producer.pid; touch /tmp/begun; trap 'exit 0' TERM; wait $!; while :; do sleep 1; done"
    )
    secured = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container: dict[str, Any] = {
        "name": PRODUCER,
        "image": images.spark,
        "command": ["sh", "-c", script],
        "securityContext": secured,
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/begun"]}, "periodSeconds": 1},
        "volumeMounts": [{"name": "demo", "mountPath": "/demo"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": PRODUCER, "namespace": NAMESPACE, "annotations": {f"{MARK}-bootstrap": bootstrap}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "demo", "configMap": {"name": PRODUCER}}, {"name": "tmp", "emptyDir": {}}],
        },
    }


def group(images: Images, bootstrap: str) -> Json:
    """The example's ConsumerGroup, reading the demo's topic, with a folder of each pod's own for its rows."""
    made: Json = yaml.safe_load(APPLICATION.read_text())
    made["metadata"] = {"name": GROUP, "namespace": NAMESPACE}
    spec = made["spec"]
    spec["source"]["kafka"] = {"bootstrapServers": bootstrap, "topics": [TOPIC]}
    spec["application"]["image"] = images.spark
    spec["application"]["driver"]["template"]["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    return made


def visit(here: Visit, image: str, bootstrap: str) -> bool:
    """The whole demo on this context; whether everything produced was committed. Raises DemoError."""
    images, reporter = Images.of(image), here.reporter
    if not bootstrap:
        raise DemoError(
            "KAFKA_BOOTSTRAP is not set: give host:port of a Kafka broker that the cluster's pods reach without TLS and SASL"
        )
    reporter.step("1. A cluster of yours, and the chart in it")
    here.connect()
    here.check_room()
    if here.kube.find("namespace", NAMESPACE) is not None:
        reporter.say("an earlier run is there: it is removed first")
        leave(here, "")
        here.connect()
    here.install(images)
    reporter.step("2. A topic of 8 partitions, and a producer of click events")
    here.produce(images, bootstrap)
    reporter.step(f"3. The group of {APPLICATION.relative_to(REPOSITORY)}: two Spark applications of 4 shards each")
    here.kube.apply(group(images, bootstrap))
    here.settled(8, 2)
    reporter.step("4. The topic grows to 12 partitions: a third application starts and takes its shards over")
    here.topic("grow", bootstrap, "--partitions", "12")
    here.settled(12, 3)
    reporter.step("5. The producer stops, and what is committed is compared with what was produced")
    held = here.finish(bootstrap)
    reporter.say("all that was produced is committed" if held else "BROKEN: what is committed is not what was produced")
    reporter.say(f"everything still runs in namespace {NAMESPACE}; make demo-down DEMO_CONTEXT={here.context} removes it")
    return held


def leave(here: Visit, bootstrap: str) -> bool:
    """Remove from this context what the demo made, and nothing else. Raises DemoError."""
    here.connect()
    here.remove(bootstrap)
    return True
