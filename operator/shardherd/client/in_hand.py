"""A shard that a program is processing: its position and epoch, and how it saves a checkpoint.

Made by `client.consumer`, which decides when the shard may be taken and when it is given up. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shardherd.core.consumer.holdings import Grant
from shardherd.core.model.nouns import Offset, ShardId


class ShardInHand:
    """A shard that is being read. It is not given up to another consumer before it is put back.

    `name`, `position` (the next record to read) and `epoch` are those of the moment when it was taken. `held_since` is the
    first epoch since which this consumer's name has held it without a gap, a forced checkpoint or a reset.
    """

    def __init__(self, grant: Grant, save: Callable[[Grant, Offset, bool], Awaitable[None]]) -> None:
        self.name: ShardId = grant.shard
        self.position: Offset = grant.done
        self.epoch: int = grant.epoch
        self.held_since: int = grant.held_since
        self._grant = grant
        self._save = save

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
        could not be made durable: it stays in memory and is sent again, so going on is right. ConsumerStoppedError.
        """
        await self._save(self._grant, offset, now)
