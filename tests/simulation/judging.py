"""A history that looks closer: at every row that is stored, every answer that leaves a coordinator, and every expiry.

The history asks whether records are lost or repeated; the judge asks whether the rules of the protocol were kept on the way,
also where a later request would have mended it. It compares with what really happened: what was stored, what is durable, which
heartbeats arrived when. What must hold only once a world has come to rest is `resting`'s business.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardherd.core.group.records import ConsumerRecord, EndReason, GroupRecord, Ownership, ShardRecord
from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    GroupReplacedError,
    NotLeadingError,
    ShardherdError,
    StaleIncarnationError,
    UnknownGroupError,
)
from shardherd.core.model.naming import cell, split
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    GroupSpec,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    Offset,
    ShardId,
    ShardState,
)
from shardherd.worker.crew import CancelledInCrewError
from tests.simulation.filling import FLOOD, HIGH, LOW, RECOVERY, Reported
from tests.simulation.history import HELD, History, applying
from tests.simulation.history_entries import BrokenError, Grown, ProgramError

if TYPE_CHECKING:
    from tests.simulation.operator import OperatorRun
    from tests.simulation.world import World

EARLY = 0.97
"""Nothing may time out before so much of its time: clocks run up to a hundredth too fast."""

SPEC_KNOWN = 30.0
"""Seconds after which a coordinator that runs knows of an edited spec, whatever happened to it meanwhile."""

PROMPT = 1.0
"""Seconds within which a parked heartbeat is answered once what it waits for is stored."""

LATELY = 20.0
"""Seconds after which what a consumer says of itself has been decided upon, and that is stored."""

ERRORS = (StaleIncarnationError, CoordinatorUnavailableError, NotLeadingError, GroupReplacedError, UnknownGroupError)
"""What a coordinator may tell consumers that keep to the protocol."""


@dataclass
class Heard:
    """What has arrived at one coordinator of one run of a consumer."""

    seq: int = 0
    revision: int = 0
    """That which its last heartbeat had applied."""
    named: frozenset[ShardId] = frozenset()
    """What its last heartbeat named, under whatever epoch."""
    ready: bool = False
    """It was ready in some heartbeat."""
    ready_since: float | None = None
    """Since when it is ready; None if it is not."""
    draining_since: float | None = None
    progress: int = -1
    progress_at: float = 0.0
    progress_before: float = 0.0
    """When it had got on before that."""
    since: float = 0.0
    last: float = 0.0
    last_before: float = 0.0
    """When it was heard before that."""

    def drained_before(self, when: float) -> bool:
        return self.draining_since is not None and self.draining_since < when

    def gave_up(self, row: ShardRecord) -> bool:
        """Whether it drains, and does not hold this shard though it has applied what it was last told of it."""
        return self.draining_since is not None and self.let_go(row)

    def let_go(self, row: ShardRecord) -> bool:
        """Whether it does not hold this shard though it has applied what it was last told of it."""
        return self.revision >= row.revision and row.shard not in self.named


@dataclass(frozen=True)
class Expiring:
    """An expiry that was decided: when that was, and when its consumer had got on last, and was heard last, by then."""

    at: float
    got_on: float
    heard: float


@dataclass
class Judge(History):
    """The history of one world, and its rules. `world` is set once there is one; without it nothing is asked of processes."""

    world: World | None = None
    heard_of: dict[tuple[str, ConsumerId, Incarnation], Heard] = field(default_factory=dict)
    """By coordinator and run of a consumer."""
    named_at: dict[tuple[str, ShardId], float] = field(default_factory=dict)
    """When a heartbeat that named it arrived last at each coordinator."""
    finding_out_since: float | None = None
    """Since when the coordinator that leads finds out who holds what; None if it is known."""
    came_late: dict[ShardId, float] = field(default_factory=dict)
    """When each shard came that was not there yet when it began to be found out who holds what."""
    forgotten_at: dict[ShardId, float] = field(default_factory=dict)
    moving_from: dict[ShardId, float] = field(default_factory=dict)
    """Since when each shard is in transfer."""
    longest: dict[ConsumerId, float] = field(default_factory=dict)
    """For how long a shard of each consumer had been in transfer when the ownership was written last."""
    written: Ownership | None = None
    """What was stored before that write."""
    written_anew: Ownership | None = None
    """What was stored before the last write but one, if the last wrote anew what somebody had deleted or put back."""
    led_since: float = 0.0
    spec: GroupSpec | None = None
    spec_since: float = 0.0
    doublings: list[float] = field(default_factory=list)
    """When deadlines were doubled, since a checkpoint last succeeded."""
    positions_heard_at: float = float("-inf")
    """When the leader last heard that positions are durable."""
    expiring: dict[tuple[str, ConsumerId], Expiring] = field(default_factory=dict)
    """The last expiry of each consumer that each coordinator decided."""
    positions_set: set[ShardId] = field(default_factory=set)
    """Of which shards a position of a reset became durable since the last reset was made."""
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By coordinator and reason."""
    reported: Reported = field(default_factory=Reported)
    """How full consumers have said that they are."""
    rebalanced_at: dict[str, float] = field(default_factory=dict)
    """When each coordinator told of a rebalance last."""
    grown: list[Grown] = field(default_factory=list)
    """How the topic grew, if users want order kept over that."""

    # What users and processes do.

    def begin_group(self, uid: str, *, keeps_offsets: bool) -> None:
        super().begin_group(uid, keeps_offsets=keeps_offsets)
        for known in (self.heard_of, self.forgotten_at, self.moving_from, self.longest, self.events, self.rebalanced_at):
            known.clear()
        self.grown.clear()  # a group that never saw the smaller topic waits for nothing
        self.written, self.written_anew, self.doublings, self.led_since = None, None, [], self.now

    def specified(self, spec: GroupSpec) -> None:
        """The resource is this from now on."""
        self.spec, self.spec_since = spec, self.now

    def hears(self, heartbeat: Heartbeat, coordinator: str) -> bool:
        """A heartbeat arrives at a coordinator that leads. Whether it tells of life: not if it was overtaken on its way."""
        key = (coordinator, heartbeat.consumer, heartbeat.incarnation)
        heard = self.heard_of.get(key)
        if heard is None:
            heard = self.heard_of[key] = Heard(since=self.now)
        heard.last, heard.last_before = self.now, heard.last
        if heartbeat.seq <= heard.seq:
            return False
        heard.seq, heard.revision = heartbeat.seq, heartbeat.revision
        self.reported.hears(key, heartbeat, self.now)
        heard.named = frozenset(each.shard for each in heartbeat.held)
        self.named_at.update(dict.fromkeys(((coordinator, shard) for shard in heard.named), self.now))
        heard.ready = heard.ready or heartbeat.ready
        heard.ready_since = None if not heartbeat.ready else self.now if heard.ready_since is None else heard.ready_since
        if heartbeat.draining and heard.draining_since is None:
            heard.draining_since = self.now
        # What comes when it is stored already that it has ended is too late, and may come more than once before that is told.
        if heartbeat.progress != heard.progress and not self.has_ended(heartbeat.consumer, heartbeat.incarnation):
            heard.progress, heard.progress_before = heartbeat.progress, heard.progress_at
            heard.progress_at = self.now
        return True

    def expiry_decided(self, coordinator: str, consumer: ConsumerId, run: Incarnation) -> None:
        """A coordinator decides that a consumer is expired. It tells of that once it is stored, which may take long."""
        heard = self.heard_of.get((coordinator, consumer, run))
        if heard is None:
            got_on = last = float("-inf")
        else:
            # What arrives in the same instant may have come too late.
            got_on = heard.progress_before if heard.progress_at == self.now else heard.progress_at
            last = heard.last_before if heard.last == self.now else heard.last
        self.expiring[coordinator, consumer] = Expiring(self.now, got_on, last)

    def expiry_decided_at(self, coordinator: str, consumer: ConsumerId) -> float:
        """When the last expiry of this consumer was decided."""
        expiring = self.expiring.get((coordinator, consumer))
        return self.now if expiring is None else expiring.at

    def recorded(self, coordinator: str, reason: str) -> None:
        """A coordinator tells its users of something."""
        self.events[coordinator, reason] += 1
        if reason == "Rebalanced":
            self.rebalanced_at[coordinator] = self.now

    # What is stored.

    def store(self, after: Ownership, writer: str) -> None:
        before, took_over = self.stored, writer != self.writer
        # Rows that somebody deleted, or put back, are no word of a coordinator that a later one must keep to.
        lost = self.lost or self.older is not None or self.outdated
        self._note_late(before, after)
        self._note_silent(after, writer)
        super().store(after, writer)
        if took_over or not lost or after != before:
            # Else what somebody deleted or put back is written over by what was stored before it.
            self.written_anew = self.written if lost and not took_over else None
            self.written = before
        if took_over:
            self.led_since = self.now
            self.doublings = []
        if before is None or lost:
            if before is not None and not took_over:
                # Who wrote it anew under himself remembers since when, also of whom he has expired already and tells later.
                moved = self.longest
                self._longest(before)
                self.longest = {name: max(moved.get(name, 0.0), self.longest.get(name, 0.0)) for name in moved | self.longest}
            else:
                moving = (name for name, row in after.shards.items() if row.state is ShardState.TRANSFER)
                self.moving_from = dict.fromkeys(moving, self.now)
            return
        self._longest(before)
        changed = [(before.shards.get(name), row) for name, row in after.shards.items() if before.shards.get(name) is not row]
        for was, row in changed:
            if was != row:
                self._row(was, row, before.group, after)
        self._given_away(before, after)
        self._group(before, after)
        for name, consumer in after.consumers.items():
            known = before.consumers.get(name)
            if known is not None and known != consumer:
                self._consumer(known, consumer)
        if gone := before.consumers.keys() - after.consumers.keys():
            raise BrokenError(f"consumers {sorted(gone)} are forgotten")
        for shard, row in after.shards.items():
            if row.state is ShardState.WAIT and self.ordered and not self._may_wait(shard, after):
                raise BrokenError(f"{shard} waits, and every ancestor is read to its end")
        self._wakes(before, after, writer)

    def _note_late(self, before: Ownership | None, after: Ownership) -> None:
        """The rows of shards that come while it is being found out who holds what."""
        if before is None or not before.group.rebuilding or not before.group.discovered:
            self.came_late = {}
        elif after.group.rebuilding:
            self.came_late.update(dict.fromkeys(after.shards.keys() - before.shards.keys(), self.now))

    def _note_silent(self, after: Ownership, writer: str) -> None:
        """Who says nothing for all of the time in which it is found out who holds what is as one that was expired."""
        if after.group.rebuilding:
            if self.finding_out_since is None or writer != self.writer:
                self.finding_out_since = self.now
        elif self.finding_out_since is not None:
            # Another one took over from what was stored before or after that time: it found nothing out, and expired nobody.
            if writer == self.writer:
                since = self.finding_out_since
                heard = {key[1:] for key, each in self.heard_of.items() if key[0] == writer and each.last >= since}
                self.note_expired({key[1:] for key in self.heard_of} - heard)
            self.finding_out_since = None

    def was_named(self, shard: ShardId) -> bool:
        """See `History`. Who is heard every so often may have had no time to."""
        came = self.came_late.get(shard)
        return came is None or self.named_at.get((self.writer, shard), came) > came

    def _forgotten(self, row: ShardRecord, before: Ownership, after: Ownership) -> None:
        super()._forgotten(row, before, after)
        if row.holder is None or row.incarnation is None:
            return
        # As it arrived, also if it waits for its answer still.
        heard = self.heard_of.get((self.writer, row.holder, row.incarnation))
        if heard is None or row.shard in heard.named:
            raise BrokenError(f"{row.shard} is forgotten, and {row.holder} has not said that it holds it no more")

    def _longest(self, before: Ownership) -> None:
        moving = {name: row for name, row in before.shards.items() if row.state is ShardState.TRANSFER}
        self.moving_from = {name: self.moving_from.get(name, self.now) for name in moving}
        self.longest = {}
        for name, row in moving.items():
            if row.holder is not None:
                self.longest[row.holder] = max(self.longest.get(row.holder, 0.0), self.now - self.moving_from[name])
        assert self.stored is not None
        for name, row in self.stored.shards.items():
            if row.state is ShardState.TRANSFER:
                self.moving_from.setdefault(name, self.now)

    def _row(self, was: ShardRecord | None, row: ShardRecord, old: GroupRecord, after: Ownership) -> None:
        actual = self.shards[row.shard]
        if row.parents != actual.parents:
            raise BrokenError(f"{row.shard} has parents {row.parents}, its source says {actual.parents}")
        if row.held_since_epoch > row.owner_epoch or row.revision > after.group.revision:
            raise BrokenError(f"{row} is of the future of {after.group}")
        copied = self.world is not None and row.shard in self.world.api.copies.copies.offsets
        # A claim that was refused tells of a position, though it was one of the shard that bore the name before.
        refused = row.holder is None and actual.succeeds_started
        if row.started and actual.highest is None and row.source_id in ("", actual.source_id) and not (copied or refused):
            raise BrokenError(f"{row.shard} is said to be started, and no position of it was ever durable")
        if row.holder is not None and row.last_holder != row.holder:
            raise BrokenError(f"{row.shard} is held by {row.holder}, and its last holder is {row.last_holder}")
        if row.next_consumer is not None and row.next_consumer == row.holder:
            raise BrokenError(f"{row.shard} is to go from {row.holder} to itself")
        if was is None:
            self._appeared(row, after)
            return
        if was.started and not row.started:
            raise BrokenError(f"{row.shard} was started, and is not any more")
        if (
            row.state is ShardState.OVER
            and was.state is not ShardState.OVER
            and (actual.open or (actual.highest or 0) < actual.end)
        ):
            raise BrokenError(f"{row.shard} is OVER, durable is {actual.highest} of {actual.end}, open: {actual.open}")
        if row.state is ShardState.WAIT and was.state is not ShardState.WAIT:
            raise BrokenError(f"{row.shard} was {was.state} and waits")
        # Who names what it was granted before the ownership was lost keeps it, whatever is read again since.
        claimed = (old.rebuilding or after.group.rebuilding) and was.last_holder is None and row.last_holder is not None
        woken = was.state is ShardState.WAIT and row.state is not ShardState.WAIT and not claimed
        if woken and self.ordered and self._must_wait(row.shard, after):
            raise BrokenError(f"{row.shard} was woken before its ancestors")
        self._granted(was, row, old, after)

    def _appeared(self, row: ShardRecord, after: Ownership) -> None:
        waits = row.state is ShardState.WAIT
        if waits and not self._may_wait(row.shard, after):
            raise BrokenError(f"{row.shard} appeared as {row.state}, and has no ancestor to wait for")
        if self.ordered and not waits and not after.group.rebuilding and self._must_wait(row.shard, after):
            raise BrokenError(f"{row.shard} appeared as {row.state} before its ancestors were read")

    def _granted(self, was: ShardRecord, row: ShardRecord, old: GroupRecord, after: Ownership) -> None:
        held = was.state in HELD and row.state in HELD
        same_name = was.holder == row.holder
        new_grant = row.holder is not None and (was.owner_epoch != row.owner_epoch or was.holder is None)
        claims = old.rebuilding or after.group.rebuilding
        if held and was.owner_epoch == row.owner_epoch and was.held_since_epoch != row.held_since_epoch:
            raise BrokenError(f"{row.shard}: one grant is held since epoch {was.held_since_epoch}, then {row.held_since_epoch}")
        if row.held_since_epoch < was.held_since_epoch and not claims:
            raise BrokenError(f"{row.shard} was held since epoch {was.held_since_epoch}, and now since {row.held_since_epoch}")
        revoked = row.state is ShardState.TRANSFER and was.state is not ShardState.TRANSFER
        kept = held and was.state is ShardState.TRANSFER and row.state is ShardState.ALREADY_ALLOC
        if (new_grant or revoked or kept) and row.revision <= old.revision:
            raise BrokenError(
                f"{row.shard} was given or asked for, and its revision {row.revision} is not above {old.revision}"
            )
        if kept and was.owner_epoch == row.owner_epoch:
            self._kept(was, after)
        if was.state is ShardState.ALREADY_ALLOC and row.state is ShardState.NOT_ALLOC and not claims:
            self._freed(was, after)
        if not new_grant or claims:
            return
        if row.held_since_epoch <= was.owner_epoch and not same_name:
            raise BrokenError(f"{row.shard} went from {was.holder} to {row.holder}, held since epoch {row.held_since_epoch}")
        if row.owner_epoch <= was.owner_epoch:
            raise BrokenError(f"{row.shard} was granted to {row.holder} again under epoch {row.owner_epoch}")
        if not same_name:
            self._may_receive(was, row)

    def _kept(self, was: ShardRecord, after: Ownership) -> None:
        """A transfer is called off only for want of somebody who could take the shard."""
        taker = was.next_consumer
        known = after.consumers.get(taker) if taker is not None else None
        if taker is None or known is None or not known.present or self._stood():
            return
        spec, heard = self.spec, self.heard_of.get((self.writer, taker, known.incarnation))
        if spec is None or taker in spec.leaving or taker in spec.cordoned or heard is None or heard.draining_since is not None:
            return
        if heard.ready_since is None or heard.ready_since >= self.now - LATELY:
            return
        key = (self.writer, taker, known.incarnation)
        # Who was above low is given shards again with a heartbeat so long afterwards.
        if spec.settings.watermarks and not self.reported.was_never_above(
            key, LOW, min(self.now - LATELY, heard.last - RECOVERY)
        ):
            return
        # One write may store many decisions: another consumer may have been chosen by one of them, and be no choice since.
        if any(self._was_a_choice(name, after) for name in after.consumers.keys() - {taker, was.holder}):
            return
        if not self._cannot_move(was):
            raise BrokenError(f"{was.shard} stays with {was.holder}, though {taker} waits for it")

    def _cannot_move(self, row: ShardRecord) -> bool:
        """Whether something keeps the shard's cell where it is.

        Its holder names something of it that is away, of which he may have read what he cannot save; or a position is lost.
        """
        if not self.cells or self.stored is None or row.holder is None or row.incarnation is None:
            return False
        heard, lately = self.heard_of.get((self.writer, row.holder, row.incarnation)), self.now - LATELY
        for name, mate in self.stored.shards.items():
            if cell(name, self.cells) != cell(row.shard, self.cells):
                continue
            actual = self.shards[name]
            if mate.started and (actual.durable is None or actual.durable < actual.begin):
                return True
            if heard is not None and name in heard.named and self.sightings.missed_since(self.writer, name, lately):
                return True
        return False

    def _was_a_choice(self, name: ConsumerId, after: Ownership) -> bool:
        """Whether a consumer could be given shards after what was stored before, and cannot any more."""
        assert self.written is not None
        before, known, spec = self.written.consumers.get(name), after.consumers[name], self.spec
        run = known.incarnation if before is None else before.incarnation
        heard = self.heard_of.get((self.writer, name, run))
        if heard is None or not heard.ready or heard.drained_before(self.now - LATELY):
            return False
        if before is not None and not before.present:
            return False
        emptied = spec is not None and name in (spec.leaving | spec.cordoned) and self.spec_since > self.now - SPEC_KNOWN
        filled = self.reported.filled_up((self.writer, name, run), LOW, self.now - LATELY)
        return not known.present or known.incarnation != run or heard.draining_since is not None or emptied or filled

    def _freed(self, was: ShardRecord, after: Ownership) -> None:
        """The shard of a consumer that went: not before its grace is over, nor while it may still write in order."""
        holder, run, spec = was.holder, was.incarnation, self.spec
        if holder is None or run is None or spec is None or self._stood():
            return
        consumer = after.consumers[holder]
        ended = consumer.has_ended(run)
        # What came after the shard was freed may be written with it: that another pod has taken the name over.
        known = self.written.consumers.get(holder) if self.written is not None else None
        if any(
            each.has_ended(run) and each.end_reason in EndReason.WAS_EXPIRED for each in (known, consumer) if each is not None
        ):
            grace = 0.0
        elif holder in spec.leaving or holder in spec.cordoned:
            return
        else:
            grace = spec.settings.rejoin_grace
        heard = self.heard_of.get((self.writer, holder, run))
        # What arrives while its expiry is being stored comes too late for the shards that are freed with it.
        expiring = (
            self.expiring.get((self.writer, holder)) if known is not None and known.present and not consumer.present else None
        )
        last = 0.0 if heard is None else heard.last if expiring is None else expiring.heard
        silent = self.now - max(last, self.led_since)
        # Of a cell nobody keeps what is gone: the rest could not move without it. It may be found again while that is stored.
        missed = self.sightings.missed_since(self.writer, was.shard, self.now - LATELY)
        gone = bool(self.cells) and heard is not None and missed and heard.let_go(was)
        if silent < EARLY * grace - 1.0 and not gone:
            raise BrokenError(
                f"{was.shard} was taken from {holder} {silent:.1f} s after it was heard, within its grace of {grace:g} s"
            )
        alive = self.world is not None and any(
            each.alive and each.run.incarnation == run for each in self.world.pods.everyone()
        )
        let_go = (ended and consumer.end_reason == EndReason.LEFT) or (heard is not None and heard.gave_up(was))
        if self.ordered and alive and not (let_go or gone) and silent < EARLY * spec.settings.session_timeout - 1.0:
            raise BrokenError(f"{was.shard} was taken from {holder}, which runs, {silent:.1f} s after it was heard")

    def _taken_over(self, was: ShardRecord, row: ShardRecord) -> bool:
        """Whether one write may hold two grants: to a run that was ready, and to its consumer's next run, which keeps all."""
        assert row.holder is not None
        known = self.written.consumers.get(row.holder) if self.written is not None else None
        heard = self.heard_of.get((self.writer, row.holder, known.incarnation)) if known is not None else None
        return row.owner_epoch > was.owner_epoch + 1 and heard is not None and heard.ready

    def _may_receive(self, was: ShardRecord, row: ShardRecord) -> None:
        """Only a consumer that is warm, and not on its way out, is given what it did not have."""
        assert row.holder is not None
        assert row.incarnation is not None
        heard = self.heard_of.get((self.writer, row.holder, row.incarnation))
        if was.holder is None and (heard is None or not heard.ready) and not self._taken_over(was, row):
            raise BrokenError(f"{row.shard} was given to {row.holder}, which never said to {self.writer} that it is ready")
        if heard is not None and heard.drained_before(self.now - LATELY):
            raise BrokenError(f"{row.shard} was given to {row.holder}, which drains")
        spec = self.spec
        if spec is None or self.spec_since > self.now - SPEC_KNOWN or self._stood():
            return
        if spec.settings.watermarks:
            self._has_room(row)
        if spec.settings.paused:
            raise BrokenError(f"{row.shard} was given to {row.holder} while the group was paused")
        if row.holder in spec.leaving or row.holder in spec.cordoned:
            raise BrokenError(f"{row.shard} was given to {row.holder}, which is to lose all")

    def _has_room(self, row: ShardRecord) -> None:
        """Nobody above high is given anything, and nobody above low what somebody below low could be given.

        In a group with cells one above low may be given more of a cell that it has.
        """
        assert row.holder is not None
        assert row.incarnation is not None
        taker, lately = (self.writer, row.holder, row.incarnation), self.now - LATELY
        if self.reported.was_above(taker, HIGH, lately):
            raise BrokenError(f"{row.shard} was given to {row.holder}, which is above high")
        if self.cells or not self.reported.was_above(taker, LOW, lately):
            return
        if others := [name for name in self._with_room() if name != row.holder]:
            raise BrokenError(f"{row.shard} was given to {row.holder}, which is above low, and {others} have room")

    def _with_room(self) -> list[ConsumerId]:
        """The consumers that could be given shards for some time by now, and were below low for all of it."""
        spec, before, found = self.spec, self.written, list[ConsumerId]()
        assert spec is not None
        assert self.stored is not None
        since = self.now - RECOVERY - 2 * spec.settings.heartbeat_interval - LATELY
        for name, consumer in before.consumers.items() if before is not None else ():
            key = (self.writer, name, consumer.incarnation)
            heard = self.heard_of.get(key)
            if heard is None or heard.ready_since is None or heard.ready_since > self.now - LATELY:
                continue
            after = self.stored.consumers[name]
            if not consumer.present or not after.present or after.incarnation != consumer.incarnation:
                continue
            if name in spec.leaving or name in spec.cordoned or heard.draining_since is not None:
                continue
            if self.reported.was_never_above(key, LOW, since):
                found.append(name)
        return found

    def _given_away(self, before: Ownership, after: Ownership) -> None:
        """Who is above high gives a tenth away at a time, beside what it has more than its share."""
        spec = self.spec
        if spec is None or not spec.settings.watermarks or self.cells or self.spec_since > self.now - SPEC_KNOWN:
            return
        if self._stood() or spec.settings.assignor != "Sticky":
            return  # the others move what their formulas say
        held, revoked = Counter[ConsumerId](), Counter[ConsumerId]()
        for name, row in before.shards.items():
            if row.state is ShardState.ALREADY_ALLOC and row.holder is not None and name in after.shards:
                held[row.holder] += 1
                now = after.shards[name]
                revoked[row.holder] += now.state is ShardState.TRANSFER and now.holder == row.holder
        everybody = {name for each in (before, after) for name, consumer in each.consumers.items() if consumer.present}
        share = sum(self._is_shared(row, after) for row in after.shards.values()) // (len(everybody) + 1)
        for holder, gone in revoked.items():
            consumer = after.consumers[holder]
            heard = self.heard_of.get((self.writer, holder, consumer.incarnation))
            goes = holder in spec.leaving or holder in spec.cordoned or heard is None or heard.draining_since is not None
            if (
                not gone
                or goes
                or not self.reported.was_above((self.writer, holder, consumer.incarnation), HIGH, self.now - LATELY)
            ):
                continue
            self.counts["shards given away by who is above high"] += gone
            if held[holder] - gone < min(held[holder], share) - max(1, held[holder] // 10):
                raise BrokenError(f"{holder} is above high, and gives {gone} of {held[holder]} shards away at once")

    def _is_shared(self, row: ShardRecord, ownership: Ownership) -> bool:
        """Whether a shard counts for how many everybody's share is: somebody could be given it.

        Not so if nobody holds it, its holder has gone and may still read it, its checkpoint is lost, or the coordinator is not
        shown it, or lately was not.
        """
        if row.state not in HELD or row.holder is None or not ownership.consumers[row.holder].present:
            return False
        seen = self.sightings
        if seen.missed_since(self.writer, row.shard, self.now - LATELY) or seen.another(ownership, row.shard):
            return False
        shard = self.shards[row.shard]
        return shard.present and shard.durable is not None and shard.durable >= shard.begin

    def _group(self, before: Ownership, after: Ownership) -> None:
        old, new = before.group, after.group
        if new.uid != old.uid or (old.discovered and not new.discovered) or not set(old.reset_ids) <= {*new.reset_ids}:
            raise BrokenError(f"{old} became {new}")
        # What is restored is started once its position was found durable, without news for anybody.
        changed = any(
            (was := before.shards.get(name)) is None or was._replace(started=row.started) != row
            for name, row in after.shards.items()
        )
        if changed and new.revision <= old.revision:
            raise BrokenError(f"shards changed, and the revision is still {new.revision}")
        joined = {
            name
            for name, each in after.consumers.items()
            if (known := before.consumers.get(name)) is None
            or ((known.incarnation, known.present) != (each.incarnation, each.present))
        }
        if (before.shards.keys() != after.shards.keys() or joined) and new.group_epoch <= old.group_epoch:
            raise BrokenError(f"consumers {sorted(joined)} or shards changed, and the group's epoch is still {new.group_epoch}")
        for growth in new.growths:
            ends = {shard: self.shards[shard].end for shard, _ in growth.ends if shard in self.shards}
            if growth.topic not in {split(shard)[0] for shard in self.shards} or not 0 < growth.before < growth.after:
                raise BrokenError(f"no topic grew like this: {growth}")
            # Of a shard that was made anew, and was not looked at since, the ends are those of the one before.
            another = {shard for shard in ends if self.sightings.another(after, shard)}
            if any(end > ends.get(shard, -1) and shard not in another for shard, end in growth.ends):
                raise BrokenError(f"the ends of {growth} are not those of its shards: {ends}")
        if new.last_reset is not None and new.last_reset != old.last_reset:
            # What stood where it was to be set need not have been written: it may have been read back so.
            moved = [row for row in new.last_reset.rows if row.before != row.after]
            wrong = [row for row in moved if row.shard not in self.positions_set]
            if wrong:
                raise BrokenError(f"reset {new.last_reset.id} is made, and did not set {wrong}")
            self.positions_set.clear()

    def _consumer(self, known: ConsumerRecord, consumer: ConsumerRecord) -> None:
        before, after = known.incarnation, consumer.incarnation
        if after.pod_uid == before.pod_uid:
            back = before.supersedes(after)
            forgotten = known.ended is not None and not consumer.has_ended(known.ended)
        else:
            back = before.pod_uid not in consumer.superseded or after.pod_uid in known.superseded
            forgotten = False
        if back or forgotten:
            raise BrokenError(f"the runs of {known.consumer} went back: {known} became {consumer}")
        if len(known.superseded) < 64 and not set(known.superseded) <= {*consumer.superseded}:
            raise BrokenError(f"{known.consumer}: superseded pods are forgotten: {known} became {consumer}")
        if (known.zone, known.capacity) != (consumer.zone, consumer.capacity):
            raise BrokenError(f"{known.consumer}: its place changed: {known} became {consumer}")

    def _behind(self, shard: ShardId, ownership: Ownership) -> bool:
        """Whether an ancestor of a shard is not read to its end, as far as that is stored."""
        rows = (ownership.shards.get(ancestor) for ancestor in self._ancestors(shard))
        return any(row is not None and row.state is not ShardState.OVER for row in rows)

    def _must_wait(self, shard: ShardId, ownership: Ownership) -> bool:
        """The same but for ancestors that are gone: nothing of them can be read any more. And over growth, see `_overtakes`."""
        if self._overtakes(shard):
            return True
        rows = (ownership.shards.get(ancestor) for ancestor in self._ancestors(shard))
        return any(
            row is not None and row.state is not ShardState.OVER and not self.sightings.misses(self.writer, row.shard)
            for row in rows
        )

    def _may_wait(self, shard: ShardId, ownership: Ownership) -> bool:
        """Whether an ancestor is not read to its end, or is one of which nobody could know yet how far it reaches.

        Over growth a shard may wait longer than it must: as long as the coordinator keeps in mind that the topic grew.
        """
        if any(each.keeps and split(shard)[1] >= each.before for each in ownership.group.growths):
            return True
        unknown = (ancestor for ancestor in self._ancestors(shard) if ancestor not in ownership.shards)
        return self._behind(shard, ownership) or any(
            self.sightings.unlooked_within(self.loss_limit, self.writer, each, self.now) for each in unknown
        )

    def _overtakes(self, shard: ShardId) -> bool:
        """Whether records could be read of it before earlier ones of their keys, which were written to the shards before it."""
        topic, number = split(shard)
        while (grown := next((each for each in self.grown if each.before <= number < each.after), None)) is not None:
            number %= grown.before
            parent = ShardId(f"{topic}/{number}")
            if grown.ends is None or (self.shards[parent].highest or 0) < grown.ends[parent]:
                return True
        return False

    # The long poll.

    def _wakes(self, before: Ownership, after: Ownership, writer: str) -> None:
        """Whoever has something new to be told is answered at once, though his interval is not over."""
        operator = self._operator(writer)
        if operator is None or self.world is None:
            return
        news: set[ConsumerId] = set()
        for name, row in after.shards.items():
            was = before.shards.get(name)
            if was is None or was == row:
                continue
            shown = (was.state is ShardState.ALREADY_ALLOC, was.holder, was.incarnation, was.owner_epoch)
            if shown != (row.state is ShardState.ALREADY_ALLOC, row.holder, row.incarnation, row.owner_epoch):
                news |= {each for each in (was.holder, row.holder) if each is not None}
        runner = operator.runtime.group(self.world.spec.identity.namespace, self.world.spec.identity.name)
        if not news or runner.mailbox is None:
            return
        parking = runner.mailbox._parking
        waiting = [parked for name, parked in parking._parked.items() if name in news]

        def look() -> None:
            if not operator.alive or not operator.runtime.leading or self._stood() or self._kube_in_trouble(operator):
                return
            late = [parked.heartbeat.consumer for parked in waiting if parking.holds(parked)]
            if late:
                raise BrokenError(f"{sorted(late)} have something new to be told for {PROMPT:g} s, and still wait")

        if waiting:
            self.world.timeline.after(PROMPT, look)

    # Answers.

    def heartbeat_answered(self, heartbeat: Heartbeat, reply: HeartbeatReply, writer: str) -> None:
        super().heartbeat_answered(heartbeat, reply, writer)
        stored = self.stored
        assert stored is not None
        owner = (heartbeat.consumer, heartbeat.incarnation)
        consumer = stored.consumers.get(heartbeat.consumer)
        if consumer is None or not consumer.present or consumer.incarnation != heartbeat.incarnation:
            raise BrokenError(f"{owner} is answered, and stored is {consumer}")
        if heartbeat.incarnation.pod_uid in consumer.superseded or consumer.has_ended(heartbeat.incarnation):
            raise BrokenError(f"{owner} is over, and is answered: {consumer}")
        if reply.revision != stored.group.revision:
            raise BrokenError(f"{owner} is told revision {reply.revision}, stored is {stored.group.revision}")
        named = {each.shard for each in reply.confirmed}
        for name, row in stored.shards.items():
            if row.state is not ShardState.ALREADY_ALLOC or (row.holder, row.incarnation) != owner or name in named:
                continue
            if self._readable(name):
                raise BrokenError(f"{owner} holds {name} under epoch {row.owner_epoch}, and is not told so")
        for each in reply.confirmed:
            actual = self.shards[each.shard]
            if self.sightings.another(stored, each.shard):
                continue
            if actual.highest is not None and each.position > actual.highest and not actual.rewound:
                raise BrokenError(f"{owner} is told position {each.position} of {each.shard}, durable is {actual.highest}")
        grants = {(name, row.owner_epoch): (row.holder, row.incarnation) for name, row in stored.shards.items()}
        stale = {
            (each.shard, each.owner_epoch) for each in heartbeat.held if grants.get((each.shard, each.owner_epoch)) != owner
        }
        if stale != {(each.shard, each.owner_epoch) for each in reply.fenced}:
            raise BrokenError(
                f"{owner} names {heartbeat.held}, is told that {reply.fenced} are fenced, and {sorted(stale)} are"
            )
        self._settings(owner, heartbeat, reply)

    def _settings(self, owner: object, heartbeat: Heartbeat, reply: HeartbeatReply) -> None:
        if self.spec is None or self.spec_since > self.now - SPEC_KNOWN or self._stood():
            return
        operator = self._operator(self.writer)
        if operator is not None and self._kube_in_trouble(operator):
            return  # an edit counts once it is stored
        wanted = self.spec.settings
        paused = wanted.paused or self._is_too_full(heartbeat, reply)
        shown = (reply.paused, reply.ordered, reply.heartbeat_interval, reply.session_timeout)
        if shown != (paused, wanted.ordered, wanted.heartbeat_interval, wanted.session_timeout):
            raise BrokenError(f"{owner} is told {shown}, and the spec is {wanted}")

    def _is_too_full(self, heartbeat: Heartbeat, reply: HeartbeatReply) -> bool:
        """Whether a consumer must be paused: above flood. Between high and flood it may be, if it was above flood before."""
        key = (self.writer, heartbeat.consumer, heartbeat.incarnation)
        percent, heard = self.reported.last(key), self.heard_of.get(key)
        if percent is None or heard is None:
            return False
        if heartbeat.seq != heard.seq:
            return reply.paused  # by what it has said since
        self.counts["heartbeats of consumers above flood"] += percent > FLOOD
        return percent > FLOOD or (percent > HIGH and reply.paused)

    def _readable(self, shard: ShardId) -> bool:
        """Whether its position has been known for long, so that nothing keeps its holder from being told of it."""
        actual = self.shards[shard]
        if self.sightings.another(self.stored, shard) or self.sightings.misses(self.writer, shard):
            return False
        if self.cells and applying(self.stored) is not None:
            return False  # the state of its cell is being discarded
        lately = self.forgotten_at.get(shard, float("-inf")) > self.now - 100.0
        lately = lately or self.sightings.missed_within(self.loss_limit, shard, self.now)
        # It may be there again, and no look since was answered.
        lately = lately or self.sightings.missed_for(self.writer, shard, self.now) > 0.0
        return not (actual.durable is None or lately or actual.durable < actual.begin)

    def accepted(self, request: CheckpointRequest, reply: CheckpointReply) -> None:
        super().accepted(request, reply)
        asked = [(each.shard, each.owner_epoch, each.offset) for each in request.checkpoints]
        if asked != [(each.shard, each.expected_epoch, each.offset) for each in reply.outcomes]:
            raise BrokenError(f"{request.consumer} asked for {asked}, and is answered {reply}")
        owner = (request.consumer, request.incarnation)
        for outcome in reply.outcomes:
            row = self.stored.shards.get(outcome.shard) if self.stored is not None else None
            if row is None:
                continue
            actual = self.shards[outcome.shard]
            current = (row.holder, row.incarnation, row.owner_epoch) == (*owner, outcome.expected_epoch)
            if outcome.result is CheckpointResult.FENCED and current and row.state in HELD:
                raise BrokenError(f"{request.consumer} is told that its grant of {outcome.shard} is over, and stored is {row}")
            if self.sightings.another(self.stored, outcome.shard):
                continue
            if (
                outcome.result is CheckpointResult.UNCHANGED
                and not actual.rewound
                and outcome.offset > max(actual.landed[0], 0)
            ):
                raise BrokenError(f"{outcome.shard}: {outcome.offset} is said to be no news, durable is {actual.landed[0]}")

    def left(self, request: Leave) -> None:
        """A consumer is told that it has left."""
        consumer = self.stored.consumers.get(request.consumer) if self.stored is not None else None
        if consumer is None or self.lost:
            return
        if consumer.incarnation == request.incarnation and (consumer.present or not consumer.has_ended(request.incarnation)):
            raise BrokenError(f"{request.consumer} is told that it has left, and stored is {consumer}")

    def refused(self, request: Heartbeat | CheckpointRequest | Leave, error: ShardherdError) -> None:
        """A request of a consumer is answered with an error."""
        self.counts[f"refused with {type(error).__name__}"] += 1
        if not isinstance(error, ERRORS):
            raise BrokenError(f"{request} is answered with {error!r}")
        if not isinstance(error, StaleIncarnationError) or self.stored is None or self.lost:
            return
        consumer, run = self.stored.consumers.get(request.consumer), request.incarnation
        if consumer is None or not (
            run.pod_uid in consumer.superseded or consumer.incarnation.supersedes(run) or consumer.has_ended(run)
        ):
            raise BrokenError(f"{run} of {request.consumer} is refused ({error}), and stored is {consumer}")

    # Time.

    def expired(self, consumer: ConsumerId, reason: str, silence: float) -> None:
        super().expired(consumer, reason, silence)
        if self.spec is None:
            return
        settings = self.spec.settings
        if reason == "SessionTimeout":
            led = self.now - self.led_since
            if silence < EARLY * settings.session_timeout - 1.0 or led < EARLY * settings.session_timeout:
                raise BrokenError(f"{consumer} was expired after {silence:.1f} s of silence, {led:.1f} s after a new leader")
            return
        if self.spec_since > self.now - SPEC_KNOWN:
            return
        doubled = 2 ** min(6, sum(1 for when in self.doublings if when < self.now - 1.0))
        if self.positions_heard_at < self.expiry_decided_at(self.writer, consumer):
            # Else it came to know of them after it had decided this, and before it told of it.
            self.doublings.append(self.now)
        if reason == "ReleaseTimeout":
            moving = self.longest.get(consumer, 0.0)
            if moving < EARLY * settings.release_timeout * doubled:
                raise BrokenError(f"{consumer} was expired {moving:.1f} s after it was asked to release, for want of it")
            self._got_on(consumer, EARLY * settings.release_timeout * doubled)
            return
        self._got_on(consumer, EARLY * settings.progress_timeout * doubled)
        self._had_to_read(consumer)

    def _got_on(self, consumer: ConsumerId, least: float) -> None:
        before = self.written
        known = before.consumers.get(consumer) if before is not None else None
        if before is None or known is None:
            return
        heard = self.heard_of.get((self.writer, consumer, known.incarnation))
        if heard is None:
            raise BrokenError(f"{consumer} does not get on, and was never heard by {self.writer}")
        # What arrives while an expiry is being stored, which is told of afterwards, came too late.
        expiring = self.expiring.get((self.writer, consumer))
        got_on = heard.progress_at if expiring is None else expiring.got_on
        after = self.expiry_decided_at(self.writer, consumer) - max([got_on, heard.since, self.led_since])
        if after < least:
            raise BrokenError(f"{consumer} was expired {after:.1f} s after it got on, for want of progress")

    def _had_to_read(self, consumer: ConsumerId) -> None:
        befores = [before for before in (self.written, self.written_anew) if before is not None]
        held = [name for before in befores for name, row in before.shards.items() if row.holder == consumer]
        if not any((self.shards[name].highest or 0) < self.shards[name].end for name in held):
            raise BrokenError(f"{consumer} was expired for want of progress, and holds nothing that is left to be read: {held}")

    # The stores of positions.

    def land(self, shard: ShardId, offset: Offset, writer: str) -> None:
        self._found_again(shard)
        super().land(shard, offset, writer)
        self._set(shard, offset)

    def force(self, shard: ShardId, offset: Offset) -> None:
        self._found_again(shard)
        super().force(shard, offset)
        self._set(shard, offset)

    def hear_positions(self, writer: str) -> None:
        super().hear_positions(writer)
        if writer == self.writer:
            self.doublings, self.positions_heard_at = [], self.now

    def land_before(self, *, again: bool) -> None:
        super().land_before(again=again)
        if not again:
            # It is a checkpoint that succeeded, as far as anybody knows.
            self.doublings = []

    def reset(self, shard: ShardId, offset: Offset) -> None:
        super().reset(shard, offset)
        self.positions_set.add(shard)

    def ends_grant(self, shard: ShardId, offset: Offset) -> None:
        super().ends_grant(shard, offset)
        report = applying(self.stored)
        if report is not None and any((row.shard, row.after) == (shard, offset) for row in report.rows):
            # The reset has set it, though it is another shard by now: whoever made it has yet to find that out.
            self.positions_set.add(shard)

    def _found_again(self, shard: ShardId) -> None:
        if self.shards[shard].durable is None and shard in self.forgotten_at:
            # The coordinator has yet to hear of it.
            self.forgotten_at[shard] = self.now

    def _set(self, shard: ShardId, offset: Offset) -> None:
        self.doublings = []
        copy = self.world.api.copies.copies.offsets.get(shard) if self.world is not None else None
        if copy is not None and copy > offset:
            raise BrokenError(f"{shard}: position {offset} is durable below its copy {copy}")

    def forget(self, shard: ShardId) -> None:
        super().forget(shard)
        self.forgotten_at[shard] = self.now

    # The world around.

    def _operator(self, name: str) -> OperatorRun | None:
        if self.world is None:
            return None
        return next((operator for operator in self.world.operators if operator.name == name and operator.alive), None)

    def _stood(self) -> bool:
        """Whether the leader stood still lately, or stands still."""
        if self.world is None:
            return False
        _, until = self.world._stood.get(self.writer, (0.0, 0.0))
        return until > self.now - SPEC_KNOWN

    def _kube_in_trouble(self, operator: OperatorRun) -> bool:
        assert self.world is not None
        network = self.world.network
        cut = {(operator.name, "kube"), ("kube", operator.name)} & network.cut
        return (
            bool(cut or network.down.get("kube") or network.armed.get(("kube", "save")))
            or network.under_way(operator.process, "save")
            or network.under_way(operator.process, "load")
        )


OF_PROGRAMS = (ProgramError, CancelledInCrewError, TimeoutError, CoordinatorUnavailableError)
"""What a worker logs of its program: that fails as it was drawn, is cancelled, is too slow, or saves when nobody hears it."""


class _Complaints(logging.Handler):
    """Ends a world in which our own code has failed, whatever it made of that."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info is not None else None
        of_program = isinstance(error, OF_PROGRAMS) and record.name.startswith("shardherd.worker.")
        failed = error is not None and not of_program
        if failed or record.msg == "group %s refuses a %s: %s":
            broken = BrokenError(f"a failure of ours: {record.getMessage()}: {error!r}")
            self._world.timeline.at(self._world.time, None, _throw, broken)


@contextmanager
def listening(world: World) -> Iterator[None]:
    """While this lasts, a failure of our own that is logged breaks the world."""
    handler, logger = _Complaints(world), logging.getLogger("shardherd")
    before = logging.root.manager.disable, logger.propagate
    logging.disable(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[1]
        logging.disable(before[0])


def _throw(error: BrokenError) -> None:
    raise error
