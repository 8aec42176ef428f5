"""The coordinator's API for one consumer, as plain calls from any thread. Called by the agent and by tests.

A thread of its own runs the asynchronous client; nothing here knows the API.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shardherd.client.aio import AsyncConsumerClient
from shardherd.core.model import (
    CheckpointReply,
    CheckpointRequest,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Offset,
    ShardId,
)

T = TypeVar("T")


class ConsumerClient:
    """AsyncConsumerClient for callers without an event loop; the same arguments, methods and errors. Close it when done."""

    def __init__(self, url: str, namespace: str, group: str, token: Callable[[], str], *, timeout: float = 10.0) -> None:
        self._client = AsyncConsumerClient(url, namespace, group, token, timeout=timeout)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardherd-client", daemon=True)
        self._thread.start()

    def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        return self._run(self._client.heartbeat(heartbeat, wait))

    def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        return self._run(self._client.checkpoint(request))

    def leave(self, leave: Leave) -> None:
        self._run(self._client.leave(leave))

    def force_checkpoint(self, shard: ShardId, offset: Offset) -> str:
        return self._run(self._client.force_checkpoint(shard, offset))

    def group(self) -> GroupView:
        return self._run(self._client.group())

    def close(self) -> None:
        """Close the connections and end the thread. A second call does nothing."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
