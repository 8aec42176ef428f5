"""One consumer group: every request of the protocol goes in here, every decision comes out.

The coordinator's runtime calls it, one request at a time:

    decision = group.decide(request, now)   # changes the group, or raises a ShardherdError: then nothing was changed
    ...                                     # decide more, on top of it; store the ownership if one of them says `persist`
    group.commit()                          # all of that holds; or `group.roll_back()`: nothing of it has happened
    ...                                     # begin to make `decision.positions` durable, send `decision.reply`

What becomes of `positions` must come back as CheckpointsCommitted, CheckpointsFailed or CheckpointsLost, and until then their
shards do not change hands. A heartbeat's reply is made when it is sent, by `confirmed(heartbeat)`: at once, or, if
`may_park(heartbeat)`, when a later `Decision.woken` names the consumer or the interval ends. Does no input or output and reads
no clock: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from shardherd.core.assignors import ASSIGNORS, Assignors
from shardherd.core.group import (
    absence,
    balance,
    checkpoints,
    cutovers,
    discovery,
    endings,
    heartbeats,
    liveness,
    positions,
    rebalance,
    rebuild,
    resets,
    timers,
    views,
)
from shardherd.core.group.decisions import Decision, decision_of, only_postpone, only_sessions, only_the_same_look
from shardherd.core.group.notes import Note, of_group
from shardherd.core.group.records import Clocks, GroupRecord, Ownership, Session, ShardRecord
from shardherd.core.group.state import State, Table
from shardherd.core.group.topics import names
from shardherd.core.model.event_reasons import RESTORED
from shardherd.core.model.nouns import (
    CheckpointRequest,
    ConsumerId,
    GroupSpec,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Offset,
    ResetReport,
    ShardId,
    ShardInfo,
    ShardView,
)
from shardherd.core.model.requests import (
    CheckpointsCommitted,
    CheckpointsFailed,
    CheckpointsLost,
    ClockGap,
    ConditionsChanged,
    ConsumerDied,
    CutoverDue,
    ForceCheckpoint,
    Reply,
    Request,
    ResetDue,
    SettingsChanged,
    ShardsDiscovered,
    Tick,
)


class Group:
    """One group. Not thread-safe: its mailbox passes one request at a time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._decided: list[Decision] = []
        self._deadline: float | None = None
        self._deadline_known = False
        self._nothing_new = False

    @classmethod
    def new(cls, spec: GroupSpec, now: float, leader_epoch: int = 0, assignors: Assignors = ASSIGNORS) -> Group:
        """A group that nobody has stored anything of."""
        record = GroupRecord(uid=spec.identity.uid, leader_epoch=leader_epoch)
        state = State(spec, record, Clocks(resumed_at=now), assignors)
        state.restored_at = now
        return cls(state)

    @classmethod
    def restore(
        cls,
        ownership: Ownership,
        durable: Mapping[ShardId, Offset],
        spec: GroupSpec,
        now: float,
        *,
        copies: Mapping[ShardId, Offset],
        notes: Mapping[ShardId, str],
        assignors: Assignors = ASSIGNORS,
    ) -> Group:
        """A group as it was stored, with the durable positions of its shards. Every consumer gets a whole session timeout.

        Shards of topics that the source does not name any more are dropped, in an ordered group once nobody can read them;
        their holders are told so by the next reply.
        `copies` are earlier durable positions, kept elsewhere: one that is above the durable one shows that this was lost.
        `notes` are those of the durable positions: one that is not of this group, or of another shard than bears the name, is
        put right. The leader before may not have lived to do that, after a commit of which it heard no outcome.
        """
        record = ownership.group
        unnamed = {shard: row for shard, row in ownership.shards.items() if not names(spec, shard)}
        read = absence.may_be_read_still(spec, unnamed)
        record = replace(
            record,
            epoch_floor=max([record.epoch_floor, *(row.owner_epoch for row in unnamed.values())]),
            session_timeout=max(record.session_timeout, spec.settings.session_timeout) if ownership.consumers else 0.0,
        )
        settle_until = now + 2 * spec.settings.heartbeat_interval
        above = {shard: copy for shard, copy in copies.items() if copy > durable.get(shard, copy)}
        claims_until = now + rebuild.claims_for(record, spec.settings)
        known = of_group(record.uid, notes)
        clocks = Clocks(
            due=RESTORED,
            settle_until=settle_until,
            resumed_at=now,
            copies=above,
            claims_until=claims_until,
            unnamed=read,
            lowered_at=now,
            unnoted=frozenset(
                shard
                for shard in durable
                if shard in ownership.shards and not _tells(known.get(shard), ownership.shards[shard])
            ),
        )
        state = State(spec, record, clocks, assignors)
        state.restored_at = now
        state.group["touched_all"] = record.revision
        for shard in (row for name, row in ownership.shards.items() if name not in unnamed or name in read):
            position = durable.get(shard.shard)
            if position is not None:
                state.set(Table.POSITIONS, shard.shard, None, position)
            started = shard.started or position is not None
            state.set(Table.SHARDS, shard.shard, None, shard._replace(since=now, started=started))
        for consumer in ownership.consumers.values():
            state.set(Table.CONSUMERS, consumer.consumer, None, consumer)
            if consumer.present:
                state.set(Table.SESSIONS, consumer.consumer, None, Session(last_heard=now, heard=False, progress_at=now))
        return cls(state)

    def decide(self, request: Request, now: float) -> Decision:
        """Decide on a request, and change the group accordingly. If it is refused: a ShardherdError, and nothing is changed."""
        state = self._state
        time = now - state.clocks.gap
        state.begin()
        try:
            reply = self._dispatch(request, time)
            if isinstance(request, ClockGap):
                time -= request.seconds
            self._settle(request, time)
            entries = tuple(state.journal)
            decision = decision_of(state, entries, reply)
        except BaseException:
            state.undo(tuple(state.journal))
            raise
        self._decided.append(decision)
        self._deadline_known = self._deadline_known and only_postpone(state, entries)
        self._nothing_new = (self._nothing_new and only_sessions(entries)) or only_the_same_look(entries)
        return decision

    def commit(self) -> None:
        """What was decided is durable, as far as it must be: it cannot be taken back any more."""
        self._decided = []

    def roll_back(self) -> None:
        """Take back all that was decided since the last `commit`."""
        for decision in reversed(self._decided):
            self._state.undo(decision.entries)
        self._decided = []
        self._deadline_known = self._nothing_new = False

    def note_life(self, heartbeat: Heartbeat, at: float) -> None:
        """A heartbeat was decided at this time of the group, and taken back, as its consequences cannot be stored.

        That its consumer lives was true all the same: it is expired no earlier for it. Nothing else that it said counts.
        """
        self._state.begin()
        heartbeats.note_life(self._state, heartbeat, at)

    def next_deadline(self) -> float | None:
        """When a Tick is due at the latest, on the caller's clock; None while nothing can time out.

        What only postpones deadlines, as most heartbeats do, does not make them be looked for anew: the one known before comes
        too early then, and its Tick finds the next.
        """
        if not self._deadline_known:
            deadline = timers.next_deadline(self._state)
            self._deadline = None if deadline is None else deadline + self._state.clocks.gap
            self._deadline_known = True
        return self._deadline

    @property
    def gap(self) -> float:
        """Seconds for which no time passed for the group."""
        return self._state.clocks.gap

    def may_park(self, heartbeat: Heartbeat) -> bool:
        """Whether there is nothing to tell this consumer that it has not applied yet."""
        revision = self._state.record.revision
        return self.assignment_revision(heartbeat.consumer) <= heartbeat.revision <= revision and not heartbeats.fenced(
            self._state, heartbeat
        )

    def assignment_revision(self, consumer: ConsumerId) -> int:
        """The revision that last changed what this consumer must be told."""
        return max(self._state.touched.get(consumer, 0), self._state.touched_all)

    def confirmed(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """The reply to a heartbeat that was taken in before, as of now. Raises StaleIncarnationError if refused by now."""
        liveness.check(self._state, heartbeat.consumer, heartbeat.incarnation)
        return heartbeats.reply(self._state, heartbeat)

    def unread(self, shards: Iterable[ShardInfo]) -> tuple[ShardId, ...]:
        """Which of these shards' durable positions must be read for ShardsDiscovered.

        Those of new shards, of shards that had a position and have none, and of shards whose position is below its copy.
        """
        rows, durable, copies = self._state.shards, self._state.positions, self._state.clocks.copies
        lost = {shard for shard in copies if shard in durable}
        return tuple(
            info.shard
            for info in shards
            if info.shard in lost or (info.shard not in durable and (info.shard not in rows or rows[info.shard].started))
        )

    def unadmitted(self, shards: Iterable[ShardInfo]) -> frozenset[ShardId]:
        """Those of these shards that the group does not have."""
        rows = self._state.shards
        return frozenset(info.shard for info in shards if info.shard not in rows)

    def changed_by(self, shards: tuple[ShardInfo, ...], kept_out: frozenset[ShardId] = frozenset()) -> bool:
        """Whether ShardsDiscovered with these may change anything; if some of them are `unread`, it always may.

        The same look a second time changes nothing if the first one did not, if only sessions have changed since, and if
        nothing waits for a look.
        """
        state, clocks = self._state, self._state.clocks
        return (
            not self._nothing_new
            or rebalance.may_come(state)
            or bool(state.moving or state.unsettled or clocks.away or clocks.unlooked or clocks.unnamed)
            or balance.looks_at_weights(state)
            or clocks.kept_out != kept_out
            or tuple(state.infos.values()) != endings.known(state, shards)
        )

    @property
    def begins_at_ends(self) -> bool:
        """Whether the group is to begin at the ends that its first look shows, which is to come: no end may be missing."""
        return not self._state.record.discovered and self._state.spec.source.starting_position == "Latest"

    def wants_sizes(self, now: float) -> bool:
        """Whether the next ShardsDiscovered should have the shards' sizes in bytes."""
        return balance.wants_sizes(self._state, now - self._state.clocks.gap)

    def cutovers_due(self, now: float) -> tuple[CutoverDue, ...]:
        """Of which shards the ends are to be looked up, and then told, as cutover offsets."""
        return cutovers.due(self._state, now - self._state.clocks.gap)

    @property
    def reset_due(self) -> ResetDue | None:
        """What to look up, and then to ask for, to go on with a declared reset; None while there is none to go on with."""
        return resets.due(self._state)

    @property
    def reset_to_ends(self) -> tuple[ShardId, ...]:
        """The shards whose ends are to be looked up for the reset that is due: no look at the source shows them."""
        return resets.to_ends(self._state)

    @property
    def reset_begun(self) -> bool:
        """Whether a reset was decided and is not made yet."""
        return resets.applying(self._state) is not None

    @property
    def reset_report(self) -> ResetReport | None:
        """How far the declared reset is, with all of its rows until it is made; None if none is declared."""
        return resets.report(self._state)

    def view(self, now: float, wall: float = 0.0) -> GroupView:
        """A consistent picture. `wall` is the time since 1970 that `now` stands for."""
        return views.group_view(self._state, now - self._state.clocks.gap, wall)

    def shard_view(self, shard: ShardId, now: float) -> ShardView | None:
        """One shard of the picture, None if there is none of this name: a picture of all takes long where there are many."""
        state = self._state
        if shard not in state.shards or shard in state.clocks.unnamed:
            return None
        return views.shard_views(state, now - state.clocks.gap, (shard,))[0]

    @property
    def ownership(self) -> Ownership:
        """What must survive the coordinator, as a value of its own."""
        return self._state.ownership()

    @property
    def spec(self) -> GroupSpec:
        """The group's spec."""
        return self._state.spec

    @property
    def shard_count(self) -> int:
        """How many shards it has."""
        return len(self._state.shards)

    def notes(self, offsets: Mapping[ShardId, Offset]) -> Mapping[ShardId, str]:
        """What to note with each of these positions, which are to be made durable."""
        return positions.notes(self._state, offsets)

    def refreshable(self, shards: Iterable[ShardId] | None = None) -> Mapping[ShardId, Offset]:
        """The durable positions, of these or all shards that the source has: what may be committed once more as it is."""
        return positions.refreshable(self._state, shards)

    def to_copy(self, stored: Mapping[ShardId, Offset]) -> Mapping[ShardId, Offset]:
        """The positions to keep apart from the source, of which `stored` are kept now."""
        return positions.to_copy(self._state, stored)

    def going_back(self, offsets: Mapping[ShardId, Offset]) -> frozenset[ShardId]:
        """The shards that may have been durable further on than these offsets."""
        return positions.going_back(self._state, offsets)

    def _dispatch(self, request: Request, now: float) -> Reply:
        state = self._state
        match request:
            case Heartbeat():
                heartbeats.heartbeat(state, request, now)
            case CheckpointRequest():
                return checkpoints.validate(state, request, now)
            case CheckpointsCommitted():
                checkpoints.committed(state, request, now)
                cutovers.read_on(state, request.offsets, now)
            case CheckpointsFailed():
                checkpoints.failed(state, request)
            case CheckpointsLost():
                checkpoints.lost(state, request)
            case ForceCheckpoint():
                return checkpoints.force(state, request)
            case ResetDue():
                resets.advance(state, request)
            case CutoverDue():
                cutovers.taken(state, request, now)
            case Leave():
                liveness.leave(state, request)
            case ConsumerDied():
                liveness.died(state, request)
            case ShardsDiscovered():
                discovery.discovered(state, request, now)
            case SettingsChanged():
                discovery.settings_changed(state, request, now)
            case ConditionsChanged():
                discovery.conditions_changed(state, request, now)
            case Tick():
                timers.tick(state, now)
            case ClockGap():
                state.put_clocks(gap=state.clocks.gap + request.seconds)
            case _:
                assert_never(request)
        return None

    def _settle(self, request: Request, now: float) -> None:
        state = self._state
        liveness.settle(state, now)
        match request:
            case Heartbeat():
                heartbeats.release_moving(state, (request.consumer,), now)
                heartbeats.replace_dropped(state, request.consumer, now)
            case Tick() | CheckpointRequest() | ForceCheckpoint() | ResetDue():
                pass
            case _:
                heartbeats.release_moving(state, tuple(state.moving), now)
        rebalance.rebalance(state, now)
        self._count_moves()

    def _count_moves(self) -> None:
        if moves := self._state.moved:
            self._state.put_clocks(moves=self._state.clocks.moves + moves)
            rebalance.transfer_ended(self._state)


def _tells(note: Note | None, row: ShardRecord) -> bool:
    """Whether this note of the group says which shard the position is one of, as far as that is known."""
    return note is not None and (note.source_id == row.source_id or not (note.source_id and row.source_id))
