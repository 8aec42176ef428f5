"""Assignors by name, and the target that a rebalance works towards.

Called by the rebalance. The names here are ours; those of plug-ins are added where the program is put together, and have a dot
in them. An assignor decides from its `Problem` alone and changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.problem import NOBODY, Assignment, Flags, Indexes, Problem
from shardherd.core.assignors.sticky import fill, sticky
from shardherd.core.assignors.weighted import weighted

Assignor = Callable[[Problem], Assignment]
Assignors = Mapping[str, Assignor]

ASSIGNORS: Assignors = MappingProxyType(
    {
        "Range": ranges,
        "RoundRobin": round_robin,
        "Sticky": sticky,
        # Transfers are always incremental here, so the two differ in name only.
        "CooperativeSticky": sticky,
        "Weighted": weighted,
    }
)

EVEN = frozenset({"RoundRobin", "Sticky", "CooperativeSticky"})
"""The assignors under which consumers that read the same hold numbers of shards that differ by at most one."""

WEIGHTLESS = EVEN | {"Range"}
"""The assignors that do not look at weights."""


class AssignorFailedError(Exception):
    """A plug-in failed or gave an answer that is none. The message names it and says how."""


def unknown(name: str, known: Iterable[str]) -> str:
    """What to tell a user whose group names an assignor that there is not."""
    return (
        f'spec.assignor is "{name}", which this operator does not have: set one of {", ".join(sorted(known))}, '
        "or install the plug-in of that name in the operator's image"
    )


def target(name: str, problem: Problem, assignors: Assignors = ASSIGNORS) -> Assignment:
    """Who should hold each shard. Nobody who may not receive gets more than it has.

    Raises ValueError if there is no assignor of this name, AssignorFailedError if it does not do what it must.
    """
    if name not in assignors:
        raise ValueError(unknown(name, assignors))
    if not problem.receives.any() or not len(problem.shards):
        return problem.current.copy()
    wanted = _checked(name, assignors[name], problem)
    refused = (wanted != problem.current) & ~problem.receives[wanted] & (wanted != NOBODY)
    if refused.any():
        # What is meant for somebody who is not ready yet does not wait for it: the least loaded takes it for now.
        return kept(problem, np.where(refused, problem.current, wanted))
    return wanted


def kept(problem: Problem, assignment: Assignment) -> Assignment:
    """This assignment, with the shards that it gives to nobody given to the least loaded that may receive."""
    free = np.flatnonzero(assignment == NOBODY)
    if not len(free) or not problem.receives.any() or problem.differing:
        return assignment
    loads = problem.loads(assignment)
    result = assignment.copy()
    result[free] = fill(loads, _room(loads, problem.receives, len(free)))
    return result


def _room(loads: Indexes, receives: Flags, count: int) -> Indexes:
    """How many of `count` shards each consumer gets if each goes to the least loaded, the first in order of those."""
    takers = np.flatnonzero(receives)
    ascending = np.sort(loads[takers])
    # What it takes to bring all that have less up to the k-th smallest load.
    costs = np.arange(1, len(ascending) + 1) * ascending - np.cumsum(ascending)
    sharing = int(np.searchsorted(costs, count))
    level, extra = divmod(count + int(ascending[:sharing].sum()), sharing)
    room = np.zeros_like(loads)
    room[takers] = np.maximum(level - loads[takers], 0)
    room[takers[loads[takers] <= level][:extra]] += 1
    return room


def _checked(name: str, assignor: Assignor, problem: Problem) -> Assignment:
    """Its answer, if it is one. The code of a plug-in is not ours: whatever it raises must not end the group."""
    if name in ASSIGNORS:
        return assignor(problem)
    try:
        answer = np.asarray(assignor(problem))
    except Exception as error:
        raise AssignorFailedError(f'assignor "{name}" failed: {type(error).__name__}: {error}') from error
    shape = (len(problem.shards),)
    if answer.shape != shape or not np.issubdtype(answer.dtype, np.integer):
        raise AssignorFailedError(
            f'assignor "{name}" answered {answer.dtype} of shape {answer.shape}; it must answer one integer for each shard, '
            f"shape {shape}"
        )
    wrong = (answer < NOBODY) | (answer >= len(problem.consumers))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise AssignorFailedError(
            f'assignor "{name}" gave shard {problem.shards[row]} to consumer {answer[row]}; there are consumers 0 to '
            f"{len(problem.consumers) - 1}, and {NOBODY} for nobody"
        )
    return answer.astype(np.int64)
