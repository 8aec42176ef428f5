"""Cells: all shards of a group whose partition has the same remainder, of every topic. They move as one, with their state.

What the rest of `core.group` asks of a whole cell: what the assignor is asked in the place of its shards, whether a consumer
may be given one of them, and whose state is lost. In a group without cells every shard moves by itself, and nothing here has
anything to say. Takes no step itself, but for noting what a holder reports. Epochs and positions stay those of single shards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from shardherd.core.assignors.problem import NOBODY, Amounts, Assignment, Indexes, Problem, names_array
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.naming import cell
from shardherd.core.model.nouns import ConsumerId, FailingCell, Heartbeat, ShardId
from shardherd.core.model.reasons import STATE_LOST
from shardherd.core.model.wording import some, verb

NAMED = 5
"""Cells that a message names; it tells how many more there are."""


def mates(state: State, shard: ShardId) -> tuple[ShardId, ...]:
    """All shards of this shard's cell, itself included; none in a group without cells."""
    number = state.spec.settings.cells
    return state.cells[cell(shard, number)] if number else ()


def may_take(state: State, shard: ShardId, consumer: ConsumerId) -> bool:
    """Whether this consumer may be granted this shard as far as the rest of its cell goes.

    No other consumer holds any of it, nor does an earlier run of this one, and none of it is on its way to another one.
    """
    run = (consumer, state.consumers[consumer].incarnation)
    return all(
        (row.holder is None or (row.holder, row.incarnation) == run) and row.next_consumer is None
        for row in map(state.shards.__getitem__, mates(state, shard))
    )


def holder(state: State, shard: ShardId) -> ConsumerId | None:
    """Who holds this shard's cell, as far as one does; of several, any of them."""
    holders = (state.shards[mate].holder for mate in mates(state, shard))
    return next((each for each in holders if each is not None), None)


def held_in_parts(state: State, shard: ShardId) -> bool:
    """Whether several consumers hold shards of this shard's cell: they do by claims alone, when the ownership was lost."""
    holders = {state.shards[mate].holder for mate in mates(state, shard)}
    return len(holders - {None}) > 1


def is_lost(state: State, shard: ShardId) -> bool:
    """Whether the state of this shard's cell is lost: nobody is granted any of the cell before a reset that discards it."""
    lost = state.record.state_lost
    return bool(lost) and cell(shard, state.spec.settings.cells) in lost


def lost_shards(state: State) -> frozenset[ShardId]:
    """All shards of cells whose state is lost."""
    return frozenset(shard for number in state.record.state_lost for shard in state.cells.get(number, ()))


def note_lost(state: State, request: Heartbeat) -> tuple[ShardId, ...]:
    """A holder reports cells whose state is lost; the shards of those of which that was not known.

    Counted is what it says under its present grant, and of the present generation of the state.
    """
    known, run = state.record.state_lost, (request.consumer, request.incarnation)
    if not request.state_lost or not state.record.state_revision <= request.revision <= state.record.revision:
        return ()
    held = {cell(shard, state.spec.settings.cells) for shard in _granted(state, run, request.revision)}
    found = sorted({number for number in request.state_lost if number in held and number not in known})
    if not found:
        return ()
    state.put_record(state_lost=tuple(sorted((*known, *found))))
    state.touch((request.consumer,))
    shards = tuple(shard for number in found for shard in state.cells[number])
    message = f"{request.consumer} finds that {named(found)} lost: nothing of {verb(len(found), 'it', 'them')} is granted"
    state.emit(GroupEvent(STATE_LOST, message, consumer=request.consumer, shards=shards, warning=True))
    return shards


def failing_of(state: State, consumer: ConsumerId) -> tuple[FailingCell, ...]:
    """The cells of which a consumer has said that their queries fail, and of which it holds something."""
    said = state.sessions[consumer].failing
    if not said:
        return ()
    held = {cell(shard, state.spec.settings.cells) for shard in state.held.get(consumer, ())}
    return tuple(each for each in said if each.cell in held)


def named(lost: Collection[int]) -> str:
    """Cells whose state is lost, as the subject of a sentence and its verb."""
    return f"the state of {verb(len(lost), 'cell', 'cells')} {some([str(each) for each in lost], NAMED)} is"


def without(rows: list[int], order: list[ShardId], stays: Iterable[ShardId], cells: int) -> list[int]:
    """Places in `rows` of the shards that may be placed: not those in a cell of which something is held and cannot be moved."""
    fixed = {cell(shard, cells) for shard in stays}
    return [at for at, row in enumerate(rows) if cell(order[row], cells) not in fixed]


def together(asked: Problem, cells: int) -> tuple[Problem, Indexes]:
    """The same question with a cell in the place of its shards, and for each shard which cell of that question is its own.

    A cell is that consumer's who has most of its shards; what is free of it is to join that. It is as much work as its shards
    are: as many, where nothing more is known of them.
    """
    numbers = np.array([cell(shard, cells) for shard in asked.shards], dtype=np.int64)
    present, cell_of = np.unique(numbers, return_inverse=True)
    count_of, size = len(present), len(asked.consumers)
    held = np.zeros((count_of, size), dtype=np.int64)
    owned = asked.current != NOBODY
    np.add.at(held, (cell_of[owned], asked.current[owned]), 1)
    current = np.where(held.any(axis=1), held.argmax(axis=1), NOBODY) if size else np.full(count_of, NOBODY)
    # It is on its way to its current consumer if that has nothing of it yet.
    settled = np.zeros(count_of, dtype=np.bool_)
    np.logical_or.at(settled, cell_of, owned & ~asked.pending & (asked.current == current[cell_of]))
    whole = Problem(
        names_array([f"cell/{number}" for number in present.tolist()]),
        asked.consumers,
        np.zeros(count_of, dtype=np.int64),
        current,
        ~settled & (current != NOBODY),
        asked.receives,
        weights=_weights(asked, cell_of, count_of),
        capacities=asked.capacities,
        shard_zones=_zones(asked, cell_of, count_of),
        consumer_zones=asked.consumer_zones,
    )
    return whole, cell_of.astype(np.int64)


def apart(answer: Assignment, cell_of: Indexes) -> Assignment:
    """What was answered of cells, said of their shards."""
    result: Assignment = answer[cell_of]
    return result


def _granted(state: State, run: tuple[ConsumerId, object], revision: int) -> Iterable[ShardId]:
    """What this run holds, and was told of by this revision."""
    consumer, incarnation = run
    held = (state.shards[shard] for shard in state.held.get(consumer, ()))
    return (row.shard for row in held if row.incarnation == incarnation and row.revision <= revision)


def _weights(asked: Problem, cell_of: Indexes, count_of: int) -> Amounts:
    """How much work each cell is, as far as that is known of its shards."""
    if asked.weights is None:
        return np.bincount(cell_of, minlength=count_of).astype(np.float64)
    known = ~np.isnan(asked.weights)
    sums = np.bincount(cell_of[known], asked.weights[known], minlength=count_of)
    return np.where(np.bincount(cell_of[known], minlength=count_of) > 0, sums, np.nan)


def _zones(asked: Problem, cell_of: Indexes, count_of: int) -> Indexes | None:
    """The zone of each cell whose shards are all in one."""
    if asked.shard_zones is None:
        return None
    lowest = np.full(count_of, np.iinfo(np.int64).max)
    highest = np.full(count_of, NOBODY)
    np.minimum.at(lowest, cell_of, asked.shard_zones)
    np.maximum.at(highest, cell_of, asked.shard_zones)
    return np.where(lowest == highest, highest, NOBODY)
