"""A shard that a program is processing: its position and epoch, and how it saves a checkpoint.

Made by `client.consumer`, which decides when the shard may be taken and when it is given up. Decides nothing.
"""

from __future__ import annotations

from typing import Protocol

from shardherd.core.consumer.holdings import Grant
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.core.model.positions import whole_number


class Saver(Protocol):
    """How a consumer saves positions of what it has granted."""

    def note(self, grant: Grant, offset: Offset, *, now: bool) -> None:
        """Take down that everything before `offset` is done, to be sent at once with `now`."""
        ...

    async def answered(self, grant: Grant, offset: Offset) -> None:
        """Wait until it is durable, or was refused once."""
        ...

    async def durable(self, grant: Grant, offset: Offset) -> None:
        """Wait until it is durable, or never will be."""
        ...


class ShardInHand:
    """A shard that is being read. It is not given up to another consumer before it is put back.

    `name`, `position` (the next record to read) and `epoch` are those of the moment when it was taken. `held_since` is the
    first epoch since which this consumer's name has held it without a gap, a forced checkpoint or a reset. `source_id` is that
    of its topic, empty where it is not known.
    """

    def __init__(self, grant: Grant, saver: Saver) -> None:
        self.name: ShardId = grant.shard
        self.position: Offset = grant.done
        self.epoch: int = grant.epoch
        self.held_since: int = grant.held_since
        self.source_id: str = grant.source_id
        self._grant = grant
        self._saver = saver

    @property
    def end(self) -> Offset | None:
        """Up to where it is to be read: records from there on are not the group's. None if it has no end, as most."""
        return self._grant.end

    @property
    def wanted(self) -> bool:
        """Whether another consumer waits for it, or it is somebody else's already: finish soon."""
        return self._grant.revoked or self._grant.lost

    @property
    def lost(self) -> bool:
        """Whether it is somebody else's already, or ours anew from another position: nothing can be saved any more."""
        return self._grant.lost

    @property
    def done(self) -> Offset:
        """Everything before this is done, as the last checkpoint says."""
        return self._grant.done

    @property
    def durable(self) -> Offset:
        """Where another consumer would go on if this run ended now."""
        return self._grant.durable

    async def save_checkpoint(self, offset: Offset, *, now: bool) -> None:
        """Everything before `offset` is done. With `now` it is durable when this returns, else within `save_interval`.

        Raises FencedEpochError if the shard is somebody else's: drop what was read of it. CoordinatorUnavailableError if it
        could not be made durable: it stays in memory and is sent again, so going on is right. ConsumerStoppedError. TypeError
        for what is no whole number, ValueError for a position before what is done.
        """
        position = self._position(offset)
        self._saver.note(self._grant, position, now=now)
        if now:
            await self._saver.answered(self._grant, position)

    def note_checkpoint(self, offset: Offset, *, now: bool) -> None:
        """As `save_checkpoint`, but wait for nothing: with `now` it is sent at once."""
        self._saver.note(self._grant, self._position(offset), now=now)

    async def made_durable(self, offset: Offset) -> None:
        """Wait until the checkpoint at `offset`, which was noted, is durable, also after the shard was put back.

        Raises FencedEpochError, or ConsumerStoppedError, once it never will be: it is lost with the shard, or with this run.
        """
        await self._saver.durable(self._grant, self._position(offset))

    def _position(self, given: object) -> Offset:
        """What is no position would keep the checkpoints of all other shards back, too. Raises TypeError."""
        return whole_number(given, f"a checkpoint of shard {self.name} must be saved at")
