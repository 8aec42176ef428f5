"""The coordinator as the controller's threads see it: every call goes over to the coordinator's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from shardherd.coordinator.runtime import Runtime
from shardherd.core.model import ConsumerId, GroupIdentity, GroupSpec, GroupView, Incarnation

T = TypeVar("T")

TIMEOUT = 10.0
"""Seconds that a caller waits for the loop; it answers within milliseconds unless it hangs."""


class ThreadSafeCoordination:
    """`Coordination` for threads other than the loop's; on the loop's own thread the calls are made directly.

    Raises TimeoutError if the coordinator's loop does not answer, RuntimeError once it is closed.
    """

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self._runtime = runtime
        self._loop = loop

    def apply(self, spec: GroupSpec) -> None:
        self._on_loop(lambda: self._runtime.apply(spec))

    def forget(self, group: GroupIdentity) -> None:
        self._on_loop(lambda: self._runtime.forget(group))

    def view(self, group: GroupIdentity) -> GroupView | None:
        return self._on_loop(lambda: self._runtime.view(group))

    def views(self) -> Mapping[GroupIdentity, GroupView]:
        return self._on_loop(self._runtime.views)

    def consumer_died(self, group: GroupIdentity, consumer: ConsumerId, incarnation: Incarnation) -> None:
        self._on_loop(lambda: self._runtime.consumer_died(group, consumer, incarnation))

    def _on_loop(self, call: Callable[[], T]) -> T:
        try:
            if asyncio.get_running_loop() is self._loop:
                return call()
        except RuntimeError:
            # No loop runs in this thread: the usual case.
            pass

        async def work() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(TIMEOUT)
