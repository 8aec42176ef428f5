"""Our side: a resident problem of a given size, and the two events on it.

Shards are named and ordered as in a group, topic by topic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardherd.core.assignors import NOBODY, Assignment, Delta, Problem, sticky
from shardherd.core.assignors.problem import names_array


class Ours:
    """`shards` over so many topics, and `consumers` of them all."""

    def __init__(self, shards: int, consumers: int, topics: int) -> None:
        each = shards // topics
        names = [f"topic-{topic:04d}/{partition}" for topic in range(topics) for partition in range(each)]
        self._empty = Problem(
            names_array(names),
            names_array([f"consumer-{number}" for number in range(consumers)]),
            np.repeat(np.arange(topics), each),
            np.full(shards, NOBODY, dtype=np.int64),
            np.zeros(shards, dtype=np.bool_),
            np.ones(consumers, dtype=np.bool_),
        )
        self._rested = replace(self._empty, current=sticky(self._empty))
        self._leaver = consumers // 2

    def full(self) -> tuple[Problem, Assignment, Delta]:
        """Everything is given out for the first time."""
        return _answered(self._empty)

    def one_leaves(self) -> tuple[Problem, Assignment, Delta]:
        """One consumer leaves: it is taken out of the arrays, and what it held goes to the others."""
        rested = self._rested
        count = len(rested.consumers)
        numbers = np.arange(count + 1)
        numbers[self._leaver + 1 :] -= 1
        # The last entry is the one of NOBODY.
        numbers[[self._leaver, count]] = NOBODY
        return _answered(
            replace(
                rested,
                consumers=np.delete(rested.consumers, self._leaver),
                receives=np.delete(rested.receives, self._leaver),
                current=numbers[rested.current],
            )
        )


def _answered(problem: Problem) -> tuple[Problem, Assignment, Delta]:
    target = sticky(problem)
    return problem, target, Delta.of(problem, target)
