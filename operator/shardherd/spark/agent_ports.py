"""What the agent needs around it, but for the coordinator, as Protocols. The runtime gives it the real ones, tests give fakes.

Nothing here has behaviour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import Offset, ShardId


class KnownEndOffsets(Protocol):
    """The known ends of shards, kept fresh by someone else."""

    def watch(self, shards: Mapping[ShardId, int], stops: Mapping[ShardId, Offset] | None = None) -> None:
        """From now on, these are the shards whose ends are wanted, with the epochs of their grants.

        Under another one a shard may be read from elsewhere, after a reset. None of `stops` ends above what that says.
        """
        ...

    def known(self) -> Mapping[ShardId, Offset]: ...

    async def reached(self, shards: Collection[ShardId]) -> Mapping[ShardId, Offset]:
        """How far these shards reach now: the end of what there is. One that is left out is not known yet."""
        ...

    def failing(self) -> bool:
        """Whether the ends of some of these shards cannot be learned now: there may be more to read than is known."""
        ...

    async def sizes(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float]:
        """Bytes a record at each position; those that cannot be learned are left out."""
        ...


class Observer(Protocol):
    """Hears what happened, for metrics and traces."""

    def heartbeat(self, result: str) -> None: ...

    def checkpoint(self, result: str) -> None: ...

    def began(self, ranges: Mapping[ShardId, ReadRange], asked_at: float) -> None:
        """These ranges are handed out, for a question that came at `asked_at` (monotonic seconds)."""
        ...

    def batch(self, ranges: Mapping[ShardId, ReadRange], seconds: float) -> None: ...


class Account(Protocol):
    """What an agent holds and reads, for metrics and the watch over tasks."""

    progress: int

    @property
    def shards(self) -> tuple[ShardId, ...]: ...

    @property
    def busy(self) -> bool: ...

    @property
    def in_flight(self) -> Mapping[ShardId, ReadRange]: ...
