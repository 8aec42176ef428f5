"""What a query without a coordinator reads: topics by name or by pattern, or single shards.

`listing` asks Kafka for it; whoever takes a user's settings makes it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardherd.core.model.naming import split
from shardherd.core.model.nouns import ShardId


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read: topics by name or by pattern, or single shards."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    shards: tuple[ShardId, ...] = ()

    def names(self) -> tuple[str, ...]:
        """The topics that must be there; none with a pattern."""
        return tuple(sorted({split(shard)[0] for shard in self.shards})) or self.topics

    def reads(self, topic: str) -> bool:
        """Whether this topic is read. The user's own process matches the user's own pattern, as Spark's source does."""
        return re.fullmatch(self.pattern, topic) is not None if self.pattern else topic in self.names()

    def takes(self, shard: ShardId) -> bool:
        """Whether this shard of a selected topic is read."""
        return not self.shards or shard in self.shards
