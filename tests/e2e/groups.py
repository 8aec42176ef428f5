"""ConsumerGroups for the end-to-end tests, made from the example application's own manifest, and what is seen of them.

Holds no assertion.
"""

from __future__ import annotations

import base64
import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from dev.demo.kube import Json, condition, is_true
from dev.demo.lab import Lab
from dev.demo.place import MANIFEST
from dev.demo.place import NAMESPACE as DEMO
from dev.demo.report import await_that
from shardherd.adapters.kubernetes.ownership import KEY
from shardherd.core.group.ownership import decode
from shardherd.core.group.records import Ownership
from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardId

RESOURCE = "consumergroups.shardherd.dev"
CALLERS, FAULTS, SOAK, VARIANTS, WRONG = "callers", "faults", "soak", "variants", "wrong"
NAMESPACES = (DEMO, CALLERS, FAULTS, SOAK, VARIANTS, WRONG)

Grant = tuple[ConsumerId | None, Incarnation | None, int]
"""Holder, run and epoch of a shard."""


def example() -> Json:
    """The manifest of spark_apps/clickstream."""
    found: Json = yaml.safe_load(MANIFEST.read_text())
    return found


def group(name: str, namespace: str, **changes: Any) -> Json:
    """The example under another name. A change is a path with `__` for the dots below `spec`, and a value; None removes."""
    made = copy.deepcopy(example())
    made["metadata"] = {"name": name, "namespace": namespace}
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = made["spec"]
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return made


@dataclass(frozen=True)
class Deployed:
    """One group on the cluster, by its namespace and name."""

    lab: Lab
    namespace: str
    name: str

    def resource(self) -> Json:
        return self.lab.kube.get(RESOURCE, self.name, "-n", self.namespace)

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition that is about what is declared now; empty until there is one."""
        resource = self.resource()
        found = condition(resource, kind)
        if found is None or found["observedGeneration"] != resource["metadata"]["generation"]:
            return ("", "", "")
        return (found["status"], found["reason"], found["message"])

    def pods(self, component: str = "") -> list[Json]:
        """Its pods, or those of drivers (`consumer`) or of executors (`executor`) alone."""
        chosen = f",app.kubernetes.io/component={component}" if component else ""
        return self.lab.kube.pods(self.namespace, f"shardherd.dev/consumergroup={self.name}{chosen}")

    def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of the events about the group."""
        about = f"--field-selector=involvedObject.name={self.name},involvedObject.kind=ConsumerGroup"
        found = self.lab.kube.items("events", "-n", self.namespace, about)
        return [(event["type"], event["reason"], event["message"]) for event in found]

    def ownership(self) -> Ownership:
        """What the coordinator has stored."""
        stored = self.lab.kube.get("configmap", f"{self.name}-state", "-n", self.namespace)["binaryData"][KEY]
        return decode(json.loads(gzip.decompress(base64.b64decode(stored))))

    def grants(self) -> dict[ShardId, Grant]:
        """Who holds each shard, in which run, and under which epoch, as it is stored."""
        shards = self.ownership().shards
        return {shard: (record.holder, record.incarnation, record.owner_epoch) for shard, record in shards.items()}

    def change(self, spec: Json) -> None:
        """Declare something else, by a merge patch of `spec`."""
        patch = json.dumps({"spec": spec})
        self.lab.kube.run("patch", RESOURCE, self.name, "-n", self.namespace, "--type=merge", "-p", patch)

    def explain(self) -> str:
        return self.lab.kube.explain(self.namespace, self.name)

    def await_ready(self, within: float) -> None:
        self.until("is Ready", lambda: is_true(self.resource(), "Ready"), within)

    def until(self, what: str, probe: Callable[[], Any], within: float, every: float = 1.0) -> Any:
        """What `probe` returns once that is true; `within` and `every` in seconds."""
        return await_that(f"{self.name} {what}", probe, within=within, every=every, explain=self.explain)
