"""Shards that the source does not have any more: whoever holds one lets go of it, and after a while it is forgotten.

Called by the discovery with every look. Mostly what is away comes back: a broker did not know all topics yet, or somebody took
a right away. So it keeps its row, its position and its holder's name, and is only left out of what is told, counted and moved.
Once every look of `forget_after` has shown nothing of it, and nobody holds or names it, its row goes, and with it all that
would tell it from a new shard of that name. No epoch of it is ever given out again: `epoch_floor` is not below them. What is
named for so long because it cannot be saved is cut off first. What the source does not name any more is dropped at once, but in
an ordered group only when nobody can read any of its topic. Moves nothing. Why it is safe: docs/design/0020.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from shardherd.core.group import grants, liveness, resets
from shardherd.core.group.records import ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.event_reasons import SHARDS_FORGOTTEN, SHARDS_GONE
from shardherd.core.model.naming import shard_key, split
from shardherd.core.model.nouns import GroupSpec, ShardId
from shardherd.core.model.wording import count, some, verb

NOT_COUNTED = float("inf")
"""Since when a shard is away of which that counts from the next look on: nothing was seen of the source meanwhile."""


def may_be_read_still(spec: GroupSpec, unnamed: Mapping[ShardId, ShardRecord]) -> frozenset[ShardId]:
    """Those of these shards, which the source does not name any more, that a new coordinator must not drop at once.

    In an ordered group, as its topic may be named again before its holder can read no more. A topic stays whole: one of which
    only a part were left would look, if it came back, as if it had grown.
    """
    held = {split(shard)[0] for shard, row in unnamed.items() if row.holder is not None and spec.settings.ordered}
    return frozenset(shard for shard in unnamed if split(shard)[0] in held)


def has_shards(state: State) -> bool:
    """Whether the group has any shard of what the source names."""
    return not state.shards.keys() <= state.clocks.unnamed


def note(state: State, now: float) -> None:
    """The source was looked at: note what it does not have, tell who holds that, and forget what is away for long."""
    if state.clocks.unnamed:
        _drop_unnamed(state, now)
    clocks = state.clocks
    if not clocks.away and len(state.infos) + len(clocks.unlooked & state.shards.keys()) >= len(state.shards):
        return
    since = {shard: at for shard, at in clocks.away.items() if at != NOT_COUNTED}
    known = state.shards.keys() - clocks.unnamed
    absent = known - state.infos.keys() - clocks.unlooked if state.infos else frozenset[ShardId]()
    state.put_clocks(away={shard: since.get(shard, now) for shard in absent}, cut_off=clocks.cut_off & absent)
    if changed := clocks.away.keys() ^ absent:
        holders = (state.shards[shard].holder for shard in changed)
        state.touch({holder for holder in holders if holder is not None})
        _tell_of_gone(state, sorted(absent - clocks.away.keys(), key=shard_key))
    _forget(state, now)


def unseen(state: State) -> None:
    """The source does not answer: for how long something is away counts anew once it does."""
    state.put_clocks(away=dict.fromkeys(state.clocks.away, NOT_COUNTED))


def _tell_of_gone(state: State, gone: list[ShardId]) -> None:
    if gone:
        message = f"the source has {count(len(gone), 'shard')} no more: {some(gone, 5)}"
        message = f"{message}; {verb(len(gone), 'it is', 'they are')} not read"
        state.emit(GroupEvent(SHARDS_GONE, message, shards=tuple(gone), warning=True))


def _forget(state: State, now: float) -> None:
    settings, record = state.spec.settings, state.record
    # A session timeout at least: then nobody's claim to anything of before the last takeover is believed any more.
    patience = max(settings.forget_after, settings.session_timeout)
    due = [shard for shard, since in state.clocks.away.items() if since + patience <= now]
    if not due or record.rebuilding or resets.applying(state) is not None:
        return
    named = frozenset().union(*(session.named for session in state.sessions.values()))
    forgotten: list[ShardId] = []
    for shard in sorted(due, key=shard_key):
        row = state.shards[shard]
        if row.holder is not None and shard in named:
            _cut_off(state, row)
        elif shard not in named and _is_nobodys(state, row):
            forgotten.append(shard)
    if forgotten:
        _drop(state, forgotten)


def _drop_unnamed(state: State, now: float) -> None:
    """Drop each topic that the source does not name any more, once nobody can read anything of it. Nobody is told of it."""
    unnamed = state.clocks.unnamed - state.infos.keys()
    if not state.record.rebuilding and resets.applying(state) is None:
        named = frozenset().union(*(session.named for session in state.sessions.values()))
        for row in [state.shards[shard] for shard in sorted(unnamed - named, key=shard_key)]:
            # No commit of it can be under way: none has begun since it is not named.
            if _is_read_no_more(state, row, now):
                grants.reclaim(state, row, now)
        read = {split(shard)[0] for shard in unnamed if shard in named or state.shards[shard].holder is not None}
        gone = sorted((shard for shard in unnamed if split(shard)[0] not in read), key=shard_key)
        highest = max([state.record.epoch_floor, *(state.shards[shard].owner_epoch for shard in gone)])
        state.put_record(epoch_floor=highest)
        for shard in gone:
            state.drop_shard(shard)
        unnamed = unnamed.difference(gone)
    state.put_clocks(unnamed=unnamed)


def _is_read_no_more(state: State, row: ShardRecord, now: float) -> bool:
    """Whether its holder has let go of it, or cannot act any more."""
    if row.holder is None or row.incarnation is None:
        return False
    if liveness.is_current(state, row.holder, row.incarnation):
        return liveness.let_go(state, row)
    return liveness.gone_at(state, row.holder, row.incarnation) <= now


def _is_nobodys(state: State, row: ShardRecord) -> bool:
    """Whether nobody holds it, or whoever does has let go of it, and no other shard is connected with it by its row alone."""
    if not grants.movable(state, row.shard) or any(parent in state.shards for parent in row.parents):
        return False
    if row.holder is None or row.incarnation is None:
        return True
    return liveness.is_current(state, row.holder, row.incarnation) and liveness.let_go(state, row)


def _cut_off(state: State, row: ShardRecord) -> None:
    """Its holder has read something that it can save nowhere: it is not its any more, so that it lets go."""
    clocks = state.clocks
    if row.shard in clocks.cut_off or row.holder is None or row.incarnation is None:
        return
    if grants.movable(state, row.shard) and liveness.is_current(state, row.holder, row.incarnation):
        grants.fence_holder(state, row)
        state.put_clocks(cut_off=clocks.cut_off | {row.shard})


def _drop(state: State, forgotten: list[ShardId]) -> None:
    gone = frozenset(forgotten)
    highest = max(state.shards[shard].owner_epoch for shard in gone)
    topics = {split(shard)[0] for shard in gone}
    plain = (each for each in state.record.growths if not each.keeps)
    growths = (replace(each, ends=tuple(end for end in each.ends if end[0] not in gone)) for each in plain)
    # A topic has all of its partitions, or it is another one.
    keeping = (each for each in state.record.growths if each.keeps and each.topic not in topics)
    state.put_record(
        group_epoch=state.record.group_epoch + 1,
        epoch_floor=max(state.record.epoch_floor, highest),
        growths=(*(each for each in growths if each.ends), *keeping),
    )
    for shard in forgotten:
        state.drop_shard(shard)
    clocks = state.clocks
    state.put_clocks(
        away={shard: since for shard, since in clocks.away.items() if shard not in gone},
        copies={shard: copy for shard, copy in clocks.copies.items() if shard not in gone},
        unnoted=clocks.unnoted - gone,
        begun=clocks.begun - gone,
        left_out=clocks.left_out - gone,
    )
    message = f"{count(len(gone), 'shard')} that the source has had no more for long {verb(len(gone), 'is', 'are')} forgotten"
    state.emit(GroupEvent(SHARDS_FORGOTTEN, f"{message}: {some(forgotten, 5)}", shards=tuple(forgotten)))
