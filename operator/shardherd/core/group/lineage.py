"""Which shards come before which, and whether their data is consumed.

An ordered group reads a shard only when all its ancestors are OVER. Called when shards appear, end, or the group's order
changes. Must not change anything by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardherd.core.model.nouns import ShardId

Parents = Callable[[ShardId], Iterable[ShardId]]


def ancestors(shard: ShardId, parents: Parents) -> frozenset[ShardId]:
    """All shards whose data comes before this one's; never the shard itself, even if the source names a circle."""
    found: set[ShardId] = set()
    stack = list(parents(shard))
    while stack:
        ancestor = stack.pop()
        if ancestor not in found and ancestor != shard:
            found.add(ancestor)
            stack.extend(parents(ancestor))
    return frozenset(found)


def descendants(shard: ShardId, children: Parents) -> frozenset[ShardId]:
    """All shards whose data comes after this one's."""
    return ancestors(shard, children)


def may_be_read(shard: ShardId, parents: Parents, done: Callable[[ShardId], bool]) -> bool:
    """Whether the data of every ancestor is consumed."""
    return all(done(ancestor) for ancestor in ancestors(shard, parents))
