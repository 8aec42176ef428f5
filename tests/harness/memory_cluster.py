"""Twin of the controller's `Cluster`: objects in dictionaries, and a log of every write. Decides nothing.

It knows as much of server-side apply as one field manager needs: what is applied replaces what that manager applied before,
and the server's own fields (UID, status) stay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError, GroupObjects, Manifest

_LABEL = "shardherd.dev/consumergroup"


class MemoryCluster:
    """Cluster for tests. `writes` says what was written, in order; `refuse` and `available` make it fail."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.warnings: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.logs: dict[str, str] = {}
        self.writes: list[str] = []
        self.reads = 0
        self.available = True
        self.refuse: dict[str, str] = {}
        """By kind: what the server says to an apply of it."""
        self.after_read: Callable[[], None] = lambda: None
        """What happens between the server's reading and the arrival of its answer."""

    def put(self, kind: str, manifest: Manifest) -> None:
        """The object is there, by whatever way."""
        metadata = manifest["metadata"]
        self.objects[kind, metadata["namespace"], metadata["name"]] = copy.deepcopy(dict(manifest))

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """The object is gone."""
        del self.objects[kind, namespace, name]

    async def read(self, namespace: str, name: str) -> GroupObjects | None:
        self._answer()
        self.reads += 1
        found = self._read(namespace, name)
        self.after_read()
        return found

    def _read(self, namespace: str, name: str) -> GroupObjects | None:
        group = self._get("ConsumerGroup", namespace, name)
        if group is None:
            return None
        pods = tuple(
            copy.deepcopy(item)
            for (kind, where, _), item in sorted(self.objects.items())
            if kind == "Pod" and where == namespace and item["metadata"].get("labels", {}).get(_LABEL) == name
        )
        return GroupObjects(
            group=group,
            stateful_set=self._get("StatefulSet", namespace, name),
            service=self._get("Service", namespace, name),
            budget=self._get("PodDisruptionBudget", namespace, name),
            pods=pods,
            warnings=tuple(self.warnings.get((namespace, name), ())),
            logs=dict(self.logs),
        )

    async def apply(self, manifest: Manifest) -> None:
        self._answer()
        kind, metadata = manifest["kind"], manifest["metadata"]
        if kind in self.refuse:
            raise ClusterRefusedError(self.refuse[kind])
        known = self.objects.get((kind, metadata["namespace"], metadata["name"]), {})
        applied = copy.deepcopy(dict(manifest))
        applied["metadata"]["uid"] = known.get("metadata", {}).get("uid", f"uid-of-{kind}")
        if "status" in known:
            applied["status"] = known["status"]
        self.put(kind, applied)
        replicas = manifest.get("spec", {}).get("replicas")
        self.writes.append(f"apply {kind} {metadata['name']}" + ("" if replicas is None else f" x{replicas}"))

    async def write_status(self, group: GroupIdentity, status: Manifest) -> None:
        self._answer()
        resource = self.objects.get(("ConsumerGroup", group.namespace, group.name))
        if resource is None or resource["metadata"]["uid"] != group.uid:
            return
        resource["status"] = copy.deepcopy(dict(status))
        self.writes.append(f"status {group.name}")

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        self._answer()
        pod = self.objects.get(("Pod", namespace, name))
        if pod is not None and pod["metadata"]["uid"] == uid:
            self.remove("Pod", namespace, name)
            self.writes.append(f"delete Pod {name}")

    def _get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    def _answer(self) -> None:
        if not self.available:
            raise ClusterUnavailableError("the API server does not answer")
