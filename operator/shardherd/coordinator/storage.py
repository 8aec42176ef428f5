"""One group's ownership in its store: taken over once, then written by compare-and-swap until somebody else has written it.

Called by the group's runner, one call at a time. It tells apart "written", "surely not written" and "no longer ours"; after an
unknown outcome it reads back and goes on until it knows. It decides which stored ownership is believed: not one that cannot be
read, that somebody else wrote, or that is older than the copies of its positions. In one that is believed it changes only
the leader epoch and the revision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from shardherd.coordinator.ports import LeadershipLostError
from shardherd.core.group import ownership as codec
from shardherd.core.group.records import GroupRecord, Ownership, PositionCopies
from shardherd.core.model.errors import OwnershipDamagedError, OwnershipFormatError
from shardherd.core.model.nouns import GroupSpec
from shardherd.ports import (
    Clock,
    Leadership,
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipStore,
    OwnershipUnavailableError,
    StoredOwnership,
)

log = logging.getLogger(__name__)

RETRY = 0.25
"""Seconds between attempts to find out what became of a write."""

LATE = 60.0
"""Seconds after which a write that had no answer is not carried out any more."""

TAKE_ATTEMPTS = 5
"""A leader that is just ending may write a few times more while we take over."""


class GroupStorage:
    """The stored ownership of one group, as far as this coordinator knows."""

    def __init__(self, store: OwnershipStore, leadership: Leadership, clock: Clock, spec: GroupSpec) -> None:
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._group = spec.identity
        self._version: str | None = None
        self._written = b""
        self._tried = 0
        # The highest leader epoch of ours that is, or may have been, stored: somebody may put back what was there before.
        self.leader_epoch = 0
        self.revision = 0
        """Of what was surely written last."""
        self.created = False
        """Whether it was taken without a look, because there was none."""
        self.damage = ""
        """Why what was stored could not be read when it was taken; empty if it could, or if there was nothing."""

    async def take(self, *, copied: Callable[[], Awaitable[PositionCopies]], new: bool = False) -> Ownership:
        """The stored ownership, now under a leader epoch of our own. Nobody else's write succeeds after this.

        It is empty if nothing is stored, or nothing that can be read; it may have been lost, then, or the group is new. Of a
        group that is likely `new` it is made at once, and read only if there is one nevertheless. `copied` gives the copies of
        positions, which know how far an ownership had come: one that had not is an older copy, and nothing that can be read.
        Raises OwnershipUnavailableError if the store does not answer, OwnershipFormatError if another version wrote it,
        LeadershipLostError.
        """
        for attempt in range(TAKE_ATTEMPTS):
            unseen = new and attempt == 0
            stored = None if unseen else await self._store.load(self._group)
            copies = PositionCopies() if unseen else await copied()
            found = self._not_before(copies, self._read(stored))
            # A revision of our own is news to every consumer: the first heartbeat of each is answered at once, not parked.
            # One of an ordered group that heard nothing for long would stop itself, though there is a leader again.
            # A group that is not discovered yet has answered nobody, and begins with revision 0.
            news = 1 if found.group.discovered else 0
            self._tried = max(self._tried, found.group.leader_epoch) + 1
            group = replace(found.group, leader_epoch=self._tried, revision=found.group.revision + news)
            ours = replace(found, group=group)
            self._check_lease()
            try:
                data = codec.dumps(ours)
                self._version = await self._store.save(self._group, data, stored.version if stored else None)
            except OwnershipConflictError as error:
                log.info("taking over group %s again: %s", self._group, error)
                continue
            except OutcomeUnknownError as error:
                # Whether it was ours shows when we take over once more, under the next leader epoch.
                raise OwnershipUnavailableError(str(error)) from error
            self._wrote(data, ours)
            self.created = unseen
            return ours
        raise OwnershipUnavailableError(f"the ownership of group {self._group} is being written by another coordinator")

    async def save(self, ownership: Ownership, *, grows: bool = False) -> None:
        """Make this ownership durable. If somebody has deleted it, it is made anew: we lead, so we know what it was.

        `grows` as for the store. Raises LeadershipLostError if another coordinator has written, OwnershipUnavailableError or
        OwnershipTooLargeError if it surely was not written: a refusal says so of its own attempt only, not of one before it
        that had no answer and may yet be carried out.
        """
        data = codec.dumps(ownership)
        perhaps_until = float("-inf")
        while True:
            self._check_lease()
            try:
                self._version = await self._store.save(self._group, data, self._version, grows=grows)
                self._wrote(data, ownership)
                return
            except OwnershipGoneError as error:
                log.warning("group %s: %s; it is written anew", self._group, error)
                self._version = None
            except (OwnershipConflictError, OutcomeUnknownError) as error:
                # A conflict may be a late write of ours, or somebody's annotation; only another leader's write is the end.
                log.warning("group %s: %s; reading back", self._group, error)
                if isinstance(error, OutcomeUnknownError):
                    perhaps_until = self._clock.now() + LATE
                if await self._find_out(data, ownership):
                    return
            except OwnershipUnavailableError as error:
                if self._clock.now() >= perhaps_until:
                    raise
                log.warning("group %s: %s; an attempt before may still be carried out: reading back", self._group, error)
                await asyncio.sleep(RETRY)
                if await self._find_out(data, ownership):
                    return

    async def begin_anew(self) -> Ownership:
        """What was taken is not true: store nothing but our leader epoch, or the next one would believe it, by this very epoch.

        Raises as `save` does.
        """
        lost = self._nothing()
        lost = replace(lost, group=replace(lost.group, leader_epoch=self.leader_epoch))
        await self.save(lost)
        return lost

    async def prove(self) -> None:
        """Prove by a write that nobody else has taken over. Raises as `save` does."""
        await self.save(codec.loads(self._written))

    def _wrote(self, data: bytes, ownership: Ownership) -> None:
        self._written = data
        self.leader_epoch, self.revision = ownership.group.leader_epoch, ownership.group.revision

    async def _find_out(self, data: bytes, ownership: Ownership) -> bool:
        """After a write that may have failed: whether `data` is stored. If not, the version to write over is known again."""
        while True:
            self._check_lease()
            try:
                stored = await self._store.load(self._group)
            except OwnershipUnavailableError as error:
                log.warning("group %s: %s", self._group, error)
                await asyncio.sleep(RETRY)
                continue
            self._version = stored.version if stored is not None else None
            if stored is None:
                await asyncio.sleep(RETRY)
                return False
            try:
                found = self._read(stored)
            except OwnershipFormatError as error:
                raise LeadershipLostError(f"a later coordinator wrote the ownership of group {self._group}: {error}") from error
            # No coordinator writes what is damaged, and what somebody put back was none either: we know what it was.
            epochs = (self.leader_epoch, ownership.group.leader_epoch)
            if not self.damage and found.group.leader_epoch not in epochs:
                raise LeadershipLostError(f"the ownership of group {self._group} was written by another coordinator")
            if stored.data == data:
                self._wrote(data, ownership)
                return True
            return False

    def _read(self, stored: StoredOwnership | None) -> Ownership:
        """What is stored; empty if there is nothing, or if it is damaged, or was put there by somebody else."""
        self.damage = ""
        if stored is None:
            return self._nothing()
        if stored.damage:
            self.damage = stored.damage
            return self._nothing()
        try:
            found = codec.loads(stored.data)
        except OwnershipDamagedError as error:
            self.damage = error.message
            return self._nothing()
        if stored.foreign:
            self.damage = "the stored ownership was not written by a coordinator: somebody put it there, or put it back"
            return self._nothing()
        return found

    def _not_before(self, copies: PositionCopies, found: Ownership) -> Ownership:
        """What was found, or nothing if its copies are of a later one. Our leader epoch is above that of both."""
        group = found.group
        if (group.leader_epoch, group.revision) >= (copies.leader_epoch, copies.revision):
            return found
        if found.shards:
            self.damage = "the stored ownership is older than the copies of its positions: somebody put it back"
        lost = self._nothing()
        return replace(lost, group=replace(lost.group, leader_epoch=max(group.leader_epoch, copies.leader_epoch)))

    def _nothing(self) -> Ownership:
        return Ownership(GroupRecord(uid=self._group.uid), {}, {})

    def _check_lease(self) -> None:
        if self._clock.now() >= self._leadership.deadline():
            raise LeadershipLostError(f"the lease ran out before the ownership of group {self._group} was written")
