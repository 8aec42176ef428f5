"""Assignors: which consumer should hold which shard.

Each is a function of a `Problem` to an array of consumer indexes. `target` is what the rebalance calls. Must not know of
states, epochs or time.
"""

from __future__ import annotations

from shardherd.core.assignors.names import ASSIGNORS, is_known, target
from shardherd.core.assignors.problem import NOBODY, Assignment, Delta, Problem

__all__ = ["ASSIGNORS", "NOBODY", "Assignment", "Delta", "Problem", "is_known", "target"]
