"""Which run of a consumer is the current one, which are over, and when the shards of one that is over may move.

Called by heartbeats, checkpoints, proofs of death and timers. Does not choose who gets the shards.
"""

from __future__ import annotations

from dataclasses import replace

from shardherd.core.group import cells, eligible, grants
from shardherd.core.group.records import ConsumerRecord, EndReason, Session, ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.errors import GroupReplacedError, InvalidRequestError, StaleIncarnationError
from shardherd.core.model.event_reasons import CONSUMER_DIED, CONSUMER_LEFT, SESSION_TIMEOUT, SHARDS_FREED
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import (
    CheckpointRequest,
    ConsumerId,
    GroupSettings,
    Heartbeat,
    Incarnation,
    Leave,
    ShardId,
    ShardState,
)
from shardherd.core.model.requests import ConsumerDied

DEAD = frozenset({EndReason.DIED, EndReason.EXPIRED_AND_DIED})
"""Ends that are proven, of an incarnation and all earlier starts of its pod."""
PROVEN = DEAD | {EndReason.LEFT}
"""Ends after which an incarnation writes nothing more."""
AT_ONCE = float("-inf")
"""A moment that is past already, whenever it is asked."""
KEPT_UIDS, KEPT_FOR = 4, 600.0
"""A superseded pod's UID is remembered while fewer than so many of its name came after it, and for so many seconds at least.

UIDs do not compress, and those of a thousand consumers that were replaced now and then would make most of the stored form. A
pod of a name begins to exist when the one before is gone, and the token of a pod that is gone is believed for a minute at most:
so who is forgotten here has been refused by its token for long. The few that are kept nevertheless are those that are shown:
the controller replaces one of them that runs. See docs/design/0006."""


def check_group(state: State, request: Heartbeat | CheckpointRequest | Leave) -> None:
    """Refuse a consumer of a group that was deleted: one of the same name now has other shards and epochs.

    Raises GroupReplacedError. The API lets no request in that names no group.
    """
    identity = state.spec.identity
    if request.group_uid and request.group_uid != identity.uid:
        raise GroupReplacedError(
            f"{request.consumer} was started for ConsumerGroup {identity} of UID {request.group_uid}, which was deleted; the"
            f" group of that name is now {identity.uid}: end this process",
            group=str(identity),
            consumer=request.consumer,
        )


def check(state: State, consumer: ConsumerId, incarnation: Incarnation) -> None:
    """Refuse an incarnation that is not, or is no longer, the newest of its name. Raises StaleIncarnationError."""
    if incarnation.start < 1 or not incarnation.pod_uid:
        raise InvalidRequestError(
            f"incarnation of {consumer} is {incarnation.pod_uid!r} start {incarnation.start}; it needs a pod UID and a start "
            f"of 1 or more, as the driver's entrypoint gives them",
            group=str(state.spec.identity),
            consumer=consumer,
        )
    record = state.consumers.get(consumer)
    if record is None:
        return
    why = ""
    if incarnation.pod_uid in record.superseded:
        why = f"pod {record.incarnation.pod_uid} has taken its name over"
    elif record.incarnation.supersedes(incarnation):
        why = f"start {record.incarnation.start} of the same pod has taken over"
    elif record.has_ended(incarnation):
        why = f"it is over ({record.end_reason})"
    if why:
        raise StaleIncarnationError(
            f"{consumer} of pod {incarnation.pod_uid}, start {incarnation.start}, is refused in group {state.spec.identity}: "
            f"{why}; end this process",
            group=str(state.spec.identity),
            consumer=consumer,
        )


def admit(state: State, consumer: ConsumerId, incarnation: Incarnation, now: float) -> bool:
    """Take note of an incarnation that speaks; True if it is new here. Raises StaleIncarnationError."""
    check(state, consumer, incarnation)
    record = state.consumers.get(consumer)
    if record is None:
        state.put_consumer(ConsumerRecord(consumer, incarnation))
    elif record.incarnation == incarnation:
        if record.present:
            return False
        state.put_consumer(replace(record, present=True))
    else:
        _supersede(state, record, incarnation, now)
    state.put_record(group_epoch=state.record.group_epoch + 1, session_timeout=longest(state))
    return True


def leave(state: State, request: Leave) -> None:
    """A consumer goes: nothing went wrong. As its death, if it says or has shown that it writes nothing more."""
    check_group(state, request)
    record = state.consumers.get(request.consumer)
    if record is None:
        return
    left_busy = record.end_reason == EndReason.LEFT_BUSY
    if record.has_ended(request.incarnation) and (left_busy or record.end_reason == EndReason.LEFT):
        if left_busy and request.stopped and record.ended == request.incarnation:
            end(state, record, request.incarnation, EndReason.LEFT, CONSUMER_LEFT)
        return
    check(state, request.consumer, request.incarnation)
    if record.incarnation == request.incarnation:
        stopped = request.stopped or _lets_go_of_all(state, request.consumer, request.incarnation)
        end(state, record, request.incarnation, EndReason.LEFT if stopped else EndReason.LEFT_BUSY, CONSUMER_LEFT)


def died(state: State, request: ConsumerDied) -> None:
    """Proof of death of an incarnation and all earlier starts of its pod, their executors included.

    What was expired stays so: its proof ends what its shards wait for, and must not make them wait for its name's return.
    """
    record = state.consumers.get(request.consumer)
    if record is None:
        return
    dead = request.incarnation
    over = record.has_ended(dead) and record.end_reason in PROVEN
    if dead.pod_uid == record.incarnation.pod_uid and not record.incarnation.supersedes(dead) and not over:
        # Of a start that was never heard, what is said of the one before it goes on to count.
        expired = record.end_reason in EndReason.WAS_EXPIRED and record.has_ended(record.incarnation)
        end(state, record, dead, EndReason.EXPIRED_AND_DIED if expired else EndReason.DIED, CONSUMER_DIED)
    elif any(covers(dead, run) and not _proven(state, record, run) for run in _runs_that_hold(state, record)):
        state.put_consumer(replace(record, proven=(*record.proven, dead)))


def end(
    state: State, record: ConsumerRecord, incarnation: Incarnation, end_reason: str, event_reason: str, message: str = ""
) -> None:
    """This incarnation is over for good: refused from now on."""
    was_present = record.present
    proven = _proofs(state, record)
    state.put_consumer(replace(record, present=False, ended=incarnation, end_reason=end_reason, proven=proven))
    _depart(state, record, event_reason, message, was_present)


def expire_session(state: State, record: ConsumerRecord) -> None:
    """Silent for too long: no consumer of the group any more. It may come back, but its shards move."""
    state.put_consumer(replace(record, present=False))
    timeout = state.spec.settings.session_timeout
    _depart(state, record, SESSION_TIMEOUT, f"{record.consumer} was silent for {timeout:g} s", True)


def forget_superseded(state: State, now: float) -> None:
    """Forget the superseded UIDs that need not be remembered any more, of every name: it may be long until one speaks anew."""
    for record in [record for record in state.consumers.values() if len(record.superseded) > KEPT_UIDS]:
        left = _remembered(state, record.consumer, record.superseded, now)
        if left != record.superseded:
            state.put_consumer(replace(record, superseded=left))


def settle(state: State, now: float) -> None:
    """Move on the shards that are held under incarnations that are over, as far as that is safe by now."""
    # The common case first: every shard is held by a current incarnation, and that is known.
    # While consumers claim what they hold, a shard stays with who claimed it, under the epoch that he named: the holder of a
    # later epoch may not have spoken yet, and his epoch must be given to nobody.
    if not state.unsettled or state.record.rebuilding:
        return
    stale = [key for key in state.under if not is_current(state, *key)]
    state.unsettled = bool(stale)
    for consumer, incarnation in sorted(stale, key=lambda key: (key[0], key[1].pod_uid, key[1].start)):
        if gone_at(state, consumer, incarnation) > now:
            continue
        record = state.consumers[consumer]
        for shard in sorted(state.under[consumer, incarnation], key=shard_key):
            _move_on(state, record, shard, now)
        if (consumer, incarnation) not in state.under:
            _forget(state, state.consumers[consumer], incarnation)


def is_current(state: State, consumer: ConsumerId, incarnation: Incarnation) -> bool:
    """Whether this is the run that may hold shards under this name now."""
    record = state.consumers[consumer]
    return record.present and record.incarnation == incarnation


def silent_at(state: State, session: Session) -> float:
    """From when on a consumer has been silent for too long. Who lives has a whole timeout in which to hear of a shorter one."""
    return max(session.last_heard, state.clocks.lowered_at) + state.spec.settings.session_timeout


def longest(state: State) -> float:
    """For how long at most a consumer goes on by itself when it hears nothing more, whichever settings it has heard of last."""
    return max(state.record.session_timeout, state.spec.settings.goes_on)


def timeout_changed(state: State, before: GroupSettings, now: float) -> None:
    """The time for which consumers go on by themselves may be another one: the session timeout is, or the group is ordered now.
    A shorter one holds at once, for all but those who may not have heard of it."""
    after = state.spec.settings
    if after.session_timeout < before.session_timeout or after.goes_on < before.goes_on:
        state.put_clocks(lowered_at=now)
    if 0 < state.record.session_timeout < max(before.goes_on, after.goes_on):
        # Also the time before: who has stored the record may have been of a version that knew the session timeout alone.
        state.put_record(session_timeout=max(before.goes_on, after.goes_on))


def note_timeout(state: State, now: float) -> None:
    """Note the longest time by which consumers may go. Nobody can go by a longer one any more who has not heard that it is
    shorter now. One that is longer since an edit of which no coordinator was told is stored, before another hides it."""
    known, goes_on = state.record.session_timeout, state.spec.settings.goes_on
    if 0 < known < goes_on or (known > goes_on and state.clocks.lowered_at + known <= now):
        state.put_record(session_timeout=goes_on)


def gone_at(state: State, consumer: ConsumerId, incarnation: Incarnation) -> float:
    """From when on an incarnation that is no longer current cannot act any more, so that its shards may move.

    An unordered group fences it and goes on. An ordered one wants proof: that it died, or that it left and had stopped. A later
    start of its pod proves no more than the end of the driver's container, which is enough where there are no executors.
    Without proof it waits until the incarnation must have stopped itself: the longest time that it may go by after it was last
    heard, which is that of an unordered group where it may not have heard that this is an ordered one now.
    """
    if not state.spec.settings.ordered or _proven(state, state.consumers[consumer], incarnation):
        return AT_ONCE
    return last_heard(state, consumer, incarnation) + longest(state)


def reclaimable_at(state: State, consumer: ConsumerId, incarnation: Incarnation) -> float:
    """From when on the shards of a consumer that went need not wait for its name's return any more."""
    record = state.consumers[consumer]
    if record.end_reason in EndReason.WAS_EXPIRED and record.has_ended(incarnation):
        return AT_ONCE
    return last_heard(state, consumer, incarnation) + state.spec.settings.rejoin_grace


def last_heard(state: State, consumer: ConsumerId, incarnation: Incarnation) -> float:
    """When an incarnation that is no longer current was last heard; after a restart, the restart."""
    return state.heard.get((consumer, incarnation), state.restored_at)


def let_go(state: State, record: ShardRecord) -> bool:
    """Whether the last heartbeat of its holder shows that it does not hold this shard.

    It had applied what its holder was last told of the shard, and names no epoch of it.
    """
    session = None if record.holder is None else state.sessions.get(record.holder)
    if session is None or not session.heard:
        return False
    return session.revision >= record.revision and record.shard not in session.named


def moves_whole(state: State, record: ShardRecord, now: float) -> bool:
    """Whether the whole cell of a shard that is released can go to its next consumer now: nobody else keeps a part of it."""
    return all(
        row.holder in (None, record.next_consumer) or _may_go_along(state, record, row, now)
        for row in map(state.shards.__getitem__, cells.mates(state, record.shard))
    )


def _may_go_along(state: State, record: ShardRecord, row: ShardRecord, now: float) -> bool:
    if row.holder is None or row.incarnation is None or row.next_consumer != record.next_consumer:
        return False
    if not eligible.releasable(state, row):
        return False
    if is_current(state, row.holder, row.incarnation):
        return let_go(state, row)
    return gone_at(state, row.holder, row.incarnation) <= now


def covers(dead: Incarnation, incarnation: Incarnation) -> bool:
    """Whether proof of `dead` proves `incarnation` dead too."""
    return dead == incarnation or dead.supersedes(incarnation)


def _lets_go_of_all(state: State, consumer: ConsumerId, incarnation: Incarnation) -> bool:
    return all(let_go(state, state.shards[shard]) for shard in state.under.get((consumer, incarnation), ()))


def _proven(state: State, record: ConsumerRecord, incarnation: Incarnation) -> bool:
    """Whether it is proven that this run, which is no longer the current one of its name, writes nothing more."""
    # Whatever comes after a start of a driver's container says nothing of the executors of that start.
    later = not state.spec.executors
    if record.incarnation.supersedes(incarnation) and later:
        return True
    if record.end_reason == EndReason.LEFT and (record.ended == incarnation or (later and record.has_ended(incarnation))):
        return True
    if record.end_reason in DEAD and record.has_ended(incarnation):
        return True
    return any(covers(dead, incarnation) for dead in record.proven)


def _proofs(state: State, record: ConsumerRecord) -> tuple[Incarnation, ...]:
    """What is to be kept as proof when something else is noted of how this name's runs end."""
    ended = record.ended
    if ended is None or record.end_reason not in PROVEN:
        return record.proven
    held = [run for run in _runs_that_hold(state, record) if covers(ended, run)]
    if held and all(_proven(state, record, run) for run in held):
        return (*record.proven, ended)
    return record.proven


def _runs_that_hold(state: State, record: ConsumerRecord) -> list[Incarnation]:
    """The runs of this name under which shards are held."""
    return [run for holder, run in state.under if holder == record.consumer]


def _supersede(state: State, record: ConsumerRecord, incarnation: Incarnation, now: float) -> None:
    before = record.incarnation
    session = state.sessions.get(record.consumer)
    if session is not None:
        _note_heard(state, record.consumer, before, session.last_heard)
        state.put_session(record.consumer, None)
    superseded = record.superseded
    proven = record.proven
    ended, end_reason = record.ended, record.end_reason
    if before.pod_uid != incarnation.pod_uid:
        state.put_superseded(record.consumer, before.pod_uid, now)
        superseded = _remembered(state, record.consumer, (*superseded, before.pod_uid), now)
        proven = _proofs(state, record)
        ended, end_reason = None, ""
    state.put_consumer(
        replace(
            record,
            incarnation=incarnation,
            present=True,
            superseded=superseded,
            proven=proven,
            ended=ended,
            end_reason=end_reason,
        )
    )


def _remembered(state: State, consumer: ConsumerId, superseded: tuple[str, ...], now: float) -> tuple[str, ...]:
    """The superseded UIDs of this name, the oldest first, without those that may be forgotten by now."""
    known, first = state.superseded, 0
    while len(superseded) - first > KEPT_UIDS and (
        known.get((consumer, superseded[first]), state.restored_at) + KEPT_FOR <= now
    ):
        if (consumer, superseded[first]) in known:
            state.put_superseded(consumer, superseded[first], None)
        first += 1
    return superseded[first:]


def _depart(state: State, record: ConsumerRecord, event_reason: str, message: str, was_present: bool) -> None:
    run = record.incarnation
    session = state.sessions.get(record.consumer)
    if session is not None:
        _note_heard(state, record.consumer, run, session.last_heard)
        state.put_session(record.consumer, None)
    state.put_lagging(record.consumer, None)
    if not was_present:
        return
    state.put_record(group_epoch=state.record.group_epoch + 1)
    state.emit(
        GroupEvent(
            event_reason,
            message or f"{record.consumer} of pod {run.pod_uid}, start {run.start}, is no consumer any more",
            consumer=record.consumer,
            incarnation=run,
            shards=tuple(sorted(state.held.get(record.consumer, ()), key=shard_key)),
            warning=event_reason != CONSUMER_LEFT,
        )
    )
    grants.want_rebalance(state, event_reason)


def _move_on(state: State, consumer: ConsumerRecord, shard: ShardId, now: float) -> None:
    record = state.shards[shard]
    if not grants.movable(state, record.shard) or record.incarnation is None:
        return
    if not consumer.present:
        in_transfer = record.state is ShardState.TRANSFER
        if in_transfer or reclaimable_at(state, consumer.consumer, record.incarnation) <= now:
            grants.reclaim(state, record, now)
            grants.want_rebalance(state, SHARDS_FREED)
        return
    if record.state is ShardState.TRANSFER:
        # The newer incarnation has never been told of it: nothing of it is held, so it can go to the next consumer at once.
        if eligible.releasable(state, record) and moves_whole(state, record, now):
            grants.release(state, record, now)
        return
    if _yields(state, consumer, record.incarnation, now):
        grants.reclaim(state, record, now)
        grants.want_rebalance(state, SHARDS_FREED)
        return
    grants.regrant(state, record, now)


def _yields(state: State, consumer: ConsumerRecord, before: Incarnation, now: float) -> bool:
    """Whether a newer run of a consumer leaves its name's shards to others: it is cold, they are not, and no grace is left.

    With `rejoinGrace` 0 shards move at proof of death. Where a later start of the pod is that proof, it makes no difference
    whether the proof or its first heartbeat arrives first: either way the warm consumers read on within milliseconds, not after
    a cold start. A cold run keeps, and replays, what its name still holds: within its grace, and where nobody else is warm.
    """
    cold = not eligible.receives(state, consumer.consumer)
    return cold and reclaimable_at(state, consumer.consumer, before) <= now and bool(eligible.receivers(state))


def _note_heard(state: State, consumer: ConsumerId, incarnation: Incarnation, heard: float) -> None:
    # Needed only as long as shards are held under it.
    if (consumer, incarnation) in state.under:
        state.put_heard(consumer, incarnation, heard)


def _forget(state: State, consumer: ConsumerRecord, incarnation: Incarnation) -> None:
    if (consumer.consumer, incarnation) in state.heard:
        state.put_heard(consumer.consumer, incarnation, None)
    held = _runs_that_hold(state, consumer)
    proven = tuple(dead for dead in consumer.proven if any(covers(dead, other) for other in held))
    state.put_consumer(replace(consumer, proven=proven))
