"""Up to where a query with Trigger.AvailableNow reads: to what there was when it began.

The agent makes one when the trigger is prepared, and asks it for every micro-batch. Of Kafka a micro-batch may end anywhere
before that. Of Kinesis it ends where a record was found, so that it is told when the query has read all, and when it only
waits for a find. Pure: what is known by now, and where each shard is read on, are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.leader_epochs import EndOffsets

LOOKED_FOR = 60.0
"""Seconds without a find after which all that is left is handed out: its tasks see what is there."""


class AvailableNow:
    """The bounds of one query, of the shards that it had when it began. What came later is not its own."""

    def __init__(self, bounds: EndOffsets) -> None:
        self._bounds = bounds

    def ends(self, known: Mapping[ShardId, Offset], looked_for: float) -> Mapping[ShardId, Offset]:
        """Up to where each shard may be read now. For so many seconds nothing was found, although Kinesis was asked."""
        if looked_for >= LOOKED_FOR:
            # What was there and is not found may be gone. Nobody would ever find it: a task tells what is lost.
            return self._bounds
        ends = {shard: min(known.get(shard, 0), end) if is_of_kinesis(shard) else end for shard, end in self._bounds.items()}
        return EndOffsets(ends, self._bounds.leaders)

    def left(self, positions: Mapping[ShardId, Offset]) -> bool:
        """Whether there is anything to hand out once nothing holds it up. A shard that has moved is not waited for."""
        return any(at < self._bounds.get(shard, 0) for shard, at in positions.items())

    def unread(self, positions: Mapping[ShardId, Offset]) -> bool:
        """Whether the query must not end yet, although nothing may be handed out just now.

        Kinesis may say for a moment that it has nothing, although records follow. A shard that has moved is not waited for.
        """
        return any(is_of_kinesis(shard) and at < self._bounds.get(shard, 0) for shard, at in positions.items())
