"""The entries of one simulated world's history: each run of a consumer, each shard, and what reached the sink.

The history writes them and checks with them what was promised. They decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardherd.core.model.nouns import ConsumerId, Incarnation, Offset, ShardId

CANCEL_GRACE = 3.0
"""Seconds that the tasks of a consumer that must stop may still write: then its process has ended."""


class BrokenError(AssertionError):
    """A promise of the protocol does not hold."""


class ProgramError(Exception):
    """The program of a worker fails, as it was drawn: no failure of ours."""


@dataclass
class Run:
    """One run of a consumer, as the history judges it.

    `violent`: it was killed, expired, fenced or ended by itself, so that what it wrote may be read again by others. `stood`:
    the time until which its process last stood still: the tasks that were under way then may write until they are cancelled.
    """

    consumer: ConsumerId
    incarnation: Incarnation
    violent: str = ""
    stood: float = float("-inf")
    acknowledged: float = 0.0
    group: str = ""
    sources: dict[ShardId, str] = field(default_factory=dict)
    """Which shard it was that it read last under each name."""

    def __str__(self) -> str:
        return f"{self.consumer} ({self.incarnation.pod_uid}, start {self.incarnation.start})"


@dataclass(slots=True)
class Written:
    """Records of one shard that reached the sink together."""

    start: Offset
    stop: Offset
    run: Run
    epoch: int
    unclaimed: bool = False
    """Under a grant that could not be claimed when it was found out who holds what: its epoch may be given out again."""


@dataclass
class Grown:
    """A growth of the topic from `before` shards to `after`, which all producers have noticed at `noticed`.

    A producer that has not noticed goes on writing to the shards that were there. `ends` are theirs at that time, once it has
    come: what is written to them later is of no key that has moved to a new one.
    """

    before: int
    after: int
    noticed: float
    ends: dict[ShardId, Offset] | None = None


@dataclass
class Shard:
    """One shard of the source, what is durable of it, and what the sink has of it."""

    name: ShardId
    parents: tuple[ShardId, ...] = ()
    source_id: str = "id-1"
    """Which shard bears the name: another one has a history of its own."""
    begin: Offset = 0
    end: Offset = 0
    open: bool = True
    present: bool = True
    gone: bool = False
    """It is not present, and never will be."""
    was_away: bool = False
    """It was not there for a while: who comes after it need not have waited."""
    was_read: bool = False
    born: float = 0.0
    durable: Offset | None = None
    highest: Offset | None = None
    """The last durable position, also when the source has forgotten it."""
    landed: tuple[Offset, int] = (-1, 0)
    """The last position that became durable, and the epoch that was stored at that moment."""
    prefix: Offset = 0
    """All records below are in the sink since they were last asked for."""
    beyond: list[tuple[Offset, Offset]] = field(default_factory=list)
    written_before: list[tuple[Offset, Offset]] = field(default_factory=list)
    """What the sink had of it when a group began that found no offset of it."""
    before_reset: list[tuple[Offset, Offset]] = field(default_factory=list)
    """What the sink had when a position of a reset became durable that is not made yet."""
    written: list[Written] = field(default_factory=list)
    newest_epoch: int = 0
    rewound: bool = False
    forced_under: set[int] = field(default_factory=set)
    """The epochs of grants that ended with a position that a user asked for: what was written under them is written again."""
    succeeds_started: bool = False
    """A shard that bore the name before had a durable position: who held that may still name this one."""
    ordered_from_birth: bool = False
    last_position: dict[int, Offset] = field(default_factory=dict)
    granted_since: set[tuple[int, ConsumerId, Incarnation]] | None = None
    """Its grants since it was found out who holds what, if it was not there then: whoever held it before could not claim it."""

    def unclaimed(self, run: Run, epoch: int) -> bool:
        """Whether this is a grant of before, that could not be claimed: what was written under it may be read again."""
        return self.granted_since is not None and (epoch, run.consumer, run.incarnation) not in self.granted_since

    def ended_by_force(self, epoch: int, another: int) -> bool:
        """Whether a position that a user asked for lies between these two epochs.

        The holder reads on from there as soon as it hears of it. Until then it may read under the grant of before, also a shard
        that nobody had read when the position became durable, or that the coordinator did not know yet to be made anew.
        """
        return any(min(epoch, another) <= ended < max(epoch, another) for ended in self.forced_under)

    def miss_claims(self) -> None:
        """It was found out who holds what, and it was not there: nobody could claim it."""
        self.granted_since = set()
        self.written = [replace(each, unclaimed=True) for each in self.written]

    def begin_again(self) -> None:
        """It is read from its beginning by a group that finds no offset of it.

        Unless one of the group before, whose commit was under way, arrives first: what it counts was `written_before`.
        """
        self.written_before = [(self.begin, self.prefix), *self.beyond]
        self.durable = self.highest = None
        self.landed, self.prefix, self.beyond = (-1, 0), self.begin, []
