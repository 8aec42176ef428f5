"""The pods of the group, and what keeps them running as a StatefulSet and a kubelet would.

Faults and users delete pods here; containers that end are started again, and their deaths proven to the leader a little later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardherd.core.group.records import Ownership
from shardherd.core.model.nouns import ConsumerId, Incarnation
from tests.simulation.consumer import ConsumerRun, Location
from tests.simulation.history_entries import Run
from tests.simulation.network import Process
from tests.simulation.plain import PlainRun
from tests.simulation.worker import WorkerRun

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class Pod:
    """A pod of the group. `run` is its container's; `gone` once it was deleted by force and nobody sees it any more."""

    name: ConsumerId
    uid: str
    starts: int = 0
    run: ConsumerRun | None = None
    deleting: bool = False
    executors_until: float = 0.0


class Pods:
    """The pods of one world. `wanted` are the names that there should be, `zombies` runs that nobody sees any more."""

    def __init__(self, world: World) -> None:
        self.existing: dict[ConsumerId, Pod] = {}
        self.wanted: dict[ConsumerId, None] = {}
        self.zombies: list[ConsumerRun] = []
        self.locations: dict[ConsumerId, Location] = {}
        self.sleeping: list[ConsumerId] = []
        """The names that there should be again once all is started."""
        self.proofs: list[tuple[ConsumerId, Incarnation]] = []
        self._world = world
        self._uids = 0

    def runs(self) -> list[ConsumerRun]:
        """The newest run of every pod."""
        return [pod.run for pod in self.existing.values() if pod.run is not None]

    def everyone(self) -> list[ConsumerRun]:
        """These, and those that nobody sees."""
        return [*self.runs(), *self.zombies]

    def expired(self, name: ConsumerId, reason: str) -> None:
        """The coordinator ended this consumer: what its runs wrote may be written again, and a pod that hangs is replaced."""
        for run in self.everyone():
            if run.run.consumer == name:
                run.run.violent = run.run.violent or f"expired by {reason}"
        pod = self.existing.get(name)
        if reason != "SessionTimeout" and pod is not None and pod.run is not None:
            self._world.timeline.after(22.0, self._replace_expired, pod, pod.run)

    def replace_superseded(self, stored: Ownership) -> None:
        """A pod that is refused for ever, since an earlier one of its name was heard after it, is deleted."""
        for name, consumer in stored.consumers.items():
            pod = self.existing.get(name)
            if pod is not None and pod.uid in consumer.superseded:
                self._world.history.counts["pods that were superseded and run"] += 1
                self.delete(name)

    def disturb(self, names: Collection[ConsumerId], why: str) -> None:
        """Others may read again what these have read: they have not claimed what they held, or somebody meddled."""
        for run in self.everyone():
            if run.run.consumer in names:
                run.run.violent = run.run.violent or why

    def add(self, name: ConsumerId) -> None:
        self._uids += 1
        pod = self.existing[name] = Pod(name, f"uid-{self._uids}")
        self.wanted[name] = None
        if not self._world.plan.keeps_location:
            self.locations.pop(name, None)
        self.start_container(pod)

    def start_container(self, pod: Pod) -> None:
        if self.existing.get(pod.name) is not pod or (pod.run is not None and pod.run.alive):
            return
        pod.starts += 1
        self._world.last_start = self._world.time
        uid = self._world.spec.identity.uid
        run = Run(pod.name, Incarnation(pod.uid, pod.starts), acknowledged=self._world.time, group=uid)
        process = Process(f"{pod.name}/{pod.uid}", self._world.timeline, self._world.rng, self._world.plan.drift)
        self._world.say(f"{run} starts")
        location = self.locations.setdefault(pod.name, Location())
        plan = self._world.plan
        kind = WorkerRun if plan.is_worker(pod.name) else PlainRun if plan.is_plain(pod.name) else ConsumerRun
        pod.run = kind(self._world, process, run, location, self._container_ended, over_http=self._world.plan.over_http)

    def _container_ended(self, ended: ConsumerRun, reason: str) -> None:
        self._world.say(f"{ended.run} has ended: {reason}")
        if reason != "drained":
            ended.run.violent = ended.run.violent or reason
        pod = self.existing.get(ended.run.consumer)
        if pod is None or pod.run is not ended:
            return
        delay = self._world.rng.uniform(0.1, 2.0)
        if self._world.spec.settings.ordered:
            # Not before the executors of this start, and of those before it, have ended.
            pod.executors_until = max(pod.executors_until, ended.executors_until)
            delay += max(self._world.rng.uniform(0.0, 6.0), pod.executors_until - self._world.time)
        self._world.timeline.after(delay, self._prove, ended)
        if not pod.deleting:
            self._world.timeline.after(self._world.rng.uniform(1.0, 8.0), self.start_container, pod)
            return
        del self.existing[pod.name]
        if pod.name in self.wanted:
            self._world.timeline.after(self._world.rng.uniform(1.0, 5.0), self._replace, pod.name)

    def _replace(self, name: ConsumerId) -> None:
        if name in self.wanted and name not in self.existing:
            self.add(name)

    def _prove(self, ended: ConsumerRun) -> None:
        proof = (ended.run.consumer, ended.incarnation)
        self.proofs = [*self.proofs[-16:], proof]
        leader = self._world.leader()
        if leader is not None:
            self._world.say(f"proof of death: {ended.run}")
            self._world.timeline.at(self._world.time, leader.process.loop, leader.died, *proof)

    def delete(self, name: ConsumerId) -> None:
        """SIGTERM, and SIGKILL when the grace is over."""
        pod = self.existing.get(name)
        if pod is None or pod.deleting or pod.run is None:
            return
        pod.deleting = True
        run = pod.run
        if not run.alive:
            self._container_ended(run, "killed")
            return
        self._world.say(f"{run.run} gets SIGTERM")
        run.terminate()
        self._world.timeline.after(90.0, run.process.kill)

    def delete_by_force(self, name: ConsumerId) -> None:
        """The pod is forgotten; its process goes on where nobody sees it."""
        pod = self.existing.pop(name)
        if pod.run is not None and pod.run.alive:
            pod.run.run.violent = "its pod was deleted by force"
            self.zombies.append(pod.run)
            pod.run.caller.gone = True
            self._world.timeline.after(60.0, pod.run.caller.believed_by.clear)
        self._replace(name)

    def sleep(self) -> None:
        """All pods are deleted, and none is made."""
        self.sleeping = list(self.wanted)
        self.wanted.clear()
        for name in self.sleeping:
            self.delete(name)

    def wake(self) -> None:
        """As many pods as before."""
        for name in self.sleeping:
            self.wanted[name] = None
            self._replace(name)

    def _replace_expired(self, pod: Pod, run: ConsumerRun) -> None:
        if self.existing.get(pod.name) is pod and pod.run is run and run.alive:
            self.delete(pod.name)
