"""Positions, in two phases: decide what may be committed, then take note of what was.

Between the two the shard is in flight and does not change hands. A checkpoint is taken only under exactly the current
grant, and never goes back, except a forced one. Called by `core.group`.
"""

from __future__ import annotations

from dataclasses import replace

from shardherd.core import grants, lineage, liveness
from shardherd.core.errors import InvalidRequestError, UnknownShardError
from shardherd.core.model import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ShardCheckpoint,
    ShardId,
    ShardState,
)
from shardherd.core.records import InFlight
from shardherd.core.requests import CheckpointsCommitted, CheckpointsFailed, ForceCheckpoint, ForceCheckpointReply
from shardherd.core.state import State, Told


def validate(state: State, request: CheckpointRequest) -> CheckpointReply:
    """Phase one: which of the positions may be committed. The reply holds if the commit succeeds.

    Raises StaleIncarnationError if the caller's whole incarnation is refused, InvalidRequestError for a negative offset.
    """
    liveness.check(state, request.consumer, request.incarnation)
    begun: set[ShardId] = set()
    outcomes = []
    for checkpoint in request.checkpoints:
        if checkpoint.offset < 0:
            raise InvalidRequestError(
                f"checkpoint of shard {checkpoint.shard} has offset {checkpoint.offset}; an offset is the next record to read, "
                f"0 or more",
                group=str(state.spec.identity),
                shard=checkpoint.shard,
                consumer=request.consumer,
            )
        outcomes.append(_validate_one(state, request, checkpoint, begun))
    return CheckpointReply(tuple(outcomes))


def committed(state: State, request: CheckpointsCommitted, now: float) -> None:
    """Phase two: these positions are durable."""
    advanced = False
    for shard, offset in request.offsets.items():
        record = state.shards.get(shard)
        if record is None:
            continue
        flight = state.in_flight.get(shard)
        before = state.positions.get(shard)
        lost = grants.checkpoint_lost(state, record)
        state.put_in_flight(shard, None)
        state.put_position(shard, offset)
        if lost and not grants.checkpoint_lost(state, record):
            # While it was lost the balance left the shard out.
            grants.want_rebalance(state, "CheckpointFound")
        advanced = advanced or before is None or offset > before
        if not record.started:
            state.put_shard(replace(record, started=True))
            grants.want_rebalance(state, "ShardsAppeared")
        if flight is not None and flight.forced and offset == flight.offset:
            _forced(state, shard, now)
        if not grants.finish_if_done(state, shard, now):
            _got_on(state, shard, now)
    if advanced and state.clocks.doublings:
        state.put_clocks(doublings=0)


def failed(state: State, request: CheckpointsFailed) -> None:
    """Phase two, the other way: nothing was written."""
    for shard in request.shards:
        state.put_in_flight(shard, None)


def force(state: State, request: ForceCheckpoint) -> ForceCheckpointReply:
    """Phase one of a forced checkpoint: taken whoever holds the shard. Raises UnknownShardError, InvalidRequestError."""
    record = state.shards.get(request.shard)
    identity = str(state.spec.identity)
    if record is None:
        raise UnknownShardError(
            f"group {identity} has no shard {request.shard}; its shards are named topic/partition",
            group=identity,
            shard=request.shard,
        )
    if request.offset < 0:
        raise InvalidRequestError(
            f"offset {request.offset} for shard {request.shard} is negative", group=identity, shard=request.shard
        )
    if request.shard in state.in_flight:
        raise InvalidRequestError(
            f"a checkpoint of shard {request.shard} is being written; try again", group=identity, shard=request.shard
        )
    state.put_in_flight(request.shard, InFlight(request.offset, forced=True))
    info = state.infos.get(request.shard)
    if record.state is not ShardState.OVER or (info is not None and request.offset >= info.end):
        return ForceCheckpointReply()
    after = lineage.descendants(request.shard, lambda shard: state.children.get(shard, ()))
    if not after:
        return ForceCheckpointReply()
    named = ", ".join(sorted(after)[:10])
    return ForceCheckpointReply(
        f"descendants of {request.shard} may be consumed already, so the order of its keys can break: {named}"
    )


def _validate_one(
    state: State, request: CheckpointRequest, checkpoint: ShardCheckpoint, begun: set[ShardId]
) -> CheckpointOutcome:
    shard = checkpoint.shard
    record = state.shards.get(shard)
    holds = (
        record is not None
        and record.state in grants.HELD
        and record.holder == request.consumer
        and record.incarnation == request.incarnation
        and record.owner_epoch == checkpoint.owner_epoch
    )
    if record is None or not holds:
        held = record is not None and record.holder is not None
        return CheckpointOutcome(
            shard,
            CheckpointResult.FENCED,
            checkpoint.offset,
            checkpoint.owner_epoch,
            actual_epoch=record.owner_epoch if record is not None and held else 0,
            holder=record.holder if record is not None else None,
        )

    def outcome(result: CheckpointResult) -> CheckpointOutcome:
        return CheckpointOutcome(
            shard, result, checkpoint.offset, checkpoint.owner_epoch, actual_epoch=record.owner_epoch, holder=record.holder
        )

    position = state.positions.get(shard)
    if position is not None and checkpoint.offset <= position:
        return outcome(CheckpointResult.UNCHANGED)
    if shard in begun:
        flight = state.in_flight[shard]
        state.put_in_flight(shard, InFlight(max(flight.offset, checkpoint.offset)))
        return outcome(CheckpointResult.OK)
    if not state.clocks.commits or shard in state.in_flight or shard in state.clocks.recreated:
        return outcome(CheckpointResult.WITHHELD)
    state.put_in_flight(shard, InFlight(checkpoint.offset))
    begun.add(shard)
    return outcome(CheckpointResult.OK)


def _forced(state: State, shard: ShardId, now: float) -> None:
    record = state.shards[shard]
    info = state.infos.get(shard)
    state.tell(
        Told(
            "CheckpointForced",
            f"checkpoint of shard {shard} was set to {state.positions[shard]}",
            shards=(shard,),
            warning=True,
        )
    )
    if record.state in grants.HELD:
        grants.fence_holder(state, record)
    elif record.state is ShardState.OVER and info is not None and state.positions[shard] < info.end:
        grants.rewind(state, record, now)
        grants.want_rebalance(state, "CheckpointForced")


def _got_on(state: State, shard: ShardId, now: float) -> None:
    holder = state.shards[shard].holder
    session = state.sessions.get(holder) if holder is not None else None
    if holder is not None and session is not None and session.progress_at != now:
        state.put_session(holder, replace(session, progress_at=now))
