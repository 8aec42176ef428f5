"""The nine transitions of a shard. This table is the law: nothing else changes a shard's state.

`grants` asks `step` for every change; the numbers are those of the specification. The diagram and the table of
docs/state-machine.md are made from it. Must not know who holds what or why.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from shardherd.core.model.errors import IllegalTransitionError
from shardherd.core.model.nouns import ShardState


class Cause(StrEnum):
    """What happened to a shard."""

    APPEARED = "Appeared"
    APPEARED_BEHIND = "AppearedBehindAncestors"
    ANCESTORS_DONE = "AncestorsDone"
    GRANTED = "Granted"
    HOLDER_GONE = "HolderGone"
    REVOKED = "Revoked"
    RELEASED = "Released"
    KEPT = "Kept"
    REWOUND = "Rewound"
    FINISHED = "Finished"


MEANINGS = MappingProxyType(
    {
        Cause.APPEARED: "the source shows a new shard that need not wait",
        Cause.APPEARED_BEHIND: "the source shows a new shard in an ordered group, and an ancestor is not read to its end",
        Cause.ANCESTORS_DONE: "every ancestor is read to its end or gone, or the group is not ordered any more",
        Cause.GRANTED: "it is given to a consumer, under a new epoch",
        Cause.HOLDER_GONE: "its holder expired, died or left",
        Cause.REVOKED: "it is to go to another consumer: the next consumer is known, the holder is asked to give it up",
        Cause.RELEASED: "the holder no longer names it: the next consumer gets it, under a new epoch",
        Cause.KEPT: "there is no next consumer any more: the holder keeps it, under the same epoch",
        Cause.REWOUND: "a forced checkpoint lies before its end",
        Cause.FINISHED: "it is closed, and its checkpoint is at its end",
    }
)
"""What each cause means, for the documentation."""


class Edge(NamedTuple):
    """One edge: its number in the specification and the state that it leads to."""

    number: int
    to: ShardState


TRANSITIONS = MappingProxyType(
    {
        (None, Cause.APPEARED_BEHIND): Edge(1, ShardState.WAIT),
        (None, Cause.APPEARED): Edge(1, ShardState.NOT_ALLOC),
        (ShardState.WAIT, Cause.ANCESTORS_DONE): Edge(2, ShardState.NOT_ALLOC),
        (ShardState.NOT_ALLOC, Cause.GRANTED): Edge(3, ShardState.ALREADY_ALLOC),
        (ShardState.ALREADY_ALLOC, Cause.HOLDER_GONE): Edge(4, ShardState.NOT_ALLOC),
        (ShardState.ALREADY_ALLOC, Cause.REVOKED): Edge(5, ShardState.TRANSFER),
        (ShardState.TRANSFER, Cause.RELEASED): Edge(6, ShardState.ALREADY_ALLOC),
        (ShardState.TRANSFER, Cause.KEPT): Edge(6, ShardState.ALREADY_ALLOC),
        (ShardState.OVER, Cause.REWOUND): Edge(7, ShardState.NOT_ALLOC),
        (ShardState.ALREADY_ALLOC, Cause.FINISHED): Edge(8, ShardState.OVER),
        (ShardState.TRANSFER, Cause.FINISHED): Edge(8, ShardState.OVER),
        (ShardState.TRANSFER, Cause.HOLDER_GONE): Edge(9, ShardState.NOT_ALLOC),
    }
)
"""(state before, or None for a shard that appears; cause) -> edge."""


def step(state: ShardState | None, cause: Cause) -> ShardState:
    """The state after `cause` in `state`. Raises IllegalTransitionError for every pair that is not in the table."""
    edge = TRANSITIONS.get((state, cause))
    if edge is None:
        before = "a new shard" if state is None else f"state {state}"
        raise IllegalTransitionError(f"{cause} is not possible in {before}; nothing was changed. Please report this.")
    return edge.to
