"""Evaluates NetworkPolicies as a network that enforces them would: who reaches what. Used by tests; the local network ignores
policies. Knows what the chart uses: pod and namespace selectors, and ports by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """A pod, or (without a namespace) something outside of the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


OUTSIDE = Endpoint()


def reaches(policies: Iterable[Json], source: Endpoint, target: Endpoint, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let out of its source and into its target."""
    policies = list(policies)
    return _passes(policies, "Egress", source, target, port, protocol) and _passes(
        policies, "Ingress", target, source, port, protocol
    )


def _passes(policies: list[Json], direction: str, ours: Endpoint, peer: Endpoint, port: int, protocol: str) -> bool:
    selecting = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == ours.namespace
        and direction in policy["spec"]["policyTypes"]
        and _matches(policy["spec"]["podSelector"], ours.labels)
    ]
    if not selecting:
        return True
    side = "to" if direction == "Egress" else "from"
    return any(
        _peers(rule.get(side), policy["metadata"]["namespace"], peer) and _ports(rule.get("ports"), port, protocol)
        for policy in selecting
        for rule in policy["spec"].get(direction.lower(), [])
    )


def _ports(ports: list[Json] | None, port: int, protocol: str) -> bool:
    return ports is None or any(item["port"] == port and item["protocol"] == protocol for item in ports)


def _peers(peers: list[Json] | None, namespace: str, peer: Endpoint) -> bool:
    return peers is None or any(_peer(item, namespace, peer) for item in peers)


def _peer(item: Json, namespace: str, peer: Endpoint) -> bool:
    assert set(item) <= {"podSelector", "namespaceSelector"}, f"not known here: {item}"
    if not peer.namespace:
        return False
    if "namespaceSelector" in item:
        if not _matches(item["namespaceSelector"], {"kubernetes.io/metadata.name": peer.namespace}):
            return False
    elif peer.namespace != namespace:
        return False
    return _matches(item.get("podSelector", {}), peer.labels)


def _matches(selector: Json, labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}, f"not known here: {selector}"
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    match expression["operator"]:
        case "Exists":
            return expression["key"] in labels
        case "In":
            return labels.get(expression["key"]) in expression["values"]
        case other:
            raise AssertionError(f"not known here: {other}")
