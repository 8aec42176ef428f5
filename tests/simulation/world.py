"""One simulated world: consumers, operators, the servers between them, and what keeps them running as a cluster would.

`World(plan).run()` carries a schedule out and raises BrokenError at the first promise that does not hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardherd.consumer import session
from shardherd.coordinator import runtime
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.errors import CoordinatorUnavailableError, ForbiddenError, ShardherdError
from shardherd.core.model.gauges import Gauge
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    ConsumerId,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    Offset,
    ShardId,
)
from tests.simulation import days, faults, leaderless
from tests.simulation.calls import Call, HttpAnswer
from tests.simulation.consumer import ConsumerRun
from tests.simulation.filling import Disks
from tests.simulation.history_entries import BrokenError, Run
from tests.simulation.judging import Judge, listening
from tests.simulation.network import Network, Process
from tests.simulation.operator import EXPIRIES, OperatorRun
from tests.simulation.places import Places
from tests.simulation.plan import FAULTS, Plan
from tests.simulation.pods import Pods
from tests.simulation.rest import settle
from tests.simulation.servers import ApiServer, Kafka
from tests.simulation.source import Source
from tests.simulation.telling import described
from tests.simulation.virtual import Timeline

DELIVERIES = 300
"""Messages that a schedule has at least."""

LAST = 20
"""Heartbeats of a run that are remembered: more than arrive while something is being stored."""

RECONCILE = 20.0
"""Seconds between two reconciliations of the controller."""


@dataclass
class World:
    """See the module. `tell` gets a line for everything that happens, for a reader of a replay."""

    plan: Plan
    tell: Callable[[str], None] | None = None
    operators: list[OperatorRun] = field(default_factory=list)
    endpoints: list[OperatorRun] = field(default_factory=list)
    hit: set[str] = field(default_factory=set)
    began: int = 0
    """How many faults have begun."""

    def __post_init__(self) -> None:
        plan = self.plan
        settings = plan.spec.settings
        session.LOOK = max(1.0, plan.look)
        runtime.BEAT = plan.look
        self.rng = random.Random(plan.seed ^ 0x5EED)
        self.timeline = Timeline()
        self.history = Judge(self.timeline, settings.ordered, settings.session_timeout, 120.0 * plan.time_scale, world=self)
        self.history.forget_after = settings.forget_after
        self.history.cells = settings.cells
        self.history.specified(plan.spec)
        self.ordered_ever = settings.ordered
        self.source = Source(self)
        self.network = Network(self.timeline, self.rng, say=self.say if self.tell else None)
        self.api = ApiServer(self.history)
        self.kafka = Kafka(self.history)
        self.places = Places(self)
        self.spec = plan.spec
        self.disks = Disks(plan.seed, plan.time_scale)
        self.discovery = plan.discovery
        self.pods = Pods(self)
        self.history.disturbed = lambda why: self.pods.disturb(self.pods.existing.keys(), why)
        self.healed = False
        self.healed_at = 0.0
        self.last_start = 0.0
        self.deleted = False
        """The group is deleted, and not made again yet."""
        self.history.uid = plan.spec.identity.uid
        self.asleep = False
        """Everything is shut down."""
        self.operator_number = 0
        self._heard: dict[tuple[ConsumerId, Incarnation], float] = {}
        self._in_time: dict[tuple[ConsumerId, Incarnation], list[float]] = {}
        # The same, but for what came when its end was stored already, which is told of afterwards: the last times of each.
        self._stood: dict[str, tuple[float, float]] = {}
        # When each operator last stood still, from and until.
        self._led_since = 0.0

    def gauges(self, consumer: ConsumerId) -> tuple[Gauge, ...]:
        """How full a consumer is, where that matters."""
        if not self.spec.settings.watermarks:
            return ()
        return (self.disks.gauge(consumer, self.time, healed=self.healed),)

    # Its life.

    def run(self) -> World:
        """The whole schedule. Raises BrokenError."""
        with listening(self):
            try:
                self._begin()
                self.until(self.plan.chaos)
                while self.network.delivered < DELIVERIES:
                    self.until(self.timeline.now + 60.0 * self.plan.time_scale)
                settle(self)
            finally:
                self._end()
        return self

    def _begin(self) -> None:
        self.source.begin()
        for number in range(self.plan.consumers):
            self.pods.add(ConsumerId(f"g-{number}"))
        for _ in range(self.plan.operators):
            self.start_operator()
        for when, kind in self.plan.steps:
            self.timeline.at(when, None, self._step, kind)
        leaderless.begin(self)
        self.timeline.after(RECONCILE * self.plan.time_scale, self._reconcile)
        if self.plan.time_scale > 1.0:
            days.begin(self)

    def _reconcile(self) -> None:
        """The controller tells the coordinator what is declared and replaces pods that it refuses, again and again."""
        leader = self.leader()
        if leader is not None and not self.deleted:
            self.timeline.at(self.time, leader.process.loop, leader.apply, self.spec)
            if self.history.stored is not None:
                self.pods.replace_superseded(self.history.stored)
        self.timeline.after(RECONCILE * self.plan.time_scale, self._reconcile)

    def _step(self, kind: str) -> None:
        self.say(f"--- {kind}")
        begun = faults.happen(self, kind)
        if kind not in FAULTS:
            return
        if begun:
            self.hit.add(kind)
            self.began += 1
        else:
            # There is nothing that it could happen to: another one takes its place.
            self._step(self.rng.choice(self.plan.kinds))

    def until(self, when: float) -> None:
        """Go on until then, looking for failures inside the processes."""
        while self.timeline.now < when:
            self.timeline.run(min(when, self.timeline.now + 20.0 * self.plan.time_scale))
            self._complaints()

    def _silent(self) -> None:
        """Nobody who is silent for long stays a consumer."""
        leader = self.leader()
        stored = self.history.stored
        if leader is None or stored is None:
            return
        since = max(self._led_since, self._stood.get(leader.name, (0.0, 0.0))[1])
        limit = 2 * self.spec.settings.session_timeout + 40.0 * self.plan.time_scale
        for consumer in stored.consumers.values():
            silent = self.time - max(self._heard.get((consumer.consumer, consumer.incarnation), 0.0), since)
            if consumer.present and silent > limit:
                raise BrokenError(f"{consumer.consumer} is silent for {silent:.0f} s and is still a consumer")

    def _complaints(self) -> None:
        self._silent()
        for process in self._processes():
            process.loop.forget_done()
            for complaint in process.loop.complaints:
                error = complaint.get("exception")
                if isinstance(error, AssertionError):
                    raise error
                if isinstance(error, ShardherdError) and "never retrieved" in str(complaint.get("message")):
                    continue  # an answer that came when nobody waited for it any more
                raise BrokenError(f"{process.name}: {complaint.get('message')}: {error!r}") from error

    def _processes(self) -> list[Process]:
        everyone: list[ConsumerRun | OperatorRun] = [*self.pods.everyone(), *self.operators]
        return [each.process for each in everyone]

    def _end(self) -> None:
        self.tell = None
        for run in self.pods.everyone():
            run.cut_off()
        for process in self._processes():
            process.on_death = lambda: None
            process.loop.end()

    # What is seen from outside.

    @property
    def time(self) -> float:
        return self.timeline.now

    def say(self, text: str) -> None:
        if self.tell is not None:
            self.tell(f"{self.timeline.now:9.3f}  {text}")

    def leader(self) -> OperatorRun | None:
        """The operator that leads now, if one does."""
        for operator in self.operators:
            if operator.alive and operator.process.loop.stopped_until <= self.time and operator.runtime.leading:
                return operator
        return None

    def view(self) -> GroupView | None:
        leader = self.leader()
        return leader.runtime.view(self.spec.identity) if leader is not None else None

    # The source.

    def end_of(self, shard: ShardId) -> Offset | None:
        return self.source.end(shard)

    def gone(self, shard: ShardId) -> bool:
        """Whether a shard is not there and never will be."""
        return self.history.shards[shard].gone

    # Operators.

    def span(self, low: float, high: float) -> float:
        """Seconds for which something lasts, drawn from such a range of a schedule of minutes."""
        return self.rng.uniform(low, high) * self.plan.time_scale

    def start_operator(self, lease_identity: str = "") -> None:
        """`lease_identity`: that of the pod whose container is started again; else it is another pod."""
        self.operators = [operator for operator in self.operators if operator.alive]
        if self.asleep or len(self.operators) >= self.plan.operators:
            return
        self.operator_number += 1
        self.last_start = self.time
        process = Process(f"operator-{self.operator_number}", self.timeline, self.rng, self.plan.drift)
        self.say(f"{process.name} starts")
        self.operators.append(OperatorRun(self, process, lease_identity))

    def operator_ended(self, operator: OperatorRun, reason: str) -> None:
        self.say(f"{operator.name} has ended: {reason}")
        for call in operator.calls:
            if self.rng.random() < 0.8:
                gone = CoordinatorUnavailableError("the connection was reset")
                self.timeline.at(self.time + 0.01, call.caller.process.loop, call.resolve, gone)
        self.timeline.after(self.rng.uniform(0.1, 2.0), self.forget_endpoint, operator)
        again = operator.lease_identity if operator.starts_again else ""
        self.timeline.after(self.rng.uniform(1.0, 6.0), self.start_operator, again)

    def forget_endpoint(self, operator: OperatorRun) -> None:
        if operator in self.endpoints:
            self.endpoints.remove(operator)

    def leads(self, operator: OperatorRun) -> None:
        self.say(f"{operator.name} leads")
        self._led_since = self.time
        if not self.deleted:
            operator.runtime.apply(self.spec)
        for proof in self.pods.proofs:
            operator.runtime.consumer_died(self.spec.identity, *proof)
        self.timeline.after(self.rng.uniform(0.1, 1.5), self.add_endpoint, operator)

    def add_endpoint(self, operator: OperatorRun) -> None:
        """It has begun to lead, or goes on: it is ready once it leads, and hears at once what was edited meanwhile."""
        if not operator.alive:
            return
        if operator.runtime.leading:
            if not self.deleted:
                self.timeline.at(self.time, operator.process.loop, operator.apply, self.spec)
            if operator not in self.endpoints:
                self.endpoints.append(operator)
        elif operator not in self.endpoints:
            # Its lease lapsed while it stood still, and it may get it back: the readiness probe asks again.
            self.timeline.after(5.0, self.add_endpoint, operator)

    def change_spec(self, **changes: Any) -> None:
        """The user edits the resource."""
        names = {name: changes.pop(name) for name in ("wanted", "leaving", "reset") if name in changes}
        self.spec = replace(self.spec, settings=replace(self.spec.settings, **changes), **names)
        self.history.specified(self.spec)
        self.say(f"spec: {changes} {names}")
        leader = self.leader()
        if leader is not None and not self.deleted:
            self.timeline.at(self.time + 0.05, leader.process.loop, leader.apply, self.spec)

    def stand_still(self, process: Process, seconds: float) -> None:
        """SIGSTOP."""
        self.say(f"{process.name} stands still for {seconds:.0f} s")
        process.loop.stop_until(self.time + seconds)
        for run in self.pods.everyone():
            if run.process is process:
                run.run.stood = max(run.run.stood, self.time + seconds)
        for operator in self.operators:
            if operator.process is process:
                begun, until = self._stood.get(operator.name, (0.0, 0.0))
                self._stood[operator.name] = (begun if until >= self.time else self.time, max(until, self.time + seconds))
                self.timeline.after(min(10.0, seconds), self._not_ready, operator)
                self.timeline.after(seconds + 0.5, self.add_endpoint, operator)

    def nothing_stands_still(self) -> None:
        """What stood still until later goes on now."""
        self._stood = {name: (begun, min(until, self.time)) for name, (begun, until) in self._stood.items()}
        for run in self.pods.everyone():
            run.run.stood = min(run.run.stood, self.time)

    def _not_ready(self, operator: OperatorRun) -> None:
        if operator.process.loop.stopped_until > self.time:
            self.forget_endpoint(operator)

    def event(self, operator: OperatorRun, reason: str, message: str) -> None:
        self.say(f"{operator.name}: {reason}: {message}")
        self.history.counts[f"event {reason}"] += 1
        self.history.recorded(operator.name, reason)
        since = self.history.moving_since
        if reason in ("ShardsAppeared", "ShardClosed", "ShardOver") and since is not None and since < self.time - 1.0:
            self.history.counts[f"event {reason} in the middle of a rebalance"] += 1
        if reason == "OwnershipRebuilt":
            # Whoever was not heard has claimed nothing, and was no consumer that could have been expired.
            since = self.time - self.spec.settings.session_timeout
            spoke = {name for (name, _), when in self._heard.items() if when >= since}
            everyone = {run.run.consumer for run in self.pods.everyone()}
            self.pods.disturb(everyone - spoke, "silent while the ownership was rebuilt")
        if reason not in EXPIRIES:
            return
        name = ConsumerId(message.split()[0])
        stored = self.history.stored
        current = stored.consumers.get(name) if stored is not None else None
        # Another run of its name may have been refused meanwhile: that one is not who was silent.
        times = self._in_time.get((name, current.incarnation), []) if current is not None else []
        # Nor was heard in time who was heard while this was being stored.
        decided = self.history.expiry_decided_at(operator.name, name)
        heard = max((when for when in times if when <= decided), default=0.0)
        begun, until = self._stood.get(operator.name, (0.0, 0.0))
        if begun < heard < until:
            # Stored before its standstill, told after it: meanwhile another leader has heard of the next run.
            return
        stood = max(0.0, until - max(begun, heard))
        # Of a standstill the runtime sees all but what is left until its next beat.
        slack = self.plan.look if stood else 0.0
        self.judge(self.history.expires, operator.name, name, reason, self.time - heard - stood + slack)
        self.pods.expired(name, reason)

    def expiry_decided(self, operator: OperatorRun, consumer: ConsumerId, run: Incarnation) -> None:
        self.history.expiry_decided(operator.name, consumer, run)

    # Between them.

    def reaches(self, source: str, target: str) -> bool:
        return (source, target) not in self.network.cut and (target, source) not in self.network.cut

    def call_coordinator(self, call: Call) -> bool:
        endpoints = self.endpoints
        if not endpoints:
            return False
        operator = endpoints[-1]
        if len(endpoints) > 1 and self.rng.random() < 0.3:
            operator = self.rng.choice(endpoints)
        if not operator.alive:
            return False
        call.coordinator = operator.name
        if call.caller.gone and operator.name not in call.caller.believed_by:
            error = ForbiddenError("the token is that of a pod that is gone")
            self.timeline.at(self.time + 0.01, call.caller.process.loop, call.resolve, error)
            return True
        self.network.send(call.caller.process.name, operator.name, operator.process.loop, self._serve, operator, call)
        return True

    def _serve(self, operator: OperatorRun, call: Call) -> None:
        if not call.caller.gone:
            call.caller.believed_by.add(operator.name)
        # One that arrives while the lease has lapsed is refused unheard.
        if isinstance(call.request, Heartbeat) and operator.runtime.leading:
            run = (call.request.consumer, call.request.incarnation)
            self._heard[run] = self.time
            if self.history.hears(call.request, operator.name) and not self.history.is_over(*run):
                self._in_time[run] = [*self._in_time.get(run, [])[-LAST:], self.time]
        operator.serve(call)

    def give_up(self, call: Call) -> None:
        for operator in self.operators:
            if operator.name == call.coordinator and operator.alive:
                self.network.send(call.caller.process.name, operator.name, operator.process.loop, operator.abandon, call)

    def answered(self, operator: OperatorRun, call: Call, outcome: Any, http: HttpAnswer | None) -> None:
        """An answer leaves an operator: what it means, and what goes over the wire if that is HTTP."""
        if isinstance(outcome, HeartbeatReply) and isinstance(call.request, Heartbeat):
            self.judge(self.history.heartbeat_answered, call.request, outcome, operator.name)
        elif isinstance(outcome, CheckpointReply) and isinstance(call.request, CheckpointRequest):
            self.judge(self.history.accepted, call.request, outcome)
        elif isinstance(outcome, ShardherdError):
            self.judge(self.history.refused, call.request, outcome)
        elif isinstance(call.request, Leave):
            self.judge(self.history.left, call.request)
        if self.tell is not None:
            self.say(f"{operator.name} -> {call.caller.run}: {described(call.request, outcome)}")
        process = call.caller.process
        self.network.send(operator.name, process.name, process.loop, call.resolve, outcome if http is None else http)

    def judge(self, check: Callable[..., None], *arguments: Any) -> None:
        """Check a promise from inside a process; what is broken ends the world, whatever that process makes of it."""
        try:
            check(*arguments)
        except BrokenError as error:
            self.timeline.at(self.time, None, _throw, error)
            raise

    def reads(self, shard: ShardId, start: Offset, stop: Offset, run: Run) -> bool:
        """Whether there is something to read."""
        self.say(f"{run} reads {shard} from {start} to {stop}")
        if run.group != self.history.uid:
            return True  # one of a group that was deleted: what it reads is nobody's business
        actual = self.history.shards[shard]
        if not actual.present or (actual.was_away and stop > actual.end):
            return False
        run.sources[shard] = actual.source_id
        self.judge(self.history.read, shard, start, stop, run)
        self.judge(self.history.late, run)
        return True

    def replays(self, ranges: Mapping[ShardId, ReadRange], ours: Collection[ShardId], run: Run) -> None:
        self.say(f"{run} replays {sorted(ours)} of {ranges}")
        logged = {shard for shard, each in ranges.items() if each.start < each.stop}
        self.history.counts["ranges of uncommitted micro-batches replayed"] += len(ours)
        self.history.counts["ranges of uncommitted micro-batches dropped"] += len(logged.difference(ours))

    def writes(self, shard: ShardId, start: Offset, stop: Offset, epoch: int, run: Run) -> None:
        self.say(f"{run} has written {shard} from {start} to {stop} under epoch {epoch}")
        if run.group != self.history.uid:
            self.history.counts["writes of consumers whose group was deleted"] += 1
            return
        if run.sources.get(shard) != self.history.shards[shard].source_id:
            return  # records of the shard that bore the name before
        self.judge(self.history.write, shard, start, stop, epoch, run)


def _throw(error: BrokenError) -> None:
    raise error
