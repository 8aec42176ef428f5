"""Whether a topic of an ordered group grew, and which shards must be read how far until keys are in order again.

A key goes to hash(key) mod n. With another n it moves, also between shards that existed before, and no shard knows its
predecessor: a growing topic is no split. So order is lost until everything written before the growth has been read. What was
written to a topic is gone once it is made anew. Called by `discovery` and `views`; it reports, and withholds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from shardherd.core.group import grants
from shardherd.core.group.records import ShardRecord
from shardherd.core.model.naming import shard_key, split
from shardherd.core.model.nouns import Growth, Offset, ShardId, ShardInfo


def grown(known: Mapping[ShardId, ShardRecord], fresh: Iterable[ShardId], infos: Mapping[ShardId, ShardInfo]) -> list[Growth]:
    """One Growth for each known topic that has shards without parents among the fresh ones."""
    added = Counter(split(shard)[0] for shard in fresh if not infos[shard].parents)
    found = []
    for topic in sorted(added):
        before = sorted((shard for shard in known if split(shard)[0] == topic and shard in infos), key=shard_key)
        ends = tuple((shard, infos[shard].end) for shard in before if not grants.another(known[shard], infos[shard]))
        if ends:
            found.append(Growth(topic, len(before), len(before) + added[topic], ends))
    return found


def without_remade(growth: Growth, known: Mapping[ShardId, ShardRecord], infos: Mapping[ShardId, ShardInfo]) -> Growth:
    """The same without the ends of shards that were made anew since: what was below them cannot be read any more."""
    there = (shard for shard, _ in growth.ends if shard in known and shard in infos)
    remade = {shard for shard in there if grants.another(known[shard], infos[shard])}
    ends = ((shard, end) for shard, end in growth.ends if shard not in remade)
    return Growth(growth.topic, growth.before, growth.after, tuple(ends))


def unread(growth: Growth, positions: Mapping[ShardId, Offset], infos: Mapping[ShardId, ShardInfo]) -> Growth:
    """The part of it that is still to be read; with no `ends` left keys are in order again.

    Of a shard that the source shows no more nothing can be read. `infos` are empty until it was looked at.
    """
    return Growth(
        growth.topic,
        growth.before,
        growth.after,
        tuple((shard, end) for shard, end in growth.ends if positions.get(shard, 0) < end and (not infos or shard in infos)),
    )
