"""Every interleaving of a small group: two consumers, two shards, one crash and one pause, over the real core.

Breadth first from a group at rest. So many messages as `explore` is told may be late, and are lost when the next one overtakes
them. States that differ only in how long the counters have run are one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.history_entries import BrokenError
from tests.simulation.sameness import key
from tests.simulation.small import Small, at_rest


@dataclass
class Explored:
    """How far it went: states by depth, and how many steps were taken."""

    states: int
    steps: int
    depth: int
    frontier: int


def explore(depth: int, delays: int = 1) -> Explored:
    """Every state within `depth` steps, with so many late messages. Raises BrokenError that names the steps to it."""
    first = at_rest()
    first.delays = delays
    seen = {hash(key(first))}
    paths: list[tuple[Small, tuple[str, ...]]] = [(first, ())]
    steps = 0
    for _ in range(depth):
        further: list[tuple[Small, tuple[str, ...]]] = []
        for small, path in paths:
            for name, step in small.steps():
                after = small.twin()
                steps += 1
                try:
                    step(after)
                except BrokenError as error:
                    raise BrokenError(f"{error}\n  after: " + "\n  then: ".join((*path, name))) from error
                known_as = hash(key(after))
                if known_as not in seen:
                    seen.add(known_as)
                    further.append((after, (*path, name)))
        paths = further
    return Explored(len(seen), steps, depth, len(paths))
