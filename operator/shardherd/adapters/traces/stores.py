"""The stores of ownership and of positions, with a span for each write that a traced request waits for.

The composition root puts them around the real ones; everything else goes to those as it comes. They decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardherd.adapters.traces.requests import RequestTraces, Traced
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, GroupSpec, Offset, ShardId
from shardherd.ports import OffsetStore, OwnershipStore, ShardSource, SourceConnector, StoredCopies, StoredOwnership


class TracedOwnership:
    """An OwnershipStore."""

    def __init__(self, store: OwnershipStore, traces: RequestTraces) -> None:
        self._store = store
        self._traces = traces

    async def load(self, group: GroupIdentity) -> StoredOwnership | None:
        return await self._store.load(group)

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None, *, grows: bool = False) -> str:
        write = self._store.save(group, data, expected, grows=grows)
        if not (waiting := self._traces.writing(group)):
            return await write
        version: str = await self._traces.written(
            "write ownership", waiting, write, {"shardherd.write.bytes": len(data)}, _is_written
        )
        return version

    async def load_copies(self, group: GroupIdentity) -> StoredCopies:
        return await self._store.load_copies(group)

    async def save_copies(self, group: GroupIdentity, copies: PositionCopies, expected: str) -> str:
        return await self._store.save_copies(group, copies, expected)


class TracedOffsets:
    """An OffsetStore of one group."""

    def __init__(self, store: OffsetStore, group: GroupIdentity, traces: RequestTraces) -> None:
        self._store = store
        self._group = group
        self._traces = traces

    async def take_over(self) -> None:
        await self._store.take_over()

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        return await self._store.read(shards)

    async def notes(self, shards: Sequence[ShardId]) -> Mapping[ShardId, str]:
        return await self._store.notes(shards)

    async def commit(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> None:
        write = self._store.commit(offsets, notes)
        if not (waiting := self._traces.committing(self._group, offsets)):
            return await write
        await self._traces.written("commit offsets", waiting, write, {"shardherd.shards": len(offsets)}, _is_committed)
        return None

    async def forget(self, shards: Sequence[ShardId]) -> None:
        await self._store.forget(shards)

    async def close(self) -> None:
        await self._store.close()


class TracedConnector:
    """A SourceConnector."""

    def __init__(self, connector: SourceConnector, traces: RequestTraces) -> None:
        self._connector = connector
        self._traces = traces

    def source(self, spec: GroupSpec) -> ShardSource:
        return self._connector.source(spec)

    def offsets(self, spec: GroupSpec) -> OffsetStore:
        return TracedOffsets(self._connector.offsets(spec), spec.identity, self._traces)


def _is_written(traced: Traced) -> None:
    traced.persists = False


def _is_committed(traced: Traced) -> None:
    traced.offsets = {}
