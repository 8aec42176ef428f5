"""The coordinator's interface for the threads of the controller and of the metrics.

Calls that change something are passed to the coordinator's event loop in their order, and are not waited for; views are made on
the caller's thread, between two decisions of the group. So no caller waits for a busy loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from shardherd.coordinator.runtime import Runtime
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSpec, GroupView, Incarnation

log = logging.getLogger(__name__)


class ThreadSafeCoordination:
    """`Coordination` for one thread that changes something, and any that take views.

    Calls that change something raise RuntimeError once the coordinator's loop is closed.
    """

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self._runtime = runtime
        self._loop = loop
        self._applied: dict[tuple[str, str], GroupSpec] = {}

    def apply(self, spec: GroupSpec, *, new: bool = False) -> None:
        key = (spec.identity.namespace, spec.identity.name)
        if self._applied.get(key) == spec:
            return
        self._applied[key] = spec
        self._loop.call_soon_threadsafe(self._apply, key, spec, new)

    def _apply(self, key: tuple[str, str], spec: GroupSpec, new: bool) -> None:
        try:
            self._runtime.apply(spec, new)
        except Exception:
            log.exception("group %s: its spec was not applied; it is sent again", spec.identity)
            self._applied.pop(key, None)

    def forget(self, group: GroupIdentity) -> None:
        applied = self._applied.get((group.namespace, group.name))
        if applied is not None and applied.identity == group:
            self._applied.pop((group.namespace, group.name), None)
        self._loop.call_soon_threadsafe(self._runtime.forget, group)

    def view(self, group: GroupIdentity) -> GroupView | None:
        return self._runtime.view(group)

    def views(self) -> Mapping[GroupIdentity, GroupView]:
        return self._runtime.views()

    def consumer_died(self, group: GroupIdentity, consumer: ConsumerId, incarnation: Incarnation) -> None:
        self._loop.call_soon_threadsafe(self._runtime.consumer_died, group, consumer, incarnation)
