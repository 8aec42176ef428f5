"""Does one fault of the plan to the groups, the broker or the operators, and says when it was done. Called by `run`.

It waits for its victim to run, for as long as the fault lasts, and until the broker serves or an operator leads again; not
until the groups have recovered, so that faults meet. It judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dev.demo.kube import is_ready
from dev.demo.lab import LEADER, SYSTEM, Lab
from dev.demo.report import await_that
from dev.soak.excuses import Incident
from dev.soak.groups import Group
from dev.soak.plan import ENDS_LEADER, Fault, Kind

VICTIM_S, LEADER_S = 180.0, 120.0
"""Seconds in which a victim must run, and in which an operator must lead again."""


@dataclass(frozen=True)
class Inflict:
    """Does faults to these groups on this instance."""

    lab: Lab
    groups: Mapping[str, Group]

    def __call__(self, fault: Fault) -> Incident:
        """Do it. Returns once it is over."""
        if fault.kind in ENDS_LEADER or fault.kind == Kind.LEADER_BLINK:
            return self._of_leader(fault)
        if fault.kind == Kind.BROKER:
            return self._of_broker(fault)
        group = self.groups[fault.group]
        if fault.kind in (Kind.KILL, Kind.DELETE, Kind.FREEZE, Kind.BLINK):
            return self._of_consumer(fault, group)
        begun = time.time()
        self._edit(fault, group)
        return Incident(fault.kind, begun, time.time(), fault.group)

    def _edit(self, fault: Fault, group: Group) -> None:
        """Declare something else, or have a larger topic."""
        match fault.kind:
            case Kind.GROW:
                self.lab.grow_topic(group.name, int(fault.value))
            case Kind.SCALE:
                group.scale(int(fault.value))
            case Kind.ASSIGNOR:
                group.deployed.change({"assignor": fault.value})
            case Kind.ROLLOUT:
                group.roll_out(fault.value)
            case Kind.PAUSE:
                group.deployed.change({"paused": True})
                time.sleep(fault.seconds)
                group.deployed.change({"paused": False})
            case _:
                raise AssertionError(f"{fault.kind} is no edit")

    def _of_consumer(self, fault: Fault, group: Group) -> Incident:
        """End or pause one consumer, with all processes of its pod."""
        namespace, pod = group.deployed.namespace, group.pod(fault.consumer)
        run = await_that(
            f"{pod} runs", lambda: self._run(namespace, pod), within=VICTIM_S, every=1, explain=group.deployed.explain
        )
        if fault.kind == Kind.KILL:
            begun, ended = self.lab.kill_process(namespace, pod, self.lab.child_of_init(namespace, pod))
            return Incident(fault.kind, begun, ended, fault.group, pod)
        begun = time.time()
        if fault.kind == Kind.DELETE:
            self.lab.kube.run("delete", "pod", pod, "-n", namespace, "--wait=false")
        else:
            self.lab.kube.shell(namespace, pod, "kill -STOP -- -1")
            time.sleep(fault.seconds)
            if self._run(namespace, pod) == run:  # otherwise there is nobody left to go on
                self.lab.kube.shell(namespace, pod, "kill -CONT -- -1")
        return Incident(fault.kind, begun, time.time(), fault.group, pod)

    def _run(self, namespace: str, pod: str) -> str | None:
        """Which container runs in this pod now; None if none does, or if it is about to go."""
        found = self.lab.kube.find("pod", pod, "-n", namespace)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return None
        running = [each["containerID"] for each in found["status"].get("containerStatuses", ()) if "running" in each["state"]]
        return running[0] if running else None

    def _of_leader(self, fault: Fault) -> Incident:
        """End or pause the operator that leads."""
        leader = self.lab.operator_pod()
        name, begun = leader["metadata"]["name"], time.time()
        if fault.kind == Kind.LEADER_KILL:
            self.lab.kill_operator()
        elif fault.kind == Kind.LEADER_DELETE:
            self.lab.kube.run("delete", "pod", name, "-n", SYSTEM, "--wait=false")
        else:
            pid = self.lab.child_of_init(SYSTEM, name)
            begun = time.time()
            self.lab.kube.shell(SYSTEM, name, f"kill -STOP {pid}")
            time.sleep(fault.seconds)
            if self._run(SYSTEM, name) == leader["status"]["containerStatuses"][0]["containerID"]:
                self.lab.kube.shell(SYSTEM, name, f"kill -CONT {pid}")
        if fault.kind in ENDS_LEADER:
            self._await_another(leader)
        else:
            self.lab.operator_pod()
        return Incident(fault.kind, begun, time.time(), consumer=name)

    def _await_another(self, before: Mapping[str, Any]) -> None:
        """Wait until another run of an operator leads."""
        run = before["status"]["containerStatuses"][0]["containerID"]

        def other() -> bool:
            leaders = [pod for pod in self.lab.kube.pods(SYSTEM, LEADER) if is_ready(pod)]
            return any(pod["status"]["containerStatuses"][0]["containerID"] != run for pod in leaders)

        await_that("another operator leads", other, within=LEADER_S, explain=lambda: self.lab.kube.explain(SYSTEM))

    def _of_broker(self, fault: Fault) -> Incident:
        """Restart the broker; it is away for the fault's time and as long as it needs."""
        begun = time.time()
        self.lab.cluster.stop_kafka()
        time.sleep(fault.seconds)
        self.lab.cluster.start_kafka()
        return Incident(fault.kind, begun, time.time())
