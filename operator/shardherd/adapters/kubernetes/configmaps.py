"""Names, labels and owner of a group's ConfigMaps. Used by the adapters that keep something of a group in them."""

from __future__ import annotations

import base64
from typing import Any

from shardherd.adapters.kubernetes.api import MANAGER
from shardherd.core.model.nouns import GroupIdentity


def collection(group: GroupIdentity) -> str:
    """The API path of where they are made."""
    return f"/api/v1/namespaces/{group.namespace}/configmaps"


def path(group: GroupIdentity, part: str) -> str:
    """The API path of the group's ConfigMap for this part of its state."""
    return f"{collection(group)}/{group.name}-{part}"


def body(group: GroupIdentity, part: str, key: str, data: bytes, version: str | None = None) -> dict[str, Any]:
    """The ConfigMap with these bytes, to be made, or to be written over this version. It goes when the group goes."""
    about = {
        "name": f"{group.name}-{part}",
        "namespace": group.namespace,
        "labels": {
            "app.kubernetes.io/name": "shardherd",
            "app.kubernetes.io/managed-by": "shardherd",
            "shardherd.dev/consumergroup": group.name,
        },
        "ownerReferences": [
            {
                "apiVersion": "shardherd.dev/v1alpha1",
                "kind": "ConsumerGroup",
                "name": group.name,
                "uid": group.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
    if version is not None:
        about["resourceVersion"] = version
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "binaryData": {key: base64.b64encode(data).decode()}}


def owned(found: Any, group: GroupIdentity) -> bool:
    """Whether a ConfigMap is of this very group, not of a deleted one of the same name."""
    return any(owner.get("uid") == group.uid for owner in found["metadata"].get("ownerReferences", ()))


def foreign(found: Any, key: str) -> bool:
    """Whether somebody else than this program wrote the bytes of this key last, by what the API server notes of each write.

    Who puts an older copy back becomes their manager, by whatever tool; who changes a label does not. A server that notes
    nothing shows nothing.
    """
    entries = found["metadata"].get("managedFields") or ()
    mine = [entry for entry in entries if str(entry.get("manager", "")).startswith(MANAGER)]
    return bool(entries) and not any(f"f:{key}" in entry.get("fieldsV1", {}).get("f:binaryData", {}) for entry in mine)
