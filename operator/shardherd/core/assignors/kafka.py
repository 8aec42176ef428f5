"""Range and RoundRobin, as Kafka assigns: a function of the shards and the consumers only, never of the past.

Called by `names`. A topic that no consumer reads is given to nobody.
"""

from __future__ import annotations

import numpy as np

from shardherd.core.assignors.problem import NOBODY, Assignment, Indexes, Problem


def ranges(problem: Problem) -> Assignment:
    """Range: per topic, contiguous blocks; the first (shards mod consumers) consumers get one more."""
    sizes = np.bincount(problem.topics)
    begins = np.cumsum(sizes) - sizes
    places = np.arange(len(problem.shards)) - begins[problem.topics]
    if not problem.differing:
        return _blocks(places, sizes[problem.topics], len(problem.consumers))
    target = np.full(len(problem.shards), NOBODY)
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
        return np.resize(np.arange(count), len(problem.shards))
    target = np.full(len(problem.shards), NOBODY)
    turn = 0
    for row, topic in enumerate(problem.topics):
        readers = _readers(problem, int(topic))
        if len(readers):
            later = readers[readers >= turn]
            target[row] = later[0] if len(later) else readers[0]
            turn = int(target[row]) + 1
    return target


def _blocks(places: Indexes, sizes: Indexes, count: int) -> Assignment:
    """Which of `count` consumers has the shard at each place of a topic of that size."""
    base, extra = sizes // count, sizes % count
    # In the larger blocks, which come first, the first of these is the greater or equal; in the smaller ones the second. Where
    # the base is 0 there are only larger blocks, of one shard.
    blocks: Assignment = np.maximum(places // (base + 1), (places - extra) // np.maximum(base, 1))
    return blocks


def _readers(problem: Problem, topic: int) -> Indexes:
    assert problem.subscribed is not None
    return np.flatnonzero(problem.subscribed[:, topic])
