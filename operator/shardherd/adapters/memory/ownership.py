"""The twin of the ownership store: compare-and-swap on a dictionary that several coordinators may share."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import replace

from shardherd.adapters.memory.faults import Faults
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, Offset, ShardId
from shardherd.ports import (
    GROWTH_LIMIT,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipTooLargeError,
    StoredCopies,
    StoredOwnership,
)


class MemoryOwnership:
    """OwnershipStore in memory. `faults` knows "load", "save", "load_copies" and "save_copies"."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.saves = 0
        self.limit = GROWTH_LIMIT
        self.copied: dict[GroupIdentity, StoredCopies] = {}
        self._stored: dict[GroupIdentity, StoredOwnership] = {}
        self._versions = 0

    def tamper(self, group: GroupIdentity, data: bytes | None) -> None:
        """Somebody puts these bytes there, or deletes what is there, in a way that looks like a coordinator's write."""
        self._versions += 1
        self._stored.pop(group, None)
        if data is not None:
            self._stored[group] = StoredOwnership(data, str(self._versions))

    def put_back(self, group: GroupIdentity, data: bytes) -> None:
        """Somebody puts these bytes there by hand."""
        self._versions += 1
        self._stored[group] = StoredOwnership(data, str(self._versions), foreign=True)

    @property
    def copies(self) -> Mapping[GroupIdentity, Mapping[ShardId, Offset]]:
        """The copied positions of each group that has some."""
        return {group: stored.copies.offsets for group, stored in self.copied.items()}

    def copy(self, group: GroupIdentity, copies: PositionCopies) -> None:
        """These are the group's copies, by whatever way."""
        self._versions += 1
        self.copied[group] = StoredCopies(copies, str(self._versions))

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

    async def load_copies(self, group: GroupIdentity) -> StoredCopies:
        await self.faults.enter("load_copies")
        return self.copied.get(group, StoredCopies(PositionCopies(), ""))

    async def save_copies(self, group: GroupIdentity, copies: PositionCopies, expected: str) -> str:
        await self.faults.enter("save_copies")
        current = self.copied[group].version if group in self.copied else ""
        if current != expected:
            raise OwnershipConflictError(f"the copied positions of group {group} are at version {current!r}, not {expected!r}")
        self.copy(group, replace(copies, offsets=dict(copies.offsets)))
        self.faults.leave("save_copies")
        return self.copied[group].version
