"""What a shard waits for since its topic grew, and how far that is, in words for users.

Called by `conditions` and `diagnosis`, and by the commands that look at groups. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.model import growths
from shardherd.core.model.nouns import GroupView, Growth, ShardId, ShardState, ShardView
from shardherd.core.model.wording import count

By = Mapping[ShardId, ShardView]


def by_name(view: GroupView) -> By:
    """The shards by their names, if any of them may wait since a topic grew; else none is asked for."""
    return {shard.shard: shard for shard in view.shards} if any(each.keeps for each in view.growths) else {}


def waits_for(view: GroupView, shard: ShardId, known: By) -> str:
    """What this shard waits for, the oldest of its topic's growths first; empty if that is nothing of a growth."""
    said = ""
    for growth, parent in growths.parents(view.growths, shard):
        end, row = growths.cutover(growth, parent), known.get(parent)
        grew = f"topic {growth.topic} grew from {growth.before} to {growth.after} partitions, and it waits for {parent}"
        at = row.checkpoint if row is not None else None
        if end is None:
            said = f"{grew}: how far that must be read is looked up once producers have noticed (spec.source.kafka.growth)"
        elif at is None or (at < end and (row is None or row.begin is None or row.begin < end)):
            said = f"{grew} to be read to {end}; it is read to {'nowhere yet' if at is None else at}"
    return said


def waiting(view: GroupView) -> str:
    """What waits since topics grew, for the condition; empty if nothing does."""
    known = by_name(view)
    found = [
        (shard.shard, why)
        for shard in view.shards
        if shard.state is ShardState.WAIT and (why := waits_for(view, shard.shard, known))
    ]
    if not found:
        return ""
    more = f" So do {count(len(found) - 1, 'shard')} more." if len(found) > 1 else ""
    return f"{found[0][0]} waits: {found[0][1]}.{more}"


def lost(growth: Growth) -> str:
    """What to do another time with a topic that grew by no multiple; empty if it grew by one."""
    if growth.after % growth.before == 0:
        return ""
    least = (growth.after // growth.before + 1) * growth.before
    return f" With a multiple of {growth.before}, such as {least}, order would have been kept."
