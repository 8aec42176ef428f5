"""What Spark's log in the location of a cell says: up to where its query has planned, and up to where it has finished.

`location` brings the texts of the log's files; here they are read. The query's sources are this consumer's own and others. Of a
shard that several of them read, the one that is furthest behind says what is finished, as far as it has begun. What the log
knows of is what any of them has read: only if that is less than was said to be finished, it is an older copy. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shardherd.core.consumer.cells import Positions
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.offsets import Offsets, OffsetsError, parse


@dataclass(frozen=True, slots=True)
class Logged:
    """Positions, as next to read: the furthest after the last micro-batch that was planned, and after the last finished one."""

    planned: Mapping[ShardId, Offset]
    committed: Mapping[ShardId, Offset]


def batches(names: Iterable[str]) -> list[int]:
    """The numbers of the micro-batches in a folder of Spark's log, in order. It has other files for a moment, too."""
    return sorted(int(name) for name in names if name.isdecimal())


def offsets_in(text: str, group: str) -> list[Offsets]:
    """Ours in a file of Spark's offset log: a version, settings, and a line for each source. Raises OffsetsError.

    Offsets of another ConsumerGroup are an error: it is not this group's location.
    """
    found = []
    for line in text.splitlines()[2:]:
        try:
            raw = json.loads(line)
        except ValueError:
            continue  # another source's, or none yet
        if isinstance(raw, dict) and {"group", "shards", "v"} <= raw.keys():
            found.append(parse(raw, group))
    return found


def positions(found: Iterable[Offsets]) -> Positions:
    """Up to where all of them have read each shard."""
    return _together(found, min)


def furthest(found: Iterable[Offsets]) -> Positions:
    """Up to where any of them has read each shard."""
    return _together(found, max)


def _together(found: Iterable[Offsets], choose: Callable[[Offset, Offset], Offset]) -> Positions:
    together = Positions()
    for offsets in found:
        for shard, each in offsets.shards.items():
            together[shard] = choose(each.stop, together.get(shard, each.stop))
            if topic_id := offsets.topic_id(shard):
                together.topic_ids[shard] = topic_id
    return together


def committed_by(texts: Iterable[str], group: str) -> Positions:
    """The same of the end offsets in a progress event; those of other sources are passed over."""
    found = []
    for text in texts:
        try:
            found.append(parse(text, group))
        except (OffsetsError, ValueError):
            continue
    return positions(found)
