"""Where the shards end of a group that reads them up to a time: as the source said first, and stored with each shard.

Called by `discovery` for every look, and by `cutovers`. Whoever asks again may hear of another end: records of before that time
come late, and retention and compaction delete those at it. What is over would be read once more for that.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.group.state import State
from shardherd.core.model.nouns import Offset, ShardId, ShardInfo


def known(state: State, shards: tuple[ShardInfo, ...]) -> tuple[ShardInfo, ...]:
    """These shards, each ending where it was closed first. What retention has deleted behind that is not missing."""
    if state.spec.source.ending_timestamp is None:
        return shards
    return tuple(_ended(state, info) for info in shards)


def keep(state: State) -> None:
    """Store where the shards end that the source shows."""
    if state.spec.source.ending_timestamp is None:
        return
    for shard, info in state.infos.items():
        row = state.shards[shard]
        if not info.open and row.end != (info.source_id, info.end):
            state.put_shard(row._replace(end=(info.source_id, info.end)))


def within(state: State, log_ends: Mapping[ShardId, Offset]) -> Mapping[ShardId, Offset]:
    """Ends of logs, none behind that of its shard; without those of which that is not known yet."""
    if state.spec.source.ending_timestamp is None:
        return log_ends
    rows = {shard: state.shards[shard].end for shard in log_ends if shard in state.shards}
    return {shard: min(log_ends[shard], end[1]) for shard, end in rows.items() if end is not None}


def _ended(state: State, info: ShardInfo) -> ShardInfo:
    row = state.shards.get(info.shard)
    if info.open or row is None or row.end is None or row.end[0] != info.source_id:
        return info
    end = row.end[1]
    if info.end == end and info.begin <= end:
        return info
    return info._replace(begin=min(info.begin, end), end=end)
