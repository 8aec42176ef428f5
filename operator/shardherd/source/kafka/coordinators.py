"""Requests to the broker that coordinates a group or a transactional id, retried while it moves or loads.

Used by the operator's adapter and by the Kafka sink, on kafka-python's loop: whoever asks brings a `Wire`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kafka.errors as errors
from kafka.protocol.metadata import FindCoordinatorRequest

from shardherd.clock import boot_time

GROUP, TRANSACTION = 0, 1

RETRY_FIRST, RETRY_MAX = 0.01, 0.2
"""Seconds between attempts: markers of a transaction are written within milliseconds, a restarted broker loads for seconds."""

_MOVED = (errors.NotCoordinatorError, errors.CoordinatorNotAvailableError)
_BUSY = (errors.CoordinatorLoadInProgressError, errors.ConcurrentTransactionsError, errors.UnstableOffsetCommitError)


class Wire:
    """How requests are sent by a connection manager, and the time by which the work must end.

    `coordinators` remembers, for all work on a connection, which broker coordinates a (kind, key).
    """

    def __init__(self, manager: Any, coordinators: dict[tuple[int, str], int], within: float) -> None:
        self._manager = manager
        self._deadline = boot_time() + within
        self.coordinators = coordinators

    async def send(self, request: Any, node: int | str | None = None) -> Any:
        """The response to a request, from that broker or any. Raises a KafkaError."""
        return await self._manager.send(request, node_id=node)

    async def sleep(self, seconds: float) -> None:
        await self._manager.net.sleep(seconds)

    def expired(self, after: float = 0.0) -> bool:
        """Whether the time is over, or will be in so many seconds."""
        return boot_time() + after >= self._deadline


async def ask_coordinator(
    wire: Wire,
    key: str,
    request: Callable[[], Any],
    code: Callable[[Any], int],
    kind: int = GROUP,
    accept: tuple[type[Exception], ...] = (),
) -> tuple[Any, int]:
    """The response to `request()` of the coordinator of `key`, and its node; retried while it moves, loads or is busy.

    `code` takes the error code out of a response. Raises the KafkaError of any other code but those in `accept`.
    """
    delay = RETRY_FIRST
    while True:
        node = wire.coordinators.get((kind, key))
        if node is None:
            node = wire.coordinators[kind, key] = await _find(wire, key, kind)
        try:
            response = await wire.send(request(), node)
        except errors.KafkaError:
            # The broker may be gone for good; the next request asks who coordinates now.
            wire.coordinators.pop((kind, key), None)
            raise
        error = errors.for_code(code(response))
        if error is errors.NoError or issubclass(error, accept):
            return response, node
        if issubclass(error, _MOVED):
            wire.coordinators.pop((kind, key), None)
        if not issubclass(error, (*_MOVED, *_BUSY)) or wire.expired(delay):
            raise error(f"{type(request()).__name__} of {key!r}")
        await wire.sleep(delay)
        delay = min(delay * 1.5, RETRY_MAX)


async def _find(wire: Wire, key: str, kind: int) -> int:
    """The node that coordinates `key`, retried while there is none. Raises a KafkaError."""
    while True:
        response = await wire.send(FindCoordinatorRequest(coordinator_keys=[key], key_type=kind, min_version=4))
        found = response.coordinators[0]
        error = errors.for_code(found.error_code)
        if error is errors.NoError:
            return int(found.node_id)
        if not issubclass(error, (*_MOVED, *_BUSY)) or wire.expired(RETRY_MAX):
            raise error(f"looking for the coordinator of {key!r}: {found.error_message or ''}")
        await wire.sleep(RETRY_MAX)
