"""One run of an operator: the real coordinator runtime under the real lease logic, and just enough of a controller.

It serves consumers' calls as the API does: nothing goes out unless it leads at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import astuple
from typing import Any, Protocol, cast

from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.lease import LeaseLeadership, LeaseTimes
from shardherd.coordinator.ports import CoordinatorPorts, Decide, Unobserved
from shardherd.coordinator.runtime import Runtime
from shardherd.core.group.decisions import Decision
from shardherd.core.group.records import EndReason
from shardherd.core.model import event_reasons
from shardherd.core.model.errors import CoordinatorUnavailableError, InvalidRequestError, NotLeadingError, ShardherdError
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSpec, Heartbeat, Incarnation, Offset, ShardId
from shardherd.core.model.requests import ForceCheckpoint, Request
from shardherd.ports import Caller
from tests.simulation import notices
from tests.simulation.calls import Call, HttpAnswer, HttpRequest
from tests.simulation.history import History
from tests.simulation.history_entries import BrokenError
from tests.simulation.http import HttpServer
from tests.simulation.network import Network, Process
from tests.simulation.notices import Metrics
from tests.simulation.plan import Plan
from tests.simulation.servers import ApiServer, Kafka, LeaseApi, SimulatedConnector, SimulatedOwnership

TIMES = LeaseTimes(duration=30.0, renew_deadline=20.0, retry=9.0, look=9.0)
"""Those of a schedule of minutes."""

EXPIRIES = EndReason.EXPIRED | {event_reasons.SESSION_TIMEOUT}
"""The reasons of the events that tell of a consumer that is expired."""


class Around(Protocol):
    """What an operator finds around it in the world."""

    spec: GroupSpec
    network: Network
    api: ApiServer
    kafka: Kafka
    discovery: float
    plan: Plan

    @property
    def history(self) -> History: ...

    def leads(self, operator: OperatorRun) -> None: ...

    def operator_ended(self, operator: OperatorRun, reason: str) -> None: ...

    def answered(self, operator: OperatorRun, call: Call, outcome: Any, http: HttpAnswer | None) -> None: ...

    def event(self, operator: OperatorRun, reason: str, message: str) -> None: ...

    def expiry_decided(self, operator: OperatorRun, consumer: ConsumerId, run: Incarnation) -> None: ...

    def judge(self, check: Callable[..., None], *arguments: Any) -> None: ...

    def say(self, text: str) -> None: ...


class _Quiet:
    """Tokens that nobody asks for."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_named: None

    async def review(self, token: str) -> Caller | None:
        raise AssertionError(f"nobody presents a token here: {token}")


class _Expiries(Unobserved):
    """Sees when consumers are expired: who is told of it is told once that is stored."""

    def __init__(self, operator: OperatorRun) -> None:
        self._operator = operator

    def deciding(self, _group: GroupIdentity, decide: Decide, /) -> Decide:
        def decided(request: Request, now: float) -> Decision:
            decision = decide(request, now)
            for event in decision.events:
                if event.reason in EXPIRIES and event.consumer is not None and event.incarnation is not None:
                    self._operator.world.expiry_decided(self._operator, event.consumer, event.incarnation)
            return decision

        return decided


class OperatorRun:
    """One process of the operator. All methods but `kill` belong to its loop."""

    def __init__(self, world: Around, process: Process, lease_identity: str = "") -> None:
        self.world = world
        self.lease_identity = lease_identity or process.name
        self.process = process
        self.calls: dict[Call, None] = {}
        self.asking: set[tuple[ShardId, Offset]] = set()
        """Positions that users have asked it to set, and that it has not answered."""
        self._http: HttpServer | None = None
        self._reason = "killed"
        self.starts_again = False
        """Its pod stays when it ends, and with it its name in the Lease."""
        self.rebalances = 0
        """How many its metrics count."""
        server, time_scale = world.api, world.plan.time_scale
        leadership = LeaseLeadership(
            cast("KubernetesApi", LeaseApi(process, world.network, server)),
            process,
            "shardherd",
            "leader",
            self.lease_identity,
            LeaseTimes(*(time_scale * seconds for seconds in astuple(TIMES))),
        )
        quiet: Any = _Quiet()
        self._leadership = leadership
        self.runtime = Runtime(
            CoordinatorPorts(
                clock=process,
                leadership=leadership,
                ownership=SimulatedOwnership(process, world.network, server),
                connector=SimulatedConnector(
                    process, world.network, world.kafka, lambda: server.written_at.get(process.name, float("-inf"))
                ),
                tokens=quiet,
                events=self,
                metrics=cast("Any", Metrics(lambda: world.spec.identity, self._rebalanced)),
                observer=_Expiries(self),
            ),
            discovery_interval=world.discovery,
            unknown_group_grace=15.0,
        )
        process.on_death = lambda: world.operator_ended(self, self._reason)
        timeline = process.loop.timeline
        timeline.at(timeline.now, process.loop, self._boot)

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def alive(self) -> bool:
        return not self.process.dead

    def record(self, group: GroupIdentity, reason: str, message: str, *, warning: bool = False) -> None:
        """EventRecorder."""
        notices.event(reason, message, warning=warning)
        if group != self.world.spec.identity:
            raise BrokenError(f"{reason} is told of {group}, and the group is {self.world.spec.identity}")
        self.world.event(self, reason, message)

    def _rebalanced(self, reason: str, moved: int) -> None:
        self.rebalances += 1

    # What the controller does.

    def apply(self, spec: GroupSpec) -> None:
        if self.runtime.leading:
            self.runtime.apply(spec)

    def forget(self, group: GroupIdentity) -> None:
        self.runtime.forget(group)

    def died(self, consumer: ConsumerId, incarnation: Incarnation) -> None:
        if self.runtime.leading:
            self.runtime.consumer_died(self.world.spec.identity, consumer, incarnation)

    def force(self, shard: ShardId, offset: int) -> None:
        """A user sets a position."""
        self.process.loop.create_task(self._force(shard, offset))

    async def _force(self, shard: ShardId, offset: int) -> None:
        identity, actual = self.world.spec.identity, self.world.history.shards[shard]
        kafka, asked = self.world.kafka, (shard, offset)
        kafka.forcing.add(asked)
        kafka.unanswered[shard] = offset
        self.asking.add(asked)
        try:
            await self.runtime.group(identity.namespace, identity.name).ask(ForceCheckpoint(shard, offset))
            self.runtime.check_leading()  # else the connection is closed unanswered
            now = self.world.history.shards[shard]
            if asked in kafka.forcing and now is actual:
                # It was durable already, which showed when a commit of unknown outcome was read back.
                self.world.judge(self.world.history.set_before, shard, offset, kafka.committed.get(shard))
            kafka.forcing.discard(asked)
            if now is actual or now.highest == offset:  # else it was done to the shard that bore the name before
                self.world.history.forced(shard, offset)
            kafka.unanswered.pop(shard, None)
            self.world.say(f"a user has set {shard} to {offset}")
        except InvalidRequestError as error:
            # It is refused for good, as of a shard of a cell: nobody asks again.
            kafka.forcing.discard(asked)
            kafka.unanswered.pop(shard, None)
            self.world.say(f"setting {shard} to {offset} is refused: {error}")
        except ShardherdError as error:
            self.world.say(f"setting {shard} to {offset} failed: {error}")
        finally:
            self.asking.discard(asked)

    # What the API does.

    def serve(self, call: Call) -> None:
        task = self.process.loop.create_task(self._serve(call))
        call.serving = task
        self.calls[call] = None

    def abandon(self, call: Call) -> None:
        """The caller has closed the connection."""
        if call.serving is not None:
            call.serving.cancel()

    async def _serve(self, call: Call) -> None:
        outcome, answer = await (self._directly(call) if call.http is None else self._over_http(call, call.http))
        self.calls.pop(call, None)
        self.world.answered(self, call, outcome, answer)

    async def _directly(self, call: Call) -> tuple[Any, None]:
        runtime = self.runtime
        identity = self.world.spec.identity
        outcome: Any
        try:
            runtime.check_leading()
            runner = runtime.group(identity.namespace, identity.name)
            if isinstance(call.request, Heartbeat):
                outcome = await runner.heartbeat(call.request, call.wait)
            else:
                outcome = await runner.ask(call.request)
        except ShardherdError as error:
            outcome = error
        if not runtime.leading and not isinstance(outcome, NotLeadingError):
            outcome = CoordinatorUnavailableError("the connection was closed unanswered")
        return outcome, None

    async def _over_http(self, call: Call, request: HttpRequest) -> tuple[Any, HttpAnswer | None]:
        if self._http is None:
            self._http = HttpServer(self.runtime, lambda: self.world.spec)
        answer = await self._http.answer(request)
        if answer is None:
            return CoordinatorUnavailableError("the connection was closed unanswered"), None
        return answer.meaning(call.request), answer

    # Its life.

    def _boot(self) -> None:
        self.process.loop.create_task(self._main())

    async def _main(self) -> None:
        await asyncio.sleep(1.0)
        await self._leadership.acquire()
        self.runtime.lead()
        self.world.leads(self)
        watching = asyncio.create_task(self._watch())
        self._reason = await self.runtime.lost()
        watching.cancel()
        self.process.kill()

    async def _watch(self) -> None:
        await self._leadership.lost()
        self.runtime.step_down("the lease was lost")
