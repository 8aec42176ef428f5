"""What a session needs from outside, as Protocols: the coordinator, and its owner, who decides what is read.

A clock is a function that returns monotonic seconds. Nothing here has behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shardherd.consumer.notices import Notice
from shardherd.core.model.gauges import Gauge
from shardherd.core.model.nouns import CheckpointReply, CheckpointRequest, FailingCell, Heartbeat, HeartbeatReply, Leave, Phase


class Coordinator(Protocol):
    """The calls of the coordinator's API that a consumer makes. Each raises ShardherdErrors, and never tries again."""

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        """Report what is held; the answer may take `wait` seconds if there is nothing new. Cancelling gives the request up."""
        ...

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        """Make positions durable; each shard has an outcome of its own."""
        ...

    async def leave(self, leave: Leave) -> None:
        """Say that this run goes, and whether all of it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """The consumer's own part of a heartbeat. `ready`: it may be given shards.

    `phase` is what it is about, None if it does not tell; `goes_on_in` in how many seconds it means to go on if it waits.
    `state_lost` are the cells that it cannot read because their state is lost, `cells_failing` those whose queries fail.
    `gauges` say how full it is.
    """

    ready: bool
    phase: Phase | None = None
    goes_on_in: float = 0.0
    state_lost: tuple[int, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    cells_failing: tuple[FailingCell, ...] = ()


class Owner(Protocol):
    """Reads the shards, and decides what the session does not."""

    def readiness(self) -> Readiness:
        """Asked for every heartbeat."""
        ...

    def hear(self, notice: Notice) -> None:
        """Something has happened. It must not wait; an exception is a defect and ends the run."""
        ...

    async def cease(self, deadline: float) -> bool:
        """A drain is at its end: give up what is still being read, and wait, though not long, until it has ended.

        Returns whether nothing of this run goes on any more.
        """
        ...
