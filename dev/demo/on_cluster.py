"""The place of the story on a real cluster: a lab, a namespace in it, kubectl and helm. Called by `story` through `Place`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dev.demo.figures import Sample, query
from dev.demo.kube import Json, is_true
from dev.demo.lab import SYSTEM, Lab
from dev.demo.place import CLAIM, GROUP, MANIFEST, NAMESPACE, REPOSITORY, TOPIC, Place, Position, Run
from dev.demo.report import DemoError, await_that

RESOURCE = "consumergroups.shardherd.dev"
DRIVERS = f"shardherd.dev/consumergroup={GROUP},shardherd.dev/role=driver"
KAFKA_GROUP = f"{NAMESPACE}.{GROUP}"


class ClusterPlace(Place):
    """The demo's namespace of a lab. `application_namespaces` are those in which the chart lets groups run."""

    name = "cluster"
    backlog = 500_000
    rate = 2_000
    opening = "A real cluster on this machine (etcd, Kubernetes, Kafka, Prometheus), and two images"
    preparing = "The chart, a topic of 8 partitions, and a producer of click events"
    metric = "the operator's metric in Prometheus"

    def __init__(self, lab: Lab, application_namespaces: Sequence[str] = (NAMESPACE,)) -> None:
        self.lab = lab
        self.reporter = lab.reporter
        self._application_namespaces = application_namespaces

    @property
    def state(self) -> Path:
        return self.lab.state

    @property
    def rows(self) -> Path:
        return self._volume / "clickstream" / "rows"

    @property
    def _volume(self) -> Path:
        return self.lab.shared / NAMESPACE / CLAIM

    @property
    def kafka_bootstrap(self) -> str:
        return self.lab.kafka_bootstrap

    # ---- what is done

    def start(self) -> None:
        self.lab.start()

    def clear(self) -> None:
        if self.lab.kube.attempt("get", "crd", RESOURCE).returncode == 0:
            self.lab.kube.run("delete", RESOURCE, GROUP, "-n", NAMESPACE, "--ignore-not-found", "--timeout=120s", timeout=130)
            await_that("the last run's pods are gone", lambda: not self._pods(), within=120, explain=self.explain)
        self.lab.delete_topic(TOPIC)
        self.lab.delete_group(KAFKA_GROUP)
        if self._volume.exists():
            shutil.rmtree(self._volume)
        self.lab.make_namespace(SYSTEM)
        self.lab.make_namespace(NAMESPACE)
        folder = self.lab.make_volume(NAMESPACE, CLAIM)
        self.reporter.say(f"shared folder of the sink: {folder}")

    def create_topic(self, partitions: int) -> None:
        self.lab.create_topic(TOPIC, partitions)

    def grow_topic(self, partitions: int) -> None:
        self.lab.grow_topic(TOPIC, partitions)

    def prepare(self) -> None:
        self.lab.install(self._application_namespaces)

    def apply(self, within: float) -> None:
        self.reporter.say(f"kubectl apply -n {NAMESPACE} -f {MANIFEST.relative_to(REPOSITORY)}")
        self.reporter.show(self.lab.kube.run("apply", "-n", NAMESPACE, "-f", str(MANIFEST)))
        done = self.lab.kube.attempt(
            "wait", "--for=condition=Ready", f"{RESOURCE}/{GROUP}", "-n", NAMESPACE, f"--timeout={within:.0f}s",
            timeout=within + 10,
        )  # fmt: skip
        if done.returncode != 0:
            raise DemoError(f"the group did not become Ready: {done.stderr.strip()}\n{self.explain()}")

    def limit(self, consumers: int) -> None:
        patch = f'{{"spec":{{"scaling":{{"maxReplicas":{consumers}}}}}}}'
        self.reporter.show(self.lab.kube.run("patch", RESOURCE, GROUP, "-n", NAMESPACE, "--type=merge", "-p", patch))

    def kill(self, consumer: str, shards: int) -> tuple[float, float]:
        pid = self.lab.child_of_init(NAMESPACE, consumer)
        self.reporter.say(f"kubectl exec -n {NAMESPACE} {consumer} -- kill -9 {pid}    (it holds {shards})")
        return self.lab.kill_process(NAMESPACE, consumer, pid)

    def kill_operator(self) -> None:
        self.lab.kill_operator()

    # ---- observations

    def calm(self) -> bool:
        resource: Json = self.lab.kube.get(RESOURCE, GROUP, "-n", NAMESPACE)
        return is_true(resource, "Ready") and is_true(resource, "Balanced")

    def consumers(self) -> Sequence[str]:
        return [pod["metadata"]["name"] for pod in self._pods()]

    def runs(self) -> dict[str, Run]:
        found: dict[str, Run] = {}
        for pod in self._pods():
            for status in pod["status"].get("containerStatuses", []):
                if status["name"] == "driver" and "running" in status["state"]:
                    found[pod["metadata"]["name"]] = (status["containerID"], status["restartCount"])
        return found

    def operator_run(self) -> str:
        run: str = self.lab.operator_pod()["status"]["containerStatuses"][0]["containerID"]
        return run

    def metrics(self) -> list[Sample]:
        return self.lab.operator_metrics()

    def lag(self) -> int | None:
        wanted = f'shardherd_group_lag_records{{namespace="{NAMESPACE}",consumergroup="{GROUP}"}}'
        found = query(self.lab.cluster.prometheus_url, wanted)
        return int(found[0].value) if found else None

    def committed(self) -> dict[str, int]:
        return self.lab.committed(KAFKA_GROUP)

    def described(self) -> dict[str, Position]:
        return self.lab.describe_group(KAFKA_GROUP)

    def show_group(self) -> None:
        self.reporter.say(f"kubectl get shcg -n {NAMESPACE}")
        self.reporter.show(self.lab.kube.run("get", "shcg", "-n", NAMESPACE))

    def explain(self) -> str:
        return self.lab.kube.explain(NAMESPACE, GROUP)

    def next_steps(self) -> str:
        cluster, program = self.lab.cluster, Path(sys.executable).parent.relative_to(REPOSITORY) / "shardherd"
        return f"""
Everything still runs. To look around:

  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.tools.kubectl.parent}:$PATH
  kubectl get shcg,pods -n {NAMESPACE}
  kubectl describe shcg {GROUP} -n {NAMESPACE}
  kubectl logs -n {SYSTEM} -l shardherd.dev/leader=true --tail=20
  kubectl logs -n {NAMESPACE} {GROUP}-0 --tail=20
  {program} explain {GROUP} -n {NAMESPACE}
  {program} page    serves all of it to a browser, until Ctrl-C

  Prometheus: {cluster.prometheus_url}/graph?g0.expr=shardherd_shard_lag_records
  rows of the sink: {self.lab.shared / NAMESPACE}

  make demo-cluster   run it again      make demo-down   remove all of it
"""

    def _pods(self) -> list[Json]:
        return self.lab.kube.pods(NAMESPACE, DRIVERS)
