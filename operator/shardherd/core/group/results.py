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
class Result:
    """What a request leads to. Nothing has changed yet.

    `persist`: the ownership changed and must be durable before the reply goes out. `commit`: positions to make durable, whose
    outcome must be reported. For a CheckpointRequest the reply holds if the commit succeeds. `woken`: consumers whose parked
    heartbeats must be answered now. `told`: those of the events that are for users and counters. `grows`: what it lets into the
    ownership that takes room and could stay out, in words; empty if nothing.
    """

    events: tuple[Event, ...] = ()
    reply: Reply = None
    persist: bool = False
    commit: Mapping[ShardId, Offset] = field(default_factory=dict)
    woken: frozenset[ConsumerId] = frozenset()
    told: tuple[Told, ...] = ()
    grows: str = ""


def result_of(state: State, events: tuple[Event, ...], reply: Reply) -> Result:
    """What these events lead to. One pass: there may be hundreds of thousands."""
    commit: dict[ShardId, Offset] = {}
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
                commit.pop(key, None)
            else:
                commit[key] = after.offset
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
    return Result(events, reply, persist, commit, wakes, tuple(told), _growth(appeared, begun))


def _growth(appeared: list[ShardId], begun: ResetReport | None) -> str:
    """What takes room and could stay out: shards that are new, and the rows of a reset."""
    grown = []
    if appeared:
        first: list[ShardId] = sorted(appeared, key=shard_key)
        grown.append(f"{count(len(appeared), 'new shard')} ({some(first, 3)})")
    if begun is not None and begun.state is ResetState.APPLYING:
        grown.append(f"the reset {begun.id} of {count(begun.shards, 'shard')}")
    return " and ".join(grown)
