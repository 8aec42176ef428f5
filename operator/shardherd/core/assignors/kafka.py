"""Range and RoundRobin, as Kafka assigns: a function of the shards and the consumers only, never of the past.

Called by `names`. A topic that no consumer reads is given to nobody.
"""

from __future__ import annotations

import numpy as np

from shardherd.core.assignors.problem import NOBODY, Assignment, Indexes, Problem


def ranges(problem: Problem) -> Assignment:
    """Range: per topic, contiguous blocks; the first (shards mod consumers) consumers get one more."""
    sizes = np.bincount(problem.topics) if len(problem.topics) else np.empty(0, dtype=np.int64)
    begins = np.cumsum(sizes) - sizes
    places = np.arange(len(problem.shards)) - begins[problem.topics]
    if not problem.differing:
        return _blocks(places, sizes[problem.topics], len(problem.consumers))
    target = np.full(len(problem.shards), NOBODY, dtype=np.int64)
    for topic, size in enumerate(sizes):
        readers = _readers(problem, topic)
        if len(readers):
            rows = slice(begins[topic], begins[topic] + size)
            target[rows] = readers[_blocks(places[rows], np.full(size, size), len(readers))]
    return target


def round_robin(problem: Problem) -> Assignment:
    """RoundRobin: the shards of all topics, one after the other, to one consumer after the other.

    A consumer that does not read a shard's topic is passed over.
    """
    count = len(problem.consumers)
    if not problem.differing:
        return np.resize(np.arange(count, dtype=np.int64), len(problem.shards))
    target = np.full(len(problem.shards), NOBODY, dtype=np.int64)
    turn = 0
    for row, topic in enumerate(problem.topics):
        readers = _readers(problem, int(topic))
        if len(readers):
            later = readers[readers >= turn]
            target[row] = later[0] if len(later) else readers[0]
            turn = (int(target[row]) + 1) % count
    return target


def _blocks(places: Indexes, sizes: Indexes, count: int) -> Assignment:
    """Which of `count` consumers has the shard at each place of a topic of that size."""
    base, extra = sizes // count, sizes % count
    in_larger = extra * (base + 1)
    # Where the base is 0 there are only larger blocks, of one shard.
    smaller = extra + (places - in_larger) // np.maximum(base, 1)
    return np.where(places < in_larger, places // (base + 1), smaller).astype(np.int64, copy=False)


def _readers(problem: Problem, topic: int) -> Indexes:
    if problem.subscribed is None:
        return np.arange(len(problem.consumers), dtype=np.int64)
    return np.flatnonzero(problem.subscribed[:, topic]).astype(np.int64, copy=False)
