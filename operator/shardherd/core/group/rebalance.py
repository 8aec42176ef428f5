"""Who gets what: compares the assignor's target with what is, and takes the steps towards it.

Called by `group` after every request; does something only if a rebalance is due and nothing keeps it waiting. Moves as few
shards as the assignor allows; a transfer under way is not called off for a better target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardherd.core.assignors import Delta
from shardherd.core.group import balance, cells, counted, eligible, grants, heartbeats, liveness
from shardherd.core.group.records import ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.event_reasons import CONSUMER_JOINED, REBALANCED, TRANSFER_ENDED
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ConsumerId, ShardId, ShardState
from shardherd.core.model.wording import count

GATHER = 1.0
"""Seconds after a join in which further joins are gathered into one rebalance."""


@dataclass(slots=True)
class _Steps:
    """What a rebalance did, for its report."""

    granted: int = 0
    revoked: int = 0
    moved: int = 0
    again: bool = False
    waits: bool = False


def rebalance(state: State, now: float) -> None:
    """Take the steps that are due and possible now."""
    counted.returned(state)
    _keep_cells(state, _unsaved(state), now)
    if not state.clocks.due:
        return
    if grants.blocked(state):
        _keep_orphaned_transfers(state, now)
        return
    if not state.infos or _must_wait(state, now):
        return
    _keep_cells(state, _lost_on_the_way(state), now)
    reason = state.clocks.due
    state.put_clocks(due="", replan=False, assign_at=None)
    if reason == CONSUMER_JOINED:
        state.put_clocks(gather_until=now + GATHER)
    steps = _take_steps(state, now)
    heartbeats.release_moving(state, tuple(state.moving), now)
    kept = _keep_orphaned_transfers(state, now)
    if steps.waits and kept:
        # What waits for the rest of its cell to arrive is the holder's again, with that.
        grants.want_rebalance(state, TRANSFER_ENDED)
    if steps.again or steps.waits:
        state.put_clocks(replan=True)
    if steps.granted or steps.revoked:
        _report(state, steps, reason, now)


def may_come(state: State) -> bool:
    """Whether time, or another look at the source, may bring a rebalance. Where nobody is, only somebody who comes does."""
    return bool(state.clocks.due and state.sessions)


def transfer_ended(state: State) -> None:
    """A transfer is over; if the target could not be reached before because of it, try again."""
    if state.clocks.replan:
        grants.want_rebalance(state, TRANSFER_ENDED)


def _must_wait(state: State, now: float) -> bool:
    clocks = state.clocks
    if now < clocks.settle_until and not eligible.all_heard(state):
        return True
    if clocks.due == CONSUMER_JOINED and now < clocks.gather_until:
        return True
    nobody_holds = all(held.keys() <= clocks.unnamed for held in state.held.values())
    return nobody_holds and _first_assignment_waits(state, now)


def _first_assignment_waits(state: State, now: float) -> bool:
    """Nobody holds anything: wait until all wanted consumers are ready, but not for long after the first one is."""
    if not any(eligible.receives(state, consumer) for consumer in state.sessions):
        if state.clocks.assign_at is not None:
            state.put_clocks(assign_at=None)
        return True
    wanted = state.spec.wanted - len(state.spec.cordoned)
    # Counted only when it can be enough: while thousands join, this is asked at each of their heartbeats.
    if len(state.sessions) >= wanted and len(eligible.receivers(state)) >= wanted:
        return False
    if state.clocks.assign_at is None:
        state.put_clocks(assign_at=now + state.spec.settings.initial_assignment_delay)
    return state.clocks.assign_at is not None and now < state.clocks.assign_at


def _take_steps(state: State, now: float) -> _Steps:
    consumers = eligible.balanced(state)
    steps = _Steps()
    problem = balance.problem(state, consumers)
    counted.note(state, problem)
    _join_what_stays(state, steps, now)
    if not consumers:
        return steps
    delta = Delta.of(problem, balance.target(state, problem, now))
    for shard, consumer in zip(delta.shards.tolist(), delta.takers.tolist(), strict=True):
        _step(state, state.shards[shard], consumer, steps, now)
    # Whoever only keeps what it holds counts no more once it has given that up: Range and RoundRobin divide by their number.
    steps.again = steps.again or any(_gives_up_all(state, consumer) for consumer in consumers)
    return steps


def _join_what_stays(state: State, steps: _Steps, now: float) -> None:
    """Free shards of cells of which something cannot move, and which the assignor was not asked about: their holder has them.

    Something that is away and cannot be saved keeps its cell where it is for up to `forget_after`. What else there is of the
    cell, and comes to be of it, is read meanwhile.
    """
    if not state.spec.settings.cells:
        return
    rows = (state.shards[shard] for shard in sorted(state.clocks.left_out, key=shard_key))
    for record in (row for row in rows if row.state is ShardState.NOT_ALLOC and grants.grantable(state, row)):
        consumer = cells.holder(state, record.shard)
        if consumer is not None and eligible.present(state, consumer) and _may_join(state, record.shard, consumer):
            _grant(state, record, consumer, steps, now)


def _gives_up_all(state: State, consumer: ConsumerId) -> bool:
    """Whether all is in transfer that a consumer holds which may be given nothing."""
    moving = state.moving.get(consumer)
    if not moving or eligible.receives(state, consumer):
        return False
    return len(moving) == len(state.held[consumer])


def _step(state: State, record: ShardRecord, consumer: ConsumerId, steps: _Steps, now: float) -> None:
    if record.state is ShardState.NOT_ALLOC and not _may_join(state, record.shard, consumer):
        steps.waits = True
    elif record.state is ShardState.NOT_ALLOC:
        _grant(state, record, consumer, steps, now)
    elif record.state is ShardState.ALREADY_ALLOC:
        grants.revoke(state, record, consumer, now)
        steps.revoked += 1
        steps.moved += 1
    elif consumer == record.holder:
        # Not called off for a better target; only for want of a next consumer, and that is seen to below.
        steps.again = True
    else:
        grants.redirect(state, record, consumer)
        steps.revoked += 1


def _grant(state: State, record: ShardRecord, consumer: ConsumerId, steps: _Steps, now: float) -> None:
    grants.grant(state, record, consumer, now)
    steps.granted += 1
    steps.moved += record.last_holder not in (None, consumer)


def _may_join(state: State, shard: ShardId, consumer: ConsumerId) -> bool:
    """Whether a free shard of a cell may be given to the cell's consumer: once it alone has the rest of it, and is warm."""
    if not state.spec.settings.cells:
        return True
    return eligible.may_join_its_cell(state, consumer) and cells.may_take(state, shard, consumer)


def _keep_orphaned_transfers(state: State, now: float) -> bool:
    """Row 6 back to the holder, for transfers whose next consumer cannot take them and that found no other; whether any was."""
    kept = False
    for consumer in sorted(state.incoming):
        if not state.incoming[consumer] or eligible.may_be_next(state, consumer):
            continue
        for shard in sorted(state.incoming[consumer], key=shard_key):
            kept = _keep(state, shard, now) or kept
    return kept


def _keep_cells(state: State, cannot_move: Iterable[ShardId], now: float) -> None:
    """Row 6 back to the holder, for the cells of these shards: the rest of them is read by nobody before the whole can move."""
    for shard in sorted(cannot_move, key=shard_key):
        holder = state.shards[shard].holder
        for mate in cells.mates(state, shard):
            row = state.shards[mate]
            if row.state is ShardState.TRANSFER and row.holder == holder:
                grants.keep(state, row, now)
                grants.want_rebalance(state, TRANSFER_ENDED)


def _unsaved(state: State) -> list[ShardId]:
    """Shards of cells, in transfer and away, that their holders name still though they know of it.

    They have read of them what they can save nowhere, so they name them for up to `forget_after`.
    """
    away = state.clocks.away
    if not state.spec.settings.cells or not away:
        return []
    rows = (state.shards[shard] for moving in state.moving.values() for shard in moving.keys() & away.keys())
    return [row.shard for row in rows if _may_be_kept(state, row) and _is_still_named(state, row)]


def _is_still_named(state: State, row: ShardRecord) -> bool:
    session = state.sessions[row.holder] if row.holder is not None else None
    return session is not None and session.heard and session.revision >= row.revision and row.shard in session.named


def _lost_on_the_way(state: State) -> list[ShardId]:
    """Shards of cells, in transfer, whose checkpoint is lost: they move no more before somebody says where to read on."""
    if not state.spec.settings.cells:
        return []
    rows = (state.shards[shard] for moving in state.moving.values() for shard in moving)
    return [row.shard for row in rows if grants.checkpoint_lost(state, row) and _may_be_kept(state, row)]


def _may_be_kept(state: State, row: ShardRecord) -> bool:
    return row.holder is not None and row.incarnation is not None and liveness.is_current(state, row.holder, row.incarnation)


def _keep(state: State, shard: ShardId, now: float) -> bool:
    record = state.shards[shard]
    if record.holder is None or not eligible.present(state, record.holder):
        return False
    grants.keep(state, record, now)
    return True


def _report(state: State, steps: _Steps, reason: str, now: float) -> None:
    clocks = state.clocks
    state.put_clocks(
        rebalances=clocks.rebalances + 1, rebalanced_at=now + clocks.gap, rebalance_reason=reason, rebalance_moved=steps.moved
    )
    state.emit(
        GroupEvent(
            REBALANCED,
            f"{count(steps.granted, 'shard')} granted and {steps.revoked} revoked, because of {reason}",
            cause=reason,
            moved=steps.moved,
        )
    )
