"""The level-based reconcile of every group: read, plan, apply, write the status, record Events.

Handlers say that something may have changed; a ticker looks at what the coordinator sees; both wake the group's one worker.
What is read of the cluster is kept until an event says that it may differ, so that a busy group costs the API server nothing
but its status. Holds no rule of its own: those are in `core.planning.plan`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardherd.controller.apply import Applier, Rejections
from shardherd.controller.deaths import Deaths
from shardherd.controller.declared import InvalidGroupError, pauses
from shardherd.controller.history import as_before
from shardherd.controller.manifests import Manifests
from shardherd.controller.observe import observe
from shardherd.controller.trust import Trust
from shardherd.controller.wanted import Renderings
from shardherd.controller.worklist import Key, Worklist
from shardherd.core.model.event_reasons import SCALE_RECOMMENDED, SCALED_DOWN, SCALED_UP
from shardherd.core.model.nouns import GroupIdentity, GroupView
from shardherd.core.model.reasons import INVALID_SPEC
from shardherd.core.planning.listing import identity_of
from shardherd.core.planning.observed import Memory, Observation
from shardherd.core.planning.plan import Event, Plan, ReportDeath, after_rejections, plan
from shardherd.core.planning.status import unreadable, write_due
from shardherd.ports import Clock, Cluster, ClusterChangedError, Coordination, EventRecorder, GroupObjects
from shardherd.telemetry.logs import fields
from shardherd.telemetry.operator_metrics import OperatorMetrics

logger = logging.getLogger(__name__)

TICK = 1.0
"""Seconds between looks at the coordinator's views: lag, drains and deadlines are seen this late at most."""

TICK_SHARE = 20.0
"""A tick leaves a group alone for so many times as long as planning for it took last: that bounds the cost of huge groups."""

ALL_SHARE = 9.0
"""The same of what planning for all groups once takes: that bounds the cost of many groups to a tenth of one core's time."""

WATCHES_BEGIN = 6.0
"""Seconds within which the watches of all kinds begin anew, once the API server has forgotten what they would go on from."""

AT_ONCE = 64
"""Groups that are read and written at the same time: more would only wait for each other's requests, holding what they read."""

LAST_WORDS = 5.0
"""Seconds after which nothing is counted of a group any more that is not served: at first, consumers are still answered."""

UNSETTLED_INTERVAL = 5.0
"""Seconds between reads of a group that waits for what no watch tells of: Events, Services and PodDisruptionBudgets."""


_REPLICAS = {
    "desired": "desiredReplicas",
    "current": "replicas",
    "ready": "readyReplicas",
    "recommended": "recommendedReplicas",
}
"""Kinds of the replicas metric, and the fields of the status that they show."""

_DIRECTIONS = {SCALED_UP: "up", SCALED_DOWN: "down", SCALE_RECOMMENDED: "recommended"}
"""Events that are counted as decisions on the number of consumers."""


@dataclass
class _Group:
    """What is kept of one group between two reconciliations.

    `dirty`: what was read may no longer be so. `unsettled`: it waits for something that no watch tells of.
    """

    known_since: float
    dirty: bool = True
    unsettled: bool = False
    version: tuple[object, ...] = ()
    objects: GroupObjects | None = None
    read_at: float = float("-inf")
    planned_at: float = float("-inf")
    planning_took: float = 0.0
    identity: GroupIdentity | None = None
    deaths: Deaths = field(default_factory=Deaths)
    memory: Memory = field(default_factory=Memory)
    rejections: Rejections = field(default_factory=dict)
    status: Mapping[str, object] | None = None
    status_at: float = float("-inf")

    def renew(self, now: float) -> None:
        """The group was deleted and made again under the same name: nothing that is known of the old one holds."""
        self.known_since, self.deaths, self.memory = now, Deaths(), Memory()
        self.rejections, self.status, self.status_at = {}, None, float("-inf")


def _alone(value: float | None) -> Mapping[str, float]:
    """The only series of a metric that has no label besides those of the group; none while its value is not known."""
    return {} if value is None else {"": value}


class Controller:
    """Keeps the cluster as the groups declare it. All methods are called in one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        coordination: Coordination,
        events: EventRecorder,
        clock: Clock,
        metrics: OperatorMetrics,
        manifests: Manifests,
        *,
        bundle: Callable[[], str] = lambda: "",
        scrapers: Callable[[], str] = lambda: "",
        resync_interval: float = 300.0,
        worklist: Callable[[Callable[[Key], Awaitable[bool]], Callable[[Key], None]], Worklist] = Worklist,
    ) -> None:
        self._cluster = cluster
        self._coordination = coordination
        self._events = events
        self._clock = clock
        self._metrics = metrics
        self._trust = Trust(cluster, clock, bundle, scrapers)
        self._renderings, self._renderings_before = Renderings(manifests), Renderings(manifests)
        self._applier = Applier(cluster, coordination, manifests, self._trust)
        self._resync_interval = resync_interval
        self._groups: dict[Key, _Group] = {}
        self._look_again: list[float] = []
        self._let_go: list[tuple[float, Key]] = []
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._worklist = worklist(self.reconcile, self._failed)

    def saw_group(self, key: Key, resource: Mapping[str, Any], *, gone: bool) -> None:
        """A group appeared, changed or went. Changes of its status alone are our own and of no interest."""
        group = self._group(key)
        metadata = resource["metadata"]
        # Annotations leave the generation as it is.
        version = (metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), pauses(metadata), gone)
        if version != group.version:
            group.version = version
            self._wake(key)

    def saw_pod(self, key: Key, pod: Mapping[str, Any], *, gone: bool) -> None:
        """A pod of this group appeared, changed or went."""
        self._group(key).deaths.see(pod, gone=gone)
        self._wake(key)

    def saw_object(self, key: Key) -> None:
        """The StatefulSet of this group changed or went."""
        self._wake(key)

    def found_group(self, key: Key) -> None:
        """There is such a group, which no watch has told of."""
        self._wake(key)

    def let_go(self, namespace: str) -> None:
        """Its groups are not ours any more. Nothing of theirs is changed: another operator may serve them by now."""
        for key in [key for key in self._groups if key[0] == namespace]:
            self._worklist.drop(key)
            group = self._groups.pop(key)
            self._let_go.append((self._clock.now() + LAST_WORDS, key))
            if group.identity is not None:
                logger.info("the group is not served any more", extra=fields(group=group.identity))
            self._end(key, group)
        self._trust.forget(namespace)

    def watches_began(self) -> None:
        """A watch began, maybe again: deletions before that may have been missed."""
        now = self._clock.now()
        # The second time is for what was looked at before all watches had begun anew.
        self._look_again = [now, now + WATCHES_BEGIN]

    async def run(self) -> None:
        """Look at the coordinator's views and at the time, for ever. Cancel to stop."""
        try:
            while True:
                await asyncio.sleep(TICK)
                self.tick()
        finally:
            await self._worklist.close()

    def tick(self) -> None:
        """Have those groups looked at for which it is time."""
        now = self._clock.now()
        for _, key in [each for each in self._let_go if each[0] <= now]:
            if key not in self._groups:
                self._metrics.forget(*key)
        self._let_go = [each for each in self._let_go if each[0] > now]
        began = any(at <= now for at in self._look_again)
        self._look_again = [at for at in self._look_again if at > now]
        all_groups = ALL_SHARE * sum(group.planning_took for group in self._groups.values())
        for key, group in self._groups.items():
            interval = UNSETTLED_INTERVAL if group.unsettled else self._resync_interval
            group.dirty |= began or now - group.read_at >= interval
            if group.dirty or now - group.planned_at >= max(TICK_SHARE * group.planning_took, all_groups):
                self._worklist.add(key)

    async def reconcile(self, key: Key) -> bool:
        """Bring this group to what it declares; False if there is no such group any more."""
        group = self._groups.get(key)
        if group is None:
            return False
        try:
            if group.dirty and group.objects is not None and group.deaths.dead():
                # A proof of death moves shards, and does not wait for an API server that is slow or away.
                await self._report_deaths(group, group.objects)
            async with self._turns:
                started = self._clock.now()
                try:
                    return await self._reconcile(key, group)
                except ClusterChangedError as error:
                    logger.info("reading it again: %s", error, extra=fields(group="/".join(key)))
                    self._wake(key)
                    return True
                finally:
                    self._metrics.reconcile_duration.observe(self._clock.now() - started)
        except BaseException:
            # How much of it was done is not known.
            group.dirty = True
            raise

    async def _reconcile(self, key: Key, group: _Group) -> bool:
        await self._read(key, group)
        if group.objects is None:
            return self._forget(key, group)
        started = self._clock.now()
        try:
            observation = self._observe(group, group.objects)
        except InvalidGroupError as error:
            await self._refuse(key, group, group.objects.group, str(error))
            await self._go_on(group, group.objects)
            return True
        planned = plan(observation)
        group.planned_at = self._clock.now()
        group.planning_took = group.planned_at - started
        outcome = await self._applier.apply(
            planned.actions, group.objects, group.deaths, group.rejections, self._clock.now(), planned.proven
        )
        group.memory = planned.memory
        self._measure(key, observation.view, planned)
        group.dirty |= outcome.wrote
        group.unsettled = bool(observation.taken) or len(observation.consumers) < observation.replicas
        if outcome.refused != observation.rejections:
            # The user reads in this very status what was refused just now.
            observation = replace(observation, rejections=outcome.refused)
            planned = after_rejections(planned, observation)
        if not outcome.refused:
            self._tell(observation, planned.done)
        await self._publish(key, group, observation, planned)
        return True

    async def _report_deaths(self, group: _Group, objects: GroupObjects) -> None:
        try:
            planned = plan(self._observe(group, objects))
        except InvalidGroupError:
            return  # passed on when it is read again, just after this
        reports = [action for action in planned.actions if isinstance(action, ReportDeath)]
        if reports:
            await self._applier.apply(reports, objects, group.deaths, {}, self._clock.now())

    async def _refuse(self, key: Key, group: _Group, resource: Mapping[str, Any], error: str) -> None:
        """The resource cannot be read: say so where its user looks, once."""
        previous = group.status if group.status is not None else resource.get("status", {})
        status = unreadable(previous, int(resource["metadata"].get("generation", 0)), error, self._clock.wall())
        self._show(key, status)
        if status == previous or group.identity is None:
            return
        logger.warning("%s", error, extra=fields(group=group.identity))
        await self._cluster.write_status(group.identity, status)
        group.status, group.status_at = status, self._clock.now()
        self._events.record(group.identity, INVALID_SPEC, error, warning=True)

    async def _go_on(self, group: _Group, objects: GroupObjects) -> None:
        """The resource cannot be read: its group goes on as it was. A coordinator that has just started has to know of it, and
        a death stays a death."""
        before = as_before(objects)
        if before is None:
            return
        try:
            planned = plan(self._observe(group, before, self._renderings_before))
        except InvalidGroupError:
            return  # it is not what pods are made from that cannot be read
        await self._applier.apply(planned.actions, before, group.deaths, {}, self._clock.now())

    def _forget_renderings(self, uid: str) -> None:
        for renderings in (self._renderings, self._renderings_before):
            renderings.forget(uid)

    async def _read(self, key: Key, group: _Group) -> None:
        if not group.dirty:
            return
        # What changes while we read makes it dirty again.
        group.dirty = False
        group.objects = await self._cluster.read(*key)
        group.read_at = self._clock.now()
        self._metrics.reconciles.labels(*key).inc()
        if group.objects is None:
            return
        identity = identity_of(group.objects.group)
        if group.identity is None:
            group.known_since = self._clock.now()
        elif group.identity != identity:
            self._coordination.forget(group.identity)
            self._forget_renderings(group.identity.uid)
            group.renew(self._clock.now())
        group.identity = identity
        for pod in group.objects.pods:
            group.deaths.see(pod)

    def _observe(self, group: _Group, objects: GroupObjects, renderings: Renderings | None = None) -> Observation:
        return observe(
            objects,
            None if group.identity is None else self._coordination.view(group.identity),
            group.deaths,
            renderings or self._renderings,
            memory=group.memory,
            previous=group.status if group.status is not None else objects.group.get("status", {}),
            rejections=tuple(rejection.message for rejection in group.rejections.values()),
            trust_current=self._trust.current(objects.group["metadata"]["namespace"]),
            now=self._clock.now(),
            wall=self._clock.wall(),
        )

    async def _publish(self, key: Key, group: _Group, observation: Observation, planned: Plan) -> None:
        """Write the status if it is due, and tell of what turned, which is known only with the status written."""
        now, view = observation.now, observation.view
        loaded = view is not None and (view.discovered or bool(view.source_error))
        due = write_due(
            observation.previous,
            planned.status,
            loaded=loaded,
            known=now - group.known_since,
            written=now - group.status_at,
            groups=len(self._groups),
        )
        if loaded or due:
            self._show(key, planned.status)
        if not due:
            return
        await self._cluster.write_status(observation.declared.identity, planned.status)
        group.status, group.status_at = planned.status, now
        self._tell(observation, planned.turned)

    def _show(self, key: Key, status: Mapping[str, Any]) -> None:
        """The status as metrics. A new leader shows it too, although it finds it written."""
        known = {kind: status.get(field_) for kind, field_ in _REPLICAS.items()}
        self._metrics.replicas.show(key, {kind: value for kind, value in known.items() if isinstance(value, int)})
        self._metrics.conditions.show(key, {each["type"]: each["status"] == "True" for each in status["conditions"]})

    def _measure(self, key: Key, view: GroupView | None, planned: Plan) -> None:
        """Show how old the lag is, and what the decision on the number of consumers was made from."""
        self._metrics.lag_seconds.show(key, _alone(None if view is None else view.lag_seconds))
        traffic = planned.decision.sizing.traffic
        rates = None if traffic is None or not traffic.measured else traffic
        self._metrics.produced.show(key, _alone(None if rates is None else rates.produced))
        self._metrics.consumed.show(key, _alone(None if rates is None else rates.consumed))
        self._metrics.consumer_rate.show(key, _alone(None if traffic is None else traffic.consumer_rate.per_second))

    def _tell(self, observation: Observation, events: tuple[Event, ...]) -> None:
        identity = observation.declared.identity
        for event in events:
            self._events.record(identity, event.reason, event.message, warning=event.warning)
            direction = _DIRECTIONS.get(event.reason)
            if direction is not None:
                self._metrics.scale_decisions.labels(identity.namespace, identity.name, direction, event.cause).inc()

    def _forget(self, key: Key, group: _Group) -> bool:
        """The group is gone. True if something was seen since it was read: another may stand under its name by now."""
        if group.identity is not None:
            logger.info("the group was deleted", extra=fields(group=group.identity))
        self._end(key, group)
        if group.dirty:
            group.renew(self._clock.now())
            return True
        self._groups.pop(key, None)
        return False

    def _end(self, key: Key, group: _Group) -> None:
        if group.identity is not None:
            self._coordination.forget(group.identity)
            self._forget_renderings(group.identity.uid)
            group.identity = None
        self._metrics.forget(*key)

    def _group(self, key: Key) -> _Group:
        return self._groups.setdefault(key, _Group(self._clock.now()))

    def _wake(self, key: Key) -> None:
        self._group(key).dirty = True
        self._worklist.add(key, news=True)

    def _failed(self, key: Key) -> None:
        self._metrics.reconcile_errors.labels(*key).inc()
