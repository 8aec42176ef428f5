"""What it means that a topic of an ordered group grew: its new shards wait, or order is lost until what was there is read.

A key goes to hash(key) mod n. Where n becomes a multiple of what it was, new shard j gets keys of shard j mod the number before
and of no other: it waits until that one is read to its cutover offset, which is its end once every producer must have noticed
the growth. With another n keys move between shards that existed before, too: that is reported, and withholds nothing. What was
written to a topic is gone once it is made anew. Called by `discovery` and `views`. Says who waits, not
until when: that is `cutovers`' business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set

from shardherd.core.group import absence, cutovers, grants
from shardherd.core.group.notes import Note
from shardherd.core.group.records import ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model import growths
from shardherd.core.model.event_reasons import SHARDS_WAIT
from shardherd.core.model.naming import shard_key, split
from shardherd.core.model.nouns import Growth, GrowthCutover, Offset, ShardId, ShardInfo
from shardherd.core.model.reasons import PARTITION_GROWTH
from shardherd.core.model.requests import ShardsDiscovered
from shardherd.core.model.wording import some, verb


def note(state: State, request: ShardsDiscovered, fresh: list[ShardId], notes: Mapping[ShardId, Note], now: float) -> bool:
    """The source was looked at: note what grew, forget what is read. Whether shards may wait for less than before.

    `notes` are this group's own, of shards that it does not have: one that waited when the ownership was lost waits again.
    """
    if not state.spec.settings.ordered:
        cutovers.put(state, ())
        return False
    waited = any(each.keeps for each in state.record.growths)
    # That may have been declared while no coordinator ran.
    cutovers.give_up_if_declared(state)
    known = state.record.growths
    plain = [each for each in known if not each.keeps]
    keeping = [each for each in known if each.keeps]
    others = request.unlooked | request.kept_out
    lost, kept = _grown(state, fresh, others, keeping, notes, first=not (state.record.discovered and absence.has_shards(state)))
    left = [each for each in _unread(state, keeping) if not _is_void(state, each, others)]
    for each in lost:
        _tell_of_lost(state, each)
    for each in {(each.topic, each.after): each for each in reversed(kept)}.values():
        _tell_of_kept(state, each)
    still = (without_remade(each, state.shards, state.infos) for each in plain)
    open_ones = [each for each in still if unread(each, state.positions, state.infos).ends]
    cutovers.put(state, (*open_ones, *lost, *left, *kept))
    if state.spec.settings.growth_cutover is not GrowthCutover.NEVER:
        _count(state, fresh, others)
    if kept:
        at = dict.fromkeys(((each.topic, each.after) for each in kept), now)
        state.put_clocks(grown_at={**state.clocks.grown_at, **at})
    return waited


def grown(known: Mapping[ShardId, ShardRecord], fresh: Iterable[ShardId], infos: Mapping[ShardId, ShardInfo]) -> list[Growth]:
    """One Growth for each known topic that has shards without parents among the fresh ones."""
    added = Counter(split(shard)[0] for shard in fresh if not infos[shard].parents)
    found = []
    for topic in sorted(added):
        before = sum(split(shard)[0] == topic and shard in infos for shard in known)
        found += _losing(topic, before, before + added[topic], known, infos)
    return found


def _losing(
    topic: str, before: int, after: int, known: Mapping[ShardId, ShardRecord], infos: Mapping[ShardId, ShardInfo]
) -> list[Growth]:
    """One that loses order until the known shards of this topic are read to where they end now; none if there are none."""
    there = (shard for shard in known if split(shard)[0] == topic and shard in infos)
    same = sorted((shard for shard in there if not grants.another(known[shard], infos[shard])), key=shard_key)
    return [Growth(topic, before, after, tuple((shard, infos[shard].end) for shard in same))] if same else []


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


def _grown(
    state: State,
    fresh: list[ShardId],
    others: Set[ShardId],
    keeping: list[Growth],
    notes: Mapping[ShardId, Note],
    *,
    first: bool,
) -> tuple[list[Growth], list[Growth]]:
    """The growths that are new: those that lose order, and those that keep it."""
    infos = state.infos
    lost: list[Growth] = []
    # A topic that was made anew since has nothing of what they tell of.
    ids: dict[str, set[str]] = {}
    for shard, info in infos.items():
        ids.setdefault(split(shard)[0], set()).add(info.source_id)
    notes = {shard: each for shard, each in notes.items() if _may_be_of(each.source_id, ids.get(split(shard)[0], set()))}
    # Where shards name their parents, that says what comes before what: they do not grow as topics do.
    with_parents = {split(shard)[0] for shard, info in infos.items() if info.parents}
    kept = _waited(state, fresh, others, keeping, notes, with_parents, first=first)
    if state.spec.settings.growth_cutover is GrowthCutover.NEVER:
        return grown(state.shards, fresh, infos), []
    # A topic grows also where its new shards cannot be looked at or let in yet.
    counts = dict(state.record.counts)
    out = [shard for shard in others - state.shards.keys() if split(shard)[1] >= counts.get(split(shard)[0], 0)]
    if not (fresh or out):
        return lost, kept
    by_topic: dict[str, list[ShardId]] = {}
    for shard in (*fresh, *out):
        if split(shard)[0] not in with_parents:
            by_topic.setdefault(split(shard)[0], []).append(shard)
    known, last = _sizes(state, by_topic), dict.fromkeys(by_topic, -1)
    for topic, number in map(split, others):
        last[topic] = max(last.get(topic, -1), number)
    for topic, new in sorted(by_topic.items()):
        # Of what is fresh only what this very group has committed of before can have been there.
        before = max(known[topic], 1 + max((split(each)[1] for each in new if each in notes), default=-1))
        more = [shard for shard in new if split(shard)[1] >= before > 0 and not growths.parents(kept, shard)]
        if not more:
            continue
        after = 1 + max(last[topic], *(split(each)[1] for each in more))
        if after % before == 0:
            kept += _kept(topic, before, after)
        elif not first:
            lost += _losing(topic, before, after, state.shards, infos)
    return lost, kept


def _kept(topic: str, before: int, after: int) -> list[Growth]:
    return [Growth(topic, number, after, (), keeps=True) for number in growths.steps(before, after)]


def _waited(
    state: State,
    fresh: list[ShardId],
    others: Collection[ShardId],
    keeping: list[Growth],
    notes: Mapping[ShardId, Note],
    with_parents: Set[str],
    *,
    first: bool,
) -> list[Growth]:
    """The growths for which shards waited when their rows were lost, as the notes of positions say, or that there are none."""
    sizes: dict[str, int] = {}
    for topic, number in map(split, (*state.infos, *others)):
        sizes[topic] = max(sizes.get(topic, 0), number + 1)
    noted: dict[str, set[int]] = {}
    found: dict[str, set[int]] = {}
    new = (*fresh, *(others if first else ()))
    for shard in (each for each in new if each in notes and split(each)[0] not in with_parents):
        topic, number = split(shard)
        noted.setdefault(topic, set()).add(number)
        before = notes[shard].grown
        if 0 < before <= number and not growths.parents(keeping, shard):
            found.setdefault(topic, set()).add(before)
    blind: dict[str, set[int]] = {}
    for topic, number in map(split, (each for each in others if each not in notes)):
        blind.setdefault(topic, set()).add(number)
    for topic, there in noted.items() if first else ():
        found[topic] = found.get(topic, set()) | _may_have_been(there, blind.get(topic, set()), sizes[topic])
    return [
        Growth(topic, number, sizes[topic], (), keeps=True)
        for topic, befores in sorted(found.items())
        for number in sorted({each for before in befores for each in growths.steps(before, sizes[topic])})
    ]


def _may_have_been(noted: Set[int], blind: Set[int], size: int) -> set[int]:
    """How many shards a topic may have had when those came that were never in the group; none if all were.

    A shard has a position from when it is in the group, and a note in it while it waits. So the first without came no sooner
    than those below it. If there were half as many or fewer, each of these has a child among those below: its note says that it
    waits, or it waits no more, as its parent is read. Of a `blind` one that cannot be looked at nobody knows.
    """
    first = next(number for number in range(size + 1) if number not in noted)
    last = next(number for number in range(size + 1) if number not in noted and number not in blind)
    return (
        {number for number in range(first // 2 + 1, min(last, size - 1) + 1) if size % number == 0} if first < size else set()
    )


def _may_be_of(source_id: str, ids: Set[str]) -> bool:
    """Whether what has this id may be of a topic with these ids. An empty one may be any; of a topic with none nobody knows."""
    return not source_id or not ids or "" in ids or source_id in ids


def _sizes(state: State, by_topic: Mapping[str, list[ShardId]]) -> dict[str, int]:
    """How many shards these topics had before these new ones, as far as they are the same topics. One pass over all."""
    infos, counts = state.infos, dict(state.record.counts)
    ids = {topic: {infos[shard].source_id for shard in new if shard in infos} for topic, new in by_topic.items()}
    if unseen := {topic for topic, found in ids.items() if not found}:
        # None of the new ones can be looked at: it is that of the others, or what it was.
        for shard, info in infos.items():
            if (topic := split(shard)[0]) in unseen:
                ids[topic].add(info.source_id)
    sizes = {topic: counts.get(topic, 0) for topic in by_topic}
    for shard, row in state.shards.items():
        topic, number = split(shard)
        if topic in sizes and _may_be_of(row.source_id, ids[topic]):
            sizes[topic] = max(sizes[topic], number + 1)
    return sizes


def _count(state: State, fresh: list[ShardId], others: Collection[ShardId]) -> None:
    """Shards that are there and could not be let in yet have not grown when they can be."""
    sizes: dict[str, int] = {}
    for topic, number in map(split, others):
        sizes[topic] = max(sizes.get(topic, 0), number + 1)
    if sizes:
        for topic, number in map(split, (*state.shards, *fresh)):
            if sizes.get(topic, -1) <= number + 1:
                sizes.pop(topic, None)
    counts = tuple(sorted(sizes.items()))
    if counts != state.record.counts:
        state.put_record(counts=counts)


def _is_void(state: State, growth: Growth, others: Collection[ShardId]) -> bool:
    """Whether its topic is another by now: what was written before it grew cannot be read any more."""
    for number in range(growth.before):
        shard = ShardId(f"{growth.topic}/{number}")
        row, info = state.shards.get(shard), state.infos.get(shard)
        if row is not None and info is not None and grants.another(row, info):
            return True
        if row is None and info is None and shard not in others and state.infos:
            return True
    return False


def _unread(state: State, keeping: list[Growth]) -> list[Growth]:
    """Those for which something waits, or may: what was there is not read to the cutover offsets, here or in one before."""
    first: dict[str, int] = {}
    for each in keeping:
        if not _is_read(state, each):
            first[each.topic] = min(each.before, first.get(each.topic, each.before))
    return [each for each in keeping if each.before >= first.get(each.topic, each.after)]


def _is_read(state: State, growth: Growth) -> bool:
    parents = (ShardId(f"{growth.topic}/{number}") for number in range(growth.before))
    return not growths.uncut(growth) and all(grants.read_to_cutover(state, growth, parent) for parent in parents)


def _tell_of_lost(state: State, growth: Growth) -> None:
    state.emit(
        GroupEvent(
            PARTITION_GROWTH,
            f"topic {growth.topic} grew from {growth.before} to {growth.after} partitions: keys moved between them, and "
            "their records may be read out of order until what was written before is read",
            shards=tuple(shard for shard, _ in growth.ends),
            warning=True,
        )
    )


def _tell_of_kept(state: State, growth: Growth) -> None:
    settings = state.spec.settings
    at_once = settings.growth_cutover is GrowthCutover.NOW
    when = "now, as the producers are stopped" if at_once else f"in {settings.growth_settle:g} s"
    new = tuple(ShardId(f"{growth.topic}/{number}") for number in range(growth.before, growth.after))
    state.emit(
        GroupEvent(
            SHARDS_WAIT,
            f"topic {growth.topic} grew from {growth.before} to {growth.after} partitions: {some(new, 5)} "
            f"{verb(len(new), 'waits', 'wait')} until what was written before is read; how far that is is looked up {when}",
            shards=new,
        )
    )
