"""What Spark's commit log proves of a micro-batch that an earlier run finished, and that nobody checkpointed.

A query that keeps its checkpoint location first asks for what comes after the last micro-batch that Spark has logged as
finished. If that was of a query which was not refused, and this consumer has held a shard without a gap since it was handed
out, nobody else can have read it, and the range is finished for the group too. What was left out when a micro-batch was read
again is not: Spark commits it all the same, and the shard may come back to this consumer, whose it was all the time. Called by
the agent, which says when; whose a range still is, is the tracker's rule. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.consumer.tracker import ReadRange, Tracker
from shardherd.core.model.nouns import ShardId
from shardherd.spark.offsets import Offsets


class Adoption:
    """Of one query after the other: each begins with `query_began`. `proven` is what may still be adopted."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._asked = False
        self._left_out: dict[ShardId, ReadRange] = {}
        self.proven: Mapping[ShardId, ReadRange] = {}

    def left_out(self, ranges: Mapping[ShardId, ReadRange]) -> None:
        """These are of a micro-batch that Spark runs again, and were not read again."""
        self._left_out |= ranges

    def query_began(self) -> None:
        self._asked, self.proven = False, {}

    def asked(self, start: Offsets) -> None:
        """The query asks for what comes after this micro-batch. Later questions are about what this run has handed out."""
        if not self._asked and start.accepted:
            self.proven = self._unread(start.shards)
        self._asked = True

    def adopt(self) -> Mapping[ShardId, ReadRange]:
        """Take for finished what is proven and still this consumer's, and say what that was.

        Once: what is granted later begins at the coordinator's position. Not while something of before may still be written:
        then it has to be asked again.
        """
        if not self.proven or self._tracker.adrift:
            return {}
        proven, self.proven = self._unread(self.proven), {}
        # Whose a logged range still is, is the same question whether it is to be read again or was finished.
        ours = self._tracker.replay(proven) if proven else {}
        self._tracker.finish(ours)
        return ours

    def _unread(self, named: Mapping[ShardId, ReadRange]) -> dict[ShardId, ReadRange]:
        """Those with records that were read once, and would be read again."""
        positions = self._tracker.positions()
        return {
            shard: each
            for shard, each in named.items()
            if each.start < each.stop
            and (shard not in positions or positions[shard] < each.stop)
            and self._left_out.get(shard) != each
        }
