"""Requests to a group's source, each of which is measured, and counted if it fails. Decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from shardherd.coordinator.ports import CoordinatorPorts
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import SourceUnavailableError

T = TypeVar("T")


class Timed:
    """Those of one group."""

    def __init__(self, ports: CoordinatorPorts, identity: GroupIdentity) -> None:
        self._ports = ports
        self._identity = identity

    async def __call__(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, which is this operation on the source."""
        started = self._ports.clock.now()
        try:
            return await call()
        except SourceUnavailableError:
            self._ports.metrics.source_error(self._identity, operation)
            raise
        finally:
            self._ports.metrics.source_request(operation, self._ports.clock.now() - started)
