"""Who may be given shards now, and who only keeps what it has.

Asked by the rebalance and by releases. Changes nothing.
"""

from __future__ import annotations

from shardherd.core.group import cells
from shardherd.core.group.grants import blocked, checkpoint_lost, is_away, movable
from shardherd.core.group.records import ShardRecord
from shardherd.core.group.state import State
from shardherd.core.model.gauges import Stage
from shardherd.core.model.naming import consumer_key
from shardherd.core.model.nouns import ConsumerId


def present(state: State, consumer: ConsumerId) -> bool:
    """Whether the group counts this consumer."""
    record = state.consumers.get(consumer)
    return record is not None and record.present


def is_draining(state: State, consumer: ConsumerId) -> bool:
    """Whether a consumer is to lose all its shards: it asked for it, or it is to be removed."""
    session = state.sessions.get(consumer)
    return consumer in state.spec.leaving or (session is not None and session.draining)


def comes_back(state: State, consumer: ConsumerId) -> bool:
    """Whether a consumer that drains is waited for: nobody asked that it goes, and `rejoinGrace` gives it time to return."""
    return consumer not in state.spec.leaving and state.spec.settings.rejoin_grace > 0.0


def gives_up(state: State, consumer: ConsumerId) -> bool:
    """Whether a consumer is to hold nothing: it drains and is not waited for, or it is cordoned and stays."""
    return consumer in state.spec.cordoned or (is_draining(state, consumer) and not comes_back(state, consumer))


def receives(state: State, consumer: ConsumerId) -> bool:
    """Whether a consumer may be given shards: warm, heard by this coordinator, not on its way out, not cordoned, not too full.

    One above low may be where nobody below low may: somebody has to read them.
    """
    return _could_receive(state, consumer) and _has_room(state, consumer)


def scarce(state: State) -> bool:
    """Whether shards can be given only to consumers above low: then nothing moves for the sake of balance."""
    if not state.spec.settings.watermarks or may_take_over(state):
        return False
    return any(session.stage is Stage.LOW and _could_receive(state, each) for each, session in state.sessions.items())


def may_join_its_cell(state: State, consumer: ConsumerId) -> bool:
    """Whether who has a cell may be given another shard of it, as nobody else may.

    Also above low, and while it is to be emptied and the cell cannot move. Not once it drains: the cell is soon another's.
    """
    session = state.sessions.get(consumer)
    return session is not None and session.available and session.stage in (Stage.BELOW, Stage.LOW)


def may_be_next(state: State, consumer: ConsumerId) -> bool:
    """Whether a transfer to this consumer goes on. After a restart one that has not spoken yet is not given up."""
    session = state.sessions.get(consumer)
    if session is None or not (session.ready or not session.heard) or _takes_nothing(state, consumer):
        return False
    return _has_room(state, consumer)


def _could_receive(state: State, consumer: ConsumerId) -> bool:
    session = state.sessions.get(consumer)
    return session is not None and session.available and not _takes_nothing(state, consumer)


def _has_room(state: State, consumer: ConsumerId) -> bool:
    stage = state.sessions[consumer].stage
    return stage is Stage.BELOW or (stage is Stage.LOW and not may_take_over(state))


def may_take_over(state: State) -> bool:
    """Whether what a consumer above high has can be given to anybody: only to consumers below low."""
    return any(not _takes_nothing(state, consumer) for consumer in state.below_low)


def _takes_nothing(state: State, consumer: ConsumerId) -> bool:
    return consumer in state.spec.cordoned or is_draining(state, consumer)


def stays(state: State, record: ShardRecord) -> bool:
    """Whether something of this shard's cell that the same run holds keeps the whole cell with it.

    It is away, and still named since what was read of it cannot be saved; or its checkpoint is lost.
    """
    session = None if record.holder is None else state.sessions.get(record.holder)
    if session is None:
        return False
    rows = (state.shards[mate] for mate in cells.mates(state, record.shard) if mate != record.shard)
    same_run = (row for row in rows if (row.holder, row.incarnation) == (record.holder, record.incarnation))
    return any(checkpoint_lost(state, row) or (is_away(state, row.shard) and row.shard in session.named) for row in same_run)


def receivers(state: State) -> list[ConsumerId]:
    """All that may be given shards, by prefix and ordinal."""
    could = [consumer for consumer in state.sessions if _could_receive(state, consumer)]
    return sorted(_least_full(state, could), key=consumer_key)


def balanced(state: State) -> list[ConsumerId]:
    """All that the balance counts: those that may be given shards, and those that keep what they hold until they may."""
    found = set(receivers(state))
    found.update(consumer for consumer in state.sessions if state.held.get(consumer) and not gives_up(state, consumer))
    return sorted(found, key=consumer_key)


def _least_full(state: State, consumers: list[ConsumerId]) -> list[ConsumerId]:
    """Those of them that are below low, or else those above low."""
    sessions = state.sessions
    below = [consumer for consumer in consumers if sessions[consumer].stage is Stage.BELOW]
    return below or [consumer for consumer in consumers if sessions[consumer].stage is Stage.LOW]


def all_heard(state: State) -> bool:
    """Whether every consumer has spoken since this coordinator took over."""
    return all(session.heard for session in state.sessions.values())


def releasable(state: State, record: ShardRecord) -> bool:
    """Whether a released shard may go to its next consumer now."""
    return (
        not blocked(state)
        and movable(state, record.shard)
        and record.shard in state.positions
        and record.shard not in state.clocks.unnamed
        and not checkpoint_lost(state, record)
        and not cells.is_lost(state, record.shard)
        and record.next_consumer is not None
        and may_be_next(state, record.next_consumer)
    )
