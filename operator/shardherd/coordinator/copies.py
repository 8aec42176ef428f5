"""Copies of a group's durable positions, kept apart from the source: they show after a restart that the source lost some.

Called by the group's runner and its committer. A copy is never above the durable position: it is written after it, and taken
away before a forced checkpoint goes back. Decides nothing about the group.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping

from shardherd.coordinator.ports import CoordinatorPorts, LeadershipLostError
from shardherd.core.model import GroupIdentity, Offset, ShardId
from shardherd.ports import OwnershipUnavailableError

log = logging.getLogger(__name__)

INTERVAL = 600.0
"""Seconds between two writes: positions change all the time, and a copy need not be new to show that something is missing."""

FIRST = 60.0
"""Seconds from taking a group over to the first write, and from one that failed to the next: a new group has no copy yet."""

SPREAD = 240.0
"""Seconds by which the first writes of groups differ: many may be taken over at once."""


class Copies:
    """The copies of one group. `positions` are the durable positions that it knows, `due` is when they are copied next."""

    def __init__(
        self, ports: CoordinatorPorts, identity: GroupIdentity, positions: Callable[[], Mapping[ShardId, Offset]]
    ) -> None:
        self._ports = ports
        self._identity = identity
        self._positions = positions
        self._stored: Mapping[ShardId, Offset] = {}
        self._sure = False
        self.due = ports.clock.now() + FIRST + SPREAD * _place(identity)
        self._writing = asyncio.Lock()

    async def load(self, *, new: bool = False) -> Mapping[ShardId, Offset]:
        """The copies as they were written last; of a group that is surely `new` none. Raises OwnershipUnavailableError."""
        if not new:
            self._stored = await self._ports.ownership.load_copies(self._identity)
        self._sure = True
        return self._stored

    @property
    def loaded(self) -> Mapping[ShardId, Offset]:
        """What is stored now."""
        return self._stored

    async def remind(self) -> None:
        """Called every now and then: if a write is due and positions changed, they are copied. Raises LeadershipLostError."""
        if self._ports.clock.now() < self.due:
            return
        self.due = self._ports.clock.now() + INTERVAL
        async with self._writing:
            positions = dict(self._positions())
            try:
                await self._write(positions)
            except OwnershipUnavailableError as error:
                self.due = self._ports.clock.now() + FIRST
                log.warning("group %s: its positions are copied in %g s: %s", self._identity, FIRST, error)

    async def make_way(self, offsets: Mapping[ShardId, Offset]) -> None:
        """Before these positions are committed: take away the copies that are above them.

        Raises OwnershipUnavailableError if that may not have happened, LeadershipLostError.
        """
        async with self._writing:
            above = {shard for shard, offset in offsets.items() if self._stored.get(shard, offset) > offset}
            if above:
                await self._write({shard: copy for shard, copy in self._stored.items() if shard not in above})

    async def _write(self, copies: Mapping[ShardId, Offset]) -> None:
        if copies == self._stored:
            return
        if self._ports.clock.now() >= self._ports.leadership.deadline():
            raise LeadershipLostError(f"the lease ran out before the positions of group {self._identity} were copied")
        before = self._stored if self._sure else None
        self._sure = False
        await self._ports.ownership.save_copies(self._identity, copies, before)
        self._stored, self._sure = copies, True


def _place(identity: GroupIdentity) -> float:
    """Where in the spread this group is, from 0 to 1: always at the same place, and unlike others."""
    return zlib.crc32(identity.uid.encode()) / 2**32
