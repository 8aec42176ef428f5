"""All groups of this coordinator, and whether it may answer. Called by the API and, over `coordination`, by the controller.

Holds no rule of the protocol. Everything here runs on one event loop, but for the views, which any thread may make.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from shardherd.coordinator.ports import CoordinatorPorts, Exists
from shardherd.coordinator.runner import GroupRunner
from shardherd.core.group import admission
from shardherd.core.model.errors import CoordinatorUnavailableError, NotLeadingError, ShardherdError, UnknownGroupError
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSpec, GroupView, Incarnation, KafkaSource
from shardherd.core.model.requests import ConsumerDied

log = logging.getLogger(__name__)

BEAT = 0.5
"""Seconds between the beats by which this process notices that it did not run."""

GAP = 1.0
"""A beat late by more than this (seconds) means that requests could not be received meanwhile."""


ADMIT_SHARE, ADMIT_MOST = 20.0, 2.0
"""Who may be served is not looked at again for so many times as long as that took last, but for no more than so many seconds:
a thousand groups may come at once."""


class Runtime:
    """The groups by namespace and name.

    `refusal` is asked what to answer for a group that is not among them, by namespace and name; None: what is usual.
    """

    def __init__(
        self,
        ports: CoordinatorPorts,
        *,
        discovery_interval: float,
        unknown_group_grace: float,
        max_groups_per_source: int = 0,
        refusal: Callable[[str, str], ShardherdError | None] = lambda *_: None,
        exists: Exists | None = None,
    ) -> None:
        self.ports = ports
        self._refusal = refusal
        self._exists = exists
        self._max_groups = max_groups_per_source
        self._interval = discovery_interval
        self._grace = unknown_group_grace
        self._groups: dict[tuple[str, str], GroupRunner] = {}
        self._admitting: asyncio.TimerHandle | None = None
        self._admit_from = float("-inf")
        self._leading_since: float | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self._lost_reason = ""
        self._beat_at = 0.0
        self._beating: asyncio.Task[None] | None = None

    # Leadership.

    def lead(self) -> None:
        """We lead from now on: begin to serve what was applied."""
        self._leading_since = self._beat_at = self.ports.clock.now()
        self._beating = asyncio.create_task(self._keep_beating(), name="beat")
        for runner in self._groups.values():
            runner.start()

    @property
    def leading(self) -> bool:
        """Whether an answer may go out at this moment."""
        return (
            self._leading_since is not None
            and not self._lost.is_set()
            and self.ports.clock.now() < self.ports.leadership.deadline()
        )

    @property
    def ready(self) -> bool:
        """Whether we lead, and every group answers or is known to be unable to."""
        return self.leading and all(runner.settled for runner in self._groups.values())

    @property
    def standing_by(self) -> bool:
        """Whether we wait for our turn to lead."""
        return self._leading_since is None and not self._lost.is_set()

    def step_down(self, reason: str) -> None:
        """Answer nothing more, for good. Only the first reason counts."""
        if not self._lost.is_set():
            log.error("this coordinator steps down: %s", reason)
            self._lost_reason = reason
            self._lost.set()

    def resign(self) -> None:
        """Answer nothing more and start nothing more: the process is stopping."""
        self._leading_since = None
        self._lost_reason = self._lost_reason or "it is stopping"
        self._lost.set()

    async def lost(self) -> str:
        """Wait until this process must end; the reason."""
        await self._lost.wait()
        return self._lost_reason

    async def stop(self) -> None:
        """Close every group."""
        if self._admitting is not None:
            self._admitting.cancel()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await asyncio.gather(*(runner.stop() for runner in self._groups.values()))

    # What the controller asks.

    def apply(self, spec: GroupSpec, new: bool = False) -> None:
        """Create the group, or give it this spec. `new`: nobody has ever served it, as far as its resource tells."""
        key = (spec.identity.namespace, spec.identity.name)
        current = self._groups.get(key)
        if current is not None and current.spec == spec:
            return
        if current is not None and (current.spec.identity, current.spec.source) == (spec.identity, spec.source):
            current.change(spec)
            return
        runner = GroupRunner(self.ports, spec, self._interval, step_down=self.step_down, check_clock=self._check_clock, new=new)
        self._groups[key] = runner
        self._admit_soon()
        if self._leading_since is not None:
            runner.start(current.stop() if current is not None else None)

    def forget(self, group: GroupIdentity) -> None:
        """Stop serving the group; another one of the same name stays."""
        key = (group.namespace, group.name)
        runner = self._groups.get(key)
        if runner is not None and runner.spec.identity == group:
            del self._groups[key]
            self._admit_soon()
            stopping = asyncio.create_task(runner.stop(), name=f"forget {group}")
            stopping.add_done_callback(lambda _: log.info("no longer serving group %s", group))

    def view(self, group: GroupIdentity) -> GroupView | None:
        """A view of the group, None while nothing is known of it. From any thread."""
        runner = self._groups.get((group.namespace, group.name))
        return runner.view() if runner is not None and runner.spec.identity == group else None

    def views(self) -> Mapping[GroupIdentity, GroupView]:
        """Pictures of all groups of which something is known. From any thread."""
        views = {runner.spec.identity: runner.view() for runner in tuple(self._groups.values())}
        return {identity: view for identity, view in views.items() if view is not None}

    def kafka_groups(self) -> Mapping[GroupIdentity, str]:
        """The groups' names in Kafka. From any thread."""
        specs = [runner.spec for runner in tuple(self._groups.values())]
        return {spec.identity: spec.source.group_id for spec in specs if isinstance(spec.source, KafkaSource)}

    def consumer_died(self, group: GroupIdentity, consumer: ConsumerId, incarnation: Incarnation) -> None:
        """Proof of death, for the group to act upon."""
        runner = self._groups.get((group.namespace, group.name))
        if runner is not None and runner.spec.identity == group:
            runner.tell(ConsumerDied(consumer, incarnation))

    def _admit_soon(self) -> None:
        """Look again at which groups may be served beside each other; until then a new one is not served."""
        wait = self._admit_from - self.ports.clock.now()
        if wait <= 0.0:
            self._admit()
        elif self._admitting is None:
            self._admitting = asyncio.get_running_loop().call_later(wait, self._admit)

    def _admit(self) -> None:
        if self._admitting is not None:
            self._admitting.cancel()
            self._admitting = None
        begun = self.ports.clock.now()
        refusals = admission.refused((runner.spec for runner in self._groups.values()), self._max_groups)
        for runner in self._groups.values():
            runner.admit(refusals.get(runner.spec.identity))
        ended = self.ports.clock.now()
        self._admit_from = ended + min(ADMIT_SHARE * (ended - begun), ADMIT_MOST)

    # What the API asks.

    def check_leading(self) -> None:
        """Raises NotLeadingError unless an answer may go out."""
        if not self.leading:
            raise NotLeadingError("this coordinator does not lead; ask again")

    async def announced(self, namespace: str, name: str) -> GroupRunner:
        """The group. Raises UnknownGroupError if there is none; CoordinatorUnavailableError while the controller may not have
        announced it, which on a machine that is busy may take long.
        """
        try:
            return self.group(namespace, name)
        except UnknownGroupError:
            if self._refusal(namespace, name) is not None or self._exists is None:
                raise
        there = await self._exists(namespace, name)
        if not there or (namespace, name) in self._groups:
            return self.group(namespace, name)  # as it is now: that may have taken seconds
        raise CoordinatorUnavailableError(
            f"group {namespace}/{name} is not known yet: the controller has not come to it, or its conditions say why it is not"
            " served; ask again",
            group=f"{namespace}/{name}",
        )

    def group(self, namespace: str, name: str) -> GroupRunner:
        """The group, as far as the controller has announced it. Raises as `announced`."""
        runner = self._groups.get((namespace, name))
        if runner is not None:
            return runner
        if (refusal := self._refusal(namespace, name)) is not None:
            raise refusal
        since = self._leading_since
        if since is None or self.ports.clock.now() - since < self._grace:
            raise CoordinatorUnavailableError(
                f"group {namespace}/{name} is not known yet: the coordinator has just started; ask again",
                group=f"{namespace}/{name}",
            )
        raise UnknownGroupError(
            f"there is no ConsumerGroup {name!r} in namespace {namespace!r}; create it, or correct SHARDHERD_GROUP and"
            " SHARDHERD_NAMESPACE of the application",
            group=f"{namespace}/{name}",
        )

    # Pauses of our own.

    def beat(self) -> None:
        """This process runs; called every BEAT seconds."""
        now = self.ports.clock.now()
        self._check_clock(now)
        self._beat_at = now

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self.beat()

    def _check_clock(self, now: float) -> None:
        """Before anything times out: if we did not run for a while, every group's deadlines move by as much."""
        gap = now - self._beat_at - BEAT
        if gap <= GAP:
            return
        self._beat_at = now
        log.warning("this process did not run for %.1f s; all deadlines of consumers are that much later", gap)
        for runner in self._groups.values():
            if runner.mailbox is not None:
                runner.mailbox.gap(gap)
