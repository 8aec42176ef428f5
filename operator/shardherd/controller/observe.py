"""Turns what was read of a group into the `Observation` that is planned with. The one place where manifests become values.

Called by `reconcile`. Pure; all reading was done before, through the `Cluster` and `Coordination` ports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardherd.controller import pods
from shardherd.controller.deaths import Deaths, executor_ended
from shardherd.controller.declared import digest
from shardherd.controller.history import RolloutHistory, effective, history
from shardherd.controller.wanted import Renderings, applied
from shardherd.core.model.nouns import GroupView
from shardherd.core.planning.observed import Memory, Observation, Owned, OwnedSet
from shardherd.ports import GroupObjects

Resource = Mapping[str, Any]


def observe(
    objects: GroupObjects,
    view: GroupView | None,
    deaths: Deaths,
    renderings: Renderings,
    *,
    memory: Memory,
    previous: Mapping[str, object],
    rejections: tuple[str, ...],
    trust_current: bool = True,
    now: float,
    wall: float,
) -> Observation:
    """One consistent observation of the group. Raises declared.InvalidGroupError."""
    known = history(objects.stateful_set)
    resource = effective(objects.group, known)
    rejected = resource is not objects.group
    wanted = renderings.of(resource, known.rejected if rejected else "")
    spec = wanted.declared
    if rejected:
        spec = replace(spec, rejected=known.because or "What is declared did not run.")
    drivers = (
        pods.driver(pod, spec.template_hash, objects.logs.get(pod["metadata"]["uid"], ""), renderings.operator)
        for pod in objects.pods
    )
    found = ((pods.executor(pod), executor_ended(pod, gone=False)) for pod in objects.pods)
    executors = tuple(replace(executor, ended=ended) for executor, ended in found if executor is not None)
    proven = deaths.proven(ordered=spec.settings.ordered, executors=spec.executors)
    listed = () if view is None else tuple(consumer.incarnation for consumer in view.consumers)
    return Observation(
        declared=spec,
        now=now,
        wall=wall,
        stateful_set=_owned_set(objects.stateful_set, resource, wanted.stateful_set, known, rejected=rejected),
        service=_owned(objects.service, resource, wanted.service),
        budget=_owned(objects.budget, resource, wanted.budget),
        trust_current=trust_current,
        consumers=tuple(sorted((driver for driver in drivers if driver is not None), key=lambda driver: driver.ordinal)),
        executors=executors,
        # A coordinator that has not loaded the group yet cannot take a proof; it is kept until it can.
        deaths=() if view is None else deaths.unreported(proven, listed),
        dead=deaths.dead(),
        view=view,
        warnings=objects.warnings,
        rejections=rejections,
        previous=previous,
        memory=memory,
    )


def _owned(existing: Resource | None, resource: Resource, wanted: str) -> Owned | None:
    if existing is None:
        return None
    return Owned(ours=_is_ours(existing, resource), current=applied(existing) == wanted)


def _owned_set(
    existing: Resource | None, resource: Resource, wanted: str, known: RolloutHistory, *, rejected: bool
) -> OwnedSet | None:
    if existing is None:
        return None
    replicas = int(existing["spec"].get("replicas", 1))
    return OwnedSet(
        ours=_is_ours(existing, resource),
        current=applied(existing) == wanted and rejected == bool(known.rejected),
        replicas=replicas,
        fallback="" if known.fallback is None else digest(known.fallback),
    )


def _is_ours(existing: Resource, resource: Resource) -> bool:
    owners = existing["metadata"].get("ownerReferences", ())
    return any(owner.get("controller") and owner["uid"] == resource["metadata"]["uid"] for owner in owners)
