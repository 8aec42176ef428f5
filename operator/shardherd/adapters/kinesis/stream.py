"""One stream of Kinesis as the coordinator asks about it, shared by all groups that read it with the same access.

Its shards are listed at most once in a second for each thousand of them, whoever asks. Questions run in threads, few at a time.
Called by `source`. Knows no group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from shardherd.adapters.kinesis.access import Access
from shardherd.clock import boot_time
from shardherd.ports import SourceUnavailableError
from shardherd.source.kinesis.client import Kinesis, KinesisRefusedError, KinesisUnavailableError
from shardherd.source.kinesis.listing import ListedShard, Stream, describe, list_shards
from shardherd.source.kinesis.pacing import Pace
from shardherd.source.kinesis.searching import Search
from shardherd.source.kinesis.shard_reader import NumberError, ShardGoneError

T = TypeVar("T")

PAGE = 1000
"""Shards that one ListShards answers with."""

LIST_INTERVAL = 1.0
"""Seconds between two calls of ListShards."""

DESCRIBE_INTERVAL = 60.0
"""Seconds after which the stream is described again: it may have been deleted and made anew."""


class Look(NamedTuple):
    """What a look showed: the stream, and its shards by their ids."""

    stream: Stream
    shards: dict[str, ListedShard]


class KinesisStream:
    """Asks about one stream. Only on the event loop's thread."""

    def __init__(
        self, kinesis: Kinesis, access: Access, threads: Executor, *, monotonic: Callable[[], float] = boot_time
    ) -> None:
        self.kinesis = kinesis
        self.search = Search(kinesis, Pace())
        self.reached: dict[str, int] = {}
        """How far each shard surely reaches, by its id, as far as any look showed."""
        self.oldest: dict[str, int] = {}
        """The oldest record left of shards of which a group has lost records, by their ids."""
        self._access = access
        self._threads = threads
        self._monotonic = monotonic
        self._look: Look | None = None
        self._listed_at = self._described_at = float("-inf")
        self._failing = False
        self._turn = asyncio.Lock()

    async def look(self) -> Look:
        """The shards now. Raises SourceUnavailableError."""
        async with self._turn:
            now = self._monotonic()
            known = self._look
            if known is not None and now - self._listed_at < LIST_INTERVAL * max(1, -(-len(known.shards) // PAGE)):
                return known
            shards = {each.id: each for each in await self.ask(lambda: list_shards(self.kinesis))}
            # A shard of the same id that begins elsewhere is one of another stream.
            other = known is None or any(
                each.id in known.shards and known.shards[each.id].begin != each.begin for each in shards.values()
            )
            if other or known is None or now - self._described_at >= DESCRIBE_INTERVAL:
                stream, self._described_at = await self.ask(lambda: describe(self.kinesis)), now
            else:
                stream = known.stream
            if known is not None and known.stream != stream and known.stream.source_id != stream.source_id:
                self.reached.clear()
                self.oldest.clear()
            self._look, self._listed_at = Look(stream, shards), now
            for gone in self.reached.keys() - shards.keys():
                del self.reached[gone]
                self.oldest.pop(gone, None)
                self.search.forget(gone)
            return self._look

    async def ask(self, work: Callable[[], T]) -> T:
        """What `work` answers, which runs in a thread. Raises SourceUnavailableError."""
        await self._access.ready(failing=self._failing)
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (KinesisUnavailableError, KinesisRefusedError, NumberError, ShardGoneError) as error:
            self._failing = isinstance(error, KinesisRefusedError)
            raise SourceUnavailableError(str(error)) from error
        self._failing = False
        return answer

    def begins(self, shard: str, oldest: int) -> None:
        """Retention has deleted what was before this record. It has been seen, too."""
        self.oldest[shard] = max(oldest, self.oldest.get(shard, 0))

    def reaches(self, shard: str, end: int) -> None:
        """Something was seen below this position."""
        self.reached[shard] = max(end, self.reached.get(shard, 0))
