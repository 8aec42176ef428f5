"""What a request leads to: what to make durable, what to answer, whom to tell, and what need not be looked for anew.

Called by `group`, read by whoever runs it. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardherd.core.group.state import GROUP, IN_FLIGHT, POSITIONS, SESSIONS, SHARDS, TOUCHED, Entry, GroupEvent, State
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ConsumerId, Offset, ResetReport, ResetState, ShardId
from shardherd.core.model.requests import Reply
from shardherd.core.model.wording import count, some


@dataclass(frozen=True, slots=True)
class Decision:
    """What a request leads to, and `entries`: what it added to the group's journal.

    `persist`: the ownership changed and must be durable before the reply goes out. `positions`: what to make durable in the
    source; what becomes of them must be reported, and the reply to a CheckpointRequest holds if they are. `woken`: consumers
    whose parked heartbeats must be answered now. `events`: the entries that are for users and metrics. `grows`: what it lets
    into the ownership that takes room and could stay out, in words; empty if nothing. The reply to a heartbeat is not
    here: `Group.confirmed` makes it when it is sent.
    """

    entries: tuple[Entry, ...] = ()
    reply: Reply = None
    persist: bool = False
    positions: Mapping[ShardId, Offset] = field(default_factory=dict)
    woken: frozenset[ConsumerId] = frozenset()
    events: tuple[GroupEvent, ...] = ()
    grows: str = ""


def decision_of(state: State, entries: tuple[Entry, ...], reply: Reply) -> Decision:
    """What these entries of the journal lead to. One pass: there may be hundreds of thousands."""
    positions: dict[ShardId, Offset] = {}
    woken: set[ConsumerId] = set()
    events: list[GroupEvent] = []
    appeared: list[ShardId] = []
    begun: ResetReport | None = None
    everyone = persist = False
    for entry in entries:
        if isinstance(entry, GroupEvent):
            events.append(entry)
            continue
        table, key, before, after = entry
        if table is IN_FLIGHT:
            if after is None:
                positions.pop(key, None)
            else:
                positions[key] = after.offset
        elif table is TOUCHED:
            woken.add(key)
        elif table is POSITIONS:
            pass
        elif entry.stored:
            persist = True
            if table is SHARDS:
                if before is None:
                    appeared.append(key)
            elif table is GROUP and after.reset is not before.reset:
                begun = after.reset
        elif key == "touched_all":
            everyone = True
    wakes = frozenset(woken.union(state.sessions if everyone else ()))
    return Decision(entries, reply, persist, positions, wakes, tuple(events), _growth(appeared, begun))


def only_the_same_look(entries: tuple[Entry, ...]) -> bool:
    """Whether these changes are those of a look at the source that has shown the same as the one before, and nothing else."""
    if len(entries) != 1 or isinstance(entries[0], GroupEvent):
        return False
    table, key, before, after = entries[0]
    return table is GROUP and key == "infos" and bool(before == after)


def only_sessions(entries: tuple[Entry, ...]) -> bool:
    """Whether these changes are of sessions alone: no look at the source depends on them."""
    return all(isinstance(entry, GroupEvent) or entry.table is SESSIONS or entry.table is TOUCHED for entry in entries)


def only_postpone(state: State, entries: tuple[Entry, ...]) -> bool:
    """Whether these changes make no deadline earlier. (A heartbeat may name a shard again; a first one starts clocks.)"""
    for entry in entries:
        if isinstance(entry, GroupEvent):
            continue
        table, _, before, after = entry
        if table is IN_FLIGHT or table is POSITIONS or table is TOUCHED:
            continue
        if table is not SESSIONS or before is None or not before.heard or after is None or state.moving.get(entry.key):
            return False
    return True


def _growth(appeared: list[ShardId], begun: ResetReport | None) -> str:
    """What takes room and could stay out: shards that are new, and the rows of a reset."""
    grown = []
    if appeared:
        first: list[ShardId] = sorted(appeared, key=shard_key)
        grown.append(f"{count(len(appeared), 'new shard')} ({some(first, 3)})")
    if begun is not None and begun.state is ResetState.APPLYING:
        grown.append(f"the reset {begun.id} of {count(begun.shards, 'shard')}")
    return " and ".join(grown)
