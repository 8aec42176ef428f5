"""The values that a group's state is made of: what is stored (shards, consumers, the group) and what is only remembered.

Used by every part of `core.group`. All frozen; a change is a new value. Those that change with almost every request are classes
of msgspec, which makes a new value for a small part of what a dataclass takes. Times are seconds of the group's own monotonic
clock. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from shardherd.core.model import event_reasons
from shardherd.core.model.gauges import Gauge, Stage
from shardherd.core.model.nouns import (
    Condition,
    ConsumerId,
    FailingCell,
    Growth,
    Incarnation,
    Offset,
    Phase,
    Reset,
    ResetReport,
    ShardId,
    ShardState,
)


class ShardRecord(NamedTuple):
    """One shard. `since` (when it entered its state) is not stored; all else is.

    `holder`, `incarnation` and `owner_epoch` are the grant in ALREADY_ALLOC and TRANSFER; in other states `holder` is None and
    `owner_epoch` is the last one given. `revision` is the one in which its holder was last given it or asked for it. `start` is
    the position resolved when the shard appeared, in a group with cells where its state begins; `started` is True once a
    position of it was durable. `end`, in a group that reads up to a time, is where it is closed, and the id of the source of
    which that holds.
    """

    shard: ShardId
    state: ShardState
    start: Offset
    started: bool = False
    holder: ConsumerId | None = None
    incarnation: Incarnation | None = None
    next_consumer: ConsumerId | None = None
    last_holder: ConsumerId | None = None
    owner_epoch: int = 0
    held_since_epoch: int = 0
    revision: int = 0
    parents: tuple[ShardId, ...] = ()
    source_id: str = ""
    since: float = 0.0
    end: tuple[str, Offset] | None = None


class EndReason:
    """Why an incarnation is over. `EXPIRED` are those that the coordinator ended: their pods must be replaced.

    Once such a one is proven dead, nothing is left to be replaced; it `WAS_EXPIRED` all the same: nobody waits for its return.
    One that has left busy may still write: it has named shards to the last, and did not say that nothing of it goes on.
    """

    DIED = "Died"
    LEFT = "Left"
    LEFT_BUSY = "LeftBusy"
    RELEASE_TIMEOUT = event_reasons.RELEASE_TIMEOUT
    PROGRESS_TIMEOUT = event_reasons.PROGRESS_TIMEOUT
    SINK_TIMEOUT = event_reasons.SINK_TIMEOUT
    EXPIRED_AND_DIED = "ExpiredAndDied"
    EXPIRED = frozenset({RELEASE_TIMEOUT, PROGRESS_TIMEOUT, SINK_TIMEOUT})
    WAS_EXPIRED = EXPIRED | {EXPIRED_AND_DIED}


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """What is stored of a consumer's name, also after it has gone.

    `present` is False once it died, left or expired. `incarnation` is the newest seen. `ended` and all earlier starts of its
    pod are refused, for `end_reason`. `superseded` are UIDs of earlier pods, the oldest first, which are refused for as long as
    they could still speak. `proven` are superseded incarnations known to be dead, kept while a shard is still held under them.
    `zone` and `capacity` are what it told last: assignments depend on them, so one that takes over must know them too.
    """

    consumer: ConsumerId
    incarnation: Incarnation
    present: bool = True
    ended: Incarnation | None = None
    end_reason: str = ""
    superseded: tuple[str, ...] = ()
    proven: tuple[Incarnation, ...] = ()
    zone: str = ""
    capacity: int = 1

    def has_ended(self, incarnation: Incarnation) -> bool:
        """Whether this incarnation is refused because it, or a later start of its pod, is over."""
        return self.ended is not None and (self.ended == incarnation or self.ended.supersedes(incarnation))


class Session(msgspec.Struct, frozen=True):
    """What a consumer's heartbeats said last. Not stored: after a restart `heard` is False until it speaks.

    It is in its phase since `phase_since`; until `goes_on_at` it means to wait. The queries of `failing` cells fail. `gauges`
    say how full it is, and `stage` what follows from that; it was above low at `above_at` last, has given something away for
    that at `gave_at`, and reads on since `resumed_at` after it was paused.
    """

    last_heard: float
    heard: bool = True
    seq: int = 0
    revision: int = 0
    named: frozenset[ShardId] = frozenset()
    ready: bool = False
    draining: bool = False
    progress: int = 0
    progress_at: float = 0.0
    phase: Phase | None = None
    phase_since: float = 0.0
    goes_on_at: float = 0.0
    gauges: tuple[Gauge, ...] = ()
    stage: Stage = Stage.BELOW
    above_at: float = float("-inf")
    gave_at: float = float("-inf")
    resumed_at: float = float("-inf")
    failing: tuple[FailingCell, ...] = ()

    @property
    def available(self) -> bool:
        """Whether it can take shards, as far as it says itself: this coordinator has heard it, and it is warm and stays."""
        return self.heard and self.ready and not self.draining


class InFlight(NamedTuple):
    """A position whose commit is under way. Until its outcome is known the shard's ownership does not change.

    `source_id`: of which shard of the source a forced one was decided to be, empty if it is the one that the record names.
    """

    offset: Offset
    forced: bool = False
    source_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What is stored of the group itself.

    `epoch_floor` is the highest epoch of the shards that were dropped, which a shard begins with that comes back. `rebuilding`:
    its ownership was lost, and consumers still claim what they hold. `reset` is the reset that was decided last: refused, being
    made with all of its rows, or made; `last_reset` the last that was made, with its first rows. `reset_ids` are those of the
    last resets that were made or refused, which never are again. `reset_sources`: for which shards of the source the reset that
    is being made was decided, where their records named others of that name. `reset_left_out` are those that it does not set,
    because they were made anew since. `counts` are how many shards topics of an ordered group have, where that is more than
    those that it has let in so far. `state_generation` says which state of its cells is in use, since `state_revision`;
    `state_lost` are the cells of which it is lost. `session_timeout` is the longest time for which a run of a consumer may
    go on by itself still: who has not heard that it is shorter now, or that the group is ordered, stops only then. 0 while
    nobody has come.
    """

    uid: str
    leader_epoch: int = 0
    group_epoch: int = 0
    revision: int = 0
    discovered: bool = False
    growths: tuple[Growth, ...] = ()
    epoch_floor: int = 0
    rebuilding: bool = False
    reset: ResetReport | None = None
    last_reset: ResetReport | None = None
    reset_ids: tuple[str, ...] = ()
    reset_sources: tuple[tuple[ShardId, str], ...] = ()
    reset_left_out: tuple[ShardId, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    state_generation: int = 0
    state_revision: int = 0
    state_lost: tuple[int, ...] = ()
    session_timeout: float = 0.0


class Clocks(msgspec.Struct, frozen=True):
    """What is remembered of the group itself, not stored.

    `gap` is the time that did not count; `rebalanced_at` is on the caller's clock, which counts it. `due` is why a rebalance is
    wanted, empty if none is. Joins are gathered until
    `gather_until`; nothing is planned before `settle_until` unless all consumers have been heard. `assign_at` is when the first
    assignment waits no longer. The release and progress clocks count from `resumed_at` at the earliest; `doublings` lengthen
    them. Deadlines up to `ticked_at` have been seen to. `seen`: the source was. `replan`: a transfer that could not be called
    off, or that takes the last shard of who counts only while it holds some, is to be followed by another rebalance.
    `copies` are those of the positions that were found below their copy. Until `claims_until` consumers
    claim what they hold, while the ownership is rebuilt. `assignor_error`: why the group's plug-in
    gave no answer last time. `sizes_unknown`: bytes are to be weighed, and the source does not show them. `planned` is the
    declared dry run of a reset and what came of it. `unset` are the shards that a reset has not set yet, None before it began.
    `left_out` are the shards, free or held, that the last rebalance could not count. `unnoted` are the shards whose durable
    positions bear no note of this group yet: they are committed once more before the shards are given to anybody. `begun`, as
    long as claims may come, are those whose position is ours and not one that a claim could go on from: none was found, and we
    began them at their first record; or it was set by force since. `claimed` is the highest epoch under which somebody claimed
    a shard that is not there.
    `unnamed` are the shards of an ordered group whose topics the source does not name any more, as long as somebody may read
    one of the topic.
    `unlooked` are the shards that the source has and of which it has never told how far they reach; `kept_out` those that the
    group may not let in for now. `away` are those that it does not have, with the time since when every look has shown so; of
    those that are `cut_off` the holder was fenced since.
    `grown_at` is when this coordinator saw each topic grow, by its name and the number that it grew to; one that was seen by a
    coordinator before is taken for seen when this one took over. The time for which consumers go on by themselves may have been
    longer before `lowered_at`.
    """

    gap: float = 0.0
    due: str = ""
    gather_until: float = 0.0
    settle_until: float = 0.0
    assign_at: float | None = None
    resumed_at: float = 0.0
    doublings: int = 0
    withheld: tuple[Condition, ...] = ()
    limits: tuple[Condition, ...] = ()
    commits: bool = True
    source_reachable: bool = True
    source_error: str = ""
    seen: bool = False
    recreated: tuple[ShardId, ...] = ()
    rebalanced_at: float | None = None
    rebalance_reason: str = ""
    rebalance_moved: int = 0
    rebalances: int = 0
    moves: int = 0
    expiries: int = 0
    ticked_at: float = float("-inf")
    replan: bool = False
    copies: Mapping[ShardId, Offset] = msgspec.field(default_factory=dict)
    claims_until: float = 0.0
    assignor_error: str = ""
    sizes_unknown: bool = False
    planned: tuple[Reset, ResetReport] | None = None
    unset: frozenset[ShardId] | None = None
    left_out: frozenset[ShardId] = frozenset()
    unnoted: frozenset[ShardId] = frozenset()
    begun: frozenset[ShardId] = frozenset()
    claimed: int = 0
    unnamed: frozenset[ShardId] = frozenset()
    unlooked: frozenset[ShardId] = frozenset()
    kept_out: frozenset[ShardId] = frozenset()
    away: Mapping[ShardId, float] = msgspec.field(default_factory=dict)
    cut_off: frozenset[ShardId] = frozenset()
    grown_at: Mapping[tuple[str, int], float] = msgspec.field(default_factory=dict)
    lowered_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PositionCopies:
    """Copies of a group's durable positions, kept apart from them, and never above them.

    `leader_epoch` and `revision` are those that the stored ownership had reached when they were written: one that is below
    either is older than its copies. `refreshed` is when all positions were last committed once more, in seconds since 1970; 0
    if nobody knows.
    """

    offsets: Mapping[ShardId, Offset] = field(default_factory=dict)
    leader_epoch: int = 0
    revision: int = 0
    refreshed: float = 0.0


@dataclass(frozen=True, slots=True)
class Ownership:
    """All that must survive the coordinator: the value that is encoded into the ownership store."""

    group: GroupRecord
    shards: Mapping[ShardId, ShardRecord]
    consumers: Mapping[ConsumerId, ConsumerRecord]

    @property
    def says_nothing(self) -> bool:
        """Whether it is that of a group of which nothing is known but who leads it."""
        return not (self.shards or self.consumers) and self.group == GroupRecord(self.group.uid, self.group.leader_epoch)
