"""Names, labels and owner of a group's ConfigMaps. Used by the adapters that keep something of a group in them."""

from __future__ import annotations

from typing import Any

from shardherd.core.model import GroupIdentity


def path(group: GroupIdentity, part: str) -> str:
    """The API path of the group's ConfigMap for this part of its state."""
    return f"/api/v1/namespaces/{group.namespace}/configmaps/{group.name}-{part}"


def metadata(group: GroupIdentity, part: str) -> dict[str, Any]:
    """Its metadata: it goes when the group goes."""
    return {
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


def owned(found: Any, group: GroupIdentity) -> bool:
    """Whether a ConfigMap is of this very group, not of a deleted one of the same name."""
    return any(owner.get("uid") == group.uid for owner in found["metadata"].get("ownerReferences", ()))
