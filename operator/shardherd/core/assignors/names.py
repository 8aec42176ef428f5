"""Assignors by name, and the target that a rebalance works towards.

Called by the rebalance. The names here are ours; those of plug-ins are added where the program is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.problem import NOBODY, Assignment, Problem
from shardherd.core.assignors.sticky import sticky

Assignor = Callable[[Problem], Assignment]

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        "Range": ranges,
        "RoundRobin": round_robin,
        "Sticky": sticky,
        # Transfers are always incremental here, so the two differ in name only.
        "CooperativeSticky": sticky,
    }
)


def is_known(name: str) -> bool:
    """Whether there is an assignor of this name."""
    return name in ASSIGNORS


def target(name: str, problem: Problem) -> Assignment:
    """Who should hold each shard. Nobody who may not receive gets more than it has; an unknown name counts as Sticky."""
    if not problem.receives.any() or not len(problem.shards):
        return problem.current.copy()
    assignor = ASSIGNORS.get(name, sticky)
    wanted = assignor(problem)
    refused = (wanted != problem.current) & ~problem.receives[wanted] & (wanted != NOBODY)
    if not refused.any():
        return wanted
    wanted[refused] = problem.current[refused]
    orphans = np.flatnonzero(wanted == NOBODY)
    if not len(orphans):
        return wanted
    # What is meant for somebody who is not ready yet does not wait for it: the least loaded takes it for now.
    return sticky_rest(problem, wanted)


def sticky_rest(problem: Problem, wanted: Assignment) -> Assignment:
    """Give the shards without an owner to those that have least and may receive; all others stay where they are."""
    loads = problem.loads(wanted)
    result = wanted.copy()
    candidates = np.flatnonzero(problem.receives)
    for row in np.flatnonzero(wanted == NOBODY):
        consumer = candidates[np.argmin(loads[candidates])]
        result[row] = consumer
        loads[consumer] += 1
    return result
