"""The twin of a table of positions: compare-and-swap on a dictionary that several coordinators may share."""

from __future__ import annotations

from shardherd.adapters.memory.faults import Faults
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import OwnershipConflictError


class MemoryPositions:
    """PositionTable in memory. `faults` knows "load" and "save"."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.saves = 0
        self.stored: dict[GroupIdentity, tuple[bytes, str]] = {}
        self._versions = 0

    async def load(self, group: GroupIdentity) -> tuple[bytes, str] | None:
        await self.faults.enter("load")
        return self.stored.get(group)

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None) -> str:
        await self.faults.enter("save")
        current = self.stored[group][1] if group in self.stored else None
        if current != expected:
            raise OwnershipConflictError(f"the positions of group {group} are at version {current}, not {expected}")
        self._versions += 1
        self.saves += 1
        self.stored[group] = (data, str(self._versions))
        self.faults.leave("save")
        return str(self._versions)
