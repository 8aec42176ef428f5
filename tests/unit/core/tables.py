"""A group's state as tables: shards in each state, and three consumers whose second starts are the current ones."""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.group.records import Clocks, ConsumerRecord, GroupRecord, ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.nouns import ConsumerId, Offset, ShardId, ShardInfo, ShardState
from tests.builders import IDENTITY, incarnation, info, shard, spec

A, B, C = (ConsumerId(name) for name in ("g-0", "g-1", "g-2"))
NOW = 9.0

FREE = ShardRecord(
    shard("0"),
    ShardState.NOT_ALLOC,
    0,
    started=True,
    last_holder=B,
    owner_epoch=4,
    held_since_epoch=3,
    revision=2,
    source_id="a",
    since=5.0,
)
WAITING = FREE._replace(state=ShardState.WAIT)
HELD = FREE._replace(state=ShardState.ALREADY_ALLOC, holder=A, incarnation=incarnation(A), last_holder=A)
"""Held under the first start of its holder, which is not the current one."""
MOVING = HELD._replace(state=ShardState.TRANSFER, next_consumer=B)
OVER = FREE._replace(state=ShardState.OVER)
OPEN, CLOSED = info("0"), info("0", open=False)


def having(
    *rows: ShardRecord, infos: tuple[ShardInfo, ...] = (OPEN,), positions: Mapping[ShardId, Offset] | None = None
) -> State:
    """The state of a group of revision 7 with these shards, and three consumers whose second starts are the current ones."""
    state = State(spec(3), GroupRecord(IDENTITY.uid, revision=7), Clocks())
    for name in (A, B, C):
        state.put_consumer(ConsumerRecord(name, incarnation(name, start=2)))
    for row in rows:
        state.put_shard(row)
    state.put_record(revision=7)
    state.put_infos({each.shard: each for each in infos})
    for known, position in (positions if positions is not None else {shard("0"): 40}).items():
        state.put_position(known, position)
    state.begin()
    return state


def given(row: ShardRecord, to: ConsumerId, epoch: int) -> ShardRecord:
    """The row, granted at NOW under this epoch in the first change of the request."""
    return row._replace(
        state=ShardState.ALREADY_ALLOC,
        holder=to,
        incarnation=incarnation(to, start=2),
        next_consumer=None,
        last_holder=to,
        owner_epoch=epoch,
        held_since_epoch=epoch,
        revision=8,
        since=NOW,
    )


def events(state: State) -> list[GroupEvent]:
    """The events since the request began."""
    return [event for event in state.journal if isinstance(event, GroupEvent)]
