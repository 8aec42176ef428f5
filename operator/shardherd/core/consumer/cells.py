"""The ledger of an agent whose group has cells: which cells it may run, which run, and what of them may be checkpointed.

A cell's streaming query stands or falls as a whole: it is started when the cell is granted, and none of its shards is given
up before it has ended. Where it goes on is what Spark has logged for it; the coordinator's positions follow. The agent calls it
for every reply and for everything that becomes of a query. It knows nothing of Spark or of time: all of it is a function of the
calls made so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import UNSET

from shardherd.core.consumer.ledger import Ledger
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import cell as cell_of
from shardherd.core.model.nouns import ConfirmedShard, HeartbeatReply, HeldShard, Offset, ShardId

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds after which a query that has failed is started again: twice as many each time, and never more than this."""


class Positions(dict[ShardId, Offset]):
    """Positions in Spark's log, and the ids that the topics of their shards had then, as far as they are known."""

    def __init__(
        self, positions: Mapping[ShardId, Offset] | None = None, topic_ids: Mapping[ShardId, str] | None = None
    ) -> None:
        super().__init__(positions or {})
        self.topic_ids: dict[ShardId, str] = dict(topic_ids or {})


@dataclass(slots=True)
class Grant:
    """One shard that we hold. `start` is where the state of its cell began, `done` the end of what Spark has finished."""

    epoch: int
    start: Offset
    done: Offset
    durable: Offset
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a shard of a cell stands: the coordinator's position, and where the state of its cell began."""

    position: Offset
    start: Offset


@dataclass(slots=True)
class Running:
    """A cell whose query runs, or may: the epochs under which it reads, and what it reads now, by reader.

    `begins` is where each shard stood when it was started, or joined; `logged` are the shards that Spark's log had then.
    `untold` is up to where shards were handed out, as long as Spark has not said that so much is finished.
    """

    number: int
    generation: int
    epochs: dict[ShardId, int]
    begins: dict[ShardId, Begin]
    logged: frozenset[ShardId] = frozenset()
    in_flight: dict[int, dict[ShardId, ReadRange]] = field(default_factory=dict)
    untold: dict[ShardId, Offset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellStart:
    """A cell whose query is to be started, in the location of this generation."""

    cell: int
    generation: int
    shards: Mapping[ShardId, Begin]


def lost(planned: Mapping[ShardId, Offset] | None, shards: Mapping[ShardId, Begin]) -> str:
    """Why the state of a cell is lost, empty if it is not.

    `planned` is up to where the last micro-batch in Spark's log goes, None where there is no log.
    """
    for shard, each in sorted(shards.items()):
        at = None if planned is None else planned.get(shard)
        if at is None:
            if each.position > each.start:
                log = "there is no log of Spark's" if planned is None else "Spark's log does not have it"
                return f"{log}, and {shard} has been read up to {each.position}, from {each.start} on"
        elif at < each.position:
            return (
                f"Spark's log ends at {at} of {shard}, whose position is {each.position}: it is an older copy, or the position"
                " was set ahead of it"
            )
    return ""


class CellLedger(Ledger[Grant]):
    """The account of one run of a consumer that runs cells. `cells` is 0 until the coordinator has said how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = 0
        self.generation = 0
        self._running: dict[int, Running] = {}
        self._lost: set[int] = set()

    # --- the coordinator's answers ---------------------------------------------------------------------------------------

    def confirm(self, reply: HeartbeatReply) -> None:
        if (reply.cells, reply.state_generation) != (self.cells, self.generation):
            self._lost = set()
        self.cells, self.generation = reply.cells, reply.state_generation
        super().confirm(reply)
        # The coordinator has heard of it once it confirms none of its shards; held again, it is looked at again.
        self._lost &= set(self._granted_cells())

    def held(self) -> tuple[HeldShard, ...]:
        """What a heartbeat must name: every grant, and whatever a query reads under whatever epoch."""
        pairs = {(shard, grant.epoch) for shard, grant in self._grants.items()}
        pairs |= {pair for running in self._running.values() for pair in running.epochs.items()}
        return tuple(HeldShard(shard, epoch) for shard, epoch in sorted(pairs))

    @property
    def lost(self) -> tuple[int, ...]:
        """The cells whose state is lost, in order."""
        return tuple(sorted(self._lost))

    def release(self) -> tuple[ShardId, ...]:
        """Give up the revoked shards of every cell that its query does not read and that are mirrored: all of them at once."""
        revoked: dict[int, list[ShardId]] = {}
        for shard, grant in sorted(self._grants.items()):
            if grant.revoked:
                revoked.setdefault(self._cell(shard), []).append(shard)
        free = [
            shard
            for cell, shards in sorted(revoked.items())
            if all(not self._being_read(each, grant) and grant.done <= grant.durable for each, grant in self._of(shards))
            for shard in shards
        ]
        for shard in free:
            self._give_up(shard)
        return tuple(free)

    # --- what is to be done ----------------------------------------------------------------------------------------------

    def to_start(self) -> tuple[CellStart, ...]:
        """The cells that we hold and that nobody runs, in order."""
        if self.paused:
            return ()
        return tuple(
            CellStart(cell, self.generation, self.begins(cell))
            for cell in sorted(self._granted_cells())
            if cell not in self._running and cell not in self._lost
        )

    def to_stop(self) -> tuple[int, ...]:
        """The cells whose queries read what is not ours any more, or is ours anew, or is lost."""
        return tuple(number for number, running in sorted(self._running.items()) if not self._stands(running))

    def _stands(self, running: Running) -> bool:
        if running.generation != self.generation or running.number in self._lost:
            return False
        readable = self.readable_epochs()
        return all(readable.get(shard) == epoch for shard, epoch in running.epochs.items())

    def begins(self, cell: int) -> dict[ShardId, Begin]:
        """The shards of a cell that may be read, and where each stands."""
        return {
            shard: Begin(grant.durable, grant.start)
            for shard, grant in sorted(self._grants.items())
            if not grant.revoked and self._cell(shard) == cell
        }

    # --- what becomes of queries -----------------------------------------------------------------------------------------

    def began(self, cell: int) -> None:
        """The query of a cell that we hold is about to be started."""
        epochs, begins = self.readable_epochs(), self.begins(cell)
        self._running[cell] = Running(cell, self.generation, {shard: epochs[shard] for shard in begins}, begins)
        self.progress += 1

    def known(self, cell: int, committed: Mapping[ShardId, Offset]) -> None:
        """Spark's log says that so much of this cell was finished before its query is started now."""
        if cell in self._running:
            ours = self._of_our_topics(committed)
            self._running[cell].logged = frozenset(ours)
            self.finished(cell, ours)

    @property
    def running(self) -> tuple[int, ...]:
        """The cells whose queries run, or may, in order."""
        return tuple(sorted(self._running))

    def readable(self, cell: int) -> dict[ShardId, int]:
        """The epochs of the shards of which the query of this cell may be given more; none if it is to be stopped.

        A shard that has joined the cell while its query ran is read from now on.
        """
        running = self._running.get(cell)
        if running is None or self.paused or not self._stands(running):
            return {}
        epochs = self.readable_epochs()
        for shard, begin in self.begins(cell).items():
            running.epochs[shard] = epochs[shard]
            running.begins.setdefault(shard, begin)
        return dict(running.epochs)

    def begin_of(self, cell: int, shard: ShardId) -> Offset | None:
        """Where a reader of the cell's query begins that has nothing of this shard in Spark's log; None if it should have.

        It may be another reader of the query that has read it: then this one begins where the state does.
        """
        running = self._running[cell]
        begin = running.begins[shard]
        if begin.position <= begin.start:
            return begin.position
        return begin.start if shard in running.logged else None

    def of_another_topic(self, shard: ShardId, topic_id: str) -> bool:
        """Whether what was logged of this shard is of another topic of its name, so that nothing of this one has been read.

        Of a topic without an id nobody knows. Whoever has set a position in the new one by force has said that it goes on.
        """
        grant, now = self._grants.get(shard), self.source_ids.get(shard, "")
        return grant is not None and grant.durable <= grant.start and bool(topic_id and now) and topic_id != now

    def hand_out(self, cell: int, reader: int, ranges: Mapping[ShardId, ReadRange]) -> None:
        """This reader of the cell reads these ranges; what it has read before, it has finished."""
        running = self._running[cell]
        running.in_flight[reader] = {shard: each for shard, each in ranges.items() if each.start < each.stop}
        running.untold |= {shard: each.stop for shard, each in running.in_flight[reader].items()}
        self.progress += 1

    def finished(self, cell: int, committed: Mapping[ShardId, Offset]) -> Mapping[ShardId, ReadRange]:
        """Spark has finished a micro-batch of the cell: up to here. Returns what was being read and is not any more."""
        running, committed = self._running.get(cell), self._of_our_topics(committed)
        if running is None:
            return {}
        ended: dict[ShardId, ReadRange] = {}
        for reader, ranges in running.in_flight.items():
            over = {shard: each for shard, each in ranges.items() if committed.get(shard, 0) >= each.stop}
            ended |= over
            running.in_flight[reader] = {shard: each for shard, each in ranges.items() if shard not in over}
        running.untold = {shard: stop for shard, stop in running.untold.items() if committed.get(shard, 0) < stop}
        self._mirror(running, committed)
        self.progress += 1
        return ended

    def ended(self, cell: int, committed: Mapping[ShardId, Offset]) -> int:
        """The query of the cell has ended, and nothing of it goes on; Spark has logged so much of it as finished.

        Returns of which generation of the state it was.
        """
        running = self._running.pop(cell, None)
        if running is None:
            return self.generation
        self._mirror(running, self._of_our_topics(committed))
        self.progress += 1
        return running.generation

    def lose(self, cell: int) -> None:
        """The state of this cell is not there, or not that of the positions: nothing of it is read.

        What is found of the generation before says nothing of this one.
        """
        running = self._running.get(cell)
        if running is None or running.generation == self.generation:
            self._lost.add(cell)

    def _of_our_topics(self, committed: Mapping[ShardId, Offset]) -> Mapping[ShardId, Offset]:
        """Without what is of a topic that was there before one that we hold shards of, under the same name."""
        if not isinstance(committed, Positions):
            return committed
        ids = committed.topic_ids
        return {shard: at for shard, at in committed.items() if not self.of_another_topic(shard, ids.get(shard, ""))}

    def _mirror(self, running: Running, committed: Mapping[ShardId, Offset]) -> None:
        for shard, at in committed.items():
            grant = self._grants.get(shard)
            if grant is not None and running.epochs.get(shard) == grant.epoch:
                grant.done = max(grant.done, at)

    # --- for others to see -----------------------------------------------------------------------------------------------

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The shards that we hold, revoked ones too, in order."""
        return tuple(sorted(self._grants))

    @property
    def busy(self) -> bool:
        """Whether a query runs."""
        return bool(self._running)

    @property
    def in_flight(self) -> Mapping[ShardId, ReadRange]:
        """What is being read."""
        return {
            shard: each
            for running in self._running.values()
            for ranges in running.in_flight.values()
            for shard, each in ranges.items()
        }

    def untold(self, cell: int) -> bool:
        """Whether something of this cell was handed out of which Spark has not told that it is finished, be it over by now."""
        running = self._running.get(cell)
        return running is not None and bool(running.untold)

    def positions(self) -> dict[ShardId, Offset]:
        """The end of what is finished of every shard that may be read."""
        return {shard: grant.done for shard, grant in sorted(self._grants.items()) if not grant.revoked}

    def _cell(self, shard: ShardId) -> int:
        return cell_of(shard, max(1, self.cells))

    def _granted_cells(self) -> Iterator[int]:
        if self.cells:
            yield from {self._cell(shard) for shard, grant in self._grants.items() if not grant.revoked}

    def _granted(self, each: ConfirmedShard, before: Grant | None) -> Grant:  # noqa: ARG002
        # An operator that does not say where the state began cannot say either that there is none yet.
        start = 0 if each.start is UNSET else each.start
        return Grant(each.owner_epoch, start, each.position, each.position)

    def _confirmed_again(self, grant: Grant, each: ConfirmedShard) -> None:
        """Nothing of a grant changes: where its state began is of its generation, which epochs tell apart."""

    def _being_read(self, shard: ShardId, grant: Grant) -> bool:  # noqa: ARG002
        # Under whatever epoch: a cell that has lost this one shard runs again without it.
        running = self._running.get(self._cell(shard))
        return running is not None and shard in running.epochs

    def _of(self, shards: Iterable[ShardId]) -> Iterator[tuple[ShardId, Grant]]:
        return ((shard, self._grants[shard]) for shard in shards)


class Pauses:
    """How long a cell rests whose query has failed. Times are the caller's, in seconds."""

    def __init__(self) -> None:
        self._pauses: dict[int, float] = {}
        self._until: dict[int, float] = {}

    def failed(self, cell: int, now: float) -> float:
        """Its query has failed. In how many seconds it may be started again."""
        pause = self._pauses[cell] = min(2 * self._pauses.get(cell, FIRST_PAUSE / 2), LONGEST_PAUSE)
        self._until[cell] = now + pause
        return pause

    def succeeded(self, cell: int) -> None:
        """A micro-batch of it was finished."""
        self._pauses.pop(cell, None)
        self._until.pop(cell, None)

    def rests(self, cell: int, now: float) -> bool:
        return now < self._until.get(cell, now)
