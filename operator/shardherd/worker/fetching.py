"""Fetches what a stream asks for, of Kafka's brokers. Called by `worker` on its event loop; each call is one Fetch a broker.

It decides what becomes of records that are gone, and nothing else: which shards are read, and when, is `stream`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding.compiled_records import KERNELS
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.fetch_memory import FetchMemory
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.kafka.leader_epochs import LogChecks
from shardherd.source.reading.lost_records import Losses
from shardherd.source.reading.range_reader import REQUEST_TIMEOUT, RETRY_DELAY
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker.crew import Crew
from shardherd.worker.fetched import TOGETHER, Part, Undecoded
from shardherd.worker.stream import Wanted

LAST = 2**63 - 1
"""Above every offset: a part is decoded to its end."""

CACHED = 1280 * 1024
"""Bytes that are decoded at a time for small batches: they stay in the processor's cache, and in memory that is used again."""

LARGE = 4 * 1024 * 1024
"""Bytes that are decoded at a time for larger batches, and so the most that one has. Their memory is used again, too: fresh
memory takes longer than decoding does."""


class Fetcher(Protocol):
    """Where records come from. Shards of both kinds are fetched at the same time."""

    def connect(self) -> None:
        """Connect ahead of the first Fetch; called in a thread. Raises BrokersUnavailableError."""
        ...

    async def fetch(self, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]:
        """What there is of these shards, which all have more as far as is known, or all not: then it waits a moment for it.

        Shards of which nothing can be said now are left out. Raises BrokersUnavailableError, which is worth another try, and
        SourceRefusedError, RangeLostError, CorruptRecordsError, which are not.
        """
        ...

    def close(self) -> None:
        """Close all connections; called in a thread. What is under way fails."""
        ...


class BlockingFetcher(Protocol):
    """One that is waited for: a Fetcher but for `fetch`, which is called in threads."""

    def connect(self) -> None: ...

    def fetch(self, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]: ...

    def close(self) -> None: ...


class InThreads:
    """A BlockingFetcher as a Fetcher, whose calls are made by `crew`."""

    def __init__(self, fetcher: BlockingFetcher, crew: Crew) -> None:
        self.connect = fetcher.connect
        self.close = fetcher.close
        self._fetch = fetcher.fetch
        self._crew = crew

    async def fetch(self, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]:
        found: list[Part] = await self._crew.call(partial(self._fetch, wanted, behind=behind)).ended
        return found


def brokers_of(access: KafkaAccess, zone: str) -> Brokers:
    """A set of connections to that Kafka, of which the brokers in our zone are read where they have a replica."""
    return Brokers(
        access.bootstrap_servers,
        access.security,
        name="shardherd-worker",
        committed=bool(access.read_committed),
        rack=zone,
    )


class KafkaFetcher:
    """Two sets of connections, one for shards that have more and one for those that were read to their end.

    A broker answers what came on a connection in turn, and keeps a Fetch that has nothing to say. Each has `memory` for what is
    answered. What is decoded is made into batches of `batch_size` records.
    """

    def __init__(
        self, more: Brokers, ends: Brokers, *, memory: int, fail_on_data_loss: bool, batch_size: int = TOGETHER
    ) -> None:
        self._brokers = {True: more, False: ends}
        self._memory = memory
        self._fail = fail_on_data_loss
        # A batch is not made of what was decoded at different times.
        self._at_once = CACHED if batch_size <= TOGETHER else LARGE
        self._ends: dict[ShardId, Offset] = {}
        self._losses = self._no_losses()

    def connect(self) -> None:
        # What finds batches is loaded, or even compiled, here: the event loop must not wait for it with the first answer.
        KERNELS.functions()
        for brokers in self._brokers.values():
            brokers.connect(REQUEST_TIMEOUT)

    async def fetch(self, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]:
        positions = {shard: each.position for shard, each in wanted.items()}
        sizes = {shard: each.most for shard, each in wanted.items()}
        brokers, memory = self._brokers[behind], FetchMemory(self._memory)
        found = await brokers.fetch(positions, REQUEST_TIMEOUT, shard_bytes=sizes, memory=memory, checks=LogChecks())
        if any(part.start is not None for part in found):
            # These are answered at once; what may be over soon is not asked for at once again.
            await asyncio.sleep(RETRY_DELAY)
        parts: list[Part] = []
        for part in found:
            if parts and parts[-1].size:
                # Thousands of batches may have been in it: heartbeats go on before the next one.
                await asyncio.sleep(0)
            parts.append(self._part(part, wanted[part.shard].stop))
        return parts

    def close(self) -> None:
        for brokers in self._brokers.values():
            brokers.close()

    def _part(self, part: Fetched, stop: Offset | None = None) -> Part:
        """What is at `stop` and after it is left out, and is not there."""
        last = LAST if stop is None else stop
        end = min(part.end, last)
        # What is lost is known up to where the shard begins now: how far it reaches nobody has planned.
        self._ends[part.shard] = max(part.asked, part.start or 0)
        resume = self._losses.resume(part, boot_time())
        if resume is not None:
            # It was only warned of: what is there now is the shard from here on.
            self._losses = self._no_losses()
            return Part(part.shard, part.asked, min(max(part.asked, resume), last), end, 0, tuple)
        if not part.data:
            # Most shards of an answer, where many are read to their ends: looking for batches would take most of its time.
            return Part(part.shard, part.asked, part.asked, end, 0, tuple)
        scanned = record_batches.scan(part.shard, part.data, part.asked, aborted=part.aborted)
        tables = Undecoded(part.shard, (scanned,), part.asked, last, self._at_once)
        return Part(part.shard, part.asked, min(scanned.next_offset, last), end, len(part.data), tables)

    def _no_losses(self) -> Losses:
        return Losses(self._ends, {}, fail=self._fail)
