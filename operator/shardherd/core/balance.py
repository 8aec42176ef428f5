"""What the group's assignor is asked and what it says: the current holding as arrays, with weights where it looks at them.

Called by the rebalance, and by the discovery with every look at the source. Takes no step itself.
"""

from __future__ import annotations

import numpy as np

from shardherd.core import assignors, eligible, grants, rates
from shardherd.core.assignors.problem import names_array
from shardherd.core.assignors.weighted import HYSTERESIS
from shardherd.core.conditions import ASSIGNOR_FAILED
from shardherd.core.model import ConsumerId, ShardState
from shardherd.core.state import State, Told

DRIFT = 2 * HYSTERESIS
"""Loads that have drifted apart by more than this part of their mean are evened out again: well above what Weighted leaves."""


def looks_at_weights(state: State) -> bool:
    """Whether the group's assignor may want to know how much work a shard is."""
    return state.spec.settings.assignor not in assignors.WEIGHTLESS


def note_rates(state: State, now: float) -> None:
    """See how fast the shards grow; ask for a rebalance when that is first known, and when loads have drifted apart."""
    if not looks_at_weights(state):
        if state.rates is not None:
            state.put_rates(None)
        return
    before = state.rates
    if before is None:
        state.put_rates(rates.first(state.infos, now))
    elif before.due(now):
        after = rates.again(before, state.infos, now)
        state.put_rates(after)
        if not before.known or _drifted(state, after):
            grants.want_rebalance(state, "WeightsChanged")


def problem(state: State, consumers: list[ConsumerId]) -> assignors.Problem:
    """What the assignor is asked: the shards that can be placed now, in their order, and who has them."""
    index = {consumer: at for at, consumer in enumerate(consumers)}
    rows: list[int] = []
    current: list[int] = []
    pending: list[bool] = []
    takers = {consumer for consumer, incoming in state.incoming.items() if incoming and eligible.may_be_next(state, consumer)}
    present = {consumer for consumer in state.consumers if eligible.present(state, consumer)}
    infos = state.infos
    for row, shard in enumerate(state.order):
        record = state.shards[shard]
        if record.state is ShardState.NOT_ALLOC:
            if not grants.grantable(state, record):
                continue
        elif record.holder not in present or shard not in infos or grants.checkpoint_lost(state, record):
            # WAIT and OVER have no holder. One whose holder has gone and must not move yet is left where it is.
            continue
        owner, is_pending = record.holder, False
        if record.next_consumer in takers:
            owner, is_pending = record.next_consumer, record.next_consumer in index
        rows.append(row)
        current.append(assignors.NOBODY if owner is None else index.get(owner, assignors.NOBODY))
        pending.append(is_pending)
    interned = state.interned
    names = interned.names[rows] if len(rows) < len(interned.names) else interned.names
    weights = None
    if looks_at_weights(state) and state.rates is not None:
        per_second = state.rates.per_second
        weights = np.array([per_second.get(shard, np.nan) for shard in names], dtype=np.float64)
    return assignors.Problem(
        names,
        names_array(consumers),
        interned.topics[rows],
        np.array(current, dtype=np.int64),
        np.array(pending, dtype=np.bool_),
        np.array([eligible.receives(state, consumer) for consumer in consumers], dtype=np.bool_),
        weights=weights,
    )


def target(state: State, asked: assignors.Problem) -> assignors.Assignment:
    """What the group's assignor answers.

    If it fails, waits for weights, or must move nothing for now, what is held stays and the rest is given out.
    """
    name = state.spec.settings.assignor
    if state.spec.rebalance_paused:
        return assignors.kept(asked, asked.current)
    if name == "Weighted" and any(state.held.values()) and (state.rates is None or not state.rates.known):
        return assignors.kept(asked, asked.current)
    error = ""
    try:
        answer = assignors.target(name, asked, state.assignors)
    except assignors.AssignorFailedError as failed:
        error = str(failed)
        answer = assignors.kept(asked, asked.current)
    if error != state.clocks.assignor_error:
        state.put_clocks(assignor_error=error)
        if error:
            state.tell(Told(ASSIGNOR_FAILED, error, warning=True))
    return answer


def _drifted(state: State, seen: rates.Rates) -> bool:
    """Whether the loads of two consumers differ by more than DRIFT of their mean."""
    per_second = seen.per_second
    work = [sum(per_second.get(shard, 0.0) for shard in state.held.get(consumer, ())) for consumer in eligible.receivers(state)]
    return (max(work, default=0.0) - min(work, default=0.0)) * len(work) > DRIFT * sum(work)
