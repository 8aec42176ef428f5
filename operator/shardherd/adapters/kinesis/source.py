"""The shards of one group's stream in Kinesis, with their parents. Called by the coordinator through `ShardSource`.

Kinesis tells no end of an open shard: what is reported is what it surely reaches, as far as looks at the group's own positions
have shown. So nothing counts records here; how old what is not read is, the records' times of arrival say. Neither does it tell
where an open shard begins now: a look at a position shows it where retention has all but surely deleted what followed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from shardherd.adapters.kinesis.stream import KinesisStream, Look
from shardherd.core.model.nouns import KinesisSource, Offset, ShardId, ShardInfo
from shardherd.ports import Discovered, SourceUnavailableError
from shardherd.source.kinesis.deleted import caught_up
from shardherd.source.kinesis.listing import ListedShard

T = TypeVar("T")

MOST = 50
"""Shards that one look at positions asks about: each is two or three calls, of the five a second that a shard answers."""

TOGETHER = 4
"""Of these so many at a time."""

UNKNOWN = -1.0
"""In place of a time: nothing was shown, and something is there."""


class KinesisShardSource:
    """ShardSource over a stream that groups share."""

    def __init__(
        self,
        stream: KinesisStream,
        source: KinesisSource,
        leave: Callable[[], Awaitable[None]],
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._stream = stream
        self._wall = wall
        self._name = source.name
        self._leave = leave
        self._closed = False

    async def discover(self, *, sizes: bool = False, ends: bool = False) -> Discovered:
        """Every shard that Kinesis lists. Sizes are not known."""
        del sizes
        look = await self._stream.look()
        if ends:
            open_ones = [each for each in look.shards.values() if each.end is None]
            await _of_each(open_ones, self._end)
        return Discovered(tuple(self._info(look, each) for each in look.shards.values()))

    async def positions_at(self, timestamp: float) -> Mapping[ShardId, Offset]:
        """By the time at which Kinesis took a record. What has none so young is where its next record will be."""
        look = await self._stream.look()
        shards = list(look.shards.values())
        found = await _of_each(shards, lambda each: self._first_since(each, timestamp))
        return {self._shard(each.id): position for each, position in zip(shards, found, strict=True)}

    async def written_at(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float | None]:
        """One peek at each position, at most MOST. A shard that is throttled, or that Kinesis does not list, is left out.

        A few at a time: where none of these is answered, the others are not asked for.
        """
        look = await self._stream.look()
        wanted = [(shard, look.shards[name]) for shard in positions if (name := self._id(shard)) in look.shards][:MOST]
        found: dict[ShardId, float | None] = {}
        for at in range(0, len(wanted), TOGETHER):
            some = wanted[at : at + TOGETHER]
            answers = await asyncio.gather(
                *(self._written_at(look, listed, positions[shard]) for shard, listed in some), return_exceptions=True
            )
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            for failure in failures:
                if len(failures) == len(some) or not isinstance(failure, SourceUnavailableError):
                    raise failure
            for (shard, _), answer in zip(some, answers, strict=True):
                if not isinstance(answer, BaseException) and answer != UNKNOWN:
                    found[shard] = answer
        return found

    async def log_ends(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        """Where the next record of each is: after the newest."""
        look = await self._stream.look()
        wanted = [(shard, look.shards[name]) for shard in shards if (name := self._id(shard)) in look.shards]
        ends = await _of_each([listed for _, listed in wanted], self._end)
        return {shard: end for (shard, _), end in zip(wanted, ends, strict=True)}

    async def live_members(self) -> tuple[str, ...]:
        """Kinesis has no groups of its own: who else reads the stream nobody can tell, and it takes nothing from this group."""
        return ()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._leave()

    def _shard(self, shard: str) -> ShardId:
        return ShardId(f"{self._name}/{shard}")

    def _id(self, shard: ShardId) -> str:
        stream, _, name = shard.rpartition("/")
        return name if stream == self._name else ""

    def _info(self, look: Look, listed: ListedShard) -> ShardInfo:
        reached = max(listed.begin, self._stream.reached.get(listed.id, 0))
        return ShardInfo(
            self._shard(listed.id),
            listed.begin,
            reached if listed.end is None else listed.end,
            open=listed.end is None,
            parents=tuple(self._shard(parent) for parent in listed.parents),
            source_id=look.stream.source_id,
            oldest=self._stream.oldest.get(listed.id, 0),
        )

    async def _end(self, listed: ListedShard) -> Offset:
        if listed.end is not None:
            return listed.end
        newest = await self._stream.ask(lambda: self._stream.search.newest(listed))
        if newest is None:
            return listed.begin
        self._stream.reaches(listed.id, newest + 1)
        return newest + 1

    async def _first_since(self, listed: ListedShard, timestamp: float) -> Offset:
        first = await self._stream.ask(lambda: self._stream.search.first_since(listed, timestamp))
        return await self._end(listed) if first is None else first

    async def _written_at(self, look: Look, listed: ListedShard, position: Offset) -> float | None:
        peek = await self._stream.ask(lambda: self._stream.search.peek(listed, position))
        if peek.first is not None:
            self._stream.reaches(listed.id, peek.first + 1)
            if peek.gap and peek.arrived is not None and caught_up(peek.arrived, look.stream.retention, self._wall()):
                self._stream.begins(listed.id, peek.first)
            return peek.arrived
        # Kinesis may answer with nothing although records follow.
        return None if peek.over or not peek.behind else UNKNOWN


async def _of_each(shards: Sequence[ListedShard], ask: Callable[[ListedShard], Awaitable[T]]) -> list[T]:
    """What is answered of each, TOGETHER at a time: others who ask about the stream come between.

    The first failure ends it: what was not asked yet is not asked any more, as all of it is asked again.
    """
    found: list[T] = []
    for at in range(0, len(shards), TOGETHER):
        answers = await asyncio.gather(*(ask(each) for each in shards[at : at + TOGETHER]), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
    return found
