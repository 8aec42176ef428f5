"""Every record and every grant of one simulated world, and the promises that are checked with each of them.

The world tells it what really happened: what was stored, what is durable, what a consumer was told, what was written to the
sink. It knows nothing of how that came about. A broken promise raises BrokenError, which says which and where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from shardherd.core.group.records import EndReason, Ownership, ShardRecord
from shardherd.core.model.naming import cell
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Offset,
    ResetReport,
    ResetState,
    ShardId,
    ShardState,
)
from tests.simulation.history_entries import CANCEL_GRACE, BrokenError, Run, Shard, Written
from tests.simulation.sightings import Sightings
from tests.simulation.virtual import Timeline

HELD = (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)


@dataclass
class History:
    """The history of one world."""

    timeline: Timeline
    ordered: bool
    session_timeout: float
    loss_limit: float
    shards: dict[ShardId, Shard] = field(default_factory=dict)
    offsets: Mapping[ShardId, Offset] = field(default_factory=dict)
    """What the broker has of them."""
    sightings: Sightings = field(init=False)
    stored: Ownership | None = None
    writer: str = ""
    """The coordinator that wrote the ownership last: the one that leads."""
    grants: dict[tuple[ShardId, int], tuple[ConsumerId, Incarnation]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    heard: dict[ConsumerId, float] = field(default_factory=dict)
    uid: str = ""
    """The UID of the group; nothing is asked of one that was deleted."""
    lost: bool = False
    """What was stored of the ownership has been deleted, and nothing was written since."""
    older: Ownership | None = None
    """What somebody has put back in place of what was stored last, and nothing was written since."""
    outdated: bool = False
    """A coordinator went on from such an ownership, and has not begun it anew."""
    disturbed: Callable[[str], None] = lambda _: None
    """Told why what consumers were about may be done again, none of them having failed."""
    unordered_at: float | None = None
    """When a user set `ordered` to false."""
    moving_since: float | None = None
    """Since when some shard is in transfer; None while none is."""
    unknown: set[ShardId] = field(default_factory=set)
    """What was not there when it was found out who holds what, and has not come back: its last position alone has its epoch."""
    resets: set[str] = field(default_factory=set)
    """The ids of the declared resets that were made."""
    decided_at: float = 0.0
    """When the reset that is being made was stored first."""
    forget_after: float = 3600.0
    """For how long a shard must be gone before it may be forgotten."""
    cells: int = 0
    """In how many cells the shards move; 0: each by itself."""

    def __post_init__(self) -> None:
        self.sightings = Sightings(self.shards, self.loss_limit)
        self._expired: set[tuple[ConsumerId, Incarnation]] = set()
        # Runs whose expiry is stored, also when whoever stored it did not live to tell of it.

    @property
    def now(self) -> float:
        return self.timeline.now

    # What the stores say.

    def store(self, after: Ownership, writer: str) -> None:
        """An ownership was written."""
        before = self.stored
        self.stored = after
        if self.cells:
            self._cells_are_whole(before, after)
        self._expired.update(
            (name, consumer.incarnation)
            for name, consumer in after.consumers.items()
            if not consumer.present
            and (consumer.end_reason in EndReason.WAS_EXPIRED or not consumer.has_ended(consumer.incarnation))
        )
        moving = any(row.state is ShardState.TRANSFER for row in after.shards.values())
        self.moving_since = None if not moving else self.now if self.moving_since is None else self.moving_since
        taken_over = writer != self.writer
        self.writer = writer
        self.counts["ownership writes"] += 1
        if (decided := applying(after)) is not None:
            known = applying(before)
            self.decided_at = self.decided_at if known is not None and known.id == decided.id else self.now
        lost, self.lost = self.lost, False
        older, self.older = self.older, None
        # It is begun anew also by one who wrote it before, but could not take the group over since: his memory holds nothing.
        if lost and (taken_over or not after.group.discovered):
            self._begin_anew()
            return
        if before is None:
            return
        if older is not None and (taken_over or after.group.revision < before.group.revision):
            # Who takes the group over can know nothing else. What it must find out shows in what it grants.
            before, self.outdated = older, True
            self.counts["ownerships taken over that were put back"] += 1
            self.disturbed("an older ownership was put back")
            self.resets.intersection_update(older.group.reset_ids)
            if _begun_anew(before, after):
                # It was known at once for what it is.
                self._begin_anew()
                return
        elif self.outdated and _begun_anew(before, after):
            self._begin_anew()
            return
        old, new = before.group, after.group
        if new.leader_epoch < old.leader_epoch or new.revision < old.revision or new.group_epoch < old.group_epoch:
            raise BrokenError(f"epochs of the group went back: {old} became {new}")
        if taken_over:
            if new.leader_epoch <= old.leader_epoch:
                raise BrokenError(f"{writer} wrote the ownership without a leader epoch of its own: {new.leader_epoch}")
            if before.shards.keys() != after.shards.keys() or any(
                _grant(before.shards[name]) != _grant(row) for name, row in after.shards.items()
            ):
                raise BrokenError(f"{writer} changed grants by taking over")
        if _finds_out(before) and not _finds_out(after):
            # Nobody could claim one that was not there, nor one without a position, which may be another one by now.
            self.unknown = self.shards.keys() - after.shards.keys()
            for name, actual in self.shards.items():
                if name in self.unknown or actual.highest is None or not self.was_named(name):
                    actual.miss_claims()
        if new.discovered and not old.discovered and not _finds_out(after):
            # Nothing tells that there was a group before: nobody can claim a shard that he held and that has no position.
            for name in after.shards:
                if self.shards[name].highest is None:
                    self.shards[name].miss_claims()
        resetting = applying(before) is not None and applying(before) == applying(after)
        self.unknown -= after.shards.keys()
        for name, row in after.shards.items():
            was = before.shards.get(name)
            if was is row:
                continue
            self._grant_changed(was, row)
            if was is not None:
                self._cut_off(was, row)
            if resetting and was is not None:
                self._set_by_reset(was, row)
            if (
                was is not None
                and was.source_id != row.source_id
                and self.shards[name].highest is None
                and name in self.offsets
            ):
                # The offset of the shard that bore the name before was just what a reset asked for: it stands for this one now.
                self.force(name, self.offsets[name])
                self.forced(name, self.offsets[name])
            if resetting and was is not None and row.holder not in (None, was.holder):
                raise BrokenError(f"{name} was given to {row.holder} while a reset was being made")
        self.sightings.stored(writer, before, after, self.now)
        if new.last_reset is not None and new.last_reset != old.last_reset:
            self._reset_made(new.last_reset, applying(before) or new.last_reset)
        for name in sorted(before.shards.keys() - after.shards.keys()):
            self._forgotten(before.shards[name], before, after)

    def _cells_are_whole(self, before: Ownership | None, after: Ownership) -> None:
        """Nobody has a part of a cell beside somebody else, or is to get one; a reset that is decided discards the state."""
        holders: dict[int, set[ConsumerId]] = {}
        nexts: dict[int, set[ConsumerId]] = {}
        for name, row in after.shards.items():
            if row.holder is not None:
                holders.setdefault(cell(name, self.cells), set()).add(row.holder)
            if row.next_consumer is not None:
                nexts.setdefault(cell(name, self.cells), set()).add(row.next_consumer)
        for split in (holders, nexts):
            for number, names in split.items():
                if len(names) > 1:
                    raise BrokenError(f"cell {number} is split between {sorted(names)}")
        self.counts["ownership writes of cells"] += 1
        begun = applying(after)
        if before is None or begun is None or applying(before) is not None or before.group.uid != after.group.uid:
            return
        was, now = before.group.state_generation, after.group.state_generation
        if now != was + 1:
            raise BrokenError(f"reset {begun.id} was decided, and the generation of the state is {now} after {was}")

    def _forgotten(self, row: ShardRecord, before: Ownership, after: Ownership) -> None:
        """A shard is no longer in the ownership: it was gone for long, nobody holds it, and its epochs are used up."""
        name, actual = row.shard, self.shards[row.shard]
        away = self.sightings.missed_for(self.writer, name, self.now)
        if away < 0.9 * max(self.forget_after, self.session_timeout):
            raise BrokenError(f"{name} is no longer in the ownership of {self.writer}, which has not seen it for {away:.0f} s")
        if after.group.epoch_floor < row.owner_epoch:
            raise BrokenError(f"{name} is forgotten after epoch {row.owner_epoch}, and the floor is {after.group.epoch_floor}")
        if _finds_out(before) or (applying(before) is not None and applying(before) == applying(after)):
            raise BrokenError(f"{name} is forgotten while a reset is made, or it is being found out who holds it")
        # What was written of it and never became durable is read again, should it ever come back.
        actual.forced_under.add(row.owner_epoch)
        if actual.durable is None:
            actual.begin_again()
        self.counts["shards forgotten"] += 1

    def _cut_off(self, was: ShardRecord, row: ShardRecord) -> None:
        """A holder that could not save what it had read of a shard that is gone for long is fenced, and reads it again."""
        fenced = row.held_since_epoch == row.owner_epoch > was.owner_epoch
        same = row.holder is not None and (row.holder, row.incarnation) == (was.holder, was.incarnation)
        away = self.sightings.missed_for(self.writer, row.shard, self.now)
        if fenced and same and away >= 0.9 * max(self.forget_after, self.session_timeout):
            self.shards[row.shard].forced_under.add(was.owner_epoch)
            self.counts["holders cut off"] += 1

    def was_named(self, shard: ShardId) -> bool:
        """Whether somebody who held this shard could claim it, since it was there: he named it."""
        return True

    def _grant_changed(self, was: ShardRecord | None, row: ShardRecord) -> None:
        if (row.holder is not None) != (row.state in HELD) or (row.next_consumer is not None) != (
            row.state is ShardState.TRANSFER
        ):
            raise BrokenError(f"{row.shard} is {row.state} with holder {row.holder} and next consumer {row.next_consumer}")
        if was is not None and row.owner_epoch < was.owner_epoch:
            raise BrokenError(f"{row.shard}: the owner epoch went back from {was.owner_epoch} to {row.owner_epoch}")
        if row.holder is None or row.incarnation is None:
            return
        owner = (row.holder, row.incarnation)
        if (since := self.shards[row.shard].granted_since) is not None:
            since.add((row.owner_epoch, *owner))
        if self.grants.setdefault((row.shard, row.owner_epoch), owner) != owner:
            raise BrokenError(
                f"{row.shard}: epoch {row.owner_epoch} was granted to"
                f" {self.grants[row.shard, row.owner_epoch]}, then to {owner}"
            )
        if was is None or was.holder is None or was.owner_epoch != row.owner_epoch:
            self.counts["grants"] += 1
            if was is not None and (was.holder or was.last_holder) not in (None, row.holder):
                self.counts["moves"] += 1

    def _set_by_reset(self, was: ShardRecord, row: ShardRecord) -> None:
        """A holder may be fenced of a shard that a reset sets to where it stands.

        That is so also if the position was only read back, after a commit of unknown outcome. What the holder wrote above it is
        read again, and may be before the reset has set its other shards.
        """
        fenced = row.owner_epoch > was.owner_epoch and (row.holder, row.incarnation) == (was.holder, was.incarnation)
        report, actual = applying(self.stored), self.shards[row.shard]
        rows = report.rows if fenced and report is not None else ()
        if any((each.shard, each.after) == (row.shard, actual.durable) for each in rows):
            actual.rewound = True

    def _reset_made(self, report: ResetReport, whole: ResetReport) -> None:
        """It is made; `whole` has all of its rows."""
        if report.id in self.resets:
            raise BrokenError(f"reset {report.id} was made twice")
        self.resets.add(report.id)
        for row in whole.rows:
            # Where its position was durable before, nothing need become durable: what was read on from there is read again.
            actual = self.shards[row.shard]
            actual.rewound = actual.rewound or actual.was_read or actual.highest is not None
        for actual in self.shards.values():
            actual.before_reset = []
        self.counts["resets made"] += 1

    @property
    def rebuilding(self) -> bool:
        """Whether it has to be found out who holds what, since the ownership was deleted."""
        finds_out = self.stored is not None and _finds_out(self.stored)
        return self.lost or self.older is not None or self.outdated or finds_out

    def _begin_anew(self) -> None:
        """A coordinator takes over and finds nothing: what no note with a position says of epochs, nobody knows any more."""
        self.counts["ownerships lost"] += 1
        self.outdated = False
        self.resets = set()
        for actual in self.shards.values():
            # A reset that nobody knows of any more, and that was never said to be made, asks for nothing to be read again.
            for low, high in actual.before_reset:
                self._cover(actual, low, high)
            actual.before_reset = []
        noted = {name: actual.landed[1] for name, actual in self.shards.items()}
        self.grants = {key: owner for key, owner in self.grants.items() if key[1] <= noted[key[0]]}
        for name, actual in self.shards.items():
            actual.newest_epoch = min(actual.newest_epoch, noted[name])
            actual.last_position = {epoch: at for epoch, at in actual.last_position.items() if epoch <= noted[name]}

    def land(self, shard: ShardId, offset: Offset, writer: str) -> None:
        """A position became durable."""
        actual = self.shards[shard]
        row = self.stored.shards.get(shard) if self.stored is not None else None
        forced = actual.rewound and offset < (actual.highest or 0)
        if actual.highest is not None and offset < actual.highest and not forced:
            raise BrokenError(f"{shard}: the durable position went back from {actual.highest} to {offset}, by {writer}")
        if offset > actual.end:
            raise BrokenError(f"{shard}: position {offset} is durable, but its end is {actual.end}")
        start = actual.highest if actual.highest is not None else offset if row is None or not row.started else actual.begin
        if actual.highest is None:
            for low, high in actual.written_before:
                if low < offset:
                    self._cover(actual, low, min(high, offset))
            actual.written_before = []
        if offset > start and (gap := self.missing(actual, start, offset)) is not None:
            raise BrokenError(f"{shard}: position {offset} is durable, but records {gap[0]} to {gap[1]} never reached the sink")
        actual.durable = actual.highest = offset
        actual.landed = (offset, row.owner_epoch if row is not None else 0)
        self.counts["positions made durable"] += 1

    def hear_positions(self, writer: str) -> None:
        """A coordinator hears that positions became durable: its commit is answered, or it has read them back."""

    def land_before(self, *, again: bool) -> None:
        """A position became durable, or is committed `again`, of a shard whose name another bears: nobody has found out yet."""
        self.counts["positions of shards that bore the name before"] += 1

    def force(self, shard: ShardId, offset: Offset) -> None:
        """A position that a user has asked for became durable."""
        actual = self.shards[shard]
        # Of a shard that was made anew, and that nobody has read yet, no less is promised than of any new one.
        actual.rewound = actual.rewound or actual.was_read or actual.highest is not None
        actual.highest = actual.durable = offset
        row = self.stored.shards.get(shard) if self.stored is not None else None
        actual.landed = (offset, row.owner_epoch if row is not None else 0)

    def ends_grant(self, shard: ShardId, _offset: Offset) -> None:
        """A position that a user has asked for became durable, be it one of the shard that bore the name before."""
        row = self.stored.shards.get(shard) if self.stored is not None else None
        if row is not None:
            self.shards[shard].forced_under.add(row.owner_epoch)

    def forced(self, shard: ShardId, offset: Offset) -> None:
        """The user was told so: what lies above it is to be read again, what lies below need not be."""
        actual = self.shards[shard]
        actual.prefix, actual.beyond = offset, []

    def sets(self, shard: ShardId, offset: Offset) -> bool:
        """Whether this position is one of a reset whose decision is stored and that is not made yet.

        Nobody decided anything about a shard that was made afterwards.
        """
        report = applying(self.stored)
        if report is None or self.shards[shard].born > self.decided_at:
            return False
        return any(row.shard == shard and row.after == offset for row in report.rows)

    def asked_by_reset(self, offsets: Mapping[ShardId, Offset]) -> dict[ShardId, str]:
        """Of these positions, which are about to be committed, those of a reset that is being made: its id."""
        report = applying(self.stored)
        return {shard: report.id for shard, offset in offsets.items() if self.sets(shard, offset)} if report is not None else {}

    def _is_being_reset(self, shard: ShardId, before: Offset) -> bool:
        """Whether a reset has moved this shard on from this position, and is not made yet.

        Its holder is granted what was decided before the reset. It is fenced when the reset is made, and reads on from there.
        """
        report, highest = applying(self.stored), self.shards[shard].highest
        if report is None or highest is None or not self.sets(shard, highest):
            return False
        return any(row.shard == shard and row.before == before for row in report.rows)

    def knows_no_more(self, reset: str | None) -> bool:
        """Whether a reset that was being made was lost with the ownership: what was asked for it may be done all the same."""
        report = applying(self.stored)
        return reset is not None and reset not in self.resets and (report is None or report.id != reset)

    def reset(self, shard: ShardId, offset: Offset) -> None:
        """A position of a reset that is being made became durable."""
        actual = self.shards[shard]
        if applying(self.stored) is None:
            # Nobody knows of it any more, nor was it said to be made: it asks for nothing to be read again. What it skips is.
            self.force(shard, offset)
            self._cover(actual, 0, offset)
            return
        actual.before_reset += [(0, actual.prefix), *actual.beyond]
        self.force(shard, offset)
        self.forced(shard, offset)

    def set_before(self, shard: ShardId, offset: Offset, durable: Offset | None) -> None:
        """A user is told that a position is set which was not committed for that: it must be `durable` already."""
        if durable != offset:
            raise BrokenError(f"a user is told that {shard} is set to {offset}, durable is {durable}")
        self.force(shard, offset)

    def forget(self, shard: ShardId) -> None:
        """The source has forgotten a durable position."""
        actual = self.shards[shard]
        actual.durable = None
        if self.stored is None or shard not in self.stored.shards:
            # Of a group that was made again, and has not seen the shard since: nothing shows that there was a position.
            actual.begin_again()
        self.lose_epochs(shard)

    def lose_epochs(self, shard: ShardId) -> None:
        """The position of a shard has gone, with its note, be it that the shard is made anew.

        If nobody knew of it when it was found out who holds what, nothing is left that tells which epochs it had.
        """
        if shard in self.unknown:
            self.grants = {key: owner for key, owner in self.grants.items() if key[0] != shard}

    def lose(self) -> None:
        """Somebody has deleted the ownership."""
        self.lost = True

    def begin_group(self, uid: str, *, keeps_offsets: bool) -> None:
        """The group was deleted and is made again: nothing is granted, and all is read from its offsets or its beginning."""
        self.uid, self.stored, self.writer = uid, None, ""
        self.lost, self.older, self.outdated, self.moving_since = False, None, False, None
        self.grants, self.resets, self.unknown = {}, set(), set()
        for actual in self.shards.values():
            actual.newest_epoch, actual.last_position, actual.before_reset, actual.written, actual.granted_since = (
                0,
                {},
                [],
                [],
                None,
            )
            actual.landed = (actual.landed[0], 0)
            actual.forced_under = set()
            if not keeps_offsets or actual.durable is None:
                actual.begin_again()

    def put_back(self, older: Ownership) -> None:
        """Somebody has put an earlier ownership in the place of what was stored last."""
        self.older = older
        self.counts["ownerships put back"] += 1

    # Answers to consumers.

    def heartbeat_answered(self, heartbeat: Heartbeat, reply: HeartbeatReply, writer: str) -> None:
        """The answer to a heartbeat leaves this coordinator."""
        self.counts["heartbeats answered"] += 1
        if heartbeat.group_uid not in ("", self.uid):
            raise BrokenError(f"{heartbeat.consumer} of group {heartbeat.group_uid}, which was deleted, is answered")
        if writer != self.writer:
            raise BrokenError(f"{writer} answers a heartbeat, but {self.writer} has written its leader epoch")
        for each in reply.confirmed:
            self.sightings.granted_of_gone(writer, heartbeat.consumer, each.shard, self.now)
            row = self.stored.shards.get(each.shard) if self.stored is not None else None
            owner = (heartbeat.consumer, heartbeat.incarnation)
            if row is None or (row.holder, row.incarnation, row.owner_epoch) != (*owner, each.owner_epoch):
                raise BrokenError(f"{heartbeat.consumer} is told that it holds {each}, but stored is {row}")
            if row.state is not ShardState.ALREADY_ALLOC:
                raise BrokenError(f"{heartbeat.consumer} is told to read {each.shard}, which is {row.state}")
            actual = self.shards[each.shard]
            if self.sightings.another(self.stored, each.shard):
                self.sightings.granted_of_another(writer, heartbeat.consumer, each.shard, self.now)
                continue
            if each.owner_epoch in actual.last_position:
                continue
            actual.last_position[each.owner_epoch] = each.position
            if each.position != actual.highest and not self._is_being_reset(each.shard, each.position):
                raise BrokenError(
                    f"{each.shard}: {heartbeat.consumer} is granted epoch {each.owner_epoch} at position {each.position}, but"
                    f" durable is {actual.highest}"
                )

    def accepted(self, request: CheckpointRequest, reply: CheckpointReply) -> None:
        """The answer to a checkpoint leaves a coordinator."""
        if request.group_uid not in ("", self.uid):
            raise BrokenError(f"a checkpoint of {request.consumer} of group {request.group_uid} is answered: it was deleted")
        for outcome in reply.outcomes:
            self.counts[f"checkpoints {outcome.result}"] += 1
            if outcome.result is not CheckpointResult.OK:
                continue
            actual = self.shards[outcome.shard]
            owner = (request.consumer, request.incarnation)
            if self.grants.get((outcome.shard, outcome.expected_epoch)) != owner:
                raise BrokenError(
                    f"{outcome.shard}: a checkpoint of {request.consumer} under epoch {outcome.expected_epoch} was accepted,"
                    f" which belongs to {self.grants.get((outcome.shard, outcome.expected_epoch))}"
                )
            if self.sightings.another(self.stored, outcome.shard):
                continue  # a position of the shard that bore the name before
            if actual.landed[0] < outcome.offset and not actual.rewound:
                raise BrokenError(f"{outcome.shard}: position {outcome.offset} is acknowledged, durable is {actual.landed[0]}")
            if actual.landed[1] > outcome.expected_epoch and actual.landed[0] == outcome.offset and not actual.rewound:
                raise BrokenError(
                    f"{outcome.shard}: position {outcome.offset} of epoch {outcome.expected_epoch} became durable when the"
                    f" shard had been granted under epoch {actual.landed[1]}"
                )

    def is_over(self, consumer: ConsumerId, incarnation: Incarnation) -> bool:
        """Whether it is stored that this run has ended, or was silent for too long."""
        record = self.stored.consumers.get(consumer) if self.stored is not None else None
        if record is None:
            return False
        return record.has_ended(incarnation) or (record.incarnation == incarnation and not record.present)

    def has_ended(self, consumer: ConsumerId, incarnation: Incarnation) -> bool:
        """Whether it is stored that this run has ended for good: who was only silent for too long may come back."""
        record = self.stored.consumers.get(consumer) if self.stored is not None else None
        return record is not None and record.has_ended(incarnation)

    def expires(self, operator: str, consumer: ConsumerId, reason: str, silence: float) -> None:
        """This operator says so. What it stored before another took over, and tells after that, is not of the other's time."""
        if operator == self.writer:
            self.expired(consumer, reason, silence)

    def note_expired(self, runs: Iterable[tuple[ConsumerId, Incarnation]]) -> None:
        """These runs were silent for as long as one that is expired, also if no coordinator could know of them."""
        self._expired.update(runs)

    def expired(self, consumer: ConsumerId, reason: str, silence: float) -> None:
        """A coordinator says that a consumer is silent. `silence`: for how long it really has been."""
        self.counts[f"expired by {reason}"] += 1
        if reason == "SessionTimeout" and silence < 0.9 * self.session_timeout:
            raise BrokenError(f"{consumer} was expired, but was heard {silence:.1f} s before")

    # What consumers do.

    def read(self, shard: ShardId, start: Offset, stop: Offset, run: Run) -> None:
        """A consumer begins to read a range."""
        actual = self.shards[shard]
        actual.was_read = True
        if self.ordered and actual.ordered_from_birth:
            for parent in self._ancestors(shard):
                ancestor = self.shards[parent]
                if ancestor.open or ancestor.prefix < ancestor.end:
                    if ancestor.rewound or ancestor.was_away:
                        continue
                    raise BrokenError(f"{run} reads {shard} from {start} before its ancestor {parent} is consumed")
        if stop > actual.end:
            raise BrokenError(f"{run} reads {shard} up to {stop}, but it ends at {actual.end}")

    def write(self, shard: ShardId, start: Offset, stop: Offset, epoch: int, run: Run) -> None:
        """Records reach the sink."""
        actual = self.shards[shard]
        if self.ordered and epoch < actual.newest_epoch and run.stood < self.now - CANCEL_GRACE:
            raise BrokenError(
                f"{shard}: {run} writes {start} to {stop} under epoch {epoch} after a write under {actual.newest_epoch}"
            )
        if (shard, epoch) in self.grants:
            # Else it was granted by an ownership that was lost, and nobody who leads since has heard of it.
            actual.newest_epoch = max(actual.newest_epoch, epoch)
        for segment in actual.written:
            if segment.start < stop and start < segment.stop:
                self._repeated(actual, segment, start, stop, epoch, run)
        actual.written.append(Written(start, stop, run, epoch, unclaimed=actual.unclaimed(run, epoch)))
        self.counts["records written"] += stop - start
        self._cover(actual, start, stop)

    def _repeated(self, actual: Shard, segment: Written, start: Offset, stop: Offset, epoch: int, run: Run) -> None:
        count = min(stop, segment.stop) - max(start, segment.start)
        self.counts["records written again"] += count
        if actual.rewound or any(
            each.violent or (each.consumer, each.incarnation) in self._expired for each in (segment.run, run)
        ):
            return
        if segment.run is run and segment.epoch == epoch:
            return  # its own micro-batch, tried again
        if actual.ended_by_force(segment.epoch, epoch):
            return
        if segment.unclaimed or actual.unclaimed(segment.run, segment.epoch) or actual.unclaimed(run, epoch):
            return
        raise BrokenError(
            f"{actual.name}: {run} writes records {max(start, segment.start)} to {min(stop, segment.stop)} under epoch {epoch},"
            f" which {segment.run} wrote under epoch {segment.epoch}, and nothing has happened to either"
        )

    def unorder(self) -> None:
        """A user has set `ordered` to false."""
        self.ordered, self.unordered_at = False, self.now

    def late(self, run: Run) -> None:
        """A consumer that was not heard for long still reads: only so long."""
        # Who has not heard that the group is not ordered any more stops by the limit that it knows.
        knows_order = self.ordered or (self.unordered_at is not None and run.acknowledged <= self.unordered_at)
        limit = self.session_timeout if knows_order else self.loss_limit
        silent = self.now - max(run.acknowledged, run.stood)
        if silent > 1.05 * limit + 10.0:
            raise BrokenError(
                f"{run} begins to read {silent:.0f} s after its last acknowledged heartbeat (limit {limit:.0f} s)"
            )

    # What is asked at the end.

    def unfinished(self) -> str:
        """What was produced and is not consumed and durable; empty if all is."""
        for actual in self.shards.values():
            if not actual.present:
                continue
            if actual.prefix < actual.end:
                return f"{actual.name}: records from {actual.prefix} of {actual.end} have not reached the sink"
            if actual.durable != actual.end and actual.end > 0:
                return f"{actual.name}: durable up to {actual.durable} of {actual.end}"
        return ""

    def missing(self, actual: Shard, start: Offset, stop: Offset) -> tuple[Offset, Offset] | None:
        """The first records of a range that are not in the sink."""
        at = max(start, actual.prefix)
        for low, high in sorted(actual.beyond):
            if low > at:
                break
            at = max(at, high)
        return (at, stop) if at < stop else None

    def _cover(self, actual: Shard, start: Offset, stop: Offset) -> None:
        actual.beyond.append((start, stop))
        actual.beyond.sort()
        while actual.beyond and actual.beyond[0][0] <= actual.prefix:
            actual.prefix = max(actual.prefix, actual.beyond.pop(0)[1])

    def _ancestors(self, shard: ShardId) -> Iterable[ShardId]:
        found: list[ShardId] = []
        stack = list(self.shards[shard].parents)
        while stack:
            parent = stack.pop()
            if parent not in found:
                found.append(parent)
                stack.extend(self.shards[parent].parents)
        return found


def applying(ownership: Ownership | None) -> ResetReport | None:
    """The reset that was decided and is not made yet."""
    report = ownership.group.reset if ownership is not None else None
    return report if report is not None and report.state is ResetState.APPLYING else None


def _finds_out(ownership: Ownership) -> bool:
    """Whether it is being found out who holds what."""
    return ownership.group.rebuilding or not ownership.group.discovered


def _begun_anew(before: Ownership, after: Ownership) -> bool:
    """Whether who went on from an older ownership has seen that it is one, and finds out who holds what."""
    rebuilding = after.group.rebuilding and (not before.group.rebuilding or after.group.revision < before.group.revision)
    return rebuilding or not after.group.discovered


def _grant(row: ShardRecord) -> object:
    return (row.state, row.holder, row.incarnation, row.owner_epoch, row.held_since_epoch, row.next_consumer)
