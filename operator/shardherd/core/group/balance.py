"""What the group's assignor is asked and what it says: the current holding as arrays, with weights where it looks at them.

Called by the rebalance, and by the discovery with every look at the source. Takes no step itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardherd.core import assignors
from shardherd.core.assignors.problem import Indexes, names_array, zone_numbers
from shardherd.core.assignors.sticky import too_many
from shardherd.core.assignors.weighted import HYSTERESIS
from shardherd.core.group import cells, eligible, grants, rates, watermarks
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.event_reasons import SHARD_SIZES_UNKNOWN, WEIGHTS_CHANGED
from shardherd.core.model.nouns import ConsumerId, ShardId, ShardState, Weights, Zones
from shardherd.core.model.reasons import ASSIGNOR_FAILED

DRIFT = 2 * HYSTERESIS
"""Loads that have drifted apart by more than this part of their mean are evened out again: well above what Weighted leaves."""


def looks_at_weights(state: State) -> bool:
    """Whether the group's assignor may want to know how much work a shard is, and its positions tell."""
    return state.spec.source.counts_records and state.spec.settings.assignor not in assignors.WEIGHTLESS


def note_rates(state: State, now: float) -> None:
    """See how fast the shards grow; ask for a rebalance when that is first known, and when loads have drifted apart."""
    if not looks_at_weights(state):
        if state.rates is not None:
            state.put_rates(None)
        return
    before, unit = state.rates, state.spec.settings.weights
    if before is None:
        state.put_rates(rates.first(state.infos, now, unit))
    elif before.unit is not unit:
        state.put_rates(rates.in_unit(before, state.infos, unit))
        grants.want_rebalance(state, WEIGHTS_CHANGED)
    elif before.due(now):
        after = rates.again(before, state.infos, now)
        state.put_rates(after)
        if not before.known or _drifted(state, after):
            grants.want_rebalance(state, WEIGHTS_CHANGED)
    _note_sizes(state)


def wants_sizes(state: State, now: float) -> bool:
    """Whether the next look at the source should show how large the shards are, which is one more question to it."""
    unit = state.spec.settings.weights
    if unit is not Weights.BYTES or not looks_at_weights(state):
        return False
    return state.rates is None or state.rates.unit is not unit or state.rates.due(now)


def problem(state: State, consumers: list[ConsumerId]) -> assignors.Problem:
    """What the assignor is asked: the shards that can be placed now, in their order, and who has them."""
    index = {consumer: at for at, consumer in enumerate(consumers)}
    rows: list[int] = []
    current: list[int] = []
    pending: list[bool] = []
    stays: list[ShardId] = []
    takers = {consumer for consumer, incoming in state.incoming.items() if incoming and eligible.may_be_next(state, consumer)}
    present = {consumer for consumer in state.consumers if eligible.present(state, consumer)}
    shards, infos, positions, in_flight = state.shards, state.infos, state.positions, state.in_flight
    lost, unnoted = frozenset(grants.lost_checkpoints(state)) | cells.lost_shards(state), state.clocks.unnoted
    still_read = grants.still_read(state)
    there = infos.keys() | state.clocks.unlooked if state.clocks.unlooked else infos
    not_alloc, nobody = ShardState.NOT_ALLOC, assignors.NOBODY
    for row, shard in enumerate(state.order):
        record = shards[shard]
        if record.state is not_alloc:
            # As `grants.grantable`, for a hundred thousand shards.
            if shard not in positions or shard not in infos or shard in lost or shard in still_read:
                continue
            if (in_flight and not grants.movable(state, shard)) or shard in unnoted:
                continue
            owner, is_pending = nobody, False
        else:
            # WAIT and OVER have no holder. One whose holder has gone and must not move yet is left where it is.
            holder = record.holder
            if holder is None:
                continue
            if holder not in present or shard not in there or shard in lost:
                stays.append(shard)
                continue
            owner, is_pending = index.get(holder, nobody), False
            if record.next_consumer in takers:
                owner = index.get(record.next_consumer, nobody)
                is_pending = owner != nobody
        rows.append(row)
        current.append(owner)
        pending.append(is_pending)
    if stays and (number := state.spec.settings.cells):
        kept = cells.without(rows, state.order, stays, number)
        rows, current = [rows[at] for at in kept], [current[at] for at in kept]
        pending = [pending[at] for at in kept]
    interned = state.interned
    names = interned.names[rows] if len(rows) < len(interned.names) else interned.names
    weights = None
    if looks_at_weights(state) and state.rates is not None:
        weight = state.rates.weights
        weights = np.array([weight.get(shard, np.nan) for shard in names], dtype=np.float64)
    capacities = np.array([state.consumers[consumer].capacity for consumer in consumers], dtype=np.float64)
    shard_zones, consumer_zones = _zones(state, names.tolist(), consumers)
    receivers = frozenset(eligible.receivers(state))
    return assignors.Problem(
        names,
        names_array(consumers),
        interned.topics[rows],
        np.array(current, dtype=np.int64),
        np.array(pending, dtype=np.bool_),
        np.array([consumer in receivers for consumer in consumers], dtype=np.bool_),
        weights=weights,
        capacities=capacities if len(set(capacities.tolist())) > 1 else None,
        shard_zones=shard_zones,
        consumer_zones=consumer_zones,
    )


def target(state: State, asked: assignors.Problem, now: float) -> assignors.Assignment:
    """What the group's assignor answers.

    If it fails, waits for weights, or must move nothing for now, what is held stays and the rest is given out. What consumers
    above high give away it is asked about as if nobody held it. In a group with cells it is asked about those.
    """
    if not (number := state.spec.settings.cells):
        return _answer(state, asked, now)
    whole, cell_of = cells.together(asked, number)
    return cells.apart(_answer(state, whole, now), cell_of)


def _answer(state: State, asked: assignors.Problem, now: float) -> assignors.Assignment:
    name = state.spec.settings.assignor
    if state.spec.rebalance_paused or eligible.scarce(state):
        return assignors.kept(asked, asked.current)
    asked = _without_given(state, asked, now)
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
            state.emit(GroupEvent(ASSIGNOR_FAILED, error, warning=True))
    return answer


def _without_given(state: State, asked: assignors.Problem, now: float) -> assignors.Problem:
    """The same question, in which nobody has what consumers above high give away now, and nobody gives away what nobody takes.

    Which of its shards those are is Sticky's rule: of the topics of which it has most.
    """
    if not state.spec.settings.watermarks or not len(asked.shards) or not asked.receives.any():
        return asked
    held = asked.loads(asked.current).tolist()
    surplus = [watermarks.given_away(state, consumer, load, now) for consumer, load in zip(asked.consumers, held, strict=True)]
    for consumer in asked.consumers:
        # Also one of which nothing can be moved: else a rebalance would be tried with each of its heartbeats.
        if watermarks.may_give(state, consumer, now):
            watermarks.note_given(state, consumer, now)
    rows = too_many(asked, np.array(surplus, dtype=np.int64))
    if not len(rows):
        return asked
    current = asked.current.copy()
    current[rows] = assignors.NOBODY
    return replace(asked, current=current)


def _drifted(state: State, seen: rates.Rates) -> bool:
    """Whether the loads of two consumers differ by more than DRIFT of their mean."""
    weight, consumers = seen.weights, eligible.receivers(state)
    work = {each: sum(weight.get(shard, 0.0) for shard in state.held.get(each, ())) for each in consumers}
    capacity = {each: state.consumers[each].capacity for each in consumers}
    loads = [work[each] / capacity[each] for each in consumers]
    return bool(loads) and (max(loads) - min(loads)) * sum(capacity.values()) > DRIFT * sum(work.values())


def _note_sizes(state: State) -> None:
    """Bytes are wanted, but the source shows no sizes: say once what is used in their place."""
    seen = state.rates
    missed = seen is not None and seen.unit is Weights.BYTES and not seen.record_sizes
    unknown = missed and any(info.end > info.begin for info in state.infos.values())
    if unknown == state.clocks.sizes_unknown:
        return
    state.put_clocks(sizes_unknown=unknown)
    if unknown:
        message = (
            "the source does not show how many bytes its shards have, so they weigh their records per second;"
            " Kafka needs the right Describe on the Cluster for it"
        )
        state.emit(GroupEvent(SHARD_SIZES_UNKNOWN, message, warning=True))


def _zones(state: State, shards: list[ShardId], consumers: list[ConsumerId]) -> tuple[Indexes, Indexes] | tuple[None, None]:
    """The numbers of the zones of shards and consumers; None where they cannot matter."""
    of_consumers = [state.consumers[consumer].zone for consumer in consumers]
    if state.spec.settings.zones is not Zones.PREFER or not any(of_consumers):
        return None, None
    infos = state.infos
    of_shards = [infos[shard].zone if shard in infos else "" for shard in shards]
    if not any(of_shards):
        return None, None
    return zone_numbers(of_shards, of_consumers)
