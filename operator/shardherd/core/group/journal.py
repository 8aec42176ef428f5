"""What a request changes in a group's state, and its events: the entries of the journal that `state` keeps.

Made by the state's `put_*` methods and `emit`; read by `decisions` and the coordinator. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardId


class Table(StrEnum):
    """The tables of a group's state."""

    SHARDS = "shards"
    CONSUMERS = "consumers"
    SESSIONS = "sessions"
    HEARD = "heard"
    SUPERSEDED = "superseded"
    LAGGING = "lagging"
    POSITIONS = "positions"
    IN_FLIGHT = "in_flight"
    TOUCHED = "touched"
    GROUP = "group"


# Looked up once: Python 3.11 finds a member of an enumeration by a call, and these are asked for with every change.
SHARDS, CONSUMERS, SESSIONS, GROUP = Table.SHARDS, Table.CONSUMERS, Table.SESSIONS, Table.GROUP
POSITIONS, IN_FLIGHT, TOUCHED = Table.POSITIONS, Table.IN_FLIGHT, Table.TOUCHED


class Put(NamedTuple):
    """One row of a table changed. None stands for no row. A tuple, as a rebalance makes hundreds of thousands."""

    table: Table
    key: Any
    before: Any
    after: Any

    @property
    def stored(self) -> bool:
        """Whether the change is part of what must survive the coordinator."""
        table = self.table
        return table is SHARDS or table is CONSUMERS or (table is GROUP and self.key == "record")


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """What happened to a group: recorded as a Kubernetes Event, and counted. Changes no state.

    `reason` is one of `model.event_reasons`, or of `model.reasons` where the group's status gives it too. `cause` is why shards
    were moved.
    """

    reason: str
    message: str
    consumer: ConsumerId | None = None
    incarnation: Incarnation | None = None
    shards: tuple[ShardId, ...] = ()
    cause: str = ""
    moved: int = 0
    warning: bool = False


Entry = Put | GroupEvent
