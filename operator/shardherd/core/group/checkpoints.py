"""Positions, in two phases: decide what may be committed, then take note of what was.

Between the two the shard is in flight and does not change hands. A checkpoint is taken only under exactly the current
grant, and never goes back, except a forced one. Called by `group`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from shardherd.core.group import grants, lineage, liveness, rebuild, resets
from shardherd.core.group.records import InFlight
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model import growths
from shardherd.core.model.errors import CoordinatorUnavailableError, InvalidRequestError, UnknownShardError
from shardherd.core.model.event_reasons import CHECKPOINT_FORCED, CHECKPOINT_FOUND, SHARD_REVIVED, SHARDS_APPEARED
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    Offset,
    ShardCheckpoint,
    ShardId,
    ShardInfo,
    ShardState,
)
from shardherd.core.model.requests import (
    CheckpointsCommitted,
    CheckpointsFailed,
    CheckpointsLost,
    ForceCheckpoint,
    ForceCheckpointReply,
)

# Looked up once: Python 3.11 finds a member of an enumeration by a call, and these are asked for with every shard.
OK, UNCHANGED, FENCED, WITHHELD = (
    CheckpointResult.OK,
    CheckpointResult.UNCHANGED,
    CheckpointResult.FENCED,
    CheckpointResult.WITHHELD,
)


def validate(state: State, request: CheckpointRequest, now: float) -> CheckpointReply:
    """Phase one: which of the positions may be committed. The reply holds if the commit succeeds.

    Whoever has something to commit has got on: for how long it is written then is not its doing.

    Raises StaleIncarnationError or GroupReplacedError if the caller's whole incarnation is refused, InvalidRequestError for an
    offset that the source cannot have.
    """
    liveness.check_group(state, request)
    liveness.check(state, request.consumer, request.incarnation)
    begun: set[ShardId] = set()
    outcomes, last = [], state.spec.source.last_position
    current = state.consumers.get(request.consumer)
    if current is not None and current.incarnation == request.incarnation:
        # The very object that grants bear: to compare it with them costs nothing then.
        request = structs.replace(request, incarnation=current.incarnation)
    for checkpoint in request.checkpoints:
        if not 0 <= checkpoint.offset <= last:
            raise InvalidRequestError(
                f"checkpoint of shard {checkpoint.shard} has offset {checkpoint.offset}; an offset is the next record to read, "
                f"0 or more{f' and at most {last}' if checkpoint.offset > last else ''}",
                group=str(state.spec.identity),
                shard=checkpoint.shard,
                consumer=request.consumer,
            )
        outcomes.append(_validate_one(state, request, checkpoint, begun))
    if begun:
        _got_on(state, request.consumer, now)
    return CheckpointReply(tuple(outcomes))


def committed(state: State, request: CheckpointsCommitted, now: float) -> None:
    """Phase two: these positions are durable.

    All of them are known before any of their shards is over: whoever waited for that one may have to wait for another, which is
    set back in the same commit.
    """
    advanced = False
    got_on: set[ConsumerId] = set()
    forced: list[ShardId] = []
    perhaps_done: list[tuple[ShardId, ConsumerId | None]] = []
    shards, positions, in_flight, infos = state.shards, state.positions, state.in_flight, state.infos
    for shard, offset in request.offsets.items():
        record = shards.get(shard)
        if record is None:
            continue
        flight, before, info = in_flight.get(shard), positions.get(shard), infos.get(shard)
        set_by_force = flight is not None and flight.forced and offset == flight.offset
        state.put_in_flight(shard, None)
        if before is not None and offset < before and not set_by_force:
            # Read back after an unknown outcome: nothing but a forced checkpoint sets one back. The next one puts it right.
            continue
        lost = grants.checkpoint_lost(state, record)
        state.put_position(shard, offset)
        if lost and not grants.checkpoint_lost(state, record):
            # While it was lost the balance left the shard out.
            grants.want_rebalance(state, CHECKPOINT_FOUND)
        advanced = advanced or before is None or offset > before
        if not record.started:
            # With cells it is where their state begins, exactly: what lay before may be gone since it was chosen.
            state.put_shard(record._replace(started=True, start=offset if state.spec.settings.cells else record.start))
            grants.want_rebalance(state, SHARDS_APPEARED)
        if flight is not None and set_by_force:
            _forced(state, shard, flight.source_id, now)
            forced.append(shard)
        if info is None or not info.open:
            perhaps_done.append((shard, record.holder))
        elif record.holder is not None:
            got_on.add(record.holder)
    for shard, holder in perhaps_done:
        if not grants.finish_if_done(state, shard, now) and holder is not None:
            got_on.add(holder)
    for consumer in sorted(got_on):
        _got_on(state, consumer, now)
    if state.clocks.unnoted and not request.read_back:
        state.put_clocks(unnoted=state.clocks.unnoted - request.offsets.keys())
    if forced:
        resets.took(state, forced)
    if advanced and state.clocks.doublings:
        state.put_clocks(doublings=0)


def failed(state: State, request: CheckpointsFailed) -> None:
    """Phase two, the other way: nothing was written."""
    for shard in request.shards:
        state.put_in_flight(shard, None)


def lost(state: State, request: CheckpointsLost) -> None:
    """Phase two, when nothing can be read back: the new position may have been written, and is forgotten by now.

    The position before it is then too old to go on from: records above it may have been handled. The holder, if it lives, knows
    how far it came, and saves that again. Of a shard that never had a position nothing is lost: its start is written anew. Nor
    of one whose position was only committed once more as it is. What becomes of a refresh, which has nothing in flight, is not
    reported here.
    """
    for shard in request.shards:
        record, flight = state.shards.get(shard), state.in_flight.get(shard)
        state.put_in_flight(shard, None)
        if record is not None and record.started and flight is not None and flight.offset != state.positions.get(shard):
            state.put_position(shard, None)


def force(state: State, request: ForceCheckpoint) -> ForceCheckpointReply:
    """Phase one of a forced checkpoint: taken whoever holds the shard, in whatever state it is.

    Raises UnknownShardError, InvalidRequestError for a position that does not exist, CoordinatorUnavailableError while another
    position of the shard is being written, or while its holder may still claim it: it would go on from its own position.
    """
    record = None if request.shard in state.clocks.unnamed else state.shards.get(request.shard)
    identity = str(state.spec.identity)
    if not state.record.discovered or state.record.rebuilding:
        raise CoordinatorUnavailableError(
            f"who holds shard {request.shard} is being found out; ask again", group=identity, shard=request.shard
        )
    if record is None:
        raise UnknownShardError(
            f"group {identity} has no shard {request.shard}; its shards are named topic/partition",
            group=identity,
            shard=request.shard,
        )
    if state.spec.settings.cells and not grants.checkpoint_lost(state, record):
        raise InvalidRequestError(
            f"the position of shard {request.shard} belongs to the state of its cell, and cannot be set alone: declare a reset"
            " with discardState: true, which begins all cells anew",
            group=identity,
            shard=request.shard,
        )
    if not 0 <= request.offset <= (last := state.spec.source.last_position):
        wrong = "is negative" if request.offset < 0 else f"is too large: {last} is the largest that its source has"
        raise InvalidRequestError(
            f"offset {request.offset} for shard {request.shard} {wrong}", group=identity, shard=request.shard
        )
    info = state.infos.get(request.shard)
    if info is not None and not _exists(info, request.offset):
        raise InvalidRequestError(
            f"offset {request.offset} for shard {request.shard} does not exist: it has {info.begin} to {info.end}",
            group=identity,
            shard=request.shard,
        )
    if request.shard in state.in_flight or resets.sets(state, request.shard):
        raise CoordinatorUnavailableError(
            f"a checkpoint of shard {request.shard} is being written; ask again", group=identity, shard=request.shard
        )
    state.put_in_flight(
        request.shard, InFlight(request.offset, forced=True, source_id=info.source_id if info is not None else "")
    )
    revives = record.state is ShardState.OVER and (info is None or request.offset < info.end)
    if revives:
        return ForceCheckpointReply(_order_warning(state, request.shard))
    return ForceCheckpointReply(_cutover_warning(state, request.shard, request.offset))


def revive(state: State, shard: ShardId, now: float) -> None:
    """Row 7 for a finished shard whose position lies before its end, with a warning if descendants were read before it."""
    if not grants.rewind_if_before_end(state, shard, now):
        return
    message = f"finished shard {shard} is read again from {state.positions[shard]}"
    warning = _order_warning(state, shard)
    state.emit(
        GroupEvent(SHARD_REVIVED, f"{message}; {warning}" if warning else message, shards=(shard,), warning=bool(warning))
    )
    grants.want_rebalance(state, CHECKPOINT_FORCED)


def _validate_one(
    state: State, request: CheckpointRequest, checkpoint: ShardCheckpoint, begun: set[ShardId]
) -> CheckpointOutcome:
    shard = checkpoint.shard
    record = None if shard in state.clocks.unnamed else state.shards.get(shard)
    epoch, offset = checkpoint.owner_epoch, checkpoint.offset
    if (
        record is None
        or record.owner_epoch != epoch
        or record.holder != request.consumer
        or record.incarnation != request.incarnation
        or record.state not in grants.HELD
    ):
        holder = record.holder if record is not None else None
        actual = record.owner_epoch if record is not None and holder is not None else 0
        refusal = WITHHELD if rebuild.may_be_claimed(state, shard, epoch) else FENCED
        return CheckpointOutcome(shard, refusal, offset, epoch, actual, holder)
    position = state.positions.get(shard)
    if position is not None and offset <= position:
        result = UNCHANGED
    elif shard in begun:
        flight = state.in_flight[shard]
        state.put_in_flight(shard, InFlight(max(flight.offset, offset)))
        result = OK
    elif shard in state.in_flight or _withheld(state, shard):
        result = WITHHELD
    else:
        state.put_in_flight(shard, InFlight(offset))
        begun.add(shard)
        result = OK
    return CheckpointOutcome(shard, result, offset, epoch, record.owner_epoch, record.holder)


def _exists(info: ShardInfo, offset: Offset) -> bool:
    """Whether this is a position of the shard; an open one may have grown since it was looked at."""
    return offset >= info.begin and (info.open or offset <= info.end)


def _withheld(state: State, shard: ShardId) -> bool:
    """Whether nothing of this shard may be committed now, though it is held.

    For one: the source has no such shard any more. Its checkpoint would fail, and with it those of others.
    """
    clocks = state.clocks
    if not clocks.commits or state.record.rebuilding or shard in clocks.recreated or resets.sets(state, shard):
        return True
    return grants.is_away(state, shard)


def _order_warning(state: State, shard: ShardId) -> str:
    """What to tell of a shard that is read again: empty unless the data of a descendant was read, or is being read."""
    return _warning(state, shard, lineage.descendants(shard, lambda each: state.children.get(each, ())))


def _cutover_warning(state: State, shard: ShardId, offset: Offset) -> str:
    """The same of a shard that is read again from below its cutover offset: those that wait for it still go on to wait."""
    ends = (growths.cutover(each, shard) for each in state.record.growths if each.keeps)
    if not any(end is not None and offset < end for end in ends):
        return ""
    return _warning(state, shard, growths.children(state.record.growths, shard))


def _warning(state: State, shard: ShardId, descendants: Iterable[ShardId]) -> str:
    rows = [state.shards[each] for each in sorted(descendants, key=shard_key) if each in state.shards]
    read = [row.shard for row in rows if row.last_holder is not None or row.state is ShardState.OVER]
    if not read:
        return ""
    named = ", ".join(read[:10]) + (f" and {len(read) - 10} more" if len(read) > 10 else "")
    return f"descendants of {shard} were read before it, so the order of its keys can break: {named}"


def _forced(state: State, shard: ShardId, source_id: str, now: float) -> None:
    offset = state.positions[shard]
    _accept(state, shard, source_id)
    if shard not in (state.clocks.unset or ()):
        # A reset is one event, not one for every shard.
        state.emit(
            GroupEvent(CHECKPOINT_FORCED, f"checkpoint of shard {shard} was set to {offset}", shards=(shard,), warning=True)
        )
    if state.record.rebuilding:
        rebuild.end_claims(state, shard, now)
    record = state.shards[shard]
    if record.state in grants.HELD:
        grants.fence_holder(state, record)
    else:
        revive(state, shard, now)
        grants.want_rebalance(state, CHECKPOINT_FORCED)


def _accept(state: State, shard: ShardId, source_id: str) -> None:
    """A forced position is where to read on, whatever was there before: in a copy, or in another shard of this name.

    One that was made anew since the position was decided is another than `source_id`, and still nobody's.
    """
    clocks, info = state.clocks, state.infos.get(shard)
    if resets.discards(state):
        grants.begin_state(state, shard)
    grants.believe_forced(state, shard)
    if source_id and state.shards[shard].source_id != source_id:
        state.put_shard(state.shards[shard]._replace(source_id=source_id))
    if shard in clocks.recreated and info is not None and info.source_id == source_id:
        state.put_clocks(recreated=tuple(each for each in clocks.recreated if each != shard))


def _got_on(state: State, consumer: ConsumerId, now: float) -> None:
    session = state.sessions.get(consumer)
    if session is not None and session.progress_at != now:
        state.put_session(consumer, structs.replace(session, progress_at=now))
