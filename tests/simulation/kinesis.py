"""What is another way in a world whose source is a stream of Kinesis: positions in a ConfigMap, and shards without known ends.

The real `TableOffsetStore` and `KinesisShardSource` of the adapters run here, over a table and a stream that are played. The
operators and consumers of the world make what is in this module where Kafka's would be.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from shardherd.adapters.kinesis.positions import TableOffsetStore
from shardherd.adapters.kinesis.source import KinesisShardSource
from shardherd.adapters.kinesis.stream import KinesisStream, Look
from shardherd.core.model.nouns import GroupIdentity, KinesisSource, Offset, ShardId
from shardherd.ports import (
    CommitFencedError,
    Discovered,
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipUnavailableError,
    SourceUnavailableError,
)
from shardherd.source.kinesis.listing import ListedShard, Stream
from shardherd.source.kinesis.pacing import Pace
from shardherd.source.kinesis.searching import Peek
from tests.simulation.history import History
from tests.simulation.history_entries import BrokenError, Shard
from tests.simulation.network import Network, Process

T = TypeVar("T")

_Write = Callable[[bytes, str | None, str], str]
"""Has a table written, given its bytes, the version that is expected, and the UID of the group. Returns the new version."""

SOURCE = KinesisSource("clicks", "eu-central-1")

BASE = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
"""A sequence number: of 56 digits, as all of Kinesis."""

LOOK_INTERVAL = 1.0
"""Seconds between two looks of a consumer at what comes next in its shards."""

CALL_TIME = 0.3
"""Seconds that such a look takes: a consumer of many shards does not get round to all of them each time."""


def begin_at(time: float, number: int) -> Offset:
    """Where a shard begins that is made at this time: below are the numbers of all that were made before it."""
    return BASE + int(time * 1000) * 10**9 + number * 10**6


def shard_id(number: int) -> ShardId:
    """The name of the shard that the stream got as its `number`-th, from 0."""
    return ShardId(f"{SOURCE.name}/shardId-{number:012d}")


class Written(Protocol):
    """What the judge is told of positions that become durable; the world's Kafka is one."""

    history: History
    committed: dict[ShardId, Offset]
    notes: dict[ShardId, str]
    failed_at: dict[str, float]

    def initialise(self, writer: str, proven_at: float) -> int: ...

    def lands(
        self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str], writer: str, resets: Mapping[ShardId, str]
    ) -> None: ...

    def forget(self, shard: ShardId) -> None: ...


class ServedTable:
    """The ConfigMap of positions at the API server. It reads what is written into it, and tells the judge of it."""

    def __init__(self, positions: Written) -> None:
        self.positions = positions
        self._stored: tuple[bytes, str, str] | None = None
        self._versions = 0
        self._marks: dict[str, str] = {}

    def load(self, uid: str) -> tuple[bytes, str] | None:
        """What this very group has there, with its version."""
        return None if self._stored is None or self._stored[2] != uid else self._stored[:2]

    def delete(self) -> None:
        """It is deleted, with all positions."""
        self._stored = None
        for shard in list(self.positions.committed):
            self.positions.forget(shard)

    def collect(self) -> None:
        """Its group was deleted, and so it is."""
        self._stored = None

    def take_over(self, data: bytes, expected: str | None, uid: str, writer: str, proven_at: float) -> str:
        """A coordinator writes its mark. Nothing else changes by it."""
        self._check(expected, uid)
        mark, offsets, notes = _read(data)
        before = self._read()
        if (offsets, notes) != before[1:]:
            raise BrokenError(f"{writer} changed positions by taking over: {before[1:]} became {(offsets, notes)}")
        self.positions.initialise(writer, proven_at)
        self._marks[mark] = writer
        return self._store(data, uid)

    def commit(
        self,
        data: bytes,
        expected: str | None,
        uid: str,
        writer: str,
        wanted: Mapping[ShardId, Offset],
        resets: Mapping[ShardId, str],
    ) -> str:
        """A coordinator writes the `wanted` positions, and what was there of others."""
        self._check(expected, uid)
        mark, offsets, notes = _read(data)
        before = self._read()
        if mark != before[0] or self._marks.get(mark) != writer:
            raise BrokenError(f"{writer} writes positions that {self._marks.get(before[0], 'nobody')} has taken over")
        others = {shard: offset for shard, offset in offsets.items() if shard not in wanted}
        if others != {shard: offset for shard, offset in before[1].items() if shard not in wanted}:
            raise BrokenError(f"{writer} wrote positions of {sorted(wanted)}, and others changed: {before[1]} became {offsets}")
        found = {shard: offsets[shard] for shard in wanted}
        self.positions.lands(found, {shard: notes.get(shard, "") for shard in wanted}, writer, resets)
        return self._store(data, uid)

    def forget(self, data: bytes, expected: str | None, uid: str, gone: Sequence[ShardId]) -> str:
        """Positions of what the group has forgotten are deleted, whoever has taken them over. Nothing else changes by it."""
        self._check(expected, uid)
        mark, offsets, _ = _read(data)
        before = self._read()
        if (mark, offsets) != (before[0], {shard: offset for shard, offset in before[1].items() if shard not in gone}):
            raise BrokenError(f"positions of {gone} were to be deleted, and {before[:2]} became {(mark, offsets)}")
        for shard in gone:
            if self.positions.history.shards[shard].present:
                raise BrokenError(f"the position of {shard} is deleted, which is there")
            self.positions.forget(shard)
        return self._store(data, uid)

    def _check(self, expected: str | None, uid: str) -> None:
        if uid != self.positions.history.uid:
            raise OwnershipConflictError("the group was deleted")
        found = self.load(uid)
        current = None if found is None else found[1]
        if current != expected:
            self.positions.history.counts["conflicts of positions"] += 1
            raise OwnershipConflictError(f"the positions are at version {current}, not {expected}")

    def _read(self) -> tuple[str, dict[ShardId, Offset], dict[ShardId, str]]:
        return ("", {}, {}) if self._stored is None else _read(self._stored[0])

    def _store(self, data: bytes, uid: str) -> str:
        self._versions += 1
        self._stored = data, str(self._versions), uid
        return self._stored[1]


def _read(data: bytes) -> tuple[str, dict[ShardId, Offset], dict[ShardId, str]]:
    """The mark of who wrote a table, its positions, and their notes."""
    found = json.loads(gzip.decompress(data))
    shards = [ShardId(shard) for shard in found["shards"]]
    notes = {shard: note for shard, note in zip(shards, found["notes"], strict=True) if note}
    return found["writer"], dict(zip(shards, map(int, found["offsets"]), strict=True)), notes


class SimulatedPositions:
    """OffsetStore of one coordinator: the real one, whose table is behind the network. It is a PositionTable, too."""

    def __init__(
        self, process: Process, network: Network, served: ServedTable, group: GroupIdentity, proven_at: Callable[[], float]
    ) -> None:
        self._process, self._network, self._served, self._proven_at = process, network, served, proven_at
        self._store = TableOffsetStore(self, group, SOURCE.name, now=process.loop.time)
        self._written: tuple[str, _Write] | None = None
        """What the next write of the table is, and what it does there. Nothing is written beside anything else."""
        self._turn = asyncio.Lock()

    async def take_over(self) -> None:
        name = self._process.name

        def taken_over(data: bytes, expected: str | None, uid: str) -> str:
            self._network.out_of_limbo()
            return self._served.take_over(data, expected, uid, name, self._proven_at())

        async with self._writing("init", taken_over):
            await self._store.take_over()

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        found = await self._store.read(shards)
        self._served.positions.history.hear_positions(self._process.name)
        return found

    async def notes(self, shards: Sequence[ShardId]) -> Mapping[ShardId, str]:
        return await self._store.notes(shards)

    async def commit(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> None:
        positions, wanted, name = self._served.positions, dict(offsets), self._process.name
        resets = positions.history.asked_by_reset(wanted)
        again = all(positions.committed.get(shard) == offset for shard, offset in wanted.items())

        def committed(data: bytes, expected: str | None, uid: str) -> str:
            return self._served.commit(data, expected, uid, name, wanted, resets)

        try:
            async with self._writing("commit", committed):
                await self._store.commit(wanted, dict(notes))
        except (OutcomeUnknownError, CommitFencedError):
            positions.failed_at[name] = self._process.loop.timeline.now
            raise
        if not again:
            positions.history.hear_positions(name)

    async def forget(self, shards: Sequence[ShardId]) -> None:
        gone = tuple(shards)
        async with self._writing("forget", lambda data, expected, uid: self._served.forget(data, expected, uid, gone)):
            await self._store.forget(gone)

    async def close(self) -> None:
        await self._store.close()

    async def load(self, group: GroupIdentity) -> tuple[bytes, str] | None:
        """See PositionTable."""
        return await self._network.call(
            self._process,
            "kube",
            "load positions",
            lambda: self._served.load(group.uid),
            5.0,
            OwnershipUnavailableError,
            OwnershipUnavailableError,
        )

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None) -> str:
        """See PositionTable."""
        assert self._written is not None
        operation, write = self._written
        return await self._network.call(
            self._process,
            "kube",
            operation,
            lambda: write(data, expected, group.uid),
            5.0,
            OutcomeUnknownError,
            OwnershipUnavailableError,
        )

    @contextlib.asynccontextmanager
    async def _writing(self, operation: str, write: _Write) -> AsyncIterator[None]:
        async with self._turn:
            self._written = operation, write
            try:
                yield
            finally:
                self._written = None


class _Described(Stream):
    """The stream, whose source id is that of the world's shards."""

    __slots__ = ()

    @property
    def source_id(self) -> str:
        return self.arn


class SimulatedStream:
    """What `KinesisStream` is, over the network: it is its own `search`."""

    def __init__(self, process: Process, network: Network, shards: Mapping[ShardId, Shard]) -> None:
        self._process, self._network, self._shards = process, network, shards
        self.reached: dict[str, int] = {}
        self.oldest: dict[str, int] = {}
        """None: retention deletes no record that is not read."""
        self._source_id = ""

    @property
    def search(self) -> SimulatedStream:
        return self

    async def look(self) -> Look:
        """The shards now. Raises SourceUnavailableError."""
        found = await self._ask("discover", self._list)
        if found.stream.source_id != self._source_id:
            self._source_id = found.stream.source_id
            self.reached.clear()
        for gone in self.reached.keys() - found.shards.keys():
            del self.reached[gone]
        return found

    async def ask(self, work: Callable[[], T]) -> T:
        """What `work` answers."""
        return await self._ask("times", work)

    def reaches(self, shard: str, end: int) -> None:
        """Something was seen below this position."""
        self.reached[shard] = max(end, self.reached.get(shard, 0))

    def newest(self, listed: ListedShard) -> int | None:
        actual = self._actual(listed)
        return actual.end - 1 if actual.end > actual.begin else None

    def first_since(self, listed: ListedShard, _timestamp: float) -> int | None:
        """Records have no times here, so none is young enough."""
        self._actual(listed)
        return None

    def peek(self, listed: ListedShard, position: int) -> Peek:
        actual = self._actual(listed)
        first = max(position, actual.begin)
        if first >= actual.end:
            return Peek(None, None, 0.0, not actual.open)
        return Peek(first, self._process.wall(), float(actual.end - first - 1), False)

    def _list(self) -> Look:
        present = [shard for shard in self._shards.values() if shard.present]
        if not present:
            raise SourceUnavailableError(f"stream {SOURCE.name} does not exist")
        listed = {each.id: each for each in map(_listed, present)}
        return Look(_Described(SOURCE.name, present[0].source_id, 0, 86400.0), listed)

    def _actual(self, listed: ListedShard) -> Shard:
        shard = self._shards[ShardId(f"{SOURCE.name}/{listed.id}")]
        if not shard.present:
            raise SourceUnavailableError(f"{listed.id} has no records any more")
        return shard

    async def _ask(self, operation: str, effect: Callable[[], T]) -> T:
        return await self._network.call(
            self._process, "kafka", operation, effect, 10.0, SourceUnavailableError, SourceUnavailableError
        )


def _listed(shard: Shard) -> ListedShard:
    parents = tuple(parent.rpartition("/")[2] for parent in shard.parents)
    return ListedShard(shard.name.rpartition("/")[2], shard.begin, None if shard.open else shard.end, parents, (0, 0))


class SimulatedKinesisSource(KinesisShardSource):
    """ShardSource of one coordinator: the real one, whose stream is behind the network. The history knows what it showed."""

    def __init__(self, process: Process, network: Network, history: History) -> None:
        super().__init__(cast("KinesisStream", SimulatedStream(process, network, history.shards)), SOURCE, _nothing)
        self._process, self._history = process, history

    async def discover(self, *, sizes: bool = False, ends: bool = False) -> Discovered:
        found = await super().discover(sizes=sizes, ends=ends)
        history = self._history
        history.sightings.looked(self._process.name, found.shards, history.now, found.unlooked)
        return found


async def _nothing() -> None:
    """Nobody shares the stream."""


class Looks:
    """What a consumer knows of what comes next in its shards: it looks at them one by one, at the pace of the real source."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._pace = Pace()
        self._looked_at = now()
        self._known: dict[ShardId, Offset] = {}

    def known(self, ends: Mapping[ShardId, Offset]) -> Mapping[ShardId, Offset]:
        """How far the shards reach, whose true `ends` are these, as far as looks have shown that until now."""
        now = self._now()
        waited, self._looked_at = min(now - self._looked_at, 60.0), now
        self._known = {shard: end for shard, end in self._known.items() if shard in ends}
        for _ in range(int(max(waited, LOOK_INTERVAL) / CALL_TIME) if ends else 0):
            shard = ShardId(self._pace.next_of(ends))
            if self._pace.due(shard) > now:
                break
            self._pace.asked(shard, now)
            self._known[shard] = ends[shard]
            self._pace.answered(shard, 0)
        return self._known
