"""Sticky: counts differ by at most one, and of all such assignments one that moves the fewest shards.

The default assignor, and the one that fills the gaps of the others. The first assignment equals RoundRobin's.
"""

from __future__ import annotations

import numpy as np

from shardherd.core.assignors.problem import NOBODY, Assignment, Problem


def sticky(problem: Problem) -> Assignment:
    """Each consumer keeps what it has up to its fair share; the rest goes, in order, to whoever has least."""
    receives = problem.receives
    if not receives.any():
        return problem.current.copy()
    loads = np.bincount(problem.current[problem.current != NOBODY], minlength=len(problem.consumers)).astype(np.int64)
    quotas = shares(len(problem.shards), loads, receives)
    target = problem.current.copy()
    for consumer in np.flatnonzero(loads > quotas):
        rows = np.flatnonzero(problem.current == consumer)
        # Those on their way here first, then the last in order: moving the former costs nothing more.
        rows = rows[np.lexsort((-rows, ~problem.pending[rows]))]
        target[rows[: loads[consumer] - quotas[consumer]]] = NOBODY
    free = np.flatnonzero(target == NOBODY)
    kept = np.minimum(loads, quotas)
    target[free] = fill(len(free), kept, quotas, receives)
    return target


def shares(total: int, loads: Assignment, receives: np.typing.NDArray[np.bool_]) -> Assignment:
    """How many shards each consumer should hold; consumers that may not receive never get more than they have.

    The ones too many go to those that have more already, so that they need not give them up.
    """
    quotas = np.zeros(len(loads), dtype=np.int64)
    open_ = np.ones(len(loads), dtype=np.bool_)
    left = total
    while True:
        base = left // int(open_.sum())
        full = open_ & ~receives & (loads <= base)
        if not full.any():
            break
        quotas[full] = loads[full]
        left -= int(loads[full].sum())
        open_ &= ~full
    indexes = np.flatnonzero(open_)
    base, extra = divmod(left, len(indexes))
    quotas[indexes] = base
    by_load = indexes[np.lexsort((indexes, -loads[indexes]))]
    quotas[by_load[:extra]] += 1
    return quotas


def fill(count: int, loads: Assignment, quotas: Assignment, receives: np.typing.NDArray[np.bool_]) -> Assignment:
    """Who gets the next `count` shards: each goes to the least loaded consumer, the first in order of those."""
    consumers = np.flatnonzero(receives & (quotas > loads))
    room = (quotas - loads)[consumers]
    owners = np.repeat(consumers, room)
    starts = np.repeat(np.cumsum(room) - room, room)
    levels = np.arange(len(owners)) - starts + np.repeat(loads[consumers], room)
    order = np.lexsort((owners, levels))
    return owners[order][:count].astype(np.int64)
