"""Who is told that a position of a shard is durable: the callbacks of saves that nobody waits for.

`processor.Saves` has one for each shard in hand. It decides in which order callbacks are called, and how many may wait; when a
position is durable, or never will be, the shard in hand says. All of it but the callbacks runs on the session's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeAlias

from shardherd.client.in_hand import ShardInHand
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.core.model.nouns import Offset
from shardherd.worker.counts import Counts
from shardherd.worker.crew import Crew, begun, is_async
from shardherd.worker.unfinished import check_done

log = logging.getLogger(__name__)

Saved: TypeAlias = Callable[[Offset, Exception | None], Any]
"""Called with the position that was saved, and None if it is durable, else why it never will be. May be a coroutine."""

MOST_WAITING = 1000
"""Callbacks of a shard that wait at the same time: the next save with one waits, and all are sent at once."""

_in_a_callback: ContextVar[bool] = ContextVar("in_a_callback", default=False)
"""Whether it is a callback that saves. A save is begun on the session's loop in the context of whoever asks for it."""


class Callbacks:
    """Those of one shard. They are called one after the other, in the order of the saves. `telling` has the task that does."""

    def __init__(self, shard: ShardInHand, crew: Crew, counts: Counts, telling: set[asyncio.Task[None]]) -> None:
        self._shard = shard
        self._crew = crew
        self._counts = counts
        self._telling = telling
        self._waiting: deque[tuple[Offset, Saved]] = deque()
        self._room = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether the next one has to wait."""
        return len(self._waiting) >= MOST_WAITING

    async def add(self, position: Offset, callback: Saved) -> None:
        """Call it once this position, which was noted, is durable or never will be. A callback that saves waits for no
        room, as there is none before it has returned."""
        while self.full and not _in_a_callback.get():
            self._room.clear()
            await self._room.wait()
        self._waiting.append((position, callback))
        if len(self._waiting) == 1:
            task = asyncio.create_task(self._tell())
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        while self._waiting:
            position, callback = self._waiting[0]
            error: Exception | None = None
            try:
                await self._shard.made_durable(position)
            except (FencedEpochError, ConsumerStoppedError) as lost:
                error = lost
            await self._call(position, callback, error)
            self._waiting.popleft()
            self._room.set()

    async def _call(self, position: Offset, callback: Saved, error: Exception | None) -> None:
        try:
            await begun(self._crew, _marked(callback), position, error).ended
        except Exception:
            self._counts.failures["callback"] += 1
            log.exception("the callback of a save failed: shard %s, position %d", self._shard.name, position)


def _marked(callback: Saved) -> Saved:
    """The callback, in a context that tells what it saves from what others do."""
    if is_async(callback):

        @wraps(callback)
        async def marked(position: Offset, error: Exception | None) -> None:
            _in_a_callback.set(True)  # of its task alone
            await callback(position, error)

        return marked

    @wraps(callback)
    def marked_function(position: Offset, error: Exception | None) -> None:
        token = _in_a_callback.set(True)
        try:
            check_done("the callback", callback(position, error), may_be_async=True)
        finally:
            _in_a_callback.reset(token)  # the thread is kept for another call

    return marked_function
