"""What the simulated world is made of, and the promises that it checks at every step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardherd.core.group import Result
from shardherd.core.model import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Offset,
    ShardId,
    ShardState,
)
from shardherd.core.requests import Request
from shardherd.core.tracker import ReadRange, Tracker

SETTINGS: Mapping[str, Any] = {
    "heartbeat_interval": 1.0,
    "session_timeout": 9.0,
    "release_timeout": 8.0,
    "progress_timeout": 12.0,
    "initial_assignment_delay": 3.0,
}
SELF_STOP = 9.0 - 2.0


class BrokenError(AssertionError):
    """A promise of the protocol does not hold."""


@dataclass
class Stored:
    """What survives every crash: the source, the durable positions, the ownership, and what the sink holds."""

    ends: dict[ShardId, Offset] = field(default_factory=dict)
    closed: set[ShardId] = field(default_factory=set)
    parents: dict[ShardId, tuple[ShardId, ...]] = field(default_factory=dict)
    positions: dict[ShardId, Offset] = field(default_factory=dict)
    ownership: dict[str, Any] | None = None
    written: dict[ShardId, set[Offset]] = field(default_factory=dict)
    last_epoch: dict[ShardId, int] = field(default_factory=dict)
    duplicates: int = 0


@dataclass
class Pod:
    """One consumer's process. It runs while `alive`, stands still until `paused_until`, and is cut off while `cut`."""

    name: ConsumerId
    incarnation: Incarnation
    tracker: Tracker = field(default_factory=Tracker)
    alive: bool = True
    ready: bool = False
    draining: bool = False
    cut: bool = False
    paused_until: float = 0.0
    seq: int = 0
    sent_at: dict[int, float] = field(default_factory=dict)
    acknowledged: float = 0.0
    hung_until: float = 0.0


@dataclass
class Promises:
    """What must hold at every step of one run. Each check raises BrokenError."""

    stored: Stored
    ordered: bool
    granted: dict[tuple[ShardId, int], tuple[ConsumerId, Incarnation]] = field(default_factory=dict)

    def write(self, shard: ShardId, each: ReadRange) -> None:
        """The sink takes records: in an ordered group never those of an owner that was replaced."""
        written = self.stored.written[shard]
        offsets = range(each.start, each.stop)
        self.stored.duplicates += sum(offset in written for offset in offsets)
        written.update(offsets)
        if self.ordered:
            if each.epoch < self.stored.last_epoch.get(shard, 0):
                raise BrokenError(f"{shard}: a write under epoch {each.epoch} after one under {self.stored.last_epoch[shard]}")
            self.stored.last_epoch[shard] = each.epoch

    def commit(self, shard: ShardId, offset: Offset) -> None:
        """Before a commit: it does not go back, and nothing below it is missing in the sink."""
        before = self.stored.positions.get(shard, 0)
        if offset < before:
            raise BrokenError(f"{shard}: the durable position went back from {before} to {offset}")
        missing = [each for each in range(before, offset) if each not in self.stored.written[shard]]
        if missing:
            raise BrokenError(f"{shard}: position {offset} is durable, but {missing[:5]} were never written")

    def order(self, ranges: Mapping[ShardId, ReadRange]) -> None:
        """Before records are read: in an ordered group those of the parents are in the sink."""
        if not self.ordered:
            return
        for shard in ranges:
            for parent in self.stored.parents[shard]:
                if len(self.stored.written[parent]) < self.stored.ends[parent]:
                    raise BrokenError(f"{shard} is read before its parent {parent} is consumed")

    def reply(self, request: Request, result: Result) -> None:
        """Before an answer goes out: no epoch has two owners, no checkpoint comes from somebody else."""
        if isinstance(request, Heartbeat) and isinstance(result.reply, HeartbeatReply):
            for each in result.reply.confirmed:
                owner = (request.consumer, request.incarnation)
                if self.granted.setdefault((each.shard, each.owner_epoch), owner) != owner:
                    raise BrokenError(f"{each.shard}: epoch {each.owner_epoch} was granted twice")
        if isinstance(request, CheckpointRequest) and isinstance(result.reply, CheckpointReply):
            for outcome in result.reply.outcomes:
                holder = self.granted.get((outcome.shard, outcome.expected_epoch))
                if outcome.result is CheckpointResult.OK and holder != (request.consumer, request.incarnation):
                    raise BrokenError(f"{outcome.shard}: a checkpoint of {request.consumer} was taken, but {holder} holds it")

    def rest(self, view: GroupView, pods: Collection[ConsumerId]) -> None:
        """After the quiet: everything is read, durable, and owned evenly."""
        if view.withheld:
            raise BrokenError(f"grants are withheld: {view.withheld}")
        loose = [shard for shard in view.shards if shard.state not in (ShardState.ALREADY_ALLOC, ShardState.OVER)]
        if loose:
            raise BrokenError(f"not owned after the quiet: {loose}")
        if {consumer.consumer for consumer in view.consumers} != set(pods):
            raise BrokenError(f"consumers {view.consumers}, pods {sorted(pods)}")
        counts = [consumer.shards for consumer in view.consumers]
        if max(counts) - min(counts) > 1:
            raise BrokenError(f"uneven at rest: {view.consumers}")
        for shard, end in self.stored.ends.items():
            if self.stored.positions.get(shard) != end:
                raise BrokenError(f"{shard} is durable up to {self.stored.positions.get(shard)} of {end}")
            if self.stored.written[shard] != set(range(end)):
                raise BrokenError(f"{shard}: records were lost")
