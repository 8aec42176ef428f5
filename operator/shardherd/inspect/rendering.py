"""What the controller would create for a manifest: the answer of `render`. Pure, but for reading files.

The manifest is judged as the API server does, planned by the controller's own plan, and rendered by its own manifests; so it is
what would come to be, but for what the operator's flags are: they are options here. Pods are judged as on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardherd.adapters.local.pod_specs import wrong
from shardherd.controller.declared import InvalidGroupError, declared
from shardherd.controller.manifests import Manifests
from shardherd.core.model.nouns import GroupView, ShardId, ShardState, ShardView
from shardherd.core.planning.observed import Observation
from shardherd.core.planning.plan import ApplyStatefulSet, plan
from shardherd.inspect.observed import InspectError
from shardherd.local.manifest import NAMESPACE, ManifestError, called, documents
from shardherd.local.schema import RefusedError, admitted

UID = "00000000-0000-0000-0000-000000000000"
"""In the place of the UID that the API server would give."""


def render(files: Sequence[Path], shards: int, url: str, audience: str, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The objects of every ConsumerGroup in these files, for sources of so many shards. Raises InspectError."""
    try:
        groups = [each for file in files for each in documents(file) if each.get("kind") == "ConsumerGroup"]
        made = [each for group in groups for each in _objects(group, shards, Manifests(url, audience, trust=True), namespace)]
    except (ManifestError, RefusedError, InvalidGroupError) as error:
        raise InspectError(str(error)) from error
    if not groups:
        raise InspectError(f"no ConsumerGroup stands in {', '.join(map(called, files))}: add one, or name another file by -f")
    return made


def _objects(document: Mapping[str, Any], shards: int, manifests: Manifests, namespace: str) -> list[dict[str, Any]]:
    resource = admitted(document)
    resource["metadata"] = {"namespace": namespace, "uid": UID, "generation": 1, **resource["metadata"]}
    manifests.check(resource)
    view = GroupView(0, 0, _shards(shards), (), source_reachable=True, discovered=True)
    planned = plan(Observation(declared(resource), now=0.0, wall=0.0, view=view))
    replicas = next((action.replicas for action in planned.actions if isinstance(action, ApplyStatefulSet)), 0)
    made = manifests.stateful_set(resource, replicas)
    if said := wrong(made["spec"]["template"]["spec"]):
        raise InspectError(f'StatefulSet "{made["metadata"]["name"]}" is invalid: {said}')
    return [manifests.service(resource), manifests.budget(resource), made]


def _shards(number: int) -> tuple[ShardView, ...]:
    return tuple(
        ShardView(ShardId(f"topic/{at}"), ShardState.NOT_ALLOC, checkpoint=0, begin=0, end=0, lag_records=0)
        for at in range(number)
    )
