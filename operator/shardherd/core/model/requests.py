"""Requests to a group besides those of consumers, which are in `nouns`, and their replies.

The runtime builds these and passes them to `Group.decide`. Everything is frozen. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardherd.core.model.messages import Message
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    Condition,
    ConsumerId,
    GroupSpec,
    Heartbeat,
    Incarnation,
    Leave,
    Offset,
    ShardId,
    ShardInfo,
)


@dataclass(frozen=True, slots=True)
class CheckpointsCommitted:
    """These positions are durable now: the outcome of a `Decision.positions`.

    `read_back`: after an unknown outcome. They are what was found then, and may bear the notes of whoever committed before.
    """

    offsets: Mapping[ShardId, Offset]
    read_back: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointsFailed:
    """The commit of these shards was surely not written."""

    shards: frozenset[ShardId]


@dataclass(frozen=True, slots=True)
class CheckpointsLost:
    """After a commit of unknown outcome the source has no position of these shards: neither the new one nor the one before."""

    shards: frozenset[ShardId]


@dataclass(frozen=True, slots=True)
class ConsumerDied:
    """Proof that this incarnation and all earlier starts of its pod will never act again (ordered: executors included)."""

    consumer: ConsumerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ShardsDiscovered:
    """All shards of the source as it showed them now.

    `durable` holds the durable positions, as far as there are any, of the shards that `Group.unread` names, and `notes` what
    was noted with them, and with those that are `unlooked`. `read` are those that it named, None if all of `shards` were read.
    `copies` are earlier positions, for a group of which nothing is stored. `unlooked` are shards that are there, and of which
    nobody can say now how far they reach. `kept_out` are there, too, and must stay out of the group until there is room for
    them.
    """

    shards: tuple[ShardInfo, ...]
    durable: Mapping[ShardId, Offset] = field(default_factory=dict)
    notes: Mapping[ShardId, str] = field(default_factory=dict)
    copies: Mapping[ShardId, Offset] = field(default_factory=dict)
    unlooked: frozenset[ShardId] = frozenset()
    kept_out: frozenset[ShardId] = frozenset()
    read: frozenset[ShardId] | None = None


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The group's spec now: settings, wanted consumers, who is leaving, start position."""

    spec: GroupSpec


@dataclass(frozen=True, slots=True)
class ConditionsChanged:
    """What the runtime knows that withholds grants.

    `withheld`: while not empty nothing is granted. `limits`: what is not let into the group for want of room, which is reported
    and holds up nothing that is in it but children of what stays out. `commits` False: checkpoints are withheld too. While the
    source is not reachable or commits are not possible, neither the release nor the progress timeout runs.
    """

    withheld: tuple[Condition, ...] = ()
    limits: tuple[Condition, ...] = ()
    commits: bool = True
    source_reachable: bool = True
    source_error: str = ""


@dataclass(frozen=True, slots=True)
class ForceCheckpoint:
    """Set a shard's position, whoever holds it. The holder is fenced and reads on from there."""

    shard: ShardId
    offset: Offset


class ForceCheckpointReply(Message, frozen=True):
    """`warning` is not empty where descendants of the shard may have been consumed already, so that order can break."""

    warning: str = ""


@dataclass(frozen=True, slots=True)
class ResetDue:
    """Go on with the reset of this id, as `Group.reset_due` asks for it.

    `timestamp` is what positions are to be looked up for, in seconds since 1970, None if it needs none. `positions` are those
    of the first records at or after it; a shard that has no such record is absent. `wall` is the time, in seconds since 1970.
    """

    id: str
    timestamp: float | None = None
    positions: Mapping[ShardId, Offset] = field(default_factory=dict)
    wall: float = 0.0


@dataclass(frozen=True, slots=True)
class CutoverDue:
    """Take the cutover offsets of a topic that grew to `after` shards, as `Group.cutovers_due` asks for it.

    `ends` are where the next record of each of `shards` was to be written, whoever may read it, no earlier than at `asked`, on
    the group's clock; one that could not be asked is absent.
    """

    topic: str
    after: int
    shards: tuple[ShardId, ...]
    asked: float
    ends: Mapping[ShardId, Offset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Due at `Group.next_deadline()` at the latest."""


@dataclass(frozen=True, slots=True)
class ClockGap:
    """This coordinator did not run for so many seconds: every deadline is that much later."""

    seconds: float


Request = (
    Heartbeat
    | CheckpointRequest
    | CheckpointsCommitted
    | CheckpointsFailed
    | CheckpointsLost
    | Leave
    | ConsumerDied
    | ShardsDiscovered
    | SettingsChanged
    | ConditionsChanged
    | ForceCheckpoint
    | ResetDue
    | CutoverDue
    | Tick
    | ClockGap
)

Reply = CheckpointReply | ForceCheckpointReply | None
"""What is known when a request is decided on. The reply to a heartbeat is that of the moment in which it is sent."""
