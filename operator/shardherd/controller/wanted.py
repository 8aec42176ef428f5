"""What each version of a resource declares, and the hashes of the objects that it wants, worked out once and kept.

Called by `observe`, which looks at every group every few seconds: rendering is most of the cost of such a look, and gives the
same until the resource changes. Holds one version a group. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.controller import names
from shardherd.controller.declared import declared, pauses
from shardherd.controller.manifests import Manifests
from shardherd.core.planning.observed import Declared

Resource = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`declared` as the resource says it; the others are hashes of the manifests that it asks for."""

    declared: Declared
    service: str
    budget: str
    stateful_set: str


class Renderings:
    """What is wanted of every group. One object a controller."""

    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._known: dict[str, tuple[tuple[object, ...], Wanted]] = {}

    @property
    def operator(self) -> str:
        """The name of the operator that pods are made for."""
        return self._manifests.operator

    def of(self, resource: Resource, rejected: str = "") -> Wanted:
        """What this effective resource wants. `rejected` tells apart what one generation stands for before and after a
        roll-back. Raises declared.InvalidGroupError."""
        metadata = resource["metadata"]
        # Annotations and deletion leave the generation as it is. Without a generation nothing tells two versions apart.
        version = (metadata.get("generation"), "deletionTimestamp" in metadata, pauses(metadata), rejected)
        known = self._known.get(metadata["uid"])
        if known is not None and known[0] == version and metadata.get("generation") is not None:
            return known[1]
        manifests = self._manifests
        manifests.check(resource)
        wanted = Wanted(
            declared=declared(resource),
            service=applied(manifests.service(resource)),
            budget=applied(manifests.budget(resource)),
            stateful_set=applied(manifests.stateful_set(resource, 0)),
        )
        self._known[metadata["uid"]] = (version, wanted)
        return wanted

    def forget(self, uid: str) -> None:
        """The group with this UID was deleted."""
        self._known.pop(uid, None)


def applied(manifest: Resource) -> str:
    """The hash of the manifest that an object was made from; empty if it does not say, or is not labelled as the group's."""
    metadata = manifest["metadata"]
    if metadata.get("labels", {}).get(names.GROUP_LABEL) != metadata["name"]:
        return ""  # no watch shows it
    return str(manifest["metadata"].get("annotations", {}).get(names.MANIFEST_HASH, ""))
