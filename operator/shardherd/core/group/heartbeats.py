"""Heartbeats: what a consumer says it holds, what it may hold, and when a shard in transfer has been released.

Called by `group`. Does not choose who gets what.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import UNSET, UnsetType, structs

from shardherd.core.group import balance, cells, counted, eligible, grants, liveness, rebuild, resets, watermarks
from shardherd.core.group.records import Session, ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.event_reasons import (
    CAPACITY_CHANGED,
    CONSUMER_DRAINING,
    CONSUMER_JOINED,
    CONSUMER_NOT_READY,
    RESTORED,
    WATERMARK_CROSSED,
)
from shardherd.core.model.gauges import MOST_GAUGES
from shardherd.core.model.messages import Seconds
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import (
    LONGEST_PHASE,
    LONGEST_WAIT,
    ConfirmedShard,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    HeldShard,
    Offset,
    Phase,
    ShardId,
    ShardState,
)
from shardherd.core.model.wording import some

MOST_CAPACITY = 1_000_000
LONGEST_ZONE = 63
"""As the value of a label of Kubernetes."""


def heartbeat(state: State, request: Heartbeat, now: float) -> None:
    """Take a heartbeat in; `reply` is the answer.

    Raises StaleIncarnationError, GroupReplacedError, InvalidRequestError, CoordinatorUnavailableError.
    One whose `seq` is not above the last is answered but changes nothing: it was overtaken on its way.
    """
    if request.seq < 1 or request.revision < 0:
        raise _invalid(state, request, f"has seq {request.seq} and revision {request.revision}; seq starts at 1, revision at 0")
    liveness.check_group(state, request)
    _check_place(state, request)
    _check_phase(state, request)
    _check_cells(state, request)
    _check_gauges(state, request)
    rebuild.check_claims(state, request)
    expected = _is_expected_to_take_shards(state, request.consumer)
    new = liveness.admit(state, request.consumer, request.incarnation, now)
    before = state.sessions.get(request.consumer)
    if before is not None and before.heard and request.seq <= before.seq:
        return
    received = before is not None and eligible.receives(state, request.consumer)
    was_draining = before is not None and before.draining
    unheard = before is not None and not before.heard
    rebuild.claim(state, request, now)
    state.put_session(request.consumer, watermarks.judged(state, _session(state, request, before, now), before, now))
    if new:
        state.emit(
            GroupEvent(
                CONSUMER_JOINED,
                f"{request.consumer} joined: pod {request.incarnation.pod_uid}, start {request.incarnation.start}",
                consumer=request.consumer,
                incarnation=request.incarnation,
            )
        )
    if watermarks.crossed(state, request.consumer, before) or _gives_away(state, request.consumer, now):
        grants.want_rebalance(state, WATERMARK_CROSSED)
    _take_place(state, request)
    if not resets.discards(state):
        # Until every position is set nobody has anything of the new state: it was found of what is discarded.
        counted.gone(state, cells.note_lost(state, request))
    _want_rebalance(state, request, received, expected, was_draining, unheard)


def note_life(state: State, request: Heartbeat, now: float) -> None:
    """The run that may hold shards under this name was heard, unless this heartbeat was overtaken by a later one."""
    session = state.sessions.get(request.consumer)
    if session is None or not liveness.is_current(state, request.consumer, request.incarnation):
        return
    if request.seq > session.seq and now > session.last_heard:
        state.put_session(request.consumer, structs.replace(session, last_heard=now))


def reply(state: State, request: Heartbeat) -> HeartbeatReply:
    """What this consumer may read, as of now."""
    settings = state.spec.settings
    return HeartbeatReply(
        revision=state.record.revision,
        confirmed=confirmed(state, request.consumer),
        fenced=fenced(state, request),
        paused=settings.paused or watermarks.is_paused(state, request.consumer),
        ordered=settings.ordered,
        heartbeat_interval=Seconds(settings.heartbeat_interval),
        session_timeout=Seconds(settings.session_timeout),
        cells=settings.cells,
        state_generation=state.record.state_generation,
    )


def confirmed(state: State, consumer: ConsumerId) -> tuple[ConfirmedShard, ...]:
    """Its shards in ALREADY_ALLOC that were granted to its current incarnation, and whose position is known and means them.

    It means nothing if it was lost, or if it is one of another shard, which had this name before. What the source does not have
    cannot be read: who holds it lets go of it, and is granted it anew if it comes back. Nor is a cell read whose state is lost,
    or is being discarded.
    """
    record = state.consumers.get(consumer)
    if record is None or not record.present or resets.discards(state):
        return ()
    in_cells = state.spec.settings.cells > 0
    ends = state.spec.source.ending_timestamp is not None
    recreated = state.clocks.recreated
    found = []
    for shard in sorted(state.under.get((consumer, record.incarnation), ())):
        row, position = state.shards[shard], state.positions.get(shard)
        if row.state is not ShardState.ALREADY_ALLOC or position is None or shard in recreated:
            continue
        if not grants.may_be_read(state, shard, position):
            continue
        end = _end(state, shard, position) if ends else UNSET
        if not in_cells:
            found.append(_confirmed(row, position, UNSET, end))
        elif not cells.is_lost(state, shard):
            found.append(_confirmed(row, position, row.start, end))
    return tuple(found)


def _confirmed(row: ShardRecord, position: Offset, start: Offset | UnsetType, end: Offset | UnsetType) -> ConfirmedShard:
    return ConfirmedShard(row.shard, row.owner_epoch, row.held_since_epoch, position, start, row.source_id or UNSET, end)


def _end(state: State, shard: ShardId, position: Offset) -> Offset:
    """Up to where a shard is to be read that is closed before its log ends; until that is known, no further than it is read."""
    info = state.infos.get(shard)
    return position if info is None or info.open else max(position, info.end)


def fenced(state: State, request: Heartbeat) -> tuple[HeldShard, ...]:
    """The pairs that the consumer names and that are not a current grant of its incarnation."""
    stale, unnamed = [], state.clocks.unnamed
    for pair in request.held:
        row = state.shards.get(pair.shard)
        if (
            row is None
            or pair.shard in unnamed
            or row.holder != request.consumer
            or row.incarnation != request.incarnation
            or row.owner_epoch != pair.owner_epoch
        ):
            stale.append(pair)
    return tuple(stale)


def replace_dropped(state: State, consumer: ConsumerId, now: float) -> None:
    """Shards that a consumer was told to hold, and does not: it gave them up, and would not take the same grant again.

    It gets them under a new epoch; one that drains or is cordoned loses them, unless its return is waited for, or they are of a
    cell that stays with it: nobody else could be given them. Not while it is found out who holds what: that epoch may be one
    that another consumer was granted, and still claims. What it gave up of a cell because it cannot be read is nobody's: as
    long as it were somebody's, the rest of the cell could not move.
    """
    if state.record.rebuilding or resets.discards(state):
        return
    record, session = state.consumers[consumer], state.sessions[consumer]
    unnamed = set(state.under.get((consumer, record.incarnation), ())) - session.named
    for shard in sorted(unnamed, key=shard_key):
        row = state.shards[shard]
        if session.revision >= row.revision and _comes_free(state, row):
            grants.reclaim(state, row, now)
            continue
        if row.state is not ShardState.ALREADY_ALLOC or session.revision < row.revision or shard in state.clocks.recreated:
            continue
        if not grants.movable(state, shard) or shard not in state.positions or grants.checkpoint_lost(state, row):
            continue
        if grants.is_away(state, shard):
            continue
        if not session.draining and eligible.stays(state, row):
            grants.regrant(state, row, now)
        elif eligible.gives_up(state, consumer):
            grants.reclaim(state, row, now)
            grants.want_rebalance(state, CONSUMER_DRAINING)
        elif not eligible.is_draining(state, consumer):
            grants.regrant(state, row, now)


def release_moving(state: State, consumers: Iterable[ConsumerId], now: float) -> None:
    """Row 6 for every shard in transfer that one of these holders has released."""
    for consumer in consumers:
        moving = state.moving.get(consumer)
        if not moving:
            continue
        for shard in sorted(moving, key=shard_key):
            record = state.shards[shard]
            if released(state, record) and eligible.releasable(state, record) and liveness.moves_whole(state, record, now):
                grants.release(state, record, now)


def released(state: State, record: ShardRecord) -> bool:
    """Whether the holder has let go: it applied the revision that revoked the shard, and names no epoch of it."""
    if record.holder is None or record.incarnation is None or not liveness.is_current(state, record.holder, record.incarnation):
        return False
    return liveness.let_go(state, record)


def _comes_free(state: State, row: ShardRecord) -> bool:
    """Whether a shard of a cell is nobody's once its holder gave it up: the cell's state is lost, or the shard is away."""
    if not state.spec.settings.cells or not grants.movable(state, row.shard):
        return False
    away = row.state is ShardState.ALREADY_ALLOC and grants.is_away(state, row.shard)
    return away or cells.is_lost(state, row.shard)


def _check_cells(state: State, request: Heartbeat) -> None:
    number = state.spec.settings.cells
    failing = () if request.cells_failing is UNSET else tuple(each.cell for each in request.cells_failing)
    for field, named in (("stateLost", request.state_lost), ("cellsFailing", failing)):
        if all(each < number for each in named):
            continue
        there = f"the group's cells are 0 to {number - 1}" if number else "the group has no cells: see spec.state"
        raise _invalid(state, request, f"names in {field} the cells {some([str(each) for each in named], 5)}; {there}")


def _gives_away(state: State, consumer: ConsumerId, now: float) -> bool:
    """Whether a consumer above high is to give more of its shards away, and there is somebody who may be given them."""
    if not watermarks.may_give(state, consumer, now) or state.spec.rebalance_paused:
        return False
    return eligible.may_take_over(state)


def _check_gauges(state: State, request: Heartbeat) -> None:
    if len(request.gauges) > MOST_GAUGES:
        raise _invalid(state, request, f"has {len(request.gauges)} gauges; send at most {MOST_GAUGES}, the fullest")
    seen = set()
    for gauge in request.gauges:
        if not gauge.total:
            raise _invalid(state, request, f"has the {gauge.kind} gauge {gauge.name} with total 0; leave it out")
        if (gauge.kind, gauge.name) in seen:
            # Metrics of one name and two values would spoil those of all groups.
            raise _invalid(state, request, f"has the {gauge.kind} gauge {gauge.name} twice; send each once")
        seen.add((gauge.kind, gauge.name))


def _check_place(state: State, request: Heartbeat) -> None:
    if 1 <= request.capacity <= MOST_CAPACITY and len(request.zone) <= LONGEST_ZONE:
        return
    raise _invalid(
        state,
        request,
        f"has capacity {request.capacity} and zone {request.zone[:80]!r}; a capacity is 1 to {MOST_CAPACITY}, a zone has"
        f" at most {LONGEST_ZONE} characters: see SHARDHERD_CAPACITY and SHARDHERD_ZONE of its pod",
    )


def _check_phase(state: State, request: Heartbeat) -> None:
    if request.phase_age > LONGEST_PHASE:
        raise _invalid(
            state,
            request,
            f"says that its phase has lasted for {request.phase_age:.0f} s; it must be at most {LONGEST_PHASE:.0f}: send the"
            " milliseconds since it began",
        )
    if request.goes_on_in <= LONGEST_WAIT:
        return
    raise _invalid(
        state,
        request,
        f"says that it goes on in {request.goes_on_in:.0f} s; it must be at most {LONGEST_WAIT:.0f}: let its trigger fire once"
        " a day or more often",
    )


def _invalid(state: State, request: Heartbeat, wrong: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"heartbeat of {request.consumer} {wrong}", group=str(state.spec.identity), consumer=request.consumer
    )


def _take_place(state: State, request: Heartbeat) -> None:
    """Where it runs and what it can do; for a known consumer that can do more or less now, its share changes."""
    record = state.consumers[request.consumer]
    if (record.zone, record.capacity) == (request.zone, request.capacity):
        return
    state.put_consumer(replace(record, zone=request.zone, capacity=request.capacity))
    if record.capacity != request.capacity and request.ready and balance.looks_at_weights(state):
        grants.want_rebalance(state, CAPACITY_CHANGED)


def _session(state: State, request: Heartbeat, before: Session | None, now: float) -> Session:
    # A revision that we never gave out comes from an ownership that was lost: it has applied nothing of ours.
    revision = request.revision if request.revision <= state.record.revision else 0
    got_on = before is None or not before.heard or request.progress != before.progress
    return Session(
        last_heard=now,
        seq=request.seq,
        revision=revision,
        named=frozenset(pair.shard for pair in request.held),
        ready=request.ready,
        draining=request.draining or (before is not None and before.draining),
        progress=request.progress,
        progress_at=now if got_on or before is None else before.progress_at,
        phase=request.phase,
        phase_since=0.0 if request.phase is None else now - request.phase_age,
        goes_on_at=_goes_on_at(request, before, now),
        gauges=request.gauges,
        failing=() if request.cells_failing is UNSET else request.cells_failing,
    )


def _goes_on_at(request: Heartbeat, before: Session | None, now: float) -> float:
    """When a consumer means to go on, or should have gone on; 0 if it does not wait, or does not say."""
    if request.phase is not Phase.WAITING:
        return 0.0
    if request.goes_on_in:
        return now + request.goes_on_in
    return before.goes_on_at if before is not None and before.phase is Phase.WAITING else 0.0


def _is_expected_to_take_shards(state: State, consumer: ConsumerId) -> bool:
    """Whether the last rebalance could give this consumer shards, or those go on that are on their way to it.

    It may have been another run of this name that was warm, or nobody has heard it since this coordinator took over.
    """
    return eligible.receives(state, consumer) or (bool(state.incoming.get(consumer)) and eligible.may_be_next(state, consumer))


def _want_rebalance(
    state: State, request: Heartbeat, received: bool, expected: bool, was_draining: bool, unheard: bool
) -> None:
    receives = eligible.receives(state, request.consumer)
    if request.draining and not was_draining:
        grants.want_rebalance(state, CONSUMER_DRAINING)
    elif receives and not received:
        grants.want_rebalance(state, RESTORED if unheard else CONSUMER_JOINED)
    elif expected and not receives:
        grants.want_rebalance(state, CONSUMER_NOT_READY)
