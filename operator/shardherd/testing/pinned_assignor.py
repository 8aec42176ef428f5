"""The assignor of a played group: shards that a test has pinned to consumers, and an ordinary assignor for the rest.

It is a plug-in like any other: the coordinator asks it and takes the same steps towards its answer. Called by `group`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardherd.core.assignors import NOBODY, Assignment, Assignor, Problem
from shardherd.core.model.nouns import ConsumerId, ShardId


def pinned(wanted: Mapping[ShardId, ConsumerId], aside: ConsumerId, rest: Assignor) -> Assignor:
    """An assignor that gives shards to whom `wanted` names, if that consumer is there.

    What it does not name goes as `rest` says to all but `aside`, which gets nothing else.
    """

    def assign(problem: Problem) -> Assignment:
        index = {consumer: at for at, consumer in enumerate(problem.consumers.tolist())}
        asked = problem
        if (apart := index.get(aside, NOBODY)) != NOBODY:
            receives = problem.receives.copy()
            receives[apart] = False
            current = np.where(problem.current == apart, NOBODY, problem.current)
            asked = replace(problem, receives=receives, current=current)
        answer = rest(asked) if asked.receives.any() else asked.current.copy()
        for row, shard in enumerate(problem.shards.tolist()):
            if (at := index.get(wanted.get(shard, ConsumerId("")), NOBODY)) != NOBODY:
                answer[row] = at
        return answer

    return assign
