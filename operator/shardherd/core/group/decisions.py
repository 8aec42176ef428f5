"""What a request leads to: what to make durable, what to answer, and whom to tell.

Called by `group`, read by whoever runs it. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardherd.core.group.state import GROUP, IN_FLIGHT, POSITIONS, SHARDS, TOUCHED, Event, State, Told
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ConsumerId, Offset, ResetReport, ResetState, ShardId
from shardherd.core.model.requests import Reply
from shardherd.core.model.wording import count, some


@dataclass(frozen=True, slots=True)
class Decision:
    """What a request leads to, and `events`: what it changed in the group.

    `persist`: the ownership changed and must be durable before the reply goes out. `positions`: what to make durable in the
    source; what becomes of them must be reported, and the reply to a CheckpointRequest holds if they are. `woken`: consumers
    whose parked heartbeats must be answered now. `told`: those of the events that are for users and counters. `grows`: what it
    lets into the ownership that takes room and could stay out, in words; empty if nothing. The reply to a heartbeat is not
    here: `Group.confirmed` makes it when it is sent.
    """

    events: tuple[Event, ...] = ()
    reply: Reply = None
    persist: bool = False
    positions: Mapping[ShardId, Offset] = field(default_factory=dict)
    woken: frozenset[ConsumerId] = frozenset()
    told: tuple[Told, ...] = ()
    grows: str = ""


def decision_of(state: State, events: tuple[Event, ...], reply: Reply) -> Decision:
    """What these events lead to. One pass: there may be hundreds of thousands."""
    positions: dict[ShardId, Offset] = {}
    woken: set[ConsumerId] = set()
    told: list[Told] = []
    appeared: list[ShardId] = []
    begun: ResetReport | None = None
    everyone = persist = False
    for event in events:
        if isinstance(event, Told):
            told.append(event)
            continue
        table, key, before, after = event
        if table is IN_FLIGHT:
            if after is None:
                positions.pop(key, None)
            else:
                positions[key] = after.offset
        elif table is TOUCHED:
            woken.add(key)
        elif table is POSITIONS:
            pass
        elif event.stored:
            persist = True
            if table is SHARDS:
                if before is None:
                    appeared.append(key)
            elif table is GROUP and after.reset is not before.reset:
                begun = after.reset
        elif key == "touched_all":
            everyone = True
    wakes = frozenset(woken.union(state.sessions if everyone else ()))
    return Decision(events, reply, persist, positions, wakes, tuple(told), _growth(appeared, begun))


def _growth(appeared: list[ShardId], begun: ResetReport | None) -> str:
    """What takes room and could stay out: shards that are new, and the rows of a reset."""
    grown = []
    if appeared:
        first: list[ShardId] = sorted(appeared, key=shard_key)
        grown.append(f"{count(len(appeared), 'new shard')} ({some(first, 3)})")
    if begun is not None and begun.state is ResetState.APPLYING:
        grown.append(f"the reset {begun.id} of {count(begun.shards, 'shard')}")
    return " and ".join(grown)
