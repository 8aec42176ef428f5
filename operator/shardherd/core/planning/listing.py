"""A group as its resource has it: which one it is, its conditions, its row in a table; and tables as text.

Called by the controller, the page and the command line. Must not say anything that the resource does not: what a
condition says is repeated, not judged again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardherd.core.model.nouns import GroupIdentity
from shardherd.core.model.reasons import ConditionType

GROUP_HEADS = ("GROUP", "READY", "SHARDS", "ASSIGNED", "CONSUMERS", "LAG", "WHY")

NOTHING = "-"
"""What is not known, or does not apply."""


def reads_kinesis(resource: Mapping[str, Any]) -> bool:
    """Whether this group's source is in Kinesis, as far as its resource can be read."""
    return "kinesis" in resource.get("spec", {}).get("source", {})


def identity_of(resource: Mapping[str, Any]) -> GroupIdentity:
    """Which group a resource is."""
    metadata = resource["metadata"]
    return GroupIdentity(metadata["namespace"], metadata["name"], metadata.get("uid", ""))


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type in a group's status; empty if there is none yet."""
    conditions = resource.get("status", {}).get("conditions", ())
    found: Mapping[str, Any] = next((each for each in conditions if each["type"] == kind), {})
    return found


def group_row(resource: Mapping[str, Any]) -> tuple[object, ...]:
    """The row of GROUP_HEADS."""
    metadata, status = resource["metadata"], resource.get("status", {})
    ready = condition(resource, ConditionType.READY)
    counts = status.get("shards", {})
    return (
        f"{metadata['namespace']}/{metadata['name']}",
        ready.get("status", "Unknown"),
        counts.get("total", NOTHING),
        counts.get("alreadyAlloc", NOTHING),
        f"{status.get('readyReplicas', 0)}/{status.get('desiredReplicas', NOTHING)}",
        status.get("lag", {}).get("records", NOTHING),
        ready.get("message", "nothing was looked at yet"),
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The rows below their heads, each column as wide as it must be, the last one as long as it is."""
    lines = [tuple(heads), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
