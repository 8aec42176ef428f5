"""Carries out the actions of a plan. The one writer of the controller; it decides nothing.

Called by `reconcile`. What the API server refuses is returned as text for the status, so that one refused object does not keep
the others from being applied; an API server that does not answer ends the attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardherd.controller.deaths import Deaths
from shardherd.controller.history import effective, history, rolled_back, to_remember
from shardherd.controller.manifests import Manifests
from shardherd.controller.trust import Trust
from shardherd.core.model.nouns import GroupIdentity
from shardherd.core.planning.listing import identity_of
from shardherd.core.planning.plan import (
    Action,
    ApplyBudget,
    ApplyService,
    ApplyStatefulSet,
    DeletePod,
    PublishTrust,
    ReportDeath,
    RollBack,
    TellCoordinator,
)
from shardherd.ports import Cluster, ClusterRefusedError, Coordination, GroupObjects
from shardherd.telemetry.logs import fields

logger = logging.getLogger(__name__)

RETRY_REFUSED = 30.0
"""Seconds until what was refused is tried again, if the resource stays as it is."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """What the API server said to an action for this generation of the resource, and when (monotonic seconds)."""

    message: str
    generation: int
    at: float


Rejections = dict[str, Rejection]
"""By the action's text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`refused`: the server's words. `wrote`: the cluster is not as it was read any more."""

    refused: tuple[str, ...]
    wrote: bool


class Applier:
    """Carries out actions through these ports."""

    def __init__(self, cluster: Cluster, coordination: Coordination, manifests: Manifests, trust: Trust) -> None:
        self._cluster = cluster
        self._trust = trust
        self._coordination = coordination
        self._manifests = manifests

    async def apply(
        self,
        actions: Iterable[Action],
        objects: GroupObjects,
        deaths: Deaths,
        rejections: Rejections,
        now: float,
        proven: str = "",
    ) -> Outcome:
        """Carry these out in their order. `rejections` is read and kept up to date. Raises ClusterUnavailableError, and
        ClusterChangedError if there is somebody else's object.

        `proven` is the hash of the last declaration that all consumers ran: the one to go back to.
        """
        group = identity_of(objects.group)
        generation = int(objects.group["metadata"].get("generation", 0))
        before, wrote = dict(rejections), False
        rejections.clear()
        for action in actions:
            if isinstance(action, TellCoordinator | ReportDeath):
                self._tell(action, group, deaths, new=not objects.group.get("status"))
                continue
            known = before.get(repr(action))
            if known is not None and known.generation == generation and now - known.at < RETRY_REFUSED:
                rejections[repr(action)] = known
                continue
            try:
                await self._write(action, group, objects, proven)
                wrote = True
            except ClusterRefusedError as error:
                logger.warning("the API server refused: %s", error, extra=fields(group=group))
                rejections[repr(action)] = Rejection(str(error), generation, now)
        return Outcome(tuple(rejection.message for rejection in rejections.values()), wrote)

    def _tell(self, action: TellCoordinator | ReportDeath, group: GroupIdentity, deaths: Deaths, *, new: bool) -> None:
        match action:
            case TellCoordinator(spec):
                self._coordination.apply(spec, new=new)
            case ReportDeath(consumer, incarnation):
                logger.info(
                    "start %d of pod UID %s is dead",
                    incarnation.start,
                    incarnation.pod_uid,
                    extra=fields(group=group, consumer=consumer),
                )
                self._coordination.consumer_died(group, consumer, incarnation)
                deaths.reported(incarnation)

    async def _write(
        self,
        action: PublishTrust | ApplyService | ApplyBudget | ApplyStatefulSet | RollBack | DeletePod,
        group: GroupIdentity,
        objects: GroupObjects,
        proven: str,
    ) -> None:
        known = history(objects.stateful_set)
        resource = effective(objects.group, known)
        if resource is objects.group:
            # What was given up once may be tried again after something else was declared.
            known = replace(known, rejected="", because="")
        match action:
            case PublishTrust():
                await self._trust.publish(group.namespace)
            case ApplyService():
                await self._cluster.apply(self._manifests.service(resource))
            case ApplyBudget():
                await self._cluster.apply(self._manifests.budget(resource))
            case ApplyStatefulSet(replicas):
                logger.info("applying the StatefulSet with %d replicas", replicas, extra=fields(group=group))
                await self._cluster.apply(
                    self._manifests.stateful_set(resource, replicas, to_remember(resource, known, proven))
                )
            case RollBack(replicas, why):
                logger.warning("going back to what ran before", extra=fields(group=group))
                before, remembered = rolled_back(resource, known, why)
                await self._cluster.apply(
                    self._manifests.stateful_set(before, replicas, to_remember(before, remembered, proven))
                )
            case DeletePod(name, uid, why):
                logger.info("deleting pod %s: %s", name, why, extra=fields(group=group))
                await self._cluster.delete_pod(group.namespace, name, uid)
