"""Collects proof that incarnations are dead, from every pod status that a watch or a read has shown.

The controller shows it each pod as it changes and as it goes, and reports what is proven to the coordinator. Proof is a
container that the kubelet says has terminated. A pod that vanished without such a status proves nothing: a force-deleted pod
may still run. The end of start n of a pod proves that all earlier starts ended, but not their executors. Holds no clock and
does no I/O.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from shardherd.controller import names
from shardherd.controller.pods import consumer_container, incarnation_of
from shardherd.core.model.nouns import ConsumerId, Incarnation
from shardherd.core.planning.status import ROLE_LABEL

REMEMBERED = 256
"""Driver pods of one group that are remembered; the oldest go first."""

Pod = Mapping[str, Any]


class Deaths:
    """What is known of the ends of one group's drivers and executors."""

    def __init__(self) -> None:
        self._drivers: dict[str, tuple[ConsumerId, int]] = {}
        self._executors: dict[Incarnation, dict[str, bool]] = {}
        self._reported: set[Incarnation] = set()

    def see(self, pod: Pod, *, gone: bool = False) -> None:
        """Take notice of a pod, as it is or, if it is gone, as it was when it went."""
        incarnation = incarnation_of(pod)
        if incarnation is not None:
            pods = self._executors.setdefault(incarnation, {})
            uid = pod["metadata"]["uid"]
            pods[uid] = pods.get(uid, False) or executor_ended(pod, gone=gone)
        elif pod["metadata"].get("labels", {}).get(ROLE_LABEL) == names.DRIVER_ROLE:
            self._see_driver(pod)
        self._prune()

    def dead(self) -> tuple[Incarnation, ...]:
        """The last start of each pod that is known to have ended. Its executors may still run."""
        return tuple(Incarnation(uid, start) for uid, (_, start) in self._drivers.items())

    def proven(self, *, ordered: bool, executors: int) -> tuple[tuple[ConsumerId, Incarnation], ...]:
        """The last start of each pod that will surely never act again, nor any before it; in an ordered group, nor executors.

        Where a consumer has executors, at least one must have been seen: none at all means that we did not look in time.
        `executors` is how many are declared now; a pod from before a change may have some although none are.
        """
        starts: dict[str, list[int]] = {}
        if ordered:
            for run in self._executors:
                starts.setdefault(run.pod_uid, []).append(run.start)
        result = []
        for uid, (consumer, last) in self._drivers.items():
            with_executors = sorted(start for start in starts.get(uid, ()) if start <= last)
            ended = list(itertools.takewhile(functools.partial(self._have_ended, uid), with_executors))
            if not ordered or (executors == 0 and ended == with_executors):
                result.append((consumer, Incarnation(uid, last)))
            elif ended:
                result.append((consumer, Incarnation(uid, ended[-1])))
        return tuple(result)

    def unreported(
        self, proven: Iterable[tuple[ConsumerId, Incarnation]], listed: Iterable[Incarnation]
    ) -> tuple[tuple[ConsumerId, Incarnation], ...]:
        """Those that were not reported to the coordinator yet, or that it still lists."""
        alive = set(listed)
        return tuple(
            (consumer, death)
            for consumer, death in proven
            if death not in self._reported or any(known == death or death.supersedes(known) for known in alive)
        )

    def reported(self, incarnation: Incarnation) -> None:
        """They were reported to the coordinator."""
        self._reported.add(incarnation)

    def _see_driver(self, pod: Pod) -> None:
        status = consumer_container(pod)
        uid = pod["metadata"]["uid"]
        for state in (status.get("lastState", {}), status.get("state", {})):
            start = start_of(state.get("terminated"))
            if start is not None and start > self._drivers.get(uid, ("", 0))[1]:
                self._drivers[uid] = (ConsumerId(pod["metadata"]["name"]), start)

    def _have_ended(self, uid: str, start: int) -> bool:
        """Whether all executors that were seen of this start have ended."""
        return all(self._executors[Incarnation(uid, start)].values())

    def _prune(self) -> None:
        for uid in list(self._drivers)[:-REMEMBERED]:
            del self._drivers[uid]
        if len(self._executors) > REMEMBERED:
            for incarnation in list(self._executors)[:-REMEMBERED]:
                del self._executors[incarnation]
        if len(self._reported) > 4 * REMEMBERED:
            known = set(self._drivers)
            self._reported = {incarnation for incarnation in self._reported if incarnation.pod_uid in known}


def start_of(terminated: Mapping[str, Any] | None) -> int | None:
    """Which start of the driver ended, from the termination message that our entrypoint wrote. None if it does not say."""
    if not terminated or terminated.get("reason") == "ContainerStatusUnknown":
        return None
    try:
        start = json.loads(terminated.get("message", ""))["start"]
    except (ValueError, TypeError, KeyError):
        return None
    return start if isinstance(start, int) and start > 0 else None


def executor_ended(pod: Pod, *, gone: bool) -> bool:
    """Whether every container of this pod has terminated, or the pod went before it got a node.

    A phase of Failed alone proves nothing: it is also set for pods on a node that was lost.
    """
    if gone and not pod.get("spec", {}).get("nodeName"):
        return True
    statuses = pod["status"].get("containerStatuses", ())
    ends = [status.get("state", {}).get("terminated") for status in statuses]
    return bool(ends) and all(end is not None and end.get("reason") != "ContainerStatusUnknown" for end in ends)
