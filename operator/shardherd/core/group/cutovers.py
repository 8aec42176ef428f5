"""How far the shards of a topic must be read before those that it got when it grew, and until when these wait for it.

A cutover offset is the end of a shard, looked up once every producer must have noticed the growth. It is stored in the same
write as whatever it sets free, and is never taken again: a later one would be right too, an earlier one would not. Called by
`group`, `growth` and `discovery`. Does not decide what grew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import structs

from shardherd.core.group import endings, grants
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model import growths
from shardherd.core.model.event_reasons import CUTOVER_REACHED, CUTOVER_TAKEN
from shardherd.core.model.naming import shard_key, split
from shardherd.core.model.nouns import Growth, GrowthCutover, Offset, ShardId, ShardState
from shardherd.core.model.requests import CutoverDue
from shardherd.core.model.wording import count, verb


def put(state: State, after: tuple[Growth, ...]) -> None:
    """These are the growths from now on."""
    if after != state.record.growths:
        state.put_record(growths=after)
    known = {(each.topic, each.after) for each in after if each.keeps}
    if state.clocks.grown_at.keys() - known:
        state.put_clocks(grown_at={key: at for key, at in state.clocks.grown_at.items() if key in known})


def due(state: State, now: float) -> tuple[CutoverDue, ...]:
    """Which cutover offsets must be taken now; none if they cannot be.

    Of all topics at once: none waits for another, which perhaps cannot be asked, or is no more.
    """
    if not state.record.growths or state.record.rebuilding or not state.infos or not state.clocks.source_reachable:
        return ()
    missing: dict[tuple[str, int], set[ShardId]] = {}
    for growth in state.record.growths:
        if (uncut := growths.uncut(growth)) and now >= _settled_at(state, growth):
            missing.setdefault((growth.topic, growth.after), set()).update(uncut)
    return tuple(CutoverDue(*grown, tuple(sorted(shards, key=shard_key)), now) for grown, shards in missing.items())


def taken(state: State, request: CutoverDue, now: float) -> None:
    """These ends are cutover offsets from now on: stored with what waits for them, and never taken again.

    What was asked too early, for a growth that is another by now, is left alone.
    """
    same = _same(state, request.topic, request.after)
    if not same or request.asked < _settled_at(state, same[0]):
        return
    found = endings.within(state, request.ends)
    changed = {each: _with_ends(each, found) for each in same}
    if all(before == after for before, after in changed.items()):
        return
    put(state, tuple(changed.get(each, each) for each in state.record.growths))
    new = {shard for before, after in changed.items() for shard, _ in set(after.ends) - set(before.ends)}
    left = len({shard for each in changed.values() for shard in growths.uncut(each)})
    more = f"; {count(left, 'shard')} cannot be asked yet" if left else ""
    state.emit(
        GroupEvent(
            CUTOVER_TAKEN,
            f"topic {request.topic} grew to {request.after} partitions, and its producers have noticed: its new shards wait "
            f"until {count(len(new), 'shard')} {verb(len(new), 'is', 'are')} read to where "
            f"{verb(len(new), 'it ends', 'they end')} now{more}",
            shards=tuple(sorted(new, key=shard_key)),
        )
    )
    wake(state, now)


def _same(state: State, topic: str, after: int) -> list[Growth]:
    """What was seen at once of a topic that grew to so many: it may have been several steps."""
    return [each for each in state.record.growths if each.keeps and (each.topic, each.after) == (topic, after)]


def _with_ends(growth: Growth, found: Mapping[ShardId, Offset]) -> Growth:
    new = [(shard, found[shard]) for shard in growths.uncut(growth) if shard in found]
    return structs.replace(growth, ends=tuple(sorted((*growth.ends, *new), key=lambda each: shard_key(each[0]))))


def _settled_at(state: State, growth: Growth) -> float:
    """When every producer has noticed it. Of one that was seen before this coordinator took over nobody knows since when."""
    if state.spec.settings.growth_cutover is GrowthCutover.NOW:
        return float("-inf")
    since = state.clocks.grown_at.get((growth.topic, growth.after), state.restored_at)
    return since + state.spec.settings.growth_settle


def wake(state: State, now: float) -> None:
    """Row 2 for every shard that has waited for a cutover offset and need not any more."""
    _wake(state, sorted(state.by_state[ShardState.WAIT], key=shard_key), now)


def read_on(state: State, positions: Mapping[ShardId, Offset], now: float) -> None:
    """The same after these positions became durable: for the children of those that have reached their cutover offset."""
    if not state.by_state[ShardState.WAIT] or not any(each.keeps for each in state.record.growths):
        return
    found: set[ShardId] = set()
    for shard in positions:
        if any(grants.read_to_cutover(state, each, shard) for each in _of(state, shard)):
            found.update(growths.children(state.record.growths, shard))
    _wake(state, sorted(found & state.by_state[ShardState.WAIT].keys(), key=shard_key), now)


def settings_changed(state: State, now: float) -> None:
    """What waits for order over growth, for which nobody may ask any more, is free then."""
    if give_up_if_declared(state):
        wake(state, now)


def give_up_if_declared(state: State) -> bool:
    """Whether nobody asks for order over growth any more, and somebody did: it is told how far order is lost."""
    if state.spec.settings.growth_cutover is not GrowthCutover.NEVER or not any(each.keeps for each in state.record.growths):
        return False
    given_up = []
    for growth in (each for each in state.record.growths if each.keeps):
        there = (ShardId(f"{growth.topic}/{number}") for number in range(growth.before))
        ends = tuple((shard, state.infos[shard].end) for shard in there if shard in state.infos)
        given_up.append(Growth(growth.topic, growth.before, growth.after, ends))
    put(state, (*(each for each in state.record.growths if not each.keeps), *given_up))
    return True


def _wake(state: State, waiting: Iterable[ShardId], now: float) -> None:
    woken = [shard for shard in waiting if not grants.behind(state, shard)]
    for shard in woken:
        grants.wake(state, state.shards[shard], now)
    if woken:
        grants.want_rebalance(state, CUTOVER_REACHED)


def _of(state: State, shard: ShardId) -> list[Growth]:
    """The growths that keep order and before which this shard was there."""
    topic, number = split(shard)
    return [each for each in state.record.growths if each.keeps and each.topic == topic and 0 <= number < each.before]
