"""A group with cells on the real node: how `tests.harness.keyed` runs there, with drivers and executors in pods of their own.

State, notes and Delta tables are in folders of the node that all pods mount. Asserts nothing.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from dev.demo.kube import Json
from dev.demo.lab import SPARK_IMAGE, Lab
from shardherd.controller.merge import merge
from shardherd.core.model.nouns import ShardState
from tests.e2e.groups import RESOURCE, Deployed, group
from tests.e2e.groups import VARIANTS as NAMESPACE
from tests.harness.keyed import application
from tests.harness.keyed.records import Records
from tests.harness.keyed.trial import CLAIM, FILE, Trial, declared

WITHIN = 180.0
"""Seconds for anything that a trial waits for."""

CODE = "keyed"
NOTES_CLAIM = "keyed-notes"
NOTES = "/notes"
PACKAGES_CLAIM = "keyed-packages"
PACKAGES = "/packages"
BROUGHT = {
    "delta": ("arro3-core", "deltalake", "deprecated", "wrapt"),
    "pandas": ("pandas", "python-dateutil", "pytz", "six", "tzdata"),
}
"""What the application needs of Python, beside what is in the image: a user puts it into his own. Only drivers need pandas."""


def _path(*folders: str) -> list[Json]:
    return [{"name": "PYTHONPATH", "value": ":".join(f"{PACKAGES}/{folder}" for folder in folders)}]


_MOUNTS = [
    {"name": "notes", "mountPath": NOTES},
    {"name": "packages", "mountPath": PACKAGES, "readOnly": True},
]
_VOLUMES = [
    {"name": "notes", "persistentVolumeClaim": {"claimName": NOTES_CLAIM}},
    {"name": "packages", "persistentVolumeClaim": {"claimName": PACKAGES_CLAIM}},
]
_DRIVER = {"name": "driver", "volumeMounts": [*_MOUNTS, {"name": "code", "mountPath": str(Path(FILE).parent)}]}
_EXECUTOR = {"name": "executor", "volumeMounts": _MOUNTS, "env": _path("delta")}
APPLICATION = {
    "image": SPARK_IMAGE,
    "env": _path("delta", "pandas"),
    "sparkConf": {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC", "spark.executor.heartbeatInterval": "5s"},
    "driver": {
        "template": {"spec": {"containers": [_DRIVER], "volumes": [*_VOLUMES, {"name": "code", "configMap": {"name": CODE}}]}}
    },
    "executor": {
        "instances": 1,
        "cores": 1,
        "memory": "640m",
        "template": {"spec": {"containers": [_EXECUTOR], "volumes": _VOLUMES}},
    },
}
"""What is of the cluster: where code and packages come from, the folders of the node, and the executors."""


@dataclass(frozen=True)
class KeyedPods(Deployed):
    """How such a group is run here."""

    settle: str | None = None

    @property
    def notes(self) -> Path:
        return self.lab.shared / self.namespace / NOTES_CLAIM / self.name

    def begin(self, records: Records, consumers: int) -> None:
        spec = merge(declared(records, consumers, f"{NOTES}/{self.name}", self.settle), {"application": APPLICATION})
        self.lab.kube.apply(group(self.name, self.namespace, **spec))

    def scale(self, consumers: int) -> None:
        self.lab.kube.run("scale", RESOURCE, self.name, "-n", self.namespace, f"--replicas={consumers}")

    def kill(self, consumer: str) -> None:
        self.until(f"has {consumer} running", lambda: consumer in self.running())
        self.lab.kill_process(self.namespace, consumer, self.lab.child_of_init(self.namespace, consumer))

    def kill_operator(self) -> None:
        self.lab.kill_operator()

    def end(self) -> None:
        self.lab.kube.run("delete", RESOURCE, self.name, "-n", self.namespace, "--ignore-not-found", "--wait=false")
        self.until("has no pod left", lambda: not self.pods())

    def holders(self) -> Mapping[str, str | None]:
        if not self.lab.kube.find("configmap", f"{self.name}-state", "-n", self.namespace):
            return {}
        shards = self.ownership().shards.values()
        return {each.shard: each.holder if each.state is ShardState.ALREADY_ALLOC else None for each in shards}

    def until(self, what: str, probe: Callable[[], Any], within: float = WITHIN, every: float = 0.5) -> Any:
        return super().until(what, probe, within, every)

    def running(self) -> set[str]:
        """The drivers whose containers run."""
        statuses = {pod["metadata"]["name"]: pod["status"].get("containerStatuses", []) for pod in self.pods("consumer")}
        return {name for name, found in statuses.items() if found and "running" in found[0]["state"]}

    def runs_with_executors(self) -> set[tuple[str, str]]:
        """The runs of consumers that have executors now."""
        labels = [pod["metadata"]["labels"] for pod in self.pods("executor")]
        return {(each["shardherd.dev/consumer"], each["shardherd.dev/incarnation"]) for each in labels}


def prepare(lab: Lab) -> None:
    """What such groups need in their namespace: storage for the state, for their notes, and the application's own packages."""
    lab.make_volume(NAMESPACE, CLAIM)
    lab.make_volume(NAMESPACE, NOTES_CLAIM)
    _bring(lab.make_volume(NAMESPACE, PACKAGES_CLAIM))
    code = Path(application.__file__)
    metadata = {"name": CODE, "namespace": NAMESPACE}
    lab.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {code.name: code.read_text()}})


def _bring(folder: Path) -> None:
    """Copy packages of this Python, which has the version of the image's, and compile them: pods may not write here."""
    for part, name in ((part, name) for part, names in BROUGHT.items() for name in names):
        found = distribution(name)
        for file in found.files or ():
            if not {"..", "__pycache__", "tests"} & set(file.parts):
                there = folder / part / file
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(found.locate_file(file)), there)
    compileall.compile_dir(folder, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


@contextmanager
def trial(lab: Lab, folder: Path, name: str, settle: str | None = None) -> Iterator[Trial[KeyedPods]]:
    """A trial of a group of this name, whose topics are new; nothing is declared yet, and the group is deleted afterwards."""
    running = KeyedPods(lab, NAMESPACE, name, settle)
    records = Records(lab.kafka_bootstrap, f"{NAMESPACE}.{name}", name)
    try:
        yield Trial(folder, running, records)
    finally:
        records.close()
        lab.kube.run("delete", RESOURCE, name, "-n", NAMESPACE, "--ignore-not-found", "--wait=false")
