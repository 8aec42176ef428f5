"""Merges a user's pod template into ours, as Kubernetes' strategic merge does for the fields of a pod.

Maps merge by key, lists of named things merge by their name, `tolerations` and the like are appended to, every other list is
replaced, and null removes. Pure; called by `manifests`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
}
_APPENDED = frozenset({"tolerations", "topologySpreadConstraints", "envFrom", "readinessGates"})


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `patch` over it; neither is changed."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            known = result.get(key)
            result[key] = merge(known if isinstance(known, Mapping) else {}, value)
        elif isinstance(value, Sequence) and not isinstance(value, str) and isinstance(result.get(key), list):
            result[key] = _merge_lists(key, result[key], value)
        else:
            result[key] = value
    return result


def _merge_lists(field: str, base: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    if field in _APPENDED:
        return [*base, *(item for item in patch if item not in base)]
    name = _KEYS.get(field)
    if name is None or not all(isinstance(item, Mapping) and name in item for item in (*base, *patch)):
        return list(patch)
    merged = {item[name]: dict(item) for item in base}
    for item in patch:
        merged[item[name]] = merge(merged.get(item[name], {}), item)
    return list(merged.values())
