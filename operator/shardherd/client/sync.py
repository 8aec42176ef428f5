"""The coordinator's API for one consumer, and the consumer itself, as plain calls from any thread.

A thread of its own runs the asynchronous client; nothing here knows the API.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from shardherd.client.aio import AsyncConsumerClient
from shardherd.client.consumer import AsyncConsumer
from shardherd.client.in_hand import ShardInHand
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    ConsumerId,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    Offset,
    ResetReport,
    ShardId,
    ShardView,
)

T = TypeVar("T")


class ConsumerClient:
    """AsyncConsumerClient for callers without an event loop; the same arguments, methods and errors. Close it when done."""

    def __init__(
        self,
        url: str,
        namespace: str,
        group: str,
        token: Callable[[], str],
        *,
        ca_file: Path | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._client = AsyncConsumerClient(url, namespace, group, token, ca_file=ca_file, timeout=timeout)
        self._begins = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardherd-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> ConsumerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        return self._run(self._client.heartbeat(heartbeat, wait))

    def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        return self._run(self._client.checkpoint(request))

    def leave(self, leave: Leave) -> None:
        self._run(self._client.leave(leave))

    def group(self) -> GroupView:
        return self._run(self._client.group())

    def shards(self) -> tuple[ShardView, ...]:
        return self._run(self._client.shards())

    def shard(self, shard: ShardId) -> ShardView:
        return self._run(self._client.shard(shard))

    def reset(self) -> ResetReport | None:
        return self._run(self._client.reset())

    def force_checkpoint(self, shard: ShardId, offset: Offset) -> str:
        return self._run(self._client.force_checkpoint(shard, offset))

    def close(self) -> None:
        """Close the connections and end the thread. A second call does nothing.

        A call that another thread waits in, and any later one, raises RuntimeError.
        """
        with self._begins:
            if self._closed:
                return
            self._closed = True
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        closing.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """What a call on the loop comes to. What interrupts it, as what a signal's handler raises does, cancels it there."""
        with self._begins:
            if self._closed:
                call.close()
                raise RuntimeError("this client is closed")
            running = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("this client is closed") from None
        except BaseException:
            running.cancel()
            raise


class ShardBeingRead:
    """`ShardInHand` for callers without an event loop. A thread cannot be cancelled: look at `wanted` in a long block."""

    def __init__(self, shard: ShardInHand, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self.name: ShardId = shard.name
        self.position: Offset = shard.position
        self.epoch: int = shard.epoch
        self._shard = shard
        self._run = run

    @property
    def wanted(self) -> bool:
        """Whether another consumer waits for it, or this run is over: finish soon."""
        return self._shard.wanted

    def save_checkpoint(self, offset: Offset, *, now: bool) -> None:
        """See ShardInHand."""
        self._run(self._shard.save_checkpoint(offset, now=now))


class Consumer:
    """`AsyncConsumer` for callers without an event loop; the same options and errors. `client` stays open."""

    def __init__(self, client: ConsumerClient, consumer: ConsumerId, incarnation: Incarnation, **options: Any) -> None:
        self._client = client

        async def make() -> AsyncConsumer:
            return AsyncConsumer(client._client, consumer, incarnation, **options)

        self._consumer = client._run(make())

    def __enter__(self) -> Consumer:
        self._client._run(self._consumer.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client._run(self._consumer.__aexit__(kind, error, trace))

    @contextmanager
    def take(self) -> Iterator[ShardBeingRead]:
        """See AsyncConsumer, but for the cancelling."""
        taking = self._consumer.take()
        try:
            # Inside, since an exception of a signal's handler comes at any time: what was taken by then is put back.
            shard = self._client._run(taking.__aenter__())
            yield ShardBeingRead(shard, self._client._run)
        finally:
            self._client._run(taking.__aexit__(None, None, None))

    def held(self) -> tuple[ShardId, ...]:
        """The shards that may be read now."""
        return self._consumer.held()

    @property
    def stopped(self) -> str:
        """Why this run is over; empty while it is not."""
        return self._consumer.stopped

    def drain(self, timeout: float) -> bool:
        """See AsyncConsumer, but for the cancelling: a block goes on, and an ordered group waits for it.

        May be called from any thread. If it returns False, end the process.
        """
        return self._client._run(self._consumer.drain(timeout))
