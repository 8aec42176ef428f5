"""How full a consumer is, by the watermarks that its group declares, and what follows from that:

    stage   entered        left                          given shards                    gives away  reads
    below                                                yes                             no          yes
    low     above low      below low for 30 s            if nobody below low may be      no          yes
    high    above high     below high                    no                              a tenth     yes
    flood   above flood    below high                    no                              a tenth     no

Asked by `balance` (what is given away) and `heartbeats` (who is paused); `eligible` and `timers` go by the stage. What is
reported is judged when a heartbeat comes; nothing of it is stored. Takes no step itself.
"""

from __future__ import annotations

from msgspec.structs import replace

from shardherd.core.group.records import Session
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.event_reasons import BELOW_LOW
from shardherd.core.model.gauges import Stage, described, reached
from shardherd.core.model.nouns import ConsumerId
from shardherd.core.model.reasons import ABOVE_FLOOD, ABOVE_HIGH, ABOVE_LOW

LOOK = 30.0
"""Seconds for which a consumer must be below low until it is given shards again, and after which one above high gives more
away: so often Elasticsearch looks at its disks."""

PART = 10
"""Of so many shards that a consumer above high holds it gives one away at a time; of fewer one, too."""

NEVER = float("-inf")

GIVING = frozenset({Stage.HIGH, Stage.FLOOD})

_EVENTS = {
    Stage.BELOW: (BELOW_LOW, "is below its low watermark again, and is given shards as the others are"),
    Stage.LOW: (ABOVE_LOW, "is above its low watermark: others are given shards before it"),
    Stage.HIGH: (ABOVE_HIGH, "is above its high watermark: it is given no shards, and gives some away"),
    Stage.FLOOD: (ABOVE_FLOOD, "is above its flood watermark: it is paused, and gives its shards away"),
}


def judged(state: State, session: Session, before: Session | None, now: float) -> Session:
    """A session whose heartbeat has just come, with the stage that follows from its gauges and from the stage before."""
    marks = state.spec.settings.watermarks
    was = before.stage if before is not None else Stage.BELOW
    if not marks and was is Stage.BELOW:
        return session
    seen, _ = reached(marks, session.gauges)
    above_at = now if seen is not Stage.BELOW else before.above_at if before is not None else NEVER
    stage = seen
    if was is Stage.FLOOD and seen is Stage.HIGH:
        stage = Stage.FLOOD
    elif seen is Stage.BELOW and now < above_at + LOOK:
        stage = Stage.LOW
    resumed_at = before.resumed_at if before is not None else NEVER
    if was is Stage.FLOOD and stage is not Stage.FLOOD:
        resumed_at = now
    gave_at = before.gave_at if before is not None else NEVER
    return replace(session, stage=stage, above_at=above_at, resumed_at=resumed_at, gave_at=gave_at)


def crossed(state: State, consumer: ConsumerId, before: Session | None) -> bool:
    """Whether a heartbeat has changed a consumer's stage; says so to users, and to a consumer that is paused or goes on."""
    session = state.sessions[consumer]
    was = before.stage if before is not None else Stage.BELOW
    if session.stage is was:
        return False
    if Stage.FLOOD in (session.stage, was):
        state.touch((consumer,))
    reason, text = _EVENTS[session.stage]
    _, gauge = reached(state.spec.settings.watermarks, session.gauges)
    reading = "" if gauge is None else f" ({described(state.spec.settings.watermarks, gauge)})"
    state.emit(GroupEvent(reason, f"{consumer} {text}{reading}", consumer=consumer, warning=session.stage in GIVING))
    return True


def is_paused(state: State, consumer: ConsumerId) -> bool:
    """Whether a consumer is to read nothing more, because it is above flood."""
    session = state.sessions.get(consumer)
    return session is not None and session.stage is Stage.FLOOD


def given_away(state: State, consumer: ConsumerId, held: int, now: float) -> int:
    """How many of so many shards, or cells, that a consumer has it is to give away now.

    Few at a time: what follows from it is seen before more of them go.
    """
    session = state.sessions.get(consumer)
    if session is None or session.stage not in GIVING or not held or not may_give(state, consumer, now):
        return 0
    return max(1, held // PART)


def may_give(state: State, consumer: ConsumerId, now: float) -> bool:
    """Whether a consumer above high has waited long enough since it gave something away, and nothing of it is on its way."""
    session = state.sessions.get(consumer)
    if session is None or session.stage not in GIVING or not state.held.get(consumer) or state.moving.get(consumer):
        return False
    return now >= session.gave_at + LOOK


def note_given(state: State, consumer: ConsumerId, now: float) -> None:
    """It gives something away now."""
    state.put_session(consumer, replace(state.sessions[consumer], gave_at=now))
