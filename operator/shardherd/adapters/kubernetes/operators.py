"""The operator's own pods: which of them is surely dead, and which of them the API's Service leads to.

Called by the composition root, and by the Lease as its `Obituaries`. A holder of the Lease is `<pod name>_<pod UID>`. Of a pod
that is there, only a container's termination message that names the very start proves its end: a pod's status lags, and the
container may have been started again meanwhile. Decides nothing about who leads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError, ApiUnavailableError, KubernetesApi, unless_missing

log = logging.getLogger(__name__)

LEADER_LABEL = "shardherd.dev/leader"
"""Label of the pod that leads; the API's Service selects it."""

CONTAINER = "operator"

TIMEOUT = 2.0
"""Seconds for one call: who waits for the Lease looks again soon."""

RETRY = 0.5
"""Seconds between attempts to set the labels."""

CHECK = 10.0
"""Seconds between looks whether they are still right."""

_RELEASE = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
"""Labels that the pods of one release have in common."""


def holder_of(pod: str, uid: str) -> str:
    """The name under which a pod holds the Lease."""
    return f"{pod}_{uid}" if uid else pod


class OperatorPods:
    """The pods of the operators in `namespace`; we are in `pod` with this UID."""

    def __init__(self, api: KubernetesApi, namespace: str, pod: str, uid: str) -> None:
        self._api = api
        self._collection = f"/api/v1/namespaces/{namespace}/pods"
        self._pod = pod
        self._uid = uid
        self._selector = ""

    async def died(self, holder: str, start: str) -> bool:
        """Whether this start of the holder's process has ended. Raises ApiError, ApiUnavailableError."""
        name, _, uid = holder.rpartition("_")
        if not name:
            return False  # no pod holds it: a process on somebody's machine
        found = await self._find(name)
        if found is None or found["metadata"]["uid"] != uid:
            return True
        return bool(start) and start in _ended(found)

    async def lead(self, certain: Callable[[], bool]) -> None:
        """Keep the leader's label on our pod, and off every other pod of the release, whenever we are `certain` to lead.

        The first attempts follow each other quickly; later ones only mend what a process that was paused has done. Ends when it
        is cancelled: a lease that was renewed too late, and that nobody has held meanwhile, is gone on with.
        """
        logged = ""
        while True:
            if not certain():
                await asyncio.sleep(RETRY)
                continue
            try:
                await self._label()
            except (ApiError, ApiUnavailableError) as error:
                if str(error) != logged:
                    log.warning("the label %s is not set yet, consumers may not reach this operator: %s", LEADER_LABEL, error)
                logged = str(error)
                await asyncio.sleep(RETRY)
            else:
                logged = ""
                await asyncio.sleep(CHECK)

    async def _label(self) -> None:
        if not self._selector:
            ours = await self._patch(self._pod, self._uid, "true")
            if ours is None:
                log.warning("pod %s with UID %s is gone: the API's Service cannot lead to it", self._pod, self._uid)
                return
            labels = ours["metadata"].get("labels", {})
            self._selector = ",".join([f"{LEADER_LABEL}=true", *(f"{key}={labels[key]}" for key in _RELEASE if key in labels)])
        found = await self._api.acall("GET", self._collection, query={"labelSelector": self._selector}, timeout=TIMEOUT)
        labelled = {item["metadata"]["uid"]: item["metadata"]["name"] for item in found["items"]}
        if labelled.pop(self._uid, None) is None:
            await self._patch(self._pod, self._uid, "true")
        for uid, name in labelled.items():
            await self._patch(name, uid, None)
            log.info("took the label %s from pod %s", LEADER_LABEL, name)

    async def _patch(self, pod: str, uid: str, value: str | None) -> Any:
        """Set or remove the label of this very pod; None if it is gone."""
        # A UID in a patch is a precondition: another pod of the same name answers 409.
        body = {"metadata": {"uid": uid, "labels": {LEADER_LABEL: value}}}
        path = f"{self._collection}/{pod}"
        patch = self._api.acall("PATCH", path, body, content_type=MERGE_PATCH, timeout=TIMEOUT)
        return await unless_missing(patch, 409)

    async def _find(self, pod: str) -> Any:
        return await unless_missing(self._api.acall("GET", f"{self._collection}/{pod}", timeout=TIMEOUT))


def _ended(pod: Any) -> set[str]:
    """The starts of the operator's container whose ends this pod's status tells."""
    starts = set()
    for status in pod["status"].get("containerStatuses", ()):
        for when in ("state", "lastState"):
            ended = status.get(when, {}).get("terminated")
            if status["name"] != CONTAINER or not ended or ended.get("reason") == "ContainerStatusUnknown":
                continue
            try:
                starts.add(str(json.loads(ended.get("message", ""))["start"]))
            except (ValueError, TypeError, KeyError):
                continue
    return starts
