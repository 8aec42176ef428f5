"""The ledger of a plain consumer: what it was granted, what is processed and durable, and what it may release.

Its owner calls it for every shard that is taken or put back, the session for every reply. It decides which shard is next, what
a heartbeat must name and which positions may be checkpointed under which epoch. It knows nothing of sockets or time: all of it
is a function of the calls made so far. (`tracker` does so for micro-batches, whose ranges are known before they are read.)
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from shardherd.core.consumer.ledger import Ledger, later_end
from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.nouns import CheckpointOutcome, ConfirmedShard, ConsumerId, HeldShard, Offset, ShardId


@dataclass(slots=True)
class Grant:
    """One shard that we hold under `epoch`, and under whatever epochs from `held_since` on.

    `done` is the next record after what is done, `durable` the coordinator's position. `turn` grows with each time it was
    taken in hand. `revoked`: it must be given up. `lost`: it is somebody else's, namely `successor`'s under `successor_epoch`
    if the coordinator has said so (else None and 0). `source_id`: of which shard of the source it was granted, empty where the
    source has not said that. `end`: records from there on are not the group's to read, None where it has no end.
    """

    shard: ShardId
    epoch: int
    done: Offset
    durable: Offset
    held_since: int = 0
    turn: int = 0
    in_hand: bool = False
    revoked: bool = False
    lost: bool = False
    successor: ConsumerId | None = None
    successor_epoch: int = 0
    source_id: str = ""
    end: Offset | None = None


class Holdings(Ledger[Grant]):
    """The account of one run of a consumer that takes shards in hand."""

    def __init__(self, consumer: ConsumerId) -> None:
        super().__init__()
        self._consumer = consumer
        self._turns = 0
        # Grants that were replaced or lost while in hand: named in heartbeats until they are put back.
        self._stale: list[Grant] = []

    def held(self) -> tuple[HeldShard, ...]:
        """What a heartbeat must name: every grant, and whatever is still in hand under whatever epoch."""
        pairs = {(grant.shard, grant.epoch) for grant in (*self._grants.values(), *self._stale)}
        return tuple(HeldShard(shard, epoch) for shard, epoch in sorted(pairs))

    @property
    def readable(self) -> tuple[ShardId, ...]:
        """The shards that may be read, in order."""
        return tuple(sorted(shard for shard, grant in self._grants.items() if not grant.revoked))

    @property
    def busy(self) -> bool:
        """Whether anything is being read."""
        return bool(self._stale) or any(grant.in_hand for grant in self._grants.values())

    def take(self) -> Grant | None:
        """The shard whose turn it is, now in hand: the one that was taken longest ago. None if none may be read now.

        One that is in hand under an earlier grant is not: who reads it may still write.
        """
        stale = {grant.shard for grant in self._stale}
        free = [each for each in self._grants.values() if not each.in_hand and not each.revoked and each.shard not in stale]
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
            raise self.fenced(grant)
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

    def fenced(self, grant: Grant) -> FencedEpochError:
        """What to raise when something is done under a grant that is not ours any more."""
        now = f", but under epoch {grant.successor_epoch} by {grant.successor}" if grant.successor is not None else ""
        return FencedEpochError(
            f"shard {grant.shard} is not held under epoch {grant.epoch} any more{now}; drop what was read of it",
            shard=grant.shard,
            consumer=self._consumer,
            expected_epoch=grant.epoch,
            actual_epoch=grant.successor_epoch or None,
        )

    def lose_all(self) -> None:
        """This run is over: nothing may be read or saved any more. What is in hand, or not durable yet, is dropped."""
        for grant in list(self._grants.values()):
            self.dropped += grant.in_hand or grant.done > grant.durable
            self._lose(grant)
        self._grants.clear()

    def _granted(self, each: ConfirmedShard, before: Grant | None) -> Grant:
        if before is not None:
            before.successor, before.successor_epoch = self._consumer, each.owner_epoch
            self._lose(before)
        source_id = "" if each.source_id is UNSET else each.source_id
        return Grant(
            each.shard,
            each.owner_epoch,
            each.position,
            each.position,
            each.held_since_epoch,
            source_id=source_id,
            end=later_end(None, each),
        )

    def _confirmed_again(self, grant: Grant, each: ConfirmedShard) -> None:
        grant.end = later_end(grant.end, each)

    def _fenced(self, outcome: CheckpointOutcome) -> None:
        grant = self._give_up(outcome.shard)
        grant.successor, grant.successor_epoch = outcome.holder, outcome.actual_epoch
        self._lose(grant)

    def _being_read(self, shard: ShardId, grant: Grant) -> bool:  # noqa: ARG002
        return grant.in_hand

    def _lose(self, grant: Grant) -> None:
        grant.lost = True
        self._given_up[grant.shard] = grant.epoch
        if grant.in_hand:
            self._stale.append(grant)
