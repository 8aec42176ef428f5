"""Range and RoundRobin, as Kafka assigns: a function of the shards and the consumers only, never of the past."""

from __future__ import annotations

import numpy as np

from shardherd.core.assignors.problem import Assignment, Problem
from shardherd.core.naming import split


def ranges(problem: Problem) -> Assignment:
    """Range: per topic, contiguous blocks; the first (shards mod consumers) get one more."""
    target = np.empty(len(problem.shards), dtype=np.int64)
    consumers = len(problem.consumers)
    topics = [split(shard)[0] for shard in problem.shards]
    begin = 0
    while begin < len(topics):
        end = begin
        while end < len(topics) and topics[end] == topics[begin]:
            end += 1
        base, extra = divmod(end - begin, consumers)
        sizes = np.full(consumers, base, dtype=np.int64)
        sizes[:extra] += 1
        target[begin:end] = np.repeat(np.arange(consumers), sizes)
        begin = end
    return target


def round_robin(problem: Problem) -> Assignment:
    """RoundRobin: the shards of all topics, one after the other, to one consumer after the other."""
    return np.arange(len(problem.shards), dtype=np.int64) % len(problem.consumers)
