"""What time alone does: sessions that end, releases and progress that do not come, waits that are over.

Called by `group` at each Tick, and asked when the next one is due. Chooses nothing but who has expired. Waiting is not
hanging: a consumer that says until when it waits has until then, and one whose sink does not take what it writes has the sink's
time, for its progress as for what it was asked to release.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardherd.core.group import grants, heartbeats, liveness, rebuild
from shardherd.core.group.records import EndReason, Session
from shardherd.core.group.state import State
from shardherd.core.model.gauges import Stage
from shardherd.core.model.naming import consumer_key
from shardherd.core.model.nouns import ConsumerId, Phase, ShardState

_WHY = {
    EndReason.RELEASE_TIMEOUT: "has not released its shards in time",
    EndReason.PROGRESS_TIMEOUT: "has something to read and does not get on in time",
    EndReason.SINK_TIMEOUT: "has waited for its sink for longer than sinkTimeout",
}

MOST_DOUBLINGS = 6
"""The release and progress deadlines grow at most 64 times."""


def tick(state: State, now: float) -> None:
    """Expire what is due."""
    for consumer in sorted(state.sessions, key=consumer_key):
        if liveness.silent_at(state, state.sessions[consumer]) <= now:
            liveness.expire_session(state, state.consumers[consumer])
    for reason, deadlines in ((EndReason.RELEASE_TIMEOUT, _releases(state)), (EndReason.PROGRESS_TIMEOUT, _progress(state))):
        for consumer, deadline in sorted(deadlines, key=lambda pair: consumer_key(pair[0])):
            if deadline > now or consumer not in state.sessions:
                continue
            if reason == EndReason.PROGRESS_TIMEOUT and not _lags(state, consumer):
                # It has read everything since the last look at the source, and the next look shows when there is more.
                state.put_lagging(consumer, None)
            else:
                writing = state.sessions[consumer].phase is Phase.WRITING
                _end(state, consumer, EndReason.SINK_TIMEOUT if writing else reason)
    rebuild.end_if_due(state, now)
    rebuild.forget_begun(state, now)
    liveness.forget_superseded(state, now)
    liveness.note_timeout(state, now)
    state.put_clocks(ticked_at=now)


def next_deadline(state: State) -> float | None:
    """When something is due that the last tick has not seen."""
    return min((deadline for deadline in _deadlines(state) if deadline > state.clocks.ticked_at), default=None)


def _deadlines(state: State) -> Iterator[float]:
    for session in state.sessions.values():
        yield liveness.silent_at(state, session)
    for _, deadline in _releases(state):
        yield deadline
    for _, deadline in _progress(state):
        yield deadline
    for consumer, incarnation in state.under:
        if not liveness.is_current(state, consumer, incarnation):
            yield liveness.gone_at(state, consumer, incarnation)
            yield liveness.reclaimable_at(state, consumer, incarnation)
    if (known := state.record.session_timeout) > state.spec.settings.goes_on:
        yield state.clocks.lowered_at + known
    if state.record.rebuilding:
        yield state.clocks.claims_until
    if state.clocks.due:
        yield state.clocks.gather_until
        yield state.clocks.settle_until
        if state.clocks.assign_at is not None:
            yield state.clocks.assign_at


def _releases(state: State) -> Iterator[tuple[ConsumerId, float]]:
    """When each holder must have released the oldest shard that it was asked for; the clock stops while it gets on.

    Whoever has not been heard since this coordinator took over has its whole session timeout, before it is asked for anything.
    """
    if not _running(state):
        return
    settings = state.spec.settings
    for consumer, moving in state.moving.items():
        session = state.sessions.get(consumer)
        if session is None or not session.heard:
            continue
        # What an earlier run of the name still holds, this one cannot give up.
        run = state.consumers[consumer].incarnation
        # Nor what is away: what was read of it cannot be saved, so it cannot be given up.
        rows = map(state.shards.__getitem__, moving)
        pending = [row for row in rows if row.incarnation == run and not grants.is_away(state, row.shard)]
        since = [record.since for record in pending if not heartbeats.released(state, record)]
        if since:
            limit = settings.release_timeout
            if session.phase is Phase.WRITING:
                limit = max(limit, settings.sink_timeout)
            # That it waits for its trigger keeps nobody from letting go.
            yield consumer, _from(state, session, min(since)) + limit * 2**state.clocks.doublings


def _progress(state: State) -> Iterator[tuple[ConsumerId, float]]:
    """When each consumer that has something to read must have got on with it; of one that was not heard yet, as above."""
    if not _running(state) or state.spec.settings.paused:
        return
    settings = state.spec.settings
    for consumer, session in state.sessions.items():
        since = state.lagging.get(consumer)
        # One that has nothing to read, as it sees it, reads committed records, and a transaction is open: the end lies beyond.
        # Nor is one to get on that was paused because it is too full.
        if since is not None and session.heard and session.phase is not Phase.IDLE and session.stage is not Stage.FLOOD:
            limit = settings.sink_timeout if session.phase is Phase.WRITING else settings.progress_timeout
            yield consumer, max(_from(state, session, since), session.goes_on_at) + limit * 2**state.clocks.doublings


def _lags(state: State, consumer: ConsumerId) -> bool:
    """Whether this consumer has something to read now, as far as the source was looked at."""
    for shard in state.held.get(consumer, ()):
        info = state.infos.get(shard)
        reads = state.shards[shard].state is ShardState.ALREADY_ALLOC
        if reads and info is not None and state.positions.get(shard, info.end) < info.end:
            return True
    return False


def _running(state: State) -> bool:
    return state.clocks.source_reachable and state.clocks.commits and not state.record.rebuilding


def _from(state: State, session: Session, since: float) -> float:
    """When a consumer's time began to run: not before it is in its phase, nor before it reads on after a pause."""
    return max(since, session.progress_at, session.phase_since, session.resumed_at, state.clocks.resumed_at)


def _end(state: State, consumer: ConsumerId, reason: str) -> None:
    record = state.consumers[consumer]
    liveness.end(state, record, record.incarnation, reason, reason, f"{consumer} {_WHY[reason]}; its pod must be replaced")
    clocks = state.clocks
    state.put_clocks(doublings=min(clocks.doublings + 1, MOST_DOUBLINGS), expiries=clocks.expiries + 1)
