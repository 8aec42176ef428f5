"""What a user writes: a processor of the records of one shard; and what it saves positions with.

`holding` makes one for each shard that is held, and calls it from one hand: never twice at once. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from shardherd.client.in_hand import ShardInHand
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.core.model.positions import whole_number
from shardherd.worker.callbacks import Callbacks, Saved
from shardherd.worker.crew import is_async
from shardherd.worker.records import Records


class Saves:
    """The positions of a shard in hand. `upto` is what is done, by what a program says or without. Belongs to `loop`."""

    def __init__(
        self,
        shard: ShardInHand,
        upto: Callable[[Offset | None], Offset],
        loop: asyncio.AbstractEventLoop,
        callbacks: Callbacks,
    ) -> None:
        self.shard = shard
        self._upto = upto
        self._loop = loop
        self._callbacks = callbacks
        self._closed = False

    def as_seen_by(self, method: Callable[..., Any]) -> Checkpoint | AsyncCheckpoint:
        """The checkpoint that this method of a program can use."""
        return AsyncCheckpoint(self) if is_async(method) else Checkpoint(self)

    def close(self) -> None:
        """The shard is not in hand any more: whoever still runs can save nothing."""
        self._closed = True

    def begin(self, position: Offset | None, now: bool, callback: Saved | None) -> Future[None]:
        """Save from any thread. Raises TypeError, and ConsumerStoppedError where the worker has ended."""
        at = None if position is None else whole_number(position, f"a checkpoint of shard {self.shard.name} must be saved at")
        saving = self._save(at, now, callback)
        try:
            return asyncio.run_coroutine_threadsafe(saving, self._loop)
        except RuntimeError:
            saving.close()
            if not self._loop.is_closed():
                raise
            raise ConsumerStoppedError(
                f"the worker has ended: nothing of shard {self.shard.name} can be saved any more, and what was not is processed"
                " again elsewhere"
            ) from None

    async def _save(self, position: Offset | None, now: bool, callback: Saved | None) -> None:
        if self._closed:
            raise FencedEpochError(
                f"shard {self.shard.name} was given up while this ran: it is read again elsewhere", shard=self.shard.name
            )
        upto = self._upto(position)
        if callback is None:
            await self.shard.save_checkpoint(upto, now=now)
            return
        self.shard.note_checkpoint(upto, now=now or self._callbacks.full)
        await self._callbacks.add(upto, callback)


class _Positions:
    """What both kinds of checkpoint tell."""

    def __init__(self, saves: Saves) -> None:
        self._saves = saves

    @property
    def shard(self) -> ShardId:
        return self._saves.shard.name

    @property
    def position(self) -> Offset:
        """The durable position: where another consumer would go on if this process ended now."""
        return self._saves.shard.durable

    @property
    def done(self) -> Offset:
        """Everything before this is done. It is not lost with a save that fails, only with the process."""
        return self._saves.shard.done

    @property
    def wanted(self) -> bool:
        """Whether another consumer waits for the shard, or has it already: finish soon."""
        return self._saves.shard.wanted

    @property
    def lost(self) -> bool:
        """Whether the shard is not ours any more: nothing can be saved."""
        return self._saves.shard.lost


class Checkpoint(_Positions):
    """How a processor saves the position of its shard."""

    def save(self, position: Offset | None = None, *, now: bool = False, callback: Saved | None = None) -> None:
        """All of the batch in hand is done, or everything before `position`. In a loop over the records: what is before the
        record in hand. What a loop did not get, because it ended early, is not done whatever `position` says.

        Without a position a record counts as done once the loop asks for the next one: whoever makes a list of the records
        first, or gives them to a pool, must say `position`.

        With `now` it is durable when this returns, else within `save_interval`. Raises FencedEpochError if the shard is not
        ours any more, CoordinatorUnavailableError if it is not durable yet: it is kept and sent again, so going on is right;
        ConsumerStoppedError, ValueError for a position before what is done or after what was given out, and TypeError.

        With a `callback` it waits for nothing; with `now` the position is sent at once. `callback(position, None)` is called
        once it is durable, `callback(position, error)` once it never will be.
        """
        self._saves.begin(position, now, callback).result()


class AsyncCheckpoint(_Positions):
    """The same for coroutines."""

    async def save(self, position: Offset | None = None, *, now: bool = False, callback: Saved | None = None) -> None:
        """See Checkpoint. The callback may be a coroutine function."""
        await asyncio.wrap_future(self._saves.begin(position, now, callback))


class Processor:
    """Processes the records of one shard. Each shard has one of its own, which is never called twice at once."""

    def initialize(self, shard: ShardId) -> None:
        """Called first. If it raises, it is called again after a while, on a new one."""

    def process(self, records: Records, checkpoint: Checkpoint) -> Offset | None:
        """Process a batch. None: all of it is done. A position: what is before it is done; go back to it and try again.

        If it raises, the batch is tried again after a while, but for what was saved of it.
        """
        raise NotImplementedError

    def shutdown(self, checkpoint: Checkpoint) -> None:
        """Called last, when the shard goes to another consumer or this one ends. By default saves what is done at once."""
        if not checkpoint.lost:
            checkpoint.save(now=True)


class AsyncProcessor:
    """The same with coroutines, which share one event loop: none of them may block it for long."""

    async def initialize(self, shard: ShardId) -> None:
        """See Processor."""

    async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> Offset | None:
        """See Processor."""
        raise NotImplementedError

    async def shutdown(self, checkpoint: AsyncCheckpoint) -> None:
        """See Processor."""
        if not checkpoint.lost:
            await checkpoint.save(now=True)


class AnyProcessor(Protocol):
    """Whatever has the three methods, each a function or a coroutine."""

    def initialize(self, shard: ShardId, /) -> Any: ...

    def process(self, records: Any, checkpoint: Any, /) -> Any: ...

    def shutdown(self, checkpoint: Any, /) -> Any: ...
