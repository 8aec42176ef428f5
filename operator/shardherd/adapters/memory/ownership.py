"""The twin of the ownership store: compare-and-swap on a dictionary that several coordinators may share."""

from __future__ import annotations

import gzip
from collections.abc import Mapping

from shardherd.adapters.memory.faults import Faults
from shardherd.core.model import GroupIdentity, Offset, ShardId
from shardherd.ports import (
    GROWTH_LIMIT,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipTooLargeError,
    StoredOwnership,
)


class MemoryOwnership:
    """OwnershipStore in memory. `faults` knows "load", "save", "load_copies" and "save_copies"."""

    def __init__(self, limit: int = GROWTH_LIMIT) -> None:
        self.faults = Faults()
        self.saves = 0
        self.limit = limit
        self.copies: dict[GroupIdentity, Mapping[ShardId, Offset]] = {}
        self._stored: dict[GroupIdentity, StoredOwnership] = {}
        self._versions = 0

    def tamper(self, group: GroupIdentity, data: bytes | None) -> None:
        """What somebody does by hand: put these bytes there, or delete what is there."""
        self._versions += 1
        self._stored.pop(group, None)
        if data is not None:
            self._stored[group] = StoredOwnership(data, str(self._versions))

    async def load(self, group: GroupIdentity) -> StoredOwnership | None:
        await self.faults.enter("load")
        return self._stored.get(group)

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None, *, grows: bool = False) -> str:
        await self.faults.enter("save")
        # What is not over the limit as it is need not be compressed, which would take most of the time of many a test.
        if grows and len(data) > self.limit and (packed := len(gzip.compress(data, compresslevel=6, mtime=0))) > self.limit:
            raise OwnershipTooLargeError(
                f"the ownership of group {group} would take {packed} bytes compressed, over the limit of {self.limit}"
            )
        stored = self._stored.get(group)
        current = stored.version if stored is not None else None
        if stored is None and expected is not None:
            raise OwnershipGoneError(f"the ownership of group {group} was deleted")
        if current != expected:
            raise OwnershipConflictError(f"the ownership of group {group} is at version {current}, not {expected}")
        self._versions += 1
        self.saves += 1
        self._stored[group] = StoredOwnership(data, str(self._versions))
        self.faults.leave("save")
        return str(self._versions)

    async def load_copies(self, group: GroupIdentity) -> Mapping[ShardId, Offset]:
        await self.faults.enter("load_copies")
        return dict(self.copies.get(group, {}))

    async def save_copies(
        self, group: GroupIdentity, copies: Mapping[ShardId, Offset], before: Mapping[ShardId, Offset] | None = None
    ) -> None:
        del before  # it is of use only where copies are in several places
        await self.faults.enter("save_copies")
        self.copies[group] = dict(copies)
        self.faults.leave("save_copies")
