"""What lies in a group's mailbox, and how what becomes of its commits gets there. Used by the runner and its parts.

Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from shardherd.coordinator.parking import Parked
from shardherd.core.group.group import Group
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import CheckpointReply, CheckpointResult, Offset, ShardId
from shardherd.core.model.requests import ForceCheckpointReply, Reply, Request


@dataclass(slots=True)
class Ask:
    """A request whose caller waits for `answer`. A heartbeat may be parked for `wait` seconds."""

    request: Request
    answer: asyncio.Future[Any]
    wait: float = 0.0


@dataclass(slots=True)
class Tell:
    """A request of the runtime to the group. With `insist` it is made again if its outcome could not be stored."""

    request: Request
    insist: bool = True


@dataclass(slots=True)
class Committing:
    """Positions that a handled request wants durable, and who waits for it (None: nobody)."""

    offsets: Mapping[ShardId, Offset]
    reply: Reply = None
    answer: asyncio.Future[Any] | None = None

    def settled(self, durable: Mapping[ShardId, Offset]) -> Reply:
        """The reply, now that these positions are known to be durable: OK becomes WITHHELD where it is not so.

        Raises CoordinatorUnavailableError for a forced checkpoint that was not written.
        """
        if not isinstance(self.reply, CheckpointReply):
            for shard, offset in self.offsets.items():
                if isinstance(self.reply, ForceCheckpointReply) and durable.get(shard) != offset:
                    raise CoordinatorUnavailableError(
                        f"the checkpoint of shard {shard} was not written; ask again", shard=shard
                    )
            return self.reply
        return CheckpointReply(
            tuple(
                replace(outcome, result=CheckpointResult.WITHHELD)
                if outcome.result is CheckpointResult.OK and durable.get(outcome.shard, -1) < outcome.offset
                else outcome
                for outcome in self.reply.outcomes
            )
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a commit: the request for the core, the positions now known durable, and whose replies it settles."""

    request: Request
    durable: Mapping[ShardId, Offset] = field(default_factory=dict)
    settles: tuple[Committing, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitError:
    """Why a commit has failed; empty when one has succeeded."""

    message: str


@dataclass(frozen=True, slots=True)
class IdInUse:
    """Whether somebody else keeps taking over the transactional id."""

    in_use: bool


CommitReport = Outcome | CommitError | IdInUse


class Served(Protocol):
    """A group that is served, as the committer and the keeper of its copies see it."""

    @property
    def group(self) -> Group:
        """Whose positions they are. Raises CoordinatorUnavailableError while it is being loaded."""

    @property
    def commits(self) -> bool:
        """Whether positions may be committed now."""

    async def prove(self) -> None:
        """Show that we lead. Raises CoordinatorUnavailableError if that cannot be shown now, LeadershipLostError."""

    def report(self, report: CommitReport) -> None:
        """Take in what became of a commit. The group hears of it through its mailbox, in the order of the reports."""


@dataclass(slots=True)
class Waited:
    """A parked heartbeat's interval has ended."""

    parked: Parked


@dataclass(slots=True)
class Prove:
    """Write the ownership although nothing changed, to prove that we lead; without `answer` to see that writes go through."""

    answer: asyncio.Future[None] | None = None


Item = Ask | Tell | Outcome | Waited | Prove
