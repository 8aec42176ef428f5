"""Sticky where consumers read different topics: as balanced as the subscriptions allow, moving little.

Called by `sticky`. The balance is optimal: no chain of moves from a consumer to one with at least two shards less is left,
which makes the loads as even as they can be (Harvey, Ladner, Lovasz, Tamir: Semi-matchings for bipartite graphs and load
balancing, 2003). The number of moves is small, not proven minimal. Written for groups of ordinary size: plain loops.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from shardherd.core.assignors.problem import NOBODY, Assignment, Problem


def sticky(problem: Problem) -> Assignment:
    """Keep what may be kept; the rest to the least loaded reader, those with the fewest readers first; then even out."""
    assert problem.subscribed is not None
    readers = [np.flatnonzero(problem.subscribed[:, topic]).tolist() for topic in range(problem.subscribed.shape[1])]
    takers = [[reader for reader in each if problem.receives[reader]] for each in readers]
    target: list[int] = problem.current.tolist()
    topics: list[int] = problem.topics.tolist()
    loads = [0] * len(problem.consumers)
    for row, holder in enumerate(target):
        if holder != NOBODY and holder not in readers[topics[row]]:
            target[row] = NOBODY
        if target[row] != NOBODY:
            loads[holder] += 1
    free = [row for row, holder in enumerate(target) if holder == NOBODY and takers[topics[row]]]
    for row in sorted(free, key=lambda row: len(readers[topics[row]])):
        target[row] = min(takers[topics[row]], key=loads.__getitem__)
        loads[target[row]] += 1
    while chain := _chain(problem, target, loads, takers):
        for row, taker in chain:
            loads[target[row]] -= 1
            loads[taker] += 1
            target[row] = taker
    return np.array(target, dtype=np.int64)


def _chain(problem: Problem, target: list[int], loads: list[int], takers: list[list[int]]) -> list[tuple[int, int]] | None:
    """The fewest moves (shard, to whom) that take one shard from a consumer to one with at least two less, if there are any.

    Of chains of one length that of the most loaded giver.
    """
    held: dict[int, list[int]] = {}
    for row, holder in enumerate(target):
        held.setdefault(holder, []).append(row)
    for rows in held.values():
        # What moves anyway comes before what would stay.
        rows.sort(key=lambda row: (target[row] == problem.current[row] and not bool(problem.pending[row]), -row))
    chains = []
    for giver in sorted(range(len(loads)), key=lambda consumer: -loads[consumer]):
        chain = _chain_from(giver, problem, held, loads, takers)
        if len(chain) == 1:
            return chain
        if chain:
            chains.append(chain)
    return min(chains, key=len, default=None)


def _chain_from(
    giver: int, problem: Problem, held: dict[int, list[int]], loads: list[int], takers: list[list[int]]
) -> list[tuple[int, int]]:
    """The shortest chain from this consumer, found breadth first; empty if there is none."""
    came: dict[int, tuple[int, int]] = {}
    queue = deque([giver])
    while queue:
        consumer = queue.popleft()
        if loads[consumer] <= loads[giver] - 2:
            chain = []
            while consumer != giver:
                row, before = came[consumer]
                chain.append((row, consumer))
                consumer = before
            return chain
        for row in held.get(consumer, ()):
            for taker in takers[int(problem.topics[row])]:
                if taker not in came and taker != giver:
                    came[taker] = (row, consumer)
                    queue.append(taker)
    return []
