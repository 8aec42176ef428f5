"""Which shards the balance counts, and whether that has changed since the last rebalance: then another one is wanted.

A shard is left out while the source does not show it, while its checkpoint is lost, while its holder is away, and, if it is
free, while it must not be granted or is still read. The last rebalance notes what it left out, usually nothing. After each
request only those of it are looked at that the request touched; what the source does not show any more is noticed in the look
that shows it, and so is a position that is lost. Called by the rebalance and by the discovery; moves nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from shardherd.core.assignors import Problem
from shardherd.core.group import cells, eligible, grants
from shardherd.core.group.state import CONSUMERS, GROUP, IN_FLIGHT, POSITIONS, SESSIONS, SHARDS, Put, State
from shardherd.core.model.event_reasons import SHARDS_GONE, SHARDS_RETURNED
from shardherd.core.model.nouns import ShardId, ShardState

ACTIVE = (ShardState.NOT_ALLOC, *grants.HELD)


def counts(state: State, shard: ShardId) -> bool:
    """Whether a rebalance would count this shard now; `balance.problem` says the same of all shards at once.

    Nothing of a cell counts while something of it is held that does not.
    """
    return _counts_alone(state, shard) and all(
        _counts_alone(state, mate) for mate in cells.mates(state, shard) if _is_held(state, mate)
    )


def _counts_alone(state: State, shard: ShardId) -> bool:
    record = state.shards.get(shard)
    if record is None or record.state not in ACTIVE:
        return False
    if record.holder is None:
        return grants.grantable(state, record)
    away = grants.is_away(state, shard) or not state.infos
    lost = grants.checkpoint_lost(state, record) or cells.is_lost(state, shard)
    return eligible.present(state, record.holder) and not away and not lost


def note(state: State, asked: Problem) -> None:
    """A rebalance is made, and this is what it counts."""
    active = sum(len(state.by_state[each]) for each in ACTIVE)
    left_out: frozenset[ShardId] = frozenset()
    if active > len(asked.shards):
        counted = set(asked.shards.tolist())
        left_out = frozenset(shard for each in ACTIVE for shard in state.by_state[each] if shard not in counted)
    state.put_clocks(left_out=left_out)


def appeared(state: State, fresh: Collection[ShardId]) -> None:
    """These are new, and no rebalance is wanted for those that somebody still reads: they are left out from the beginning."""
    if read := grants.still_read(state).intersection(fresh):
        state.put_clocks(left_out=state.clocks.left_out | read)


def returned(state: State) -> None:
    """After any request: ask for a rebalance if a shard that was left out counts again."""
    left_out = state.clocks.left_out
    if left_out and any(counts(state, shard) for shard in _touched(state, left_out)):
        grants.want_rebalance(state, SHARDS_RETURNED)


def gone(state: State, shards: Iterable[ShardId]) -> None:
    """These do not count any more: ask for a rebalance if the last one counted any of them in somebody's hands."""
    left_out = state.clocks.left_out
    if any(shard not in left_out and _is_held(state, shard) for shard in shards):
        grants.want_rebalance(state, SHARDS_GONE)


def _is_held(state: State, shard: ShardId) -> bool:
    record = state.shards.get(shard)
    return record is not None and record.holder is not None


def _touched(state: State, left_out: frozenset[ShardId]) -> Iterator[ShardId]:
    """Those of the shards that may count for another reason than before this request."""
    for entry in state.journal:
        if not isinstance(entry, Put):
            continue
        table, key, before, after = entry
        if table is SHARDS or table is POSITIONS or table is IN_FLIGHT:
            if key in left_out:
                yield key
        elif table is CONSUMERS:
            yield from left_out.intersection(state.held.get(key, ()))
        elif table is SESSIONS and before is not None:
            yield from left_out.intersection(before.named).difference(() if after is None else after.named)
        elif table is GROUP and (key == "infos" or (key == "clocks" and before.copies is not after.copies)):
            yield from left_out
