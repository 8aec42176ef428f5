"""What the agent needs around it, as Protocols, and who it is. The runtime gives it the real ones, tests give it fakes.

Nothing here has behaviour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import ConsumerId, Incarnation, Offset, ShardId


class EndsKnown(Protocol):
    """The known ends of shards, kept fresh by someone else."""

    def watch(self, shards: Iterable[ShardId]) -> None:
        """From now on, these are the shards whose ends are wanted."""
        ...

    def known(self) -> Mapping[ShardId, Offset]: ...

    def failing(self) -> bool:
        """Whether the ends of some of these shards cannot be learned now: there may be more to read than is known."""
        ...

    async def sizes(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float]:
        """Bytes a record at each position; those that cannot be learned are left out."""
        ...


class Observer(Protocol):
    """Is told what happened, for metrics."""

    def heartbeat(self, result: str) -> None: ...

    def checkpoint(self, result: str) -> None: ...

    def batch(self, ranges: Mapping[ShardId, ReadRange], seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Who the consumer is, where it runs, how much it can do relative to others, and its times in seconds.

    `group` is its namespace and name, for the log.
    """

    group_uid: str
    consumer: ConsumerId
    incarnation: Incarnation
    zone: str = ""
    capacity: int = 1
    heartbeat_interval: float = 3.0
    session_timeout: float = 45.0
    coordinator_loss_limit: float = 300.0
    drain_timeout: float = 60.0
    ordered: bool = False
    group: str = ""
