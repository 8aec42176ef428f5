"""Weighted: as even in work as its shards allow, where shards differ in weight and consumers in capacity.

Called by `names`. The load of a consumer is the work of its shards divided by its capacity. What is free goes, the heaviest
first, to whoever is loaded least (Graham: Bounds on multiprocessing timing anomalies, 1969); then single shards move, and only
where a move lowers the load of its giver by more than HYSTERESIS of the mean below what it was, the taker's new load included.

So at rest, for every consumer a and every consumer b that may receive,

    load(a) - load(b) <= weight of the lightest shard of a / capacity of b + HYSTERESIS x mean load

which for equal weights is Sticky's difference of one plus the hysteresis. Weights that change by less move nothing. Of shards
that weigh the same, idle ones for instance, those of one topic are spread, without another load or another move. It counts
shards, as Sticky does, where no weight is known or no shard has any work, and where consumers read different topics.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort

import numpy as np

from shardherd.core.assignors.problem import NOBODY, Amounts, Assignment, Problem
from shardherd.core.assignors.spread import spread
from shardherd.core.assignors.sticky import sticky

HYSTERESIS = 0.1
"""A move must gain more than this part of the mean load: below that it costs more (two micro-batches) than it is worth."""

LEAST = 0.01
"""A shard weighs at least this part of the mean: an idle one is polled too, and all idle ones must not end up in one place."""

Shelf = list[tuple[float, int]]
"""The shards (weight, row) of one consumer, the lightest first."""


def weighted(problem: Problem) -> Assignment:
    """Raises ValueError if a weight is negative or a capacity is not positive."""
    weights, capacities = effective_weights(problem), effective_capacities(problem)
    if weights is None or problem.differing:
        return sticky(problem)
    target = problem.current.copy()
    _place(problem, weights, capacities, target)
    _even_out(problem, weights, capacities, target)
    return spread(problem, target, np.flatnonzero(target != problem.current), np.unique(weights, return_inverse=True)[1])


def effective_weights(problem: Problem) -> Amounts | None:
    """The weights to reckon with: unknown ones are the mean of the known. None where shards are to be counted instead."""
    if problem.weights is None:
        return None
    known = problem.weights[~np.isnan(problem.weights)]
    if len(known) and float(known.min()) < 0:
        raise ValueError(f"a shard has the weight {float(known.min())}: weights are amounts of work, at least 0")
    if not known.any():
        return None
    mean = float(known.mean())
    return np.maximum(np.where(np.isnan(problem.weights), mean, problem.weights), LEAST * mean)


def effective_capacities(problem: Problem) -> Amounts:
    """The capacities of the consumers, all 1 where none are given."""
    if problem.capacities is None:
        return np.ones(len(problem.consumers))
    if len(problem.capacities) and float(problem.capacities.min()) <= 0:
        raise ValueError(f"a consumer has the capacity {float(problem.capacities.min())}: it must be above 0")
    return problem.capacities


def work_of(weights: Amounts, assignment: Assignment, consumers: int) -> Amounts:
    """The summed weight of each consumer's shards."""
    held = assignment != NOBODY
    work = np.zeros(consumers)
    np.add.at(work, assignment[held], weights[held])
    return work


def _place(problem: Problem, weights: Amounts, capacities: Amounts, target: Assignment) -> None:
    """Give what is free to whoever is loaded least, the heaviest first."""
    work = work_of(weights, target, len(problem.consumers))
    heap = [(float(work[at] / capacities[at]), int(at)) for at in np.flatnonzero(problem.receives)]
    heapq.heapify(heap)
    free = np.flatnonzero(target == NOBODY)
    for row in free[np.argsort(-weights[free], stable=True)].tolist():
        load, taker = heap[0]
        target[row] = taker
        heapq.heapreplace(heap, (load + float(weights[row] / capacities[taker]), taker))


def _even_out(problem: Problem, weights: Amounts, capacities: Amounts, target: Assignment) -> None:
    """Move single shards while that gains enough.

    It ends: the giver's load falls, and the taker's stays below what the giver's was.
    """
    work = work_of(weights, target, len(problem.consumers))
    # A little more, so that rounding never decides.
    slack = (HYSTERESIS + 1e-9) * float(work.sum() / capacities.sum())
    takers = np.flatnonzero(problem.receives)
    shelves = _shelves(weights, target, len(problem.consumers))
    while move := _next_move(work, capacities, slack, takers, shelves):
        giver, taker, at = move
        weight, row = shelves[giver].pop(at)
        insort(shelves[taker], (weight, row))
        target[row] = taker
        # Summed anew, so that rounding does not add up.
        for each in (giver, taker):
            work[each] = sum(weight for weight, _ in shelves[each])


def _next_move(
    work: Amounts, capacities: Amounts, slack: float, takers: Assignment, shelves: list[Shelf]
) -> tuple[int, int, int] | None:
    """The next shard to move: giver, taker, and its place on the giver's shelf. The most loaded that gains enough gives."""
    loads = work / capacities
    least = float(loads[takers].min())
    order = np.argsort(-loads, stable=True)
    for giver in order[loads[order] - least > slack].tolist():
        shelf = shelves[giver]
        after = (work[takers] + shelf[0][0]) / capacities[takers]
        after[takers == giver] = np.inf
        taker = int(takers[np.argmin(after)])
        if loads[giver] - after.min() <= slack:
            continue
        # The heaviest of those that leave the taker below the giver and gain enough; the lightest does, whatever it weighs.
        even = (loads[giver] - loads[taker]) / (1 / capacities[giver] + 1 / capacities[taker])
        enough = (loads[giver] - slack) * capacities[taker] - work[taker]
        at = bisect_right(shelf, float(min(even, enough)), key=lambda pair: pair[0]) - 1
        return giver, taker, max(at, 0)
    return None


def _shelves(weights: Amounts, target: Assignment, consumers: int) -> list[Shelf]:
    shelves: list[Shelf] = [[] for _ in range(consumers)]
    held = np.flatnonzero(target != NOBODY)
    for row in held[np.argsort(weights[held], stable=True)].tolist():
        shelves[target[row]].append((float(weights[row]), row))
    return shelves
