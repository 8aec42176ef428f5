"""Copies of a group's durable positions, kept apart from the source: they show after a restart that the source lost some.

Called by the group's runner and its committer. A copy is never above the durable position: it is written after it, and taken
away before a forced checkpoint goes back. A write names the version that it replaces, so that none which arrives late, of ours
or of a leader before us, undoes a later one: whoever is not sure what is stored, or may yet be, writes before a position goes
back. Decides nothing about the group.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping
from dataclasses import replace

from shardherd.coordinator.items import Served
from shardherd.coordinator.ports import CoordinatorPorts, LeadershipLostError
from shardherd.coordinator.storage import GroupStorage
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import GroupIdentity, Offset, ShardId
from shardherd.ports import OutcomeUnknownError, OwnershipConflictError, OwnershipUnavailableError

log = logging.getLogger(__name__)

INTERVAL = 600.0
"""Seconds between two writes: positions change all the time, and a copy need not be new to show that something is missing."""

FIRST = 60.0
"""Seconds from taking a group over to the first write, and from one that failed to the next: a new group has no copy yet."""

SPREAD = 240.0
"""Seconds by which the first writes of groups differ: many may be taken over at once."""

ATTEMPTS = 3
"""Writes of one content: a late one of ours, or somebody's hand, may come between."""


class Copies:
    """The copies of one group, which is `served`. `storage` tells how far its ownership is. `due`: when they are made next."""

    def __init__(self, ports: CoordinatorPorts, identity: GroupIdentity, storage: GroupStorage, served: Served) -> None:
        self._ports = ports
        self._identity = identity
        self._storage = storage
        self._served = served
        self._stored = PositionCopies()
        self._version: str | None = ""
        """What a write replaces; None if it has to be looked up."""
        self._sure = False
        """Whether nothing else than `_stored` is there or can come to be."""
        self.refreshed = 0.0
        """When all positions were last committed once more, in seconds since 1970."""
        self.loaded: Mapping[ShardId, Offset] = {}
        """The copies as this coordinator found them."""
        self.due = ports.clock.now() + FIRST + SPREAD * place(identity)
        self._writing = asyncio.Lock()

    async def load(self) -> PositionCopies:
        """The copies as they were written last. Raises OwnershipUnavailableError."""
        await self._look()
        self.loaded, self.refreshed = self._stored.offsets, self._stored.refreshed
        return self._stored

    def begin(self, *, new: bool, undiscovered: bool) -> None:
        """The group was taken over. If it is surely `new`, nobody else has ever copied anything.

        The positions of one that is not discovered yet are all committed when its source is looked at first.
        """
        self._sure = new
        if undiscovered:
            self.refresh()

    def refresh(self) -> None:
        """All positions are committed once more, just now."""
        self.refreshed = self._ports.clock.wall()

    async def remind(self) -> None:
        """Called every now and then: if a write is due and something changed, or may have, it is made.

        Raises LeadershipLostError.
        """
        if self._ports.clock.now() < self.due:
            return
        self.due = self._ports.clock.now() + INTERVAL
        async with self._writing:
            offsets = dict(self._served.group.to_copy(self._stored.offsets))
            unchanged = (offsets, self.refreshed) == (self._stored.offsets, self._stored.refreshed)
            # After a write that failed some of it may be there, and some be missing.
            if unchanged and self._version is not None:
                return
            try:
                await self._write(offsets)
            except (OwnershipUnavailableError, CoordinatorUnavailableError) as error:
                self.due = self._ports.clock.now() + FIRST
                log.warning("group %s: its positions are copied in %g s: %s", self._identity, FIRST, error)

    async def make_way(self, offsets: Mapping[ShardId, Offset]) -> None:
        """Before these positions are committed: take away the copies that are above them, or may yet come to be.

        Raises OwnershipUnavailableError if that may not have happened, CoordinatorUnavailableError, LeadershipLostError.
        """
        async with self._writing:
            stored = self._stored.offsets
            above = {shard for shard, offset in offsets.items() if stored.get(shard, offset) > offset}
            if not self._sure:
                # What is on its way holds positions that were durable once: only what goes back can be below it.
                above |= self._served.group.going_back(offsets)
            if above:
                await self._write({shard: copy for shard, copy in stored.items() if shard not in above})

    async def _look(self) -> None:
        found = await self._ports.ownership.load_copies(self._identity)
        self._stored, self._version = found.copies, found.version

    async def _write(self, offsets: Mapping[ShardId, Offset]) -> None:
        """Replace what is stored, whatever it is by now, as the proven leader."""
        for attempt in range(ATTEMPTS):
            if attempt:
                # Somebody wrote between: a write of ours that came late, or somebody's hand. Another leader, or none.
                await self._served.prove()
            if self._version is None:
                await self._look()
            self._check_lease()
            leads = self._storage
            copies = PositionCopies(offsets, leads.leader_epoch, leads.revision, self.refreshed)
            expected, self._version, self._sure = self._version or "", None, False
            try:
                self._version = await self._ports.ownership.save_copies(self._identity, copies, expected)
            except OwnershipConflictError as error:
                log.warning("group %s: %s; reading back", self._identity, error)
                continue
            except OutcomeUnknownError as error:
                raise OwnershipUnavailableError(str(error)) from error
            self._stored, self._sure = replace(copies, offsets=dict(offsets)), True
            return
        raise OwnershipUnavailableError(f"the copied positions of group {self._identity} keep changing")

    def _check_lease(self) -> None:
        if self._ports.clock.now() >= self._ports.leadership.deadline():
            raise LeadershipLostError(f"the lease ran out before the positions of group {self._identity} were copied")


def place(identity: GroupIdentity) -> float:
    """Where in a spread this group is, from 0 to 1: always at the same place, and unlike others."""
    return zlib.crc32(identity.uid.encode()) / 2**32
