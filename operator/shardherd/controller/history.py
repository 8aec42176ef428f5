"""What the StatefulSet's annotations remember of declarations: what it was made from, what ran before, what did not run.

Called by `observe` and `apply`, so that a new declaration that does not run can be taken back although the resource says it,
and after a restart of the operator. Pure. A declaration is what of a spec pods are made from, without defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardherd.controller import names
from shardherd.controller.declared import PAUSES, compact, digest, pod_inputs, with_pod_inputs
from shardherd.ports import GroupObjects

Inputs = Mapping[str, Any]

LARGEST = 64 * 1024
"""Characters of a declaration that is remembered: all annotations of an object have 256 KiB together."""


@dataclass(frozen=True, slots=True)
class RolloutHistory:
    """`applied` is what the StatefulSet is made from, `fallback` the last other one that all consumers ran; None if not known.

    `rejected` is the hash of a declaration that did not run in time, `because` what was wrong with it.
    """

    applied: Inputs | None = None
    fallback: Inputs | None = None
    rejected: str = ""
    because: str = ""


def history(stateful_set: Mapping[str, Any] | None) -> RolloutHistory:
    """What this StatefulSet remembers."""
    noted = {} if stateful_set is None else stateful_set["metadata"].get("annotations", {})
    return RolloutHistory(
        applied=_read(noted.get(names.DECLARATION)),
        fallback=_read(noted.get(names.FALLBACK)),
        rejected=str(noted.get(names.REJECTED, "")),
        because=str(noted.get(names.REJECTED_BECAUSE, "")),
    )


def effective(resource: Mapping[str, Any], known: RolloutHistory) -> Mapping[str, Any]:
    """The resource as pods are made from it: one whose declaration was rejected runs what ran before."""
    if not known.rejected or known.fallback is None or digest(pod_inputs(resource["spec"])) != known.rejected:
        return resource
    return with_pod_inputs(resource, known.fallback)


def as_before(objects: GroupObjects) -> GroupObjects | None:
    """The group as its pods were made, with nothing to be changed: for when what is declared now cannot be read. None if it has
    no pods yet."""
    known = history(objects.stateful_set)
    if known.applied is None:
        return None
    resource = with_pod_inputs(objects.group, known.applied)
    metadata = resource["metadata"]
    paused = {**(metadata.get("annotations") or {}), PAUSES["reconcile"]: "true"}
    return replace(objects, group={**resource, "metadata": {**metadata, "annotations": paused}})


def to_remember(resource: Mapping[str, Any], known: RolloutHistory, proven: str) -> dict[str, str]:
    """What a StatefulSet that is made from this effective resource has to remember.

    `proven` is the hash of the last declaration that all consumers ran.
    """
    inputs = pod_inputs(resource["spec"])
    fallback = known.fallback
    if known.applied is not None and known.applied != inputs and digest(known.applied) == proven:
        fallback = known.applied
    written = {
        names.DECLARATION: _written(inputs),
        names.FALLBACK: _written(fallback),
        names.REJECTED: known.rejected,
        names.REJECTED_BECAUSE: known.because[:1024],
    }
    return {name: value for name, value in written.items() if value}


def rolled_back(resource: Mapping[str, Any], known: RolloutHistory, because: str) -> tuple[Mapping[str, Any], RolloutHistory]:
    """The resource as it ran before, and what to remember of it: what the resource declares is given up."""
    assert known.fallback is not None, "there is nothing to go back to"
    rejected = digest(pod_inputs(resource["spec"]))
    return with_pod_inputs(resource, known.fallback), RolloutHistory(known.fallback, known.fallback, rejected, because)


def _read(text: object) -> Inputs | None:
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        # Somebody edited it: what is not known cannot be gone back to.
        return None
    return found if isinstance(found, dict) else None


def _written(inputs: Inputs | None) -> str:
    if inputs is None:
        return ""
    text = compact(inputs)
    return text if len(text) <= LARGEST else ""
