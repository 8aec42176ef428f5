"""A stretch of one shard's records, which is what a task reads. Nothing here has behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from shardherd.core.model.nouns import Offset, ShardId


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The records of one shard with start <= offset < stop."""

    shard: ShardId
    start: Offset
    stop: Offset
