"""A group as others may see it. Reads everything, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from shardherd.core import assignors
from shardherd.core.group import cells, eligible, grants, growth, resets
from shardherd.core.group.records import EndReason
from shardherd.core.group.state import State
from shardherd.core.model.messages import Seconds
from shardherd.core.model.naming import consumer_key
from shardherd.core.model.nouns import Condition, ConsumerView, GroupView, LastRebalance, ShardId, ShardView
from shardherd.core.model.reasons import (
    ASSIGNOR_FAILED,
    CHECKPOINT_LOST,
    OWNERSHIP_REBUILDING,
    PAUSED,
    RESETTING,
    SOURCE_RECREATED,
    STATE_LOST,
    UNKNOWN_ASSIGNOR,
)

REBUILDING = (
    "who holds which shard was lost and is being found out from the consumers; nothing is granted or committed for one "
    "sessionTimeout"
)

SUPERSEDED = 4
"""So many superseded pods of a name are shown, the newest: of one that runs, only late requests of earlier pods can follow."""


def group_view(state: State, now: float, wall: float) -> GroupView:
    """The whole group; `wall` is the time since 1970 that `now` stands for."""
    clocks = state.clocks
    consumers = sorted(state.consumers.values(), key=lambda record: consumer_key(record.consumer))
    last = None
    if clocks.rebalanced_at is not None:
        time = Seconds(wall - (now + clocks.gap - clocks.rebalanced_at))
        last = LastRebalance(time, clocks.rebalance_reason, clocks.rebalance_moved)
    return GroupView(
        group_epoch=state.record.group_epoch,
        revision=state.record.revision,
        shards=shard_views(state, now, _of_the_group(state)),
        consumers=_consumers(state, now),
        source_reachable=clocks.source_reachable,
        source_error=clocks.source_error,
        withheld=_withheld(state),
        last_rebalance=last,
        moves=clocks.moves,
        rebalances=clocks.rebalances,
        discovered=clocks.seen,
        source=state.spec.source.kind,
        counts_records=state.spec.source.counts_records,
        reset=resets.shown(resets.report(state)),
        last_reset=state.record.last_reset,
        growths=tuple(
            each if each.keeps else growth.unread(each, state.positions, state.infos) for each in state.record.growths
        ),
        expired=tuple(
            (record.consumer, record.incarnation)
            for record in consumers
            if record.ended == record.incarnation and record.end_reason in EndReason.EXPIRED
        ),
        superseded=tuple((record.consumer, uid) for record in consumers for uid in record.superseded[-SUPERSEDED:]),
        silent=tuple(
            (record.consumer, record.incarnation)
            for record in consumers
            if not record.present and not record.has_ended(record.incarnation)
        ),
    )


def _of_the_group(state: State) -> Sequence[ShardId]:
    """All shards, in order, without those that are kept only until nobody reads them any more."""
    unnamed = state.clocks.unnamed
    return [shard for shard in state.order if shard not in unnamed] if unnamed else state.order


def shard_views(state: State, now: float, names: Iterable[ShardId]) -> tuple[ShardView, ...]:
    """These shards of the group. Nothing is looked up or computed twice: there may be 100,000."""
    shards, infos, positions, seen = state.shards, state.infos, state.positions, state.clocks.seen
    unlooked, counts = state.clocks.unlooked, state.spec.source.counts_records
    views = []
    for shard in names:
        record, info, position = shards[shard], infos.get(shard), positions.get(shard)
        age = now - record.since
        begin = end = lag = None
        if info is not None and not counts:
            lost = position is not None and info.has_lost(position)
            begin, end = info.oldest if lost else info.begin, None if info.open else info.end
        elif info is not None:
            begin, end = info.begin, info.end
            if position is not None or not record.started:
                lag = end - (position if position is not None else record.start)
        views.append(
            ShardView(
                shard=shard,
                state=record.state,
                holder=record.holder,
                next_consumer=record.next_consumer,
                owner_epoch=record.owner_epoch,
                checkpoint=position,
                begin=begin,
                end=end,
                lag_records=lag if lag is None or lag > 0 else 0,
                open=info is None or info.open,
                present=info is not None or not seen or shard in unlooked,
                state_age=Seconds(age if age > 0.0 else 0.0),
                zone=info.zone if info is not None else "",
            )
        )
    return tuple(views)


def _consumers(state: State, now: float) -> tuple[ConsumerView, ...]:
    views = []
    # They are counted anew only where some may be away.
    all_there = len(state.infos) >= len(state.shards)
    for consumer in sorted(state.sessions, key=consumer_key):
        session, held = state.sessions[consumer], state.held.get(consumer, {})
        views.append(
            ConsumerView(
                consumer=consumer,
                incarnation=state.consumers[consumer].incarnation,
                ready=session.ready,
                draining=eligible.is_draining(state, consumer),
                shards=len(held) if all_there else sum(not grants.is_away(state, shard) for shard in held),
                heartbeat_age=Seconds(max(0.0, now - session.last_heard)),
                cordoned=consumer in state.spec.cordoned,
                zone=state.consumers[consumer].zone,
                capacity=state.consumers[consumer].capacity,
                phase=session.phase,
                phase_age=Seconds(0.0 if session.phase is None else max(0.0, now - session.phase_since)),
                stage=session.stage,
                gauges=session.gauges,
                cells_failing=cells.failing_of(state, consumer) or UNSET,
            )
        )
    return tuple(views)


def _withheld(state: State) -> tuple[Condition, ...]:
    found = [*state.clocks.withheld, *state.clocks.limits]
    if state.spec.settings.paused:
        found.append(Condition(PAUSED, "spec.paused is true; nothing is granted or moved"))
    if state.record.rebuilding:
        found.append(Condition(OWNERSHIP_REBUILDING, REBUILDING))
    if (reset := resets.applying(state)) is not None:
        found.append(Condition(RESETTING, f"reset {reset.id} is being made; nothing is granted or moved until it is done"))
    assignor = state.spec.settings.assignor
    if assignor not in state.assignors:
        found.append(
            Condition(UNKNOWN_ASSIGNOR, f"{assignors.unknown(assignor, state.assignors)}; nothing is granted or moved")
        )
    elif state.clocks.assignor_error:
        found.append(
            Condition(
                ASSIGNOR_FAILED,
                f"{state.clocks.assignor_error}; what is held stays, free shards go to who has least. "
                "Mend the plug-in, or set another spec.assignor",
            )
        )
    if state.clocks.recreated:
        what = "topic" if state.spec.source.counts_records else "stream"
        found.append(
            Condition(
                SOURCE_RECREATED,
                f"{_named(state.clocks.recreated)}: the {what} was deleted and made again, and the checkpoints are those of "
                "the old one; nothing is granted. Say where to read on by spec.reset, for example {id: ..., to: Earliest}",
            )
        )
    # Nobody can say where to read on in a shard that the source does not have.
    lost = [
        shard
        for shard in grants.lost_checkpoints(state)
        if shard in state.infos or (not state.infos and shard not in state.clocks.unnamed)
    ]
    if lost:
        found.append(
            Condition(
                CHECKPOINT_LOST,
                f"{_named(lost)}: the checkpoint is gone or lies before the first record; say by spec.reset where to read on",
            )
        )
    if state.record.state_lost:
        found.append(
            Condition(
                STATE_LOST,
                f"{cells.named(state.record.state_lost)} gone, or older than the positions: nobody is granted the shards. Begin"
                " all cells anew by spec.reset, for example {id: ..., to: Earliest, discardState: true}",
            )
        )
    return tuple(found)


def _named(shards: Sequence[ShardId]) -> str:
    return ", ".join(shards[:5]) + (f" and {len(shards) - 5} more" if len(shards) > 5 else "")
