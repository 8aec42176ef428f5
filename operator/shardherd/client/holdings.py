"""A consumer's own books: what it was granted, what it has in hand, what is done, what is durable, and what it may release.

Called by `consumer` for every reply, every shard that is taken or put back, and every checkpoint's answer. It decides which
shard is next, what a heartbeat must name and which positions may be checkpointed under which epoch. It knows nothing of
sockets or time: all of it is a function of the calls made so far. (The Spark agent's `core.tracker` does the same for
micro-batches, whose ranges are known before they are read.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shardherd.core.errors import FencedEpochError
from shardherd.core.model import (
    CheckpointReply,
    CheckpointResult,
    HeartbeatReply,
    HeldShard,
    Offset,
    ShardCheckpoint,
    ShardId,
)


@dataclass(slots=True)
class Grant:
    """One shard that we hold under `epoch`.

    `done` is the next record after what is done, `durable` the coordinator's position. `turn` grows with each time it was
    taken in hand. `revoked`: it must be given up. `lost`: it is somebody else's.
    """

    shard: ShardId
    epoch: int
    done: Offset
    durable: Offset
    turn: int = 0
    in_hand: bool = False
    revoked: bool = False
    lost: bool = False


class Holdings:
    """The books of one run of a consumer. `progress` grows whenever it gets on."""

    def __init__(self) -> None:
        self.revision = 0
        self.paused = False
        self.progress = 0
        self._grants: dict[ShardId, Grant] = {}
        self._turns = 0
        # Grants that were replaced or lost while in hand: named in heartbeats until they are put back.
        self._stale: list[Grant] = []
        # Epochs that we gave up: a reply that was on its way when we did must not bring them back.
        self._given_up: dict[ShardId, int] = {}

    def confirm(self, reply: HeartbeatReply) -> None:
        """Take over the reply to the latest heartbeat: what is new may be read, what is missing must be given up."""
        self.revision = reply.revision
        self.paused = reply.paused
        confirmed = {each.shard: each for each in reply.confirmed}
        for shard, grant in self._grants.items():
            grant.revoked = shard not in confirmed
        for shard, each in confirmed.items():
            current = self._grants.get(shard)
            if (current is not None and current.epoch == each.owner_epoch) or each.owner_epoch <= self._given_up.get(shard, 0):
                continue
            if current is not None:
                self._lose(current)
            self._grants[shard] = Grant(shard, each.owner_epoch, each.position, each.position)

    def held(self) -> tuple[HeldShard, ...]:
        """What a heartbeat must name: every grant, and whatever is still in hand under whatever epoch."""
        pairs = {(grant.shard, grant.epoch) for grant in (*self._grants.values(), *self._stale)}
        return tuple(HeldShard(shard, epoch) for shard, epoch in sorted(pairs))

    @property
    def readable(self) -> tuple[ShardId, ...]:
        """The shards that may be read, in order."""
        return tuple(sorted(shard for shard, grant in self._grants.items() if not grant.revoked))

    @property
    def in_hand(self) -> bool:
        """Whether anything is being read."""
        return bool(self._stale) or any(grant.in_hand for grant in self._grants.values())

    def take(self) -> Grant | None:
        """The shard whose turn it is, now in hand: the one that was taken longest ago. None if none may be read now."""
        free = [grant for grant in self._grants.values() if not grant.in_hand and not grant.revoked]
        if not free or self.paused:
            return None
        grant = min(free, key=lambda grant: (grant.turn, grant.shard))
        self._turns += 1
        self.progress += 1
        grant.turn, grant.in_hand = self._turns, True
        return grant

    def save(self, grant: Grant, offset: Offset) -> None:
        """Everything before `offset` is done. Raises FencedEpochError if the grant is not ours any more, ValueError."""
        if grant.lost:
            raise fenced(grant)
        if offset < grant.done:
            raise ValueError(f"shard {grant.shard} is done up to {grant.done}; a checkpoint at {offset} would go back")
        grant.done = offset
        self.progress += 1

    def put_back(self, grant: Grant) -> None:
        """What is in hand is not any more."""
        grant.in_hand = False
        self.progress += 1
        if grant in self._stale:
            self._stale.remove(grant)

    def unsaved(self) -> tuple[ShardCheckpoint, ...]:
        """Positions that are done and not yet durable."""
        return tuple(
            ShardCheckpoint(shard, grant.epoch, grant.done)
            for shard, grant in sorted(self._grants.items())
            if grant.done > grant.durable
        )

    def leaving(self) -> bool:
        """Whether something not durable is to be given up: it must not wait."""
        return any(grant.revoked and not grant.in_hand and grant.done > grant.durable for grant in self._grants.values())

    def acknowledge(self, sent: Collection[ShardCheckpoint], reply: CheckpointReply) -> tuple[ShardId, ...]:
        """Take over the coordinator's answer. Returns the shards that were fenced: they are lost."""
        lost = []
        asked = {each.shard: each for each in sent}
        for outcome in reply.outcomes:
            checkpoint, grant = asked.get(outcome.shard), self._grants.get(outcome.shard)
            if checkpoint is None or grant is None or grant.epoch != checkpoint.owner_epoch:
                continue
            if outcome.result is CheckpointResult.FENCED:
                self._lose(self._grants.pop(outcome.shard))
                lost.append(outcome.shard)
            elif outcome.result is not CheckpointResult.WITHHELD:
                grant.durable = max(grant.durable, checkpoint.offset)
                self.progress += 1
        return tuple(lost)

    def release(self) -> tuple[ShardId, ...]:
        """Give up every revoked shard that is not in hand and has nothing to checkpoint. The next heartbeat omits them."""
        free = [
            grant
            for grant in self._grants.values()
            if grant.revoked and not grant.in_hand and grant.done <= grant.durable and grant not in self._stale
        ]
        for grant in free:
            self._given_up[grant.shard] = grant.epoch
            del self._grants[grant.shard]
        return tuple(sorted(grant.shard for grant in free))

    def lose_all(self) -> None:
        """This run is over: nothing may be read or saved any more."""
        for grant in list(self._grants.values()):
            self._lose(grant)
        self._grants.clear()

    def _lose(self, grant: Grant) -> None:
        grant.lost = True
        self._given_up[grant.shard] = grant.epoch
        if grant.in_hand:
            self._stale.append(grant)


def fenced(grant: Grant) -> FencedEpochError:
    """What to raise when something is done under a grant that is not ours any more."""
    return FencedEpochError(
        f"shard {grant.shard} is not held under epoch {grant.epoch} any more; drop what was read of it",
        shard=grant.shard,
        expected_epoch=grant.epoch,
    )
