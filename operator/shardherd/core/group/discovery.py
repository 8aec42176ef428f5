"""What the source shows, and what the user wants: new shards, closed shards, start positions, settings, conditions.

Called by `group`. Resolves each shard's start position once; never chooses who gets a shard.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.group import (
    absence,
    balance,
    checkpoints,
    counted,
    cutovers,
    endings,
    grants,
    growth,
    lineage,
    liveness,
    positions,
    rebuild,
    resets,
)
from shardherd.core.group.notes import Note, of_group, parse
from shardherd.core.group.records import InFlight, ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.event_reasons import (
    CHECKPOINT_FOUND,
    CONDITIONS_CLEARED,
    SETTINGS_CHANGED,
    SHARD_CLOSED,
    SHARDS_APPEARED,
)
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Offset, ShardId, ShardInfo, ShardState
from shardherd.core.model.reasons import SOURCE_RECREATED
from shardherd.core.model.requests import ConditionsChanged, SettingsChanged, ShardsDiscovered
from shardherd.core.model.wording import count, some


def discovered(state: State, request: ShardsDiscovered, now: float) -> None:
    """Take over the shards that the source shows.

    Not of a look that was prepared while new shards were being stored, which then failed: their positions were not read for it,
    and without them they would begin anew. The next look has them.
    """
    before = state.infos
    infos = {info.shard: info for info in endings.known(state, request.shards)}
    if request.read is not None and infos.keys() - state.shards.keys() - state.positions.keys() - request.read:
        return
    infos |= {shard: before[shard] for shard in request.unlooked if shard in before}  # it is as it was, as far as anybody knows
    state.put_infos(infos)
    unlooked, unlooked_before = request.unlooked - infos.keys(), state.clocks.unlooked
    unknown_before = unlooked_before | state.clocks.kept_out
    state.put_clocks(seen=True, unlooked=unlooked, kept_out=request.kept_out)
    fresh = sorted(infos.keys() - state.shards.keys(), key=shard_key)
    # Of a shard that the group has, and that cannot be looked at now, they tell nothing.
    notes = {shard: note for shard, note in of_group(state.record.uid, request.notes).items() if shard not in state.shards}
    waited = growth.note(state, request, fresh, notes, now)
    first = not state.record.discovered
    if first:
        rebuild.begin(state, notes, request.copies, now)
    elif not absence.has_shards(state):
        rebuild.begin(state, rebuild.unheard_of(state, notes), {}, now)
    else:
        rebuild.came_back(state, {shard: notes[shard] for shard in fresh if shard in notes}, now)
    _appear(state, fresh, request, notes, now)
    endings.keep(state)
    if first:
        state.put_record(discovered=True)
    closed = [info.shard for info in request.shards if not info.open]
    newly = tuple(shard for shard in closed if shard in before and before[shard].open)
    for shard in newly:
        state.emit(GroupEvent(SHARD_CLOSED, f"shard {shard} is closed at {infos[shard].end}", shards=(shard,)))
    # What nobody could look at was taken for there, and a rebalance may have counted it.
    vanished = (before.keys() | (unlooked_before & state.shards.keys())) - infos.keys() - unlooked
    if fresh or newly or vanished:
        state.put_record(group_epoch=state.record.group_epoch + 1)
    if fresh:
        counted.appeared(state, fresh)
    _adopt(state, request.durable, frozenset(fresh))
    for shard in closed:
        if not grants.finish_if_done(state, shard, now):
            # A forced checkpoint that the coordinator before us made durable, and ended before it could act upon it.
            checkpoints.revive(state, shard, now)
    if before.keys() != infos.keys() or unknown_before - unlooked - request.kept_out or waited:
        _wake_waiting(state, now)
    counted.gone(state, vanished)
    absence.note(state, now)
    _look_at_each(state, infos, now)
    balance.note_rates(state, now)
    _commit_starts(state, now)
    if any(grants.grantable(state, state.shards[shard]) for shard in state.by_state[ShardState.NOT_ALLOC]):
        grants.want_rebalance(state, SHARDS_APPEARED)


def settings_changed(state: State, request: SettingsChanged, now: float) -> None:
    """Take over a spec. Ordered to unordered frees the waiting shards; the other way spares what exists."""
    before, after = state.spec, request.spec
    if before == after:
        return
    state.put_spec(after)
    if before.settings.ordered and not after.settings.ordered:
        _wake_waiting(state, now)
    cutovers.settings_changed(state, now)
    if before.settings != after.settings:
        state.put_record(group_epoch=state.record.group_epoch + 1)
        state.touch_all()
    liveness.timeout_changed(state, before.settings, now)
    if before.settings.paused and not after.settings.paused:
        state.put_clocks(resumed_at=now)
    resets.declared_changed(state, before.reset)
    if _asked(before) != _asked(after):
        grants.want_rebalance(state, SETTINGS_CHANGED)


def _asked(spec: GroupSpec) -> tuple[object, ...]:
    """What a rebalance depends on."""
    return (spec.settings, spec.wanted, spec.leaving, spec.cordoned, spec.rebalance_paused)


def conditions_changed(state: State, request: ConditionsChanged, now: float) -> None:
    """Take over what withholds grants or commits."""
    ran = state.clocks.source_reachable and state.clocks.commits
    was_blocked = grants.blocked(state)
    state.put_clocks(
        withheld=request.withheld,
        limits=request.limits,
        commits=request.commits,
        source_reachable=request.source_reachable,
        source_error=request.source_error,
    )
    if not request.source_reachable:
        absence.unseen(state)
    if not ran and request.source_reachable and request.commits:
        state.put_clocks(resumed_at=now)
    if was_blocked and not grants.blocked(state):
        grants.want_rebalance(state, CONDITIONS_CLEARED)


def _wake_waiting(state: State, now: float) -> None:
    """Row 2 for every shard that need not wait: the source dropped what it waited for, or the group is not ordered any more.

    Both may have happened while no coordinator ran.
    """
    for shard in sorted(state.by_state[ShardState.WAIT], key=shard_key):
        if not state.spec.settings.ordered or not grants.behind(state, shard):
            grants.wake(state, state.shards[shard], now)


def _appear(state: State, fresh: list[ShardId], request: ShardsDiscovered, notes: Mapping[ShardId, Note], now: float) -> None:
    if not fresh:
        return
    first = not state.record.discovered and not state.record.rebuilding
    unnoted: set[ShardId] = set()
    latest = first and state.spec.source.starting_position == "Latest"
    copies = request.copies if state.record.rebuilding and not state.record.discovered else {}
    infos = state.infos
    unborn = frozenset(fresh)

    def parents(shard: ShardId) -> tuple[ShardId, ...]:
        if shard in infos:
            return infos[shard].parents
        return state.shards[shard].parents if shard in state.shards else ()

    def done(shard: ShardId) -> bool:
        if shard in unborn:
            # Only what was read before the ownership was lost can be finished already.
            return state.record.rebuilding and _read_to_its_end(infos[shard], request.durable.get(shard))
        return grants.consumed(state, shard)

    for shard in fresh:
        info, note = infos[shard], notes.get(shard)
        # Whichever group committed it: which shard a position is one of is true for all of them.
        written = parse(request.notes.get(shard, ""))
        position = request.durable.get(shard)
        start = position if position is not None else info.end if latest else info.begin
        if state.spec.settings.cells and note is not None and note.owner_epoch > 0:
            # It was read by this group, and where its state began is not known any more: at its first record, if need be.
            start = min(start, info.begin)
        record = ShardRecord(
            shard,
            ShardState.NOT_ALLOC,
            start,
            started=position is not None or shard in copies,
            owner_epoch=max(state.record.epoch_floor, note.lowest_claim if note is not None else 0),
            parents=info.parents,
            source_id=written.source_id if written is not None else info.source_id,
            since=now,
        )
        if position is not None:
            state.put_position(shard, position)
            if note is None or first:
                # Committed once more, so that it bears a note of this group before anybody holds the shard.
                state.put_in_flight(shard, InFlight(position))
                unnoted.add(shard)
        waits = state.spec.settings.ordered and (
            grants.before_cutover(state, shard) or not lineage.may_be_read(shard, parents, done)
        )
        grants.appear(state, record, waits)
    if unnoted:
        state.put_clocks(unnoted=state.clocks.unnoted | unnoted)
    if above := {shard: copy for shard, copy in copies.items() if copy > request.durable.get(shard, copy)}:
        state.put_clocks(copies=above)
    state.emit(GroupEvent(SHARDS_APPEARED, f"{count(len(fresh), 'new shard')}: {some(fresh, 5)}", shards=tuple(fresh)))


def _read_to_its_end(info: ShardInfo, position: Offset | None) -> bool:
    return not info.open and position is not None and position >= info.end


def _adopt(state: State, durable: Mapping[ShardId, Offset], fresh: frozenset[ShardId]) -> None:
    """Positions that were lost and are there again: somebody restored them at the source."""
    for shard, position in durable.items():
        if shard in fresh or shard not in state.shards or shard in state.in_flight:
            continue
        if not grants.checkpoint_lost(state, state.shards[shard]):
            continue
        state.put_position(shard, position)
        if not grants.checkpoint_lost(state, state.shards[shard]):
            # While it was lost the balance left the shard out.
            grants.want_rebalance(state, CHECKPOINT_FOUND)


def _commit_starts(state: State, now: float) -> None:
    # A start position is durable, and bears our note, before the first grant. What could not be written is at the next look.
    # None while claims may come: one of a shard that has no position shows that it had one.
    begun: set[ShardId] = set()
    for free in (ShardState.NOT_ALLOC, ShardState.WAIT) if not state.record.rebuilding else ():
        for shard in state.by_state[free]:
            record = state.shards[shard]
            info = state.infos.get(shard)
            if not record.started and info is not None and shard not in state.in_flight and shard not in state.positions:
                state.put_in_flight(shard, InFlight(max(record.start, info.begin)))
                if record.start <= info.begin:
                    # Only there whoever read it before would lose nothing if it were not believed.
                    begun.add(shard)
    if begun and rebuild.may_begin(state, now):
        state.put_clocks(begun=state.clocks.begun | begun)
    if state.clocks.unnoted:
        for shard, position in positions.refreshable(state, sorted(state.clocks.unnoted)).items():
            state.put_in_flight(shard, InFlight(position))


def _look_at_each(state: State, infos: Mapping[ShardId, ShardInfo], now: float) -> None:
    """Which shards are others than before, and who has something to read. One pass: it is made every second."""
    recreated: list[ShardId] = []
    unmarked: list[ShardRecord] = []
    lagging: set[ConsumerId | None] = set()
    unreadable: list[ShardId] = []
    shards, positions = state.shards, state.positions
    for shard, info in infos.items():
        record = shards[shard]
        if record.source_id != info.source_id and info.source_id:
            if record.source_id:
                recreated.append(shard)
                continue  # nobody may read it
            unmarked.append(record)
        holder = record.holder
        if holder is None:
            continue
        known = positions.get(shard)
        position = info.end if known is None else known
        if info.has_lost(position) or (known is None and record.started and shard not in state.in_flight):
            # What is lost is not asked about where it is noticed: a holder that is well saves it again at once.
            unreadable.append(shard)
        if (
            position < info.end
            and holder not in lagging
            and record.state is ShardState.ALREADY_ALLOC
            and record.incarnation == state.consumers[holder].incarnation
        ):
            # What an earlier run of the name still holds, this one cannot read.
            lagging.add(holder)
    for record in unmarked:
        state.put_shard(record._replace(source_id=infos[record.shard].source_id))
    _note_recreated(state, tuple(sorted(recreated, key=shard_key)))
    counted.gone(state, unreadable)
    readers = {consumer for consumer in lagging if consumer is not None}
    for consumer in sorted(state.lagging.keys() - readers):
        state.put_lagging(consumer, None)
    for consumer in sorted(readers - state.lagging.keys()):
        state.put_lagging(consumer, now)


def _note_recreated(state: State, recreated: tuple[ShardId, ...]) -> None:
    if recreated and not state.clocks.recreated:
        state.emit(
            GroupEvent(
                SOURCE_RECREATED,
                f"{recreated[0]} is another shard than before under the same name; nothing is granted: see the conditions",
                shards=recreated,
                warning=True,
            )
        )
    if recreated != state.clocks.recreated:
        state.put_clocks(recreated=recreated)
        state.touch_all()  # who holds them must stop
