"""Sticky: counts differ by at most one, and of all such assignments one that moves the fewest shards.

The default assignor, and the one that fills the gaps of the others. Balance comes first, then the fewest moves, then zones: of
the shards that one consumer has too many, those of other zones go first, and what is free goes to its own zone while there is
room. Among what is equal in all of these each topic is spread (`spread`). No shard moves for its zone alone, or to spread its
topic. The first assignment equals RoundRobin's.

Who has too much, and who gets what, is computed for all consumers at once: linear in the shards, but for sorting those of who
gives some up.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from shardherd.core.assignors import subscriptions
from shardherd.core.assignors.kafka import round_robin
from shardherd.core.assignors.problem import NOBODY, Assignment, Flags, Indexes, Problem
from shardherd.core.assignors.spread import Spare, spread

_RADIX = 1 << 16
"""numpy sorts integers of 16 bits by radix, in linear time."""


def sticky(problem: Problem) -> Assignment:
    """Each consumer keeps what it has up to its fair share; the rest goes, in order, to whoever has least."""
    if not problem.receives.any():
        return problem.current.copy()
    if problem.differing:
        return subscriptions.sticky(problem)
    if not (problem.current != NOBODY).any() and problem.receives.all() and problem.shard_zones is None:
        return round_robin(problem)
    loads = problem.loads(problem.current)
    settled = problem.loads(np.where(problem.pending, NOBODY, problem.current)) if problem.pending.any() else loads
    quotas, spare = shares(len(problem.shards), loads, settled, problem.receives)
    target = problem.current.copy()
    target[too_many(problem, np.maximum(loads - quotas, 0))] = NOBODY
    moved = free = np.flatnonzero(target == NOBODY)
    room = np.maximum(quotas - loads, 0)
    if problem.shard_zones is not None and problem.consumer_zones is not None:
        free, room = _fill_zones(problem, target, free, quotas, room)
    target[free] = fill(quotas - room, room)
    if problem.shard_zones is not None and problem.consumer_zones is not None:
        return spread(problem, target, moved, problem.shard_zones)
    return spread(problem, target, moved, spare=spare)


def shares(total: int, loads: Indexes, settled: Indexes, receives: Flags) -> tuple[Indexes, Spare | None]:
    """How many shards each consumer should hold; consumers that may not receive never get more than they have.

    `settled` counts the shards of each load that are not on their way. Where the shares cannot be equal, the larger ones go to
    those that would have to give up a settled shard otherwise, then to those that have most. Among whom they could be dealt out
    otherwise without another move is said too.
    """
    quotas = np.zeros_like(loads)
    open_ = np.ones_like(receives)
    left = total
    while True:
        base, extra = divmod(left, int(open_.sum()))
        full = open_ & ~receives & (loads <= base)
        if not full.any():
            break
        quotas[full] = loads[full]
        left -= int(loads[full].sum())
        open_ &= ~full
    indexes = np.flatnonzero(open_)
    quotas[indexes] = base
    by_need = indexes[np.lexsort((-loads[indexes], settled[indexes] <= base))]
    quotas[by_need[:extra]] += 1
    return quotas, _spare(by_need, extra, base, loads, settled)


def _spare(by_need: Indexes, extra: int, base: int, loads: Indexes, settled: Indexes) -> Spare | None:
    """Of the two groups, who would give up a settled shard and who takes some, the one that the larger shares divide."""
    for gives, group in ((True, settled[by_need] > base), (False, loads[by_need] <= base)):
        larger = int(group[:extra].sum())
        if 0 < larger < int(group.sum()):
            members = by_need[group]
            return Spare(members, np.arange(len(members)) >= larger, gives)
    return None


def too_many(problem: Problem, surplus: Indexes) -> Indexes:
    """The shards that each consumer gives up, `surplus` (by consumer) of its own.

    Those on their way to it first, as moving them costs nothing more; then those of other zones; then those of the topics of
    which it has most. Where it has as many of several topics, they take turns from consumer to consumer. Of one topic the last
    in order go.
    """
    gives = np.append(surplus, 0) > 0
    if not gives.any():
        return problem.current[:0]
    rows = np.flatnonzero(gives[problem.current])
    holders, topics = problem.current[rows], problem.topics[rows]
    # Topic by topic, and in each what is kept longest first: a shard's level says how many of its topic are kept before it.
    if _has_reasons(problem):
        reluctance = _reluctance(problem, rows, holders)
        order = np.lexsort((-reluctance, topics, holders))
    else:
        reluctance = np.zeros_like(holders)
        order = np.argsort(holders.astype(np.uint16) if len(surplus) < _RADIX else holders, kind="stable")
    rows, holders, topics, reluctance = rows[order], holders[order], topics[order], reluctance[order]
    levels = _places((holders[1:] != holders[:-1]) | (topics[1:] != topics[:-1]))
    count, highest = int(problem.topics[-1]) + 1, int(levels.max())
    turns = (count - 1 - topics - (np.cumsum(surplus) - surplus)[holders]) % count
    order = np.argsort(((holders * 3 + reluctance) * (highest + 1) + highest - levels) * count + turns)
    rows, holders = rows[order], holders[order]
    return rows[_places(holders[1:] != holders[:-1]) < surplus[holders]]


def _places(begins: Flags) -> Indexes:
    """The place of each in its run, where a run begins at the first and wherever it is said of the others."""
    places = np.arange(len(begins) + 1)
    starts = np.where(np.append(True, begins), places, 0)
    result: Indexes = places - np.maximum.accumulate(starts)
    return result


def fill(loads: Indexes, room: Indexes) -> Indexes:
    """The consumers of the next `room.sum()` shards: each goes to the least loaded with room, the first in order of those.

    Computed level by level: between two loads that occur, the same consumers take turns.
    """
    takers = np.flatnonzero(room > 0)
    begins, ends = loads[takers], (loads + room)[takers]
    steps = np.unique(np.concatenate((begins, ends)))
    turns = [np.tile(takers[(begins <= low) & (ends > low)], high - low) for low, high in pairwise(steps.tolist())]
    return np.concatenate([takers[:0], *turns])


def _has_reasons(problem: Problem) -> bool:
    return problem.shard_zones is not None or bool(problem.pending.any())


def _reluctance(problem: Problem, rows: Indexes, holders: Indexes) -> Indexes:
    """How much a consumer wants to keep each of these shards: 0 to 2."""
    settled = ~problem.pending[rows]
    if problem.shard_zones is None or problem.consumer_zones is None:
        return np.where(settled, 1, 0)
    at_home = problem.shard_zones[rows] == problem.consumer_zones[holders]
    return np.where(settled, 1 + at_home, 0)


def _fill_zones(problem: Problem, target: Assignment, free: Indexes, quotas: Indexes, room: Indexes) -> tuple[Indexes, Indexes]:
    """Give free shards to consumers of their own zones; what is still free, and how much room is left."""
    assert problem.shard_zones is not None
    assert problem.consumer_zones is not None
    for zone in np.unique(problem.shard_zones[free]):
        if zone == NOBODY:
            continue
        inside = np.where(problem.consumer_zones == zone, room, 0)
        rows = free[problem.shard_zones[free] == zone]
        takers = fill(quotas - inside, inside)[: len(rows)]
        target[rows[: len(takers)]] = takers
        room = room - np.bincount(takers, minlength=len(room))
    return free[target[free] == NOBODY], room
