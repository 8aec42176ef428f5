"""The autoscaler that the documentation shows, for a group of a test. Used where the real controller of autoscalers runs."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dev.cluster import Cluster
from tests.integration.controller.bench import ROOT

Json = dict[str, Any]


def autoscaler(namespace: str, group: str, *, most: int, each: int) -> Json:
    """The manifest of docs/day-two.md, of this group: one consumer for `each` records, `most` at most, fewer at once."""
    section = (ROOT / "docs" / "day-two.md").read_text().partition("### By an autoscaler\n")[2]
    shown = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert shown is not None
    made: Json = yaml.safe_load(shown[1])
    made["metadata"] = {"name": group, "namespace": namespace}
    made["spec"]["scaleTargetRef"]["name"] = group
    made["spec"]["maxReplicas"] = most
    external = made["spec"]["metrics"][0]["external"]
    external["metric"]["selector"]["matchLabels"]["consumergroup"] = group
    external["target"]["averageValue"] = str(each)
    made["spec"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    return made


def condition(cluster: Cluster, namespace: str, group: str) -> tuple[str, str]:
    """Status and reason of the autoscaler's condition ScalingActive."""
    where = '{.status.conditions[?(@.type=="ScalingActive")]'
    printed = cluster.kubectl("get", "hpa", group, "-n", namespace, "-o", f"jsonpath={where}.status}} {where}.reason}}")
    status, _, reason = printed.partition(" ")
    return status, reason
