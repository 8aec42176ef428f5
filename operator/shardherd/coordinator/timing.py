"""Counts a request to a source: how long it took, and whether it failed. Called by the runner and the committer of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from shardherd.coordinator.ports import CoordinatorPorts
from shardherd.core.model import GroupIdentity
from shardherd.ports import SourceUnavailableError

T = TypeVar("T")


async def timed(ports: CoordinatorPorts, group: GroupIdentity, operation: str, call: Callable[[], Awaitable[T]]) -> T:
    """The result of the call, which is counted under this name."""
    started = ports.clock.now()
    try:
        return await call()
    except SourceUnavailableError:
        ports.metrics.source_error(group, operation)
        raise
    finally:
        ports.metrics.source_request(operation, ports.clock.now() - started)
