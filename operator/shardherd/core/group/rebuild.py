"""Who holds what, when the stored ownership was lost: from the notes of the durable positions, and from what consumers claim.

Called by `discovery`, `heartbeats`, `checkpoints` and `timers`. For one session timeout consumers name what they hold, and keep
it; nothing is granted and no checkpoint is taken. Of two claims the one under the higher epoch is right. Afterwards what nobody
claimed is free, under epochs above all that were found. A holder that stayed silent has stopped by then, or is fenced. A cell
of which several consumers claim parts is nobody's until then. An ownership that turns out to be an older copy, by what
consumers were told since, is lost too.

A position is durable before its shard is granted. Where none is left, the shard may be another one that was made under the name
since, and where its claimant is means nothing in it: such a claim shows that a position was lost, and is refused. So is one of
a shard that this coordinator began at its first record, before it heard that the group was not new.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.group import absence, cells, grants
from shardherd.core.group.notes import Note
from shardherd.core.group.records import GroupRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.errors import CoordinatorUnavailableError, InvalidRequestError
from shardherd.core.model.event_reasons import OWNERSHIP_LOST, OWNERSHIP_REBUILT
from shardherd.core.model.messages import MAX_INTEGER
from shardherd.core.model.nouns import GroupSettings, Heartbeat, Offset, ShardId, ShardState
from shardherd.core.model.wording import count, verb

FREE = (ShardState.NOT_ALLOC, ShardState.WAIT)

LARGEST = MAX_INTEGER // 2
"""The largest revision and epoch that are believed of a consumer. They grow by 1, so none was ever given that is as large; and
those that follow upon it can still be told."""


def unheard_of(state: State, notes: Mapping[ShardId, Note]) -> Mapping[ShardId, Note]:
    """Those of these notes that show that a group which is stored without shards had some later: what is stored is older.

    They are of a leader after that, or of epochs above those of all shards that it had before and that were dropped.
    """
    record = state.record
    known, dropped = record.leader_epoch, record.epoch_floor
    return {
        shard: note for shard, note in notes.items() if note.leader_epoch >= known or note.owner_epoch > dropped or not dropped
    }


def begin(state: State, notes: Mapping[ShardId, Note], copies: Mapping[ShardId, Offset], now: float) -> None:
    """At the first look that shows shards of a group that has none: if there is a trace of it, its ownership was lost.

    `notes` are those of its durable positions, `copies` earlier positions of this very group.
    """
    if not notes and not copies:
        return
    state.put_record(rebuilding=True, leader_epoch=_above(state, notes))
    _find_generation(state, notes)
    timeout = claims_for(state.record, state.spec.settings)
    state.put_clocks(claims_until=now + timeout)
    state.emit(
        GroupEvent(
            OWNERSHIP_LOST,
            f"who holds which shard was lost, and is found out from {count(len(notes), 'committed position')} and from the "
            f"consumers; nothing is granted or committed for {timeout:g} s",
            warning=True,
        )
    )


def claims_for(record: GroupRecord, settings: GroupSettings) -> float:
    """For how long consumers may claim what they hold: a session timeout. In an ordered group nobody else may read it
    meanwhile, so it is the longest time by which one that is cut off may go."""
    return max(settings.session_timeout, record.session_timeout) if settings.ordered else settings.session_timeout


def may_begin(state: State, now: float) -> bool:
    """Whether it may still turn out that the ownership was lost: while claims may come since this coordinator took over."""
    return now < state.restored_at + claims_for(state.record, state.spec.settings)


def came_back(state: State, notes: Mapping[ShardId, Note], now: float) -> None:
    """At a later look: shards appear, with these notes. Those of a leader whom this ownership never heard of show that it was
    begun anew while they were not there, and no other trace of the one before was left.

    Their holders may claim them, as they could have at the first look. Once a session timeout has passed since this coordinator
    took over, who was silent holds nothing any more, and who was not was told so. Our leader epoch is above theirs either way:
    the next leader would take what we stored for an older copy.
    """
    later = {shard: note for shard, note in notes.items() if note.leader_epoch >= state.record.leader_epoch}
    if not later:
        return
    _find_generation(state, later)
    if state.record.rebuilding or not may_begin(state, now):
        state.put_record(leader_epoch=_above(state, later))
    else:
        begin(state, later, {}, now)


def check_claims(state: State, request: Heartbeat) -> None:
    """Raises InvalidRequestError for a revision or an epoch that nobody can have been told: all later ones would be above it,
    and could be told to nobody. CoordinatorUnavailableError for one that names shards before it is known whether it may.
    """
    _check_sizes(state, request)
    # One stored without shards may be older than what this consumer was told: the first look shows whether it is.
    unseen = not (absence.has_shards(state) or state.clocks.seen) and request.revision > state.record.revision
    if request.held and (unseen or not state.record.discovered):
        group = str(state.spec.identity)
        raise CoordinatorUnavailableError(
            f"{request.consumer} names shards of group {group}, of which nothing is known until its source was read; ask again",
            group=group,
            consumer=request.consumer,
        )


def _check_sizes(state: State, request: Heartbeat) -> None:
    record, rows = state.record, state.shards
    wrong = f"revision {request.revision}" if request.revision > max(record.revision, LARGEST) else ""
    for pair in request.held:
        if pair.owner_epoch <= LARGEST:
            continue
        row = rows.get(pair.shard)
        if pair.owner_epoch > (record.epoch_floor if row is None else row.owner_epoch):
            wrong = f"ownerEpoch {pair.owner_epoch} for shard {pair.shard[:80]!r}"
            break
    if wrong:
        raise InvalidRequestError(
            f"heartbeat of {request.consumer} has {wrong}, which no coordinator has given; send what the last reply had",
            group=str(state.spec.identity),
            consumer=request.consumer,
        )


def claim(state: State, request: Heartbeat, now: float) -> None:
    """A heartbeat names what its consumer was granted before the ownership was lost: it keeps that."""
    if not state.record.rebuilding and not _rebuild_if_older(state, request, now):
        return
    # Revisions go on above those that were given out before.
    state.put_record(revision=max(request.revision, state.record.revision))
    # Sorted, so that of several claims to one shard that of the highest epoch stays.
    for shard, epoch in dict(sorted((pair.shard, pair.owner_epoch) for pair in request.held)).items():
        _claim(state, request, shard, epoch, now)
    for shard in sorted(pair.shard for pair in request.held if pair.shard in state.shards):
        if cells.held_in_parts(state, shard):
            # Epochs are those of single shards, and do not tell who has the state: nobody reads it beside somebody else.
            for mate in cells.mates(state, shard):
                end_claims(state, mate, now)


def may_be_claimed(state: State, shard: ShardId, epoch: int) -> bool:
    """Whether somebody who was granted this shard under this epoch may still claim it: he must not be told that it is lost."""
    if state.record.discovered and not state.record.rebuilding:
        return False
    record = state.shards.get(shard)
    if record is None:
        return True
    if not _has_position(state, shard):
        return False
    if record.state in FREE:
        return epoch >= record.owner_epoch
    return record.state is ShardState.ALREADY_ALLOC and epoch > record.owner_epoch


def end_claims(state: State, shard: ShardId, now: float) -> None:
    """No claim to this shard counts any more. Nobody holds it until the time for claims is over, and then under an epoch above
    all that were claimed.

    It is of a cell that is held in parts. Or its position was set by force and is durable, and who claims it would go on from
    its own: that was decided before this ownership turned out to be older; while it is rebuilt none is.
    """
    record = state.shards[shard]
    if record.state in grants.HELD:
        grants.reclaim(state, record, now)
    state.put_clocks(begun=state.clocks.begun | {shard})


def end_if_due(state: State, now: float) -> None:
    """The time for claims is over: what nobody claimed is free. What comes back later begins above what was claimed of it."""
    if not state.record.rebuilding or now < state.clocks.claims_until:
        return
    claimed = state.clocks.claimed
    state.put_record(rebuilding=False, epoch_floor=max(state.record.epoch_floor, claimed))
    highest = max([claimed, *(record.owner_epoch for record in state.shards.values())])
    free = [state.shards[shard] for of in FREE for shard in state.by_state[of]]
    for record in free:
        state.put_shard(record._replace(owner_epoch=highest))
    state.put_clocks(resumed_at=now, claimed=0)
    held = len(state.shards) - len(free)
    said = f"{count(held, 'shard')} {verb(held, 'was claimed by its holder', 'were claimed by their holders')}"
    state.emit(GroupEvent(OWNERSHIP_REBUILT, f"{said}, {len(free)} {verb(len(free), 'is', 'are')} free"))
    grants.want_rebalance(state, OWNERSHIP_REBUILT)


def forget_begun(state: State, now: float) -> None:
    """No shard can be claimed any more: nobody asks which ones were begun."""
    if state.clocks.begun and not state.record.rebuilding and not may_begin(state, now):
        state.put_clocks(begun=frozenset())


def _find_generation(state: State, notes: Mapping[ShardId, Note]) -> None:
    """Which state of its cells was in use when these positions were committed: what was discarded stays so."""
    found = max((note.generation for note in notes.values()), default=0)
    if state.spec.settings.cells and found > state.record.state_generation:
        state.put_record(state_generation=found)


def _above(state: State, notes: Mapping[ShardId, Note]) -> int:
    """Our leader epoch, or the first one above those of all these notes."""
    return max(state.record.leader_epoch, max((note.leader_epoch for note in notes.values()), default=0) + 1)


def _rebuild_if_older(state: State, request: Heartbeat, now: float) -> bool:
    """Whether a heartbeat shows that the stored ownership is older than what consumers were told: then it is rebuilt.

    It names what this ownership never gave out: a later revision, or a later epoch of a shard. Only within the first session
    timeout of a coordinator: who was silent for longer has lost what it held, whatever it names.
    """
    if now >= state.clocks.claims_until or not state.record.discovered:
        return False
    rows = state.shards
    if request.revision <= state.record.revision and not any(
        pair.shard in rows and pair.owner_epoch > rows[pair.shard].owner_epoch for pair in request.held
    ):
        return False
    for record in tuple(state.shards.values()):
        # Also one of which a commit is under way: whoever claims it keeps its own position, whatever becomes of that commit.
        if record.state in grants.HELD:
            grants.reclaim(state, record, now)
    timeout = claims_for(state.record, state.spec.settings)
    state.put_record(rebuilding=True)
    state.put_clocks(claims_until=now + timeout)
    state.emit(
        GroupEvent(
            OWNERSHIP_LOST,
            f"the stored ownership is an older copy: {request.consumer} was told of revision {request.revision}, or of epochs, "
            f"that it never gave out; who holds which shard is found out from the consumers, and nothing is granted or "
            f"committed for {timeout:g} s",
            consumer=request.consumer,
            warning=True,
        )
    )
    return True


def _has_position(state: State, shard: ShardId) -> bool:
    """Whether its durable position is one that was found: it was neither begun nor set since the shard was granted."""
    return shard in state.positions and shard not in state.clocks.begun


def _claim(state: State, request: Heartbeat, shard: ShardId, epoch: int, now: float) -> None:
    record = state.shards.get(shard)
    if record is None:
        # Not there for now. Nobody is given it under this epoch again, unless by a claim once it is back.
        state.put_clocks(claimed=max(state.clocks.claimed, epoch))
        return
    if (record.holder, record.incarnation) == (request.consumer, request.incarnation):
        return
    if record.state is ShardState.ALREADY_ALLOC and epoch > record.owner_epoch:
        grants.reclaim(state, record, now)
        record = state.shards[shard]
    if not _has_position(state, shard):
        if record.state in FREE and epoch >= record.owner_epoch:
            # Nobody is given it under this epoch again. If it was not begun, somebody has to say where to read on.
            state.put_shard(record._replace(owner_epoch=epoch, started=True))
        return
    if record.state is ShardState.WAIT and epoch >= record.owner_epoch:
        # It was granted when its ancestors were read, or the group was not ordered: that one of them is read again since, or
        # that the group is ordered now, takes it from nobody who holds it.
        grants.wake(state, record, now)
        record = state.shards[shard]
    if record.state is ShardState.NOT_ALLOC and epoch >= record.owner_epoch:
        grants.restore(state, record, request.consumer, epoch, now)
