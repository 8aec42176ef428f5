"""Which durable positions may be copied, committed once more, or go back, and what is noted with each.

Asked by `group`; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from shardherd.core.group.notes import text
from shardherd.core.group.records import ShardRecord
from shardherd.core.group.state import State
from shardherd.core.model import growths
from shardherd.core.model.nouns import Offset, ShardId, ShardState


def refreshable(state: State, shards: Iterable[ShardId] | None) -> Mapping[ShardId, Offset]:
    """The durable positions, of these or all shards that the source has: what may be committed once more as it is."""
    positions, infos, in_flight, recreated = state.positions, state.infos, state.in_flight, state.clocks.recreated
    return {
        shard: positions[shard]
        for shard in (positions if shards is None else shards)
        if shard in positions and shard in infos and shard not in in_flight and shard not in recreated
    }


def _bearer(state: State, row: ShardRecord) -> str:
    """Which shard of the source a position that is committed now is one of.

    While a recreated shard is not accepted its record names the one before; a position that is forced is one of what it was
    decided for, whatever is there by now.
    """
    flight = state.in_flight.get(row.shard)
    return (flight.source_id if flight is not None else "") or row.source_id


def notes(state: State, offsets: Mapping[ShardId, Offset]) -> Mapping[ShardId, str]:
    """What to note with each of these positions, which are to be made durable."""
    written: dict[ShardId, str] = {}
    for shard, offset in offsets.items():
        row, flight = state.shards.get(shard), state.in_flight.get(shard)
        if row is not None:
            # Not with an earlier position, that is only committed once more when a forced one waits.
            forced = flight is not None and flight.forced and flight.offset == offset
            epochs = state.record.leader_epoch, row.owner_epoch
            more = {"generation": state.record.state_generation, "grown": _grown(state, row)}
            written[shard] = text(state.record.uid, *epochs, _bearer(state, row), forced=forced, **more)
    return written


def _grown(state: State, row: ShardRecord) -> int:
    """How many shards its topic had before, if it waits since that grew: who loses the ownership must know that it waited.

    Where nobody knows how many, a number of which each that it may have had is a multiple.
    """
    if row.state is not ShardState.WAIT or not state.record.growths:
        return 0
    return gcd(*(growth.before for growth, _ in growths.parents(state.record.growths, row.shard)))


def to_copy(state: State, stored: Mapping[ShardId, Offset]) -> Mapping[ShardId, Offset]:
    """What to keep apart from the source, of which `stored` is kept now: nothing that the source may soon be below.

    Of a position that the source lost, the copy is all that is left: it stays.
    """
    copies: dict[ShardId, Offset] = {}
    lost = {shard: copy for shard, copy in stored.items() if shard in state.shards and shard not in state.positions}
    for shard, position in (*lost.items(), *state.positions.items()):
        copy = max(position, state.clocks.copies.get(shard, position))
        flight = state.in_flight.get(shard)
        if flight is None or flight.offset >= copy:
            copies[shard] = copy
    return copies


def going_back(state: State, offsets: Mapping[ShardId, Offset]) -> frozenset[ShardId]:
    """The shards that were durable further on than these offsets, or may have been: their position is not known."""
    positions, shards = state.positions, state.shards
    return frozenset(
        shard
        for shard, offset in offsets.items()
        if (positions[shard] > offset if shard in positions else shard in shards and shards[shard].started)
    )
