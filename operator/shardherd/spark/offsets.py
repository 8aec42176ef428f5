"""The source's offsets: what Spark logs for a micro-batch, so that a replay needs nothing else.

`{"group": UID, "shards": {id: [from, to, epoch]}, "v": 1, "warm": n}` with sorted keys: Spark compares offsets as text.
There is `"topics": {name: id}` too, without a coordinator once the positions to start at were resolved. With brokers that say
it there is `"leaders": {id: epoch}`, and in a group `"accepted": true`, once that is known; older versions write neither, and
pass over them. Used by the source (in Spark's processes), by the agent and by its standalone counterpart; decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import split
from shardherd.core.model.nouns import ShardId

VERSION = 1

STANDALONE = "standalone"
"""In place of a group's UID: there is no coordinator."""


class OffsetsError(ValueError):
    """An offset that is not ours, for example from a checkpoint location of another source. Says what to do."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where one micro-batch ends: the range of every shard, and how many warm-up batches were asked for so far.

    `topics` are the ids of the topics that are read, as far as they are known; without a coordinator None before the very
    first look. `leaders` are the
    epochs under which the leaders of shards had records up to the end of each range, as far as they are known.
    `accepted`: the query that it was handed to is one that a group may have, as its first progress event has shown.
    """

    group: str
    warm: int = 0
    shards: Mapping[ShardId, ReadRange] = field(default_factory=dict)
    topics: Mapping[str, str] | None = None
    leaders: Mapping[ShardId, int] = field(default_factory=dict)
    accepted: bool = False

    def topic_id(self, shard: ShardId) -> str:
        """The id of this shard's topic, empty if it is not known."""
        return (self.topics or {}).get(split(shard)[0], "")

    def as_dict(self) -> dict[str, Any]:
        """For Spark, with every key in sorted order."""
        shards = {shard: [each.start, each.stop, each.epoch] for shard, each in sorted(self.shards.items())}
        found: dict[str, Any] = {"accepted": True} if self.accepted else {}
        found["group"] = self.group
        if self.leaders:
            found["leaders"] = dict(sorted(self.leaders.items()))
        found["shards"] = shards
        if self.topics is not None:
            found["topics"] = dict(sorted(self.topics.items()))
        return {**found, "v": VERSION, "warm": self.warm}


def topics_of(shards: Iterable[ShardId], ids: Mapping[ShardId, str]) -> dict[str, str] | None:
    """The ids of these shards' topics, given those by shard; None if there are none."""
    return {split(shard)[0]: ids[shard] for shard in shards if shard in ids} or None


def parse(raw: Mapping[str, Any] | str, group: str) -> Offsets:
    """The offsets in `raw`, which must be of this group (its UID). Raises OffsetsError."""
    found = json.loads(raw) if isinstance(raw, str) else raw
    try:
        if found["v"] != VERSION:
            raise OffsetsError(f"the checkpoint location holds offsets of version {found['v']}, this source writes {VERSION}")
        if found["group"] != group and STANDALONE in (found["group"], group):
            raise OffsetsError(
                "the checkpoint location holds offsets of the other way to use this source (in a ConsumerGroup, or with "
                "kafka.bootstrap.servers): use a checkpointLocation of its own"
            )
        if found["group"] != group:
            raise OffsetsError(
                f"the checkpoint location holds offsets of group {found['group']}, this consumer belongs to {group}: "
                "use a checkpointLocation of its own (shardherd's session sets one for every group and pod)"
            )
        shards = {ShardId(shard): ReadRange(*map(int, each)) for shard, each in found["shards"].items()}
        leaders = {ShardId(shard): int(epoch) for shard, epoch in found.get("leaders", {}).items()}
        return Offsets(group, int(found["warm"]), shards, found.get("topics"), leaders, bool(found.get("accepted")))
    except OffsetsError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise OffsetsError(
            f"the checkpoint location holds offsets of another source: {str(found)[:200]}; use a checkpointLocation of its own"
        ) from error
