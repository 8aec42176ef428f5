"""What every `Cluster` does, real or in memory. Subclasses give the fixtures `cluster_port`, `lab` and `namespace`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from shardherd.controller.manifests import Manifests
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import Cluster, GroupObjects

MANIFESTS = Manifests("http://shardherd.system.svc:8080", "shardherd")

Json = dict[str, Any]


class ObjectsLab(ABC):
    """What the tests do around the port: as a user, a StatefulSet's controller or a kubelet would."""

    namespace: str

    @abstractmethod
    async def group(self) -> Json:
        """Make a ConsumerGroup; the resource as it is kept."""

    @abstractmethod
    async def delete_group(self, name: str) -> None:
        """Delete it, and wait until it is gone."""

    @abstractmethod
    async def pod(self, group: str, name: str) -> Json:
        """Make a pod with the group's label; the pod as it is kept."""


async def read(cluster: Cluster, resource: Json) -> GroupObjects:
    """The group, which must be there."""
    found = await cluster.read(resource["metadata"]["namespace"], resource["metadata"]["name"])
    assert found is not None
    return found


def owners(manifest: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The UIDs of an object's owners, and whether each controls it."""
    return [(owner["uid"], owner["controller"]) for owner in manifest["metadata"]["ownerReferences"]]


def ours(manifest: Mapping[str, Any] | None) -> Json:
    """The labels of an object that begin with our name."""
    assert manifest is not None
    return {name: value for name, value in manifest["metadata"]["labels"].items() if name.startswith("shardherd.dev/")}


class ClusterContract:
    """The behaviour that the controller relies on."""

    async def test_a_group_that_does_not_exist_is_none(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        assert await cluster_port.read(lab.namespace, "not-there") is None

    async def test_a_new_group_has_no_objects(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        resource = await lab.group()
        found = await read(cluster_port, resource)
        assert found.group["metadata"]["uid"] == resource["metadata"]["uid"]
        assert (found.stateful_set, found.service, found.budget, found.pods) == (None, None, None, ())

    async def test_what_is_applied_is_read_back(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        resource = await lab.group()
        wanted = (MANIFESTS.stateful_set(resource, 0), MANIFESTS.service(resource), MANIFESTS.budget(resource))
        for manifest in wanted:
            await cluster_port.apply(manifest)
        found = await read(cluster_port, resource)
        for read_back, manifest in zip((found.stateful_set, found.service, found.budget), wanted, strict=True):
            assert read_back is not None
            assert read_back["metadata"]["annotations"] == manifest["metadata"]["annotations"]
            assert owners(read_back) == owners(manifest) == [(resource["metadata"]["uid"], True)]
            assert read_back["metadata"]["uid"]

    async def test_applying_again_changes_what_differs_and_keeps_the_object(
        self, cluster_port: Cluster, lab: ObjectsLab
    ) -> None:
        resource = await lab.group()
        await cluster_port.apply(MANIFESTS.stateful_set(resource, 0))
        before = (await read(cluster_port, resource)).stateful_set
        await cluster_port.apply(MANIFESTS.stateful_set(resource, 2))
        after = (await read(cluster_port, resource)).stateful_set
        assert before is not None
        assert after is not None
        assert (before["spec"]["replicas"], after["spec"]["replicas"]) == (0, 2)
        assert before["metadata"]["uid"] == after["metadata"]["uid"]

    async def test_a_label_that_is_left_out_is_removed(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        resource = await lab.group()
        manifest = MANIFESTS.service(resource)
        more = copy.deepcopy(manifest)
        more["metadata"]["labels"]["shardherd.dev/extra"] = "yes"
        await cluster_port.apply(more)
        assert ours((await read(cluster_port, resource)).service) == ours(more)
        await cluster_port.apply(manifest)
        assert ours((await read(cluster_port, resource)).service) == ours(manifest)

    async def test_a_status_is_written_and_the_next_one_replaces_it(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        resource = await lab.group()
        metadata = resource["metadata"]
        identity = GroupIdentity(metadata["namespace"], metadata["name"], metadata["uid"])
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Fine",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await cluster_port.write_status(identity, {"replicas": 1, "conditions": [ready, {**ready, "type": "Balanced"}]})
        await cluster_port.write_status(identity, {"replicas": 2, "conditions": [ready]})
        assert (await read(cluster_port, resource)).group["status"] == {"replicas": 2, "conditions": [ready]}

    async def test_the_status_of_another_group_of_that_name_is_left_alone(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        resource = await lab.group()
        metadata = resource["metadata"]
        stale = GroupIdentity(metadata["namespace"], metadata["name"], "00000000-0000-0000-0000-000000000000")
        await cluster_port.write_status(stale, {"replicas": 7})
        assert "status" not in (await read(cluster_port, resource)).group
        await lab.delete_group(metadata["name"])
        await cluster_port.write_status(
            GroupIdentity(metadata["namespace"], metadata["name"], metadata["uid"]), {"replicas": 7}
        )

    async def test_pods_of_the_group_are_read_and_no_others(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        resource, other = await lab.group(), await lab.group()
        name = resource["metadata"]["name"]
        await lab.pod(name, f"{name}-0")
        await lab.pod(other["metadata"]["name"], f"{other['metadata']['name']}-0")
        assert [pod["metadata"]["name"] for pod in (await read(cluster_port, resource)).pods] == [f"{name}-0"]

    async def test_only_this_very_pod_is_deleted(self, cluster_port: Cluster, lab: ObjectsLab) -> None:
        resource = await lab.group()
        name = resource["metadata"]["name"]
        pod = await lab.pod(name, f"{name}-0")
        await cluster_port.delete_pod(lab.namespace, f"{name}-0", "00000000-0000-0000-0000-000000000000")
        assert len((await read(cluster_port, resource)).pods) == 1
        await cluster_port.delete_pod(lab.namespace, f"{name}-0", pod["metadata"]["uid"])
        assert (await read(cluster_port, resource)).pods == ()
        await cluster_port.delete_pod(lab.namespace, f"{name}-0", pod["metadata"]["uid"])
