"""Kubernetes Events about groups, written in a thread of their own. Called by the coordinator through `EventRecorder`.

The same event again raises the count of the first. A group that would flood is held to a burst and a rate. Never blocks and
never raises: an Event that cannot be written is logged and given up.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from dataclasses import dataclass
from typing import Any

from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError, ApiUnavailableError, KubernetesApi
from shardherd.core.model.nouns import GroupIdentity
from shardherd.core.model.times import rfc3339
from shardherd.ports import Clock

log = logging.getLogger(__name__)

AGGREGATE_FOR = 600.0
"""Seconds in which an equal event only raises the count."""

BURST = 25
REFILL = 10.0
"""A group may write so many new Events at once, and then one every so many seconds."""

MAX_MESSAGE = 1024
"""The API server's limit for an Event's message."""

MAX_QUEUE = 10_000
"""Events that wait to be written: a thousand groups that are made at once have some eight each."""

TIDY = 60.0
"""Seconds between two looks for what need not be remembered any more."""


@dataclass
class _Budget:
    left: float
    at: float


@dataclass
class _Written:
    name: str
    count: int
    at: float


class KubernetesEvents:
    """EventRecorder. `instance` names this process, usually by its pod."""

    def __init__(self, api: KubernetesApi, clock: Clock, instance: str) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._queue: queue.Queue[tuple[GroupIdentity, str, str, bool] | None] = queue.Queue(MAX_QUEUE)
        self._written: dict[tuple[str, str, str], _Written] = {}
        self._budgets: dict[str, _Budget] = {}
        self._tidied = clock.now()
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    def record(self, group: GroupIdentity, reason: str, message: str, *, warning: bool = False) -> None:
        try:
            self._queue.put_nowait((group, reason, message[:MAX_MESSAGE], warning))
        except queue.Full:
            log.warning("dropped the event %s of group %s: %s events wait already", reason, group, MAX_QUEUE)

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, for at most `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            group, reason, message, warning = item
            try:
                self._write(group, reason, message, warning)
            except (ApiError, ApiUnavailableError) as error:
                log.warning("the event %s of group %s was not written: %s", reason, group, error)

    def _write(self, group: GroupIdentity, reason: str, message: str, warning: bool) -> None:
        now = self._clock.now()
        self._tidy(now)
        collection = f"/api/v1/namespaces/{group.namespace}/events"
        key = (group.uid, reason, message)
        written = self._written.get(key)
        if written is not None and now - written.at < AGGREGATE_FOR and self._again(collection, written, now):
            return
        if not self._afford(group, now):
            log.warning("dropped the event %s of group %s, which writes too many: %s", reason, group, message)
            return
        body = self._event(group, reason, message, warning)
        self._api.call("POST", collection, body)
        self._written[key] = _Written(body["metadata"]["name"], 1, now)

    def _again(self, collection: str, written: _Written, now: float) -> bool:
        """Raise the count of an event; False if it is gone: somebody deleted it, or its time was over."""
        written.count += 1
        written.at = now
        change = {"count": written.count, "lastTimestamp": rfc3339(self._clock.wall())}
        try:
            self._api.call("PATCH", f"{collection}/{written.name}", change, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _tidy(self, now: float) -> None:
        if now - self._tidied < TIDY:
            return
        self._tidied = now
        self._written = {key: written for key, written in self._written.items() if now - written.at < AGGREGATE_FOR}
        # One that was not used for so long is full again.
        self._budgets = {uid: budget for uid, budget in self._budgets.items() if now - budget.at < BURST * REFILL}

    def _afford(self, group: GroupIdentity, now: float) -> bool:
        budget = self._budgets.setdefault(group.uid, _Budget(BURST, now))
        budget.left = min(BURST, budget.left + (now - budget.at) / REFILL)
        budget.at = now
        if budget.left < 1:
            return False
        budget.left -= 1
        return True

    def _event(self, group: GroupIdentity, reason: str, message: str, warning: bool) -> dict[str, Any]:
        stamp = rfc3339(self._clock.wall())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{group.name}.{uuid.uuid4().hex[:16]}", "namespace": group.namespace},
            "involvedObject": {
                "apiVersion": "shardherd.dev/v1alpha1",
                "kind": "ConsumerGroup",
                "namespace": group.namespace,
                "name": group.name,
                "uid": group.uid,
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": "shardherd"},
            "reportingComponent": "shardherd",
            "reportingInstance": self._instance,
        }
