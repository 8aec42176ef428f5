"""What every ledger has: a consumer's grants, which of their positions are durable, and which may be released.

`tracker` and `cells` (micro-batches, whose ranges are known before they are read) and `holdings` (shards that are taken in
hand) add what they read and how; the session of a consumer calls it for every reply. All of it is a function of the calls made
so far: no sockets, no time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from msgspec import UNSET

from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointResult,
    ConfirmedShard,
    HeartbeatReply,
    HeldShard,
    Offset,
    ShardCheckpoint,
    ShardId,
)


class Held(Protocol):
    """A grant: its epoch, the end of what was finished, the coordinator's position, and whether it must be given up."""

    epoch: int
    done: Offset
    durable: Offset
    revoked: bool


G = TypeVar("G", bound=Held)


def later_end(known: Offset | None, each: ConfirmedShard) -> Offset | None:
    """Up to where a shard is to be read that has an end for its group only: what a reply says never takes anything back."""
    return known if each.end is UNSET else max(known or 0, each.end)


class Ledger(ABC, Generic[G]):
    """The account of one run of a consumer. `progress` grows whenever it gets on.

    `dropped` counts the shards of which something was finished that is not durable when they became somebody else's, or ours
    anew, or when the run was over for a consumer that takes shards in hand: it is read again. `source_ids` are those under
    which the shards that a heartbeat names were confirmed last, as far as the source has them.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.paused = False
        self.ordered = False
        self.source_ids: Mapping[ShardId, str] = {}
        self.dropped = 0
        self.progress = 0
        self._grants: dict[ShardId, G] = {}
        # Epochs that we gave up: a reply that was on its way when we did must not bring them back.
        self._given_up: dict[ShardId, int] = {}

    def confirm(self, reply: HeartbeatReply) -> None:
        """Take over the reply to the latest heartbeat: what is new may be read, what is missing must be given up."""
        self.revision = reply.revision
        self.paused = reply.paused
        self.ordered = reply.ordered
        confirmed = {each.shard: each for each in reply.confirmed}
        for shard, grant in self._grants.items():
            grant.revoked = shard not in confirmed
        for shard, each in confirmed.items():
            current = self._grants.get(shard)
            if current is not None and current.epoch == each.owner_epoch:
                self._confirmed_again(current, each)
            elif each.owner_epoch > self._given_up.get(shard, 0):
                self.dropped += current is not None and current.done > max(current.durable, each.position)
                self._grants[shard] = self._granted(each, current)
        self._take_over_source_ids(confirmed)

    def _take_over_source_ids(self, confirmed: Mapping[ShardId, ConfirmedShard]) -> None:
        known = self.source_ids
        confirmed_ids = {shard: each.source_id for shard, each in confirmed.items() if each.source_id is not UNSET}
        news = any(known.get(shard) != source_id for shard, source_id in confirmed_ids.items())
        gone = known.keys() - confirmed.keys()
        if gone:
            gone -= {each.shard for each in self.held()}
        if news or gone:
            # Another one: who was handed out records keeps those of then.
            self.source_ids = {shard: each for shard, each in {**known, **confirmed_ids}.items() if shard not in gone}

    @abstractmethod
    def held(self) -> tuple[HeldShard, ...]:
        """What a heartbeat must name: every grant, and whatever is still being read under whatever epoch."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether anything is being read, or written."""

    @property
    def holds_any(self) -> bool:
        """Whether a heartbeat names anything."""
        return bool(self.held())

    @property
    def adrift(self) -> Mapping[ShardId, int]:
        """What was abandoned and may still be written, with its epoch; nothing where that cannot be."""
        return {}

    def given_up(self, shards: Iterable[ShardId]) -> dict[ShardId, int]:
        """The epochs under which we held these shards, which we have given up."""
        return {shard: self._given_up[shard] for shard in shards}

    def readable_epochs(self) -> dict[ShardId, int]:
        """The shards that may be read, with the epochs of their grants, in order."""
        return {shard: grant.epoch for shard, grant in sorted(self._grants.items()) if not grant.revoked}

    def epochs(self) -> dict[ShardId, int]:
        """The shards that we hold, revoked ones too, with the epochs of their grants, in order."""
        return {shard: grant.epoch for shard, grant in sorted(self._grants.items())}

    def leaving(self) -> bool:
        """Whether something not durable is to be given up, and is not read any more: saving it must not wait."""
        return any(
            grant.revoked and grant.done > grant.durable and not self._being_read(shard, grant)
            for shard, grant in self._grants.items()
        )

    def uncommitted(self) -> tuple[ShardCheckpoint, ...]:
        """Positions that are finished and not yet durable, under the epoch that they were read with."""
        # Asked all the time, and mostly there are none: only what is found is put in order.
        found = sorted((shard, grant.epoch, grant.done) for shard, grant in self._grants.items() if grant.done > grant.durable)
        return tuple(ShardCheckpoint(*each) for each in found)

    def acknowledge(self, sent: Collection[ShardCheckpoint], reply: CheckpointReply) -> tuple[ShardId, ...]:
        """Take over the coordinator's answer. Returns the shards that were fenced: they are not ours any more."""
        fenced = []
        asked = {each.shard: each for each in sent}
        for outcome in reply.outcomes:
            checkpoint, grant = asked.get(outcome.shard), self._grants.get(outcome.shard)
            if checkpoint is None or grant is None or grant.epoch != checkpoint.owner_epoch:
                continue
            if outcome.result is CheckpointResult.FENCED:
                self.dropped += 1
                self._fenced(outcome)
                fenced.append(outcome.shard)
            elif outcome.result is not CheckpointResult.WITHHELD:
                grant.durable = max(grant.durable, checkpoint.offset)
                self.progress += 1
        return tuple(fenced)

    def release(self) -> tuple[ShardId, ...]:
        """Give up every revoked shard that is not being read and has nothing to checkpoint. The next heartbeat omits them."""
        free = sorted(
            shard
            for shard, grant in self._grants.items()
            if grant.revoked and grant.done <= grant.durable and not self._being_read(shard, grant)
        )
        for shard in free:
            self._give_up(shard)
        return tuple(free)

    def _give_up(self, shard: ShardId) -> G:
        grant = self._grants.pop(shard)
        self._given_up[shard] = grant.epoch
        return grant

    def _fenced(self, outcome: CheckpointOutcome) -> None:
        """The shard has another owner, which may be named."""
        self._give_up(outcome.shard)

    @abstractmethod
    def _granted(self, each: ConfirmedShard, before: G | None) -> G:
        """A grant, in the place of one under another epoch if there is one."""

    def _confirmed_again(self, grant: G, each: ConfirmedShard) -> None:
        """The same grant, as the newest reply has it."""

    @abstractmethod
    def _being_read(self, shard: ShardId, grant: G) -> bool:
        """Whether the shard cannot be released yet."""
