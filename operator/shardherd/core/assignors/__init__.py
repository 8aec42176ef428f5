"""Assignors: which consumer should hold which shard.

Each is a function of a `Problem` to an array of consumer indexes. `target` is what the rebalance calls. Plug-ins need what is
named here and nothing else. Must not know of states, epochs or time.
"""

from __future__ import annotations

from shardherd.core.assignors.names import (
    ASSIGNORS,
    EVEN,
    WEIGHTLESS,
    Assignor,
    AssignorFailedError,
    Assignors,
    kept,
    target,
    unknown,
)
from shardherd.core.assignors.problem import NOBODY, Assignment, Delta, Interned, Problem
from shardherd.core.assignors.sticky import sticky

__all__ = [
    "ASSIGNORS",
    "EVEN",
    "NOBODY",
    "WEIGHTLESS",
    "Assignment",
    "Assignor",
    "AssignorFailedError",
    "Assignors",
    "Delta",
    "Interned",
    "Problem",
    "kept",
    "sticky",
    "target",
    "unknown",
]
