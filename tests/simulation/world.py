"""A whole group in simulated time: the real `Group`, the real `Tracker` in every consumer, and everything between them unkind.

Messages are lost, doubled and reordered; consumers crash, hang, pause and are replaced; the coordinator crashes between any two
of its steps; writes and commits fail. One seed is one run. The world checks itself at every step: `BrokenError`
names the promise.
It is one module, though long, so that a run can be read from top to bottom.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardherd.core.errors import ShardherdError, StaleIncarnationError
from shardherd.core.group import Group, Result
from shardherd.core.model import (
    CheckpointReply,
    CheckpointRequest,
    ConsumerId,
    GroupSpec,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    ShardId,
    ShardInfo,
)
from shardherd.core.ownership import decode, encode
from shardherd.core.requests import (
    CheckpointsCommitted,
    CheckpointsFailed,
    ConsumerDied,
    Request,
    SettingsChanged,
    ShardsDiscovered,
    Tick,
)
from shardherd.core.tracker import ReadRange
from tests.builders import spec
from tests.simulation.promises import SELF_STOP, SETTINGS, BrokenError, Pod, Promises, Stored


class World:
    """One run. `chaos` seconds of faults, then quiet; `finish` asserts what must hold after the quiet."""

    def __init__(self, seed: int, *, ordered: bool, shards: int = 6, consumers: int = 3, grace: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.ordered = ordered
        self.stored = Stored()
        self.spec: GroupSpec = spec(consumers, ordered=ordered, rejoin_grace=grace, **SETTINGS)
        self.group: Group | None = None
        self.generation = 0
        self.pods: dict[ConsumerId, Pod] = {}
        self.zombies: list[Pod] = []
        self.promises = Promises(self.stored, ordered)
        self.faults = True
        self.uids = 0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        for number in range(shards):
            self._add_shard(ShardId(f"t/{number}"), ())
        for number in range(consumers):
            self._start_pod(ConsumerId(f"g-{number}"))
        self._take_over()
        self._every(1.0, self._produce)
        self._every(1.0, self._discover)
        self._every(0.25, self._tick)
        self._every(1.0, self._control)
        self._every(0.5, self._chaos)

    # Time.

    def run(self, seconds: float) -> None:
        """Let the world go on."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._events, (self.now + seconds, self._order, action))

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.after(seconds, again)

        self.after(seconds, again)

    def _happens(self, probability: float) -> bool:
        return self.faults and self.rng.random() < probability

    # The source.

    def _add_shard(self, shard: ShardId, parents: tuple[ShardId, ...]) -> None:
        self.stored.ends[shard] = 0
        self.stored.parents[shard] = parents
        self.stored.written[shard] = set()

    def _produce(self) -> None:
        if not self.faults:
            return
        for shard in self.stored.ends:
            if shard not in self.stored.closed:
                self.stored.ends[shard] += self.rng.randrange(0, 20)

    def _split(self) -> None:
        open_ = [shard for shard in self.stored.ends if shard not in self.stored.closed]
        if len(self.stored.ends) > 14:
            return
        parent = self.rng.choice(open_)
        merged = [parent]
        if self.rng.random() < 0.4 and len(open_) > 3:
            merged.append(self.rng.choice([shard for shard in open_ if shard != parent]))
        self.stored.closed.update(merged)
        for _ in range(1 if len(merged) == 2 else 2):
            self._add_shard(ShardId(f"t/{len(self.stored.ends)}"), tuple(merged))

    # The coordinator.

    def _take_over(self) -> None:
        self.generation += 1
        if self.stored.ownership is None:
            self.group = Group.new(self.spec, self.now)
        else:
            ownership = decode(self.stored.ownership)
            self.group = Group.restore(ownership, dict(self.stored.positions), self.spec, self.now, self.generation)
            self.stored.ownership = encode(self.group.ownership)

    def _tell(self, request: Request, generation: int | None = None) -> None:
        """A request that must not get lost, unless with the coordinator that it is meant for."""
        if generation is not None and generation != self.generation:
            return
        if not self._ask(request):
            self.after(0.3, lambda: self._tell(request, generation))

    def _ask(self, request: Request, answer: Callable[[Any], None] | None = None) -> bool:
        """One request through the coordinator, which may crash at every step. Whether it was taken in."""
        group = self.group
        if group is None:
            return False
        try:
            result = group.handle(request, self.now)
        except ShardherdError as error:
            if answer is not None:
                answer(error)
            return True
        group.apply(result.events)
        if result.persist:
            if self._happens(0.02):
                group.revert(result.events)
                return False
            self.stored.ownership = encode(group.ownership)
        if self._happens(0.003):
            self._crash_coordinator()
            return False
        self.promises.reply(request, result)
        if result.commit:
            generation = self.generation
            self.after(self.rng.uniform(0.01, 0.4), lambda: self._commit(generation, request, result, answer))
        elif answer is not None:
            answer(result.reply)
        return True

    def _commit(self, generation: int, request: Request, result: Result, answer: Callable[[Any], None] | None) -> None:
        if self.generation != generation:
            # The old leader is fenced at the store: nothing of it is written any more.
            return
        if self._happens(0.05):
            self._tell(CheckpointsFailed(frozenset(result.commit)), generation)
            return
        for shard, offset in result.commit.items():
            self.promises.commit(shard, offset)
            self.stored.positions[shard] = offset
        if self._happens(0.02):
            self._crash_coordinator()
            return
        self._tell(CheckpointsCommitted(dict(result.commit)), generation)
        if answer is not None and self.generation == generation:
            answer(result.reply)

    def _crash_coordinator(self) -> None:
        self.group = None
        self.generation += 1
        self.after(self.rng.uniform(0.2, 6.0), self._take_over_if_down)

    def _take_over_if_down(self) -> None:
        if self.group is None:
            self._take_over()

    def _discover(self) -> None:
        if self.group is None or self._happens(0.05):
            return
        infos = tuple(
            ShardInfo(shard, 0, end, shard not in self.stored.closed, self.stored.parents[shard])
            for shard, end in self.stored.ends.items()
        )
        unread = self.group.unread(infos)
        durable = {shard: self.stored.positions[shard] for shard in unread if shard in self.stored.positions}
        self._ask(ShardsDiscovered(infos, durable))

    def _tick(self) -> None:
        if self.group is None:
            return
        deadline = self.group.next_deadline()
        if deadline is not None and deadline <= self.now:
            if not self._ask(Tick()):
                return
            later = self.group.next_deadline() if self.group is not None else None
            if later is not None and later <= self.now:
                raise BrokenError(f"a tick at {self.now} left a deadline at {later}")

    # The controller.

    def _control(self) -> None:
        if self.group is None:
            return
        for consumer, incarnation in self.group.view(self.now).expired:
            pod = self.pods.get(consumer)
            if pod is not None and pod.incarnation == incarnation:
                pod.alive = False
                self._prove(pod, 1.0)
                self._start_pod(consumer)
        for consumer in self.spec.leaving:
            pod = self.pods.get(consumer)
            held = {view.consumer: view.shards for view in self.group.view(self.now).consumers}
            if pod is not None and not pod.draining and held.get(consumer, 0) == 0:
                pod.draining = True
                self.after(0.5, lambda pod=pod: self._end_drained(pod))  # type: ignore[misc]

    def _end_drained(self, pod: Pod) -> None:
        if not pod.alive or self.pods.get(pod.name) is not pod:
            return
        pod.alive = False
        del self.pods[pod.name]
        self._tell(Leave(pod.name, pod.incarnation))
        self._prove(pod, 1.0)

    def _start_pod(self, name: ConsumerId, start: int = 1, uid: str = "") -> None:
        if not uid:
            self.uids += 1
            uid = f"uid-{self.uids}"
        pod = Pod(name, Incarnation(uid, start), acknowledged=self.now)
        self.pods[name] = pod
        self.after(self.rng.uniform(0.1, 2.0), lambda: setattr(pod, "ready", True))
        self._loop(pod, 1.0, self._beat)
        self._loop(pod, 0.2, self._work)
        self._loop(pod, 0.7, self._checkpoint)

    def _prove(self, pod: Pod, probability: float) -> None:
        if self.rng.random() >= probability:
            return

        self.after(self.rng.uniform(0.1, 2.0), lambda: self._tell(ConsumerDied(pod.name, pod.incarnation)))

    # Consumers.

    def _loop(self, pod: Pod, seconds: float, action: Callable[[Pod], None]) -> None:
        def again() -> None:
            if not pod.alive:
                return
            if pod.paused_until > self.now:
                self.after(pod.paused_until - self.now, again)
                return
            action(pod)
            self.after(seconds, again)

        self.after(self.rng.uniform(0, seconds), again)

    def _send(self, pod: Pod, request: Request, answer: Callable[[Any], None]) -> None:
        """Over the network: late, lost, or twice. So is the answer."""

        def answered(reply: Any) -> None:
            if pod.cut or self._happens(0.05):
                return
            self.after(self.rng.uniform(0.005, 0.8 if self.faults else 0.02), lambda: self._deliver(pod, reply, answer))

        for _ in range(2 if self._happens(0.05) else 1):
            if not pod.cut and not self._happens(0.05):
                self.after(self.rng.uniform(0.005, 0.8 if self.faults else 0.02), lambda: self._ask(request, answered))

    def _deliver(self, pod: Pod, reply: Any, answer: Callable[[Any], None]) -> None:
        if not pod.alive:
            return
        if pod.paused_until > self.now:
            self.after(pod.paused_until - self.now, lambda: self._deliver(pod, reply, answer))
        elif isinstance(reply, StaleIncarnationError):
            self._exit(pod)
        elif not isinstance(reply, ShardherdError):
            answer(reply)

    def _exit(self, pod: Pod) -> None:
        """The process ends; the kubelet starts the container again, if the pod is still there."""
        pod.alive = False
        if self.pods.get(pod.name) is pod:
            self._start_pod(pod.name, pod.incarnation.start + 1, pod.incarnation.pod_uid)

    def _beat(self, pod: Pod) -> None:
        pod.seq += 1
        seq = pod.seq
        pod.sent_at[seq] = self.now
        heartbeat = Heartbeat(
            pod.name,
            pod.incarnation,
            seq,
            pod.tracker.revision,
            pod.tracker.held(),
            pod.ready,
            progress=pod.tracker.progress,
        )

        def answer(reply: HeartbeatReply) -> None:
            pod.acknowledged = max(pod.acknowledged, pod.sent_at[seq])
            if seq != pod.seq:
                return
            pod.tracker.confirm(reply)
            if pod.tracker.release():
                self._beat(pod)

        self._send(pod, heartbeat, answer)

    def _stopped(self, pod: Pod) -> bool:
        """An ordered group's consumer that was not heard for long stops itself: it may not write any more."""
        if self.ordered and self.now - pod.acknowledged >= SELF_STOP:
            self._exit(pod)
            return True
        return False

    def _work(self, pod: Pod) -> None:
        if self._stopped(pod) or pod.tracker.busy or pod.hung_until > self.now:
            return
        handed = pod.tracker.hand_out(dict(self.stored.ends), 30)
        ranges = {shard: each for shard, each in handed.items() if each.start < each.stop}
        if ranges:
            self.promises.order(ranges)
            self.after(self.rng.uniform(0.05, 1.0), lambda: self._finish(pod, handed, ranges))

    def _finish(self, pod: Pod, handed: Mapping[ShardId, ReadRange], ranges: Mapping[ShardId, ReadRange]) -> None:
        if not pod.alive:
            return
        late = max(pod.paused_until, pod.hung_until) - self.now
        if late > 0:
            self.after(late, lambda: self._finish(pod, handed, ranges))
            return
        if self._stopped(pod):
            return
        for shard, each in ranges.items():
            self.promises.write(shard, each)
        pod.tracker.finish(handed)
        self._checkpoint(pod)

    def _checkpoint(self, pod: Pod) -> None:
        sent = pod.tracker.uncommitted()
        if not sent:
            if pod.tracker.release():
                self._beat(pod)
            return

        def answer(reply: CheckpointReply) -> None:
            pod.tracker.acknowledge(sent, reply)
            if pod.tracker.release():
                self._beat(pod)

        self._send(pod, CheckpointRequest(pod.name, pod.incarnation, sent), answer)

    # Faults.

    def _chaos(self) -> None:
        if not self.faults:
            return
        if self.pods and self._happens(0.10):
            self._hurt(self.rng.choice(sorted(self.pods)))
        if self._happens(0.01):
            self._crash_coordinator()
        if self._happens(0.03):
            self._split()
        if self._happens(0.04):
            self._scale()

    def _hurt(self, name: ConsumerId) -> None:
        pod = self.pods[name]
        match self.rng.randrange(6):
            case 0 | 1:
                pod.alive = False
                self._prove(pod, 0.7)
                self.after(self.rng.uniform(0.5, 12), lambda: self._restart(pod))
            case 2:
                # Deleted by force: the process may go on without anybody knowing.
                zombie = self.rng.random() < 0.5
                pod.alive = zombie
                pod.cut = self.rng.random() < 0.5
                self.zombies.append(pod)
                self._start_pod(name)
            case 3:
                pod.paused_until = self.now + self.rng.uniform(1, 25)
            case 4:
                pod.hung_until = self.now + self.rng.uniform(1, 40)
            case 5:
                pod.cut = True
                self.after(self.rng.uniform(1, 20), lambda: setattr(pod, "cut", False))

    def _restart(self, pod: Pod) -> None:
        if self.pods.get(pod.name) is pod and not pod.alive:
            self._start_pod(pod.name, pod.incarnation.start + 1, pod.incarnation.pod_uid)

    def _scale(self) -> None:
        names = sorted(self.pods)
        if self.rng.random() < 0.5 and len(names) < 6:
            free = next(ConsumerId(f"g-{number}") for number in range(9) if ConsumerId(f"g-{number}") not in self.pods)
            self._start_pod(free)
            self._change(len(names) + 1, frozenset(self.spec.leaving - {free}))
        elif len(names) > 2:
            self._change(len(names) - 1, frozenset({names[-1]}))

    def _change(self, wanted: int, leaving: frozenset[ConsumerId]) -> None:
        self.spec = replace(self.spec, wanted=wanted, leaving=leaving)
        self._tell(SettingsChanged(self.spec))

    def calm(self) -> None:
        """No more faults: what is down comes back, what hangs goes on, the source stands still."""
        self.faults = False
        self._change(len(self.pods), frozenset())
        self._take_over_if_down()
        for pod in [*self.pods.values(), *self.zombies]:
            pod.cut, pod.paused_until, pod.hung_until = False, min(pod.paused_until, self.now), min(pod.hung_until, self.now)
            pod.draining = False
            self._restart(pod)
            # One whose name nobody has any more is not let in: its token's pod does not exist.
            pod.alive = pod.alive and pod.name in self.pods

    def finish(self) -> None:
        """What must hold after the quiet."""
        assert self.group is not None
        self.promises.rest(self.group.view(self.now), list(self.pods))
