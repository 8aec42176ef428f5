"""What was fetched of every shard that is held and waits to be processed, and what is to be asked for next.

`worker` fetches what it says, `holding` takes out what has come. It decides which shards are paused, because their queue is
full, and how much is asked for, so that all that waits fits into the memory that it may take. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.fetched import SMALL, Part, take

LEAST = 64 * 1024
"""Fewest bytes that a shard's queue may have: with very many shards they take more than the memory that was allowed."""

MOST = 4 * 1024 * 1024
"""Most bytes that are asked of one shard at a time: as Spark's tasks do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shard is to be read from `position` on, about so many bytes; not from `stop` on, if it is given."""

    position: Offset
    most: int
    stop: Offset | None = None


@dataclass(slots=True)
class _Queue:
    position: Offset
    wake: Callable[[], None]
    stop: Callable[[], Offset | None]
    parts: deque[Part] = field(default_factory=deque)
    size: int = 0
    in_hand: int = 0
    end: Offset | None = None
    seconds: float | None = None
    asked: bool = False

    @property
    def behind(self) -> bool:
        """Whether there is more, as far as is known; of a shard that nothing is known of, there may be."""
        return self.end is None or self.end > self.position


class Stream:
    """The queues of all shards, of `memory` bytes together."""

    def __init__(self, memory: int) -> None:
        self._more = asyncio.Event()
        self._memory = memory
        self._queues: dict[ShardId, _Queue] = {}

    def open(
        self, shard: ShardId, position: Offset, wake: Callable[[], None], stop: Callable[[], Offset | None] = lambda: None
    ) -> None:
        """Read this shard from here on; `wake` is called whenever something of it has come.

        What is at `stop` or after it is not asked for; None asks for all. When that changes, `look_again` is to be called.
        """
        self._queues[shard] = _Queue(position, wake, stop)
        self._wake()

    def look_again(self) -> None:
        """There may be something to ask for."""
        self._wake()

    def close(self, shard: ShardId) -> None:
        """Read it no more. What has come and was not taken out is dropped."""
        del self._queues[shard]
        self._wake()

    def skip(self, shard: ShardId, position: Offset) -> None:
        """Read it on from here: what has come of it is not needed."""
        queue = self._queues[shard]
        self.close(shard)
        self.open(shard, position, queue.wake, queue.stop)

    def pop(self, shard: ShardId) -> Part | None:
        """What has come first, see `fetched.take`; None if there is nothing. Until `done` it takes its place of the memory."""
        queue = self._queues[shard]
        if not queue.parts:
            return None
        # At most half, as of what is asked for: with all that waits in hand, nothing would be fetched until it is processed.
        part = take(queue.parts, min(SMALL, self._share // 2))
        queue.in_hand += part.size
        return part

    def done(self, shard: ShardId) -> None:
        """What was taken out of this shard is processed."""
        queue = self._queues[shard]
        paused = queue.size >= self._share
        queue.size -= queue.in_hand
        queue.in_hand = 0
        if paused:
            self._wake()

    def end_of(self, shard: ShardId) -> Offset | None:
        """Where the shard ends, as far as is known."""
        queue = self._queues.get(shard)
        return None if queue is None else queue.end

    def seconds_behind(self, shard: ShardId) -> float | None:
        """For how many seconds records follow what was fetched, where the source says that in the place of an end."""
        queue = self._queues.get(shard)
        return None if queue is None else queue.seconds

    @property
    def size(self) -> int:
        """Bytes that were fetched and are not processed."""
        return sum(queue.size for queue in self._queues.values())

    @property
    def behind(self) -> bool:
        """Whether a shard has something that was not taken out."""
        return any(queue.parts or queue.behind for queue in self._queues.values())

    @property
    def paused(self) -> tuple[ShardId, ...]:
        """The shards that are not read on, as what was fetched of them and is not processed is as much as may be."""
        return tuple(sorted(shard for shard, queue in self._queues.items() if queue.size >= self._share))

    def ask(self, *, behind: bool) -> dict[ShardId, Wanted]:
        """What a Fetch should ask for now: of the shards that have more, or of those that were read to their end.

        Not of both: a broker keeps a Fetch until there is something, and its connection with it. They are not asked for again
        before `arrived`.
        """
        share = self._share
        found = {
            # At most half: while one part is processed, the next one is fetched.
            shard: Wanted(queue.position, min(MOST, max(LEAST, min(share // 2, share - queue.size))), stop)
            for shard, queue in self._queues.items()
            if not queue.asked and queue.size < share and queue.behind is behind
            if (stop := queue.stop()) is None or queue.position < stop
        }
        for shard in found:
            self._queues[shard].asked = True
        return found

    async def may_ask(self) -> None:
        """Wait until there may be something to ask for."""
        await self._more.wait()

    def arrived(self, asked: Mapping[ShardId, Wanted], parts: Iterable[Part]) -> None:
        """What has come of what was asked for. What is wanted from elsewhere, or not at all, meanwhile is dropped.

        Whoever fetches asks on by itself; who waits is woken where there may be something for it now.
        """
        turned = False
        for shard in asked:
            if (queue := self._queues.get(shard)) is not None:
                queue.asked = False
        for part in parts:
            queue = self._queues.get(part.shard)
            if queue is None or queue.position != part.asked:
                continue
            before = queue.behind
            queue.end, queue.seconds = part.end, part.behind
            if part.next > part.asked:
                queue.position = part.next
                queue.parts.append(part)
                queue.size += part.size
                # A batch larger than what is asked for comes whole only for the first shard of a request: all take turns.
                self._queues[part.shard] = self._queues.pop(part.shard)
                queue.wake()
            turned |= queue.behind is not before
        if turned:
            self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    @property
    def _share(self) -> int:
        return max(LEAST, self._memory // max(1, len(self._queues)))
