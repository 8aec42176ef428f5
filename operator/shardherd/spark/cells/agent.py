"""The agent of a group with cells: it says which cells' queries run, and hands each one's records out to its stream readers.

`runtime` runs it on the agent's event loop, `serve` brings the questions of stream readers, and `runner`, which starts and
stops queries, asks for its orders and tells what became of them. What is held and may be given up is `core.consumer.cells`'
business, when requests go out `consumer.session`'s. Where a query goes on is what Spark says it has logged: this agent hands
out what comes after it, and keeps no positions of its own. It never touches Spark: stopping is a callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from shardherd.clock import boot_time
from shardherd.consumer.notices import Assigned, Changed, Notice, Released
from shardherd.consumer.ports import Coordinator, Readiness
from shardherd.consumer.session import Session
from shardherd.core.consumer.cells import CellLedger, CellStart, Pauses
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import split
from shardherd.core.model.nouns import LONGEST_WAIT, FailingCell, Offset, Phase, ShardId
from shardherd.source.kafka.leader_epochs import EndOffsets, epochs_in
from shardherd.spark.agent_ports import KnownEndOffsets, Observer
from shardherd.spark.batch_sizing import BatchSizing
from shardherd.spark.cells.readers import CellReader, NoCellError
from shardherd.spark.consumer_run import ConsumerRun
from shardherd.spark.flow import Limits
from shardherd.spark.logged_epochs import leaders_of
from shardherd.spark.offsets import Offsets, topics_of
from shardherd.spark.running_batch import BatchRange, HandedBatch

log = logging.getLogger(__name__)

IDLE_WAIT = 0.05
"""Seconds that a question for new records is parked while there are none."""

PARKED = 0.5
"""Seconds that the question of a query that is being stopped is kept: who waits for an answer begins no micro-batch."""

TARGET_SECONDS = 10.0
"""Seconds that a micro-batch should take, unless the user says otherwise: a move waits for it."""

SHOWN = 300
"""Characters of a failure that are shown; the log has all of it."""

STATE_LOST = (
    "the state of cell {cell} is lost: {why}. Its location is {location}. Nobody reads the cell before a reset with "
    "discardState: true, which begins all cells with new state"
)


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be done with queries now.

    `over`: this run is over, nothing is started any more. `finished`: something is held, and all of it has been read once
    (Trigger.AvailableNow) or is lost.
    """

    start: tuple[CellStart, ...]
    stop: tuple[int, ...]
    over: bool
    finished: bool


class CellAgent(ConsumerRun[CellLedger]):
    """One run of a consumer. All methods belong to the event loop that `run` runs on."""

    cold = "shardherd.spark.run_cells(build) has not been called, by which alone a group with spec.state reads, or still begins"

    def __init__(
        self,
        settings: SessionSettings,
        coordinator: Coordinator,
        end_offsets: KnownEndOffsets,
        observer: Observer,
        stop: Callable[[str], Awaitable[None]],
        now: Callable[[], float] = boot_time,
    ) -> None:
        self.ledger = CellLedger()
        session = Session(coordinator, self.ledger, self, settings, now)
        super().__init__(session, self.ledger, end_offsets, observer, stop, now)
        self._pauses = Pauses()
        self._failures: dict[int, str] = {}  # of the cells that have not run well since: what was said first
        self._readers: dict[int, CellReader] = {}
        self._numbers = 0
        self._runs: dict[int, int] = {}  # how often the query of each cell was started, for its readers to be known by
        self._batches: dict[int, HandedBatch] = {}
        self._finished: set[tuple[int, int]] = set()  # of Trigger.AvailableNow, by cell and generation: read up to its end
        self._closed = False
        self._turned = asyncio.Event()  # there may be new orders

    @property
    def trouble(self) -> str:
        """Why the last heartbeat failed, or else which of the cells that are held fail, empty if there is nothing."""
        return super().trouble or "; ".join(f"the query of cell {cell} fails: {why}" for cell, why in self._failing())

    def _failing(self) -> list[tuple[int, str]]:
        """The cells that are held and have failed and not run well since, with the first line of what was said."""
        return [(cell, why) for cell, why in sorted(self._failures.items()) if self.ledger.begins(cell)]

    # --- towards the coordinator -----------------------------------------------------------------------------------------

    def readiness(self) -> Readiness:
        """For the session's heartbeats."""
        phase, goes_on_in = self._about()
        failing = tuple(FailingCell(cell, why) for cell, why in self._failing())
        return Readiness(self.ready, phase, goes_on_in, self.ledger.lost, gauges=self.gauges(), cells_failing=failing)

    def hear(self, notice: Notice) -> None:
        match notice:
            case Assigned() | Released():
                self._end_offsets.watch(self.ledger.epochs())
                self._wake()
            case Changed():
                self._wake()
            case _:
                super().hear(notice)

    async def drain(self, deadline: float) -> bool:
        self._wake()
        drained = asyncio.ensure_future(super().drain(deadline))
        await asyncio.sleep(0)  # the session knows by now that it drains
        self._wake()
        return await drained

    async def cease(self, deadline: float) -> bool:  # noqa: ARG002
        """For the session: queries that still run are given up."""
        if self.ledger.busy:
            reason = f"the queries of the cells {list(self.ledger.running)} did not end within drainTimeout"
            log.error("stopping: %s", reason, extra=self.session.log_fields())
            await self._begin_stop(reason)
        return not self.ledger.busy

    def warmed(self, trigger_interval: float = 0.0) -> None:
        """The workers have started: this consumer may be given cells. Their queries are triggered every so many seconds."""
        self.trigger_interval = trigger_interval
        if not self.ready:
            self.ready = True
            log.info("warm, and may be given cells", extra=self.session.log_fields())
            self.session.heartbeat_now()

    def _about(self) -> tuple[Phase, float]:
        """What this consumer is about, and in how many seconds it means to go on if it waits; 0 if it does not."""
        if self.ledger.in_flight:
            return (Phase.WRITING if self._writing else Phase.READING), 0.0
        if not self.ready:
            return Phase.WARMING, 0.0
        known, positions = self._end_offsets.known(), self.ledger.positions()
        if not any(known.get(shard, 0) > at for shard, at in positions.items()):
            return (Phase.READING if self._end_offsets.failing() else Phase.IDLE), 0.0
        asked = min((reader.asked_at for reader in self._readers.values()), default=self.batch_at)
        left = min(LONGEST_WAIT, asked + self.trigger_interval - self._now())
        return (Phase.WAITING, left) if left > 0.0 else (Phase.READING, 0.0)

    def _wake(self) -> None:
        self._records.set()
        self._turned.set()

    def _changed(self) -> None:
        self.session.changed()  # which lets us hear of it
        self._end_offsets.watch(self.ledger.epochs())

    # --- towards who starts and stops queries -----------------------------------------------------------------------------

    async def orders(self, wait: float) -> Orders:
        """What is to be done now; waits at most so long for something to change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._turned.wait()
        self._turned.clear()
        ledger, now = self.ledger, self._now()
        ending = self.session.ending
        to_start = () if ending or self.session.too_silent or not self.ready else ledger.to_start()
        left = [each for each in to_start if (each.cell, each.generation) not in self._finished]
        start = tuple(each for each in left if not self._pauses.rests(each.cell, now))
        stop = ledger.running if ending else ledger.to_stop()
        finished = bool(ledger.shards) and not (ledger.paused or ledger.running or left)
        return Orders(start, stop, self.gone, finished)

    def began(self, each: CellStart) -> int | None:
        """The query of this cell is about to be started; returns which start it is, None if it must not be any more.

        Nor if anything of the order has changed: it is given anew, with the shards, positions and generation of now.
        """
        cell = each.cell
        if self.session.ending or each not in self.ledger.to_start():
            return None
        self._runs[cell] = self._runs.get(cell, 0) + 1
        # Spark may run a logged micro-batch again that has no records, of which it asks no reader: for windows that are over.
        self._batches[cell] = HandedBatch({}, {})
        self.ledger.began(cell)
        log.info("starting the query of cell %d", cell, extra=self.session.log_fields())
        return self._runs[cell]

    def parked(self, cell: int) -> bool:
        """Whether the query of a cell that is being stopped waits for an answer: no micro-batch of it runs then."""
        return any(reader.parked for reader in self._readers.values() if reader.cell == cell)

    def unfinished(self, cell: int) -> bool:
        """Whether something of this cell was handed out and is not known to be finished."""
        return self.ledger.untold(cell)

    def known(self, cell: int, committed: Mapping[ShardId, Offset]) -> None:
        """So much of this cell has been finished before, as Spark's log says."""
        self.ledger.known(cell, committed)
        self._changed()

    def committed(self, cell: int, positions: Mapping[ShardId, Offset]) -> None:
        """Spark has logged a micro-batch of this cell as finished."""
        self._pauses.succeeded(cell)
        self._runs_well(cell)
        for reader in self._readers.values():
            if reader.cell == cell:
                reader.sizing.end(self._now())
        if ended := self.ledger.finished(cell, positions):
            took = self._now() - max((reader.records_at for reader in self._readers.values() if reader.cell == cell), default=0)
            self.batch_at = self._now()
            self._observer.batch(ended, took)
        self._changed()

    def _runs_well(self, cell: int) -> None:
        if self._failures.pop(cell, None) is not None:
            self.session.heartbeat_now()

    def ended(self, cell: int, committed: Mapping[ShardId, Offset], failure: str = "", *, finished: bool = False) -> None:
        """The query of this cell has ended, with what Spark has logged of it: it was stopped, has failed, or has `finished`."""
        finished = finished and not self._to_stop(cell)  # else it had no answer any more, which may have ended it
        generation = self.ledger.ended(cell, committed)
        self._batches.pop(cell, None)
        self._readers = {number: reader for number, reader in self._readers.items() if reader.cell != cell}
        if failure:
            pause = self._pauses.failed(cell, self._now())
            self._failures[cell] = _shown(failure)
            text = "the query of cell %d has failed, and is started again in %g s; the other cells read on: %s"
            log.error(text, cell, pause, failure, extra=self.session.log_fields())
            self.session.heartbeat_now()
        if finished:
            self._finished.add((cell, generation))
        self._changed()

    def lose(self, cell: int, why: str, location: str) -> None:
        """The state of this cell is lost: nothing of it is read until somebody has seen to it."""
        self.ledger.lose(cell)
        if cell not in self.ledger.lost:
            return
        log.error(STATE_LOST.format(cell=cell, why=why, location=location), extra=self.session.log_fields())
        self._changed()
        self.session.heartbeat_now()

    def close(self) -> None:
        """All queries are about to be stopped: none of them begins another micro-batch."""
        self._closed = True
        self._wake()

    # --- towards stream readers ------------------------------------------------------------------------------------------

    def reader_began(self, cell: int, run: int, topics: frozenset[str], limits: Limits) -> CellReader:
        """A stream reader of this start of a cell's query is there. Raises NoCellError."""
        if cell not in self.ledger.running or run != self._runs.get(cell):
            raise NoCellError(
                f"the query of cell {cell} is not run by this consumer any more: it was stopped, and whoever holds it now "
                "has started it again"
            )
        self._numbers += 1
        now = self._now()
        sizing = BatchSizing(limits.target_seconds or TARGET_SECONDS)
        reader = self._readers[self._numbers] = CellReader(self._numbers, cell, topics, limits, sizing, now, now)
        return reader

    def reader_ended(self, reader: CellReader) -> None:
        """It is gone. What it read is finished when Spark has logged it so, not before."""
        self._readers.pop(reader.number, None)

    async def latest(self, reader: CellReader, start: Offsets, limit: int | None) -> Offsets:
        """What the next micro-batch of this reader should end at; `start` itself (the same object) if there is nothing to do.

        `start` is what Spark has logged. At most `limit` records (None: no limit of the user's). A query that is to be stopped
        gets no answer for a while.
        """
        reader.asked_at = self._now()
        if reader.handed:
            reader.sizing.end(self._now())
        # What was handed out is finished. Whatever the answer is, a micro-batch may begin: one without records, say.
        self._hand_out(reader, {})
        limits = reader.limits if reader.limits.max_records == limit else replace(reader.limits, max_records=limit)
        until = self._now() + IDLE_WAIT
        while True:
            self._records.clear()
            reader.parked = self._to_stop(reader.cell)
            end = None if reader.parked else self._next(reader, start, limits, await self._sizes(reader, start))
            left = (reader.asked_at + PARKED if reader.parked else until) - self._now()
            if end is not None or left <= 0:
                if end is None and not reader.parked:
                    self._runs_well(reader.cell)  # what was logged has been run again, and there is nothing to read
                reader.parked = False  # whoever has an answer may begin a micro-batch, be it one without records
                return end or start
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._records.wait()

    def replay(self, reader: CellReader, end: Offsets) -> tuple[ShardId, ...]:
        """All shards of a logged, unfinished micro-batch: Spark's log is the truth, whoever planned it."""
        ranges = {shard: each for shard, each in end.shards.items() if each.start < each.stop}
        log.info("reading the unfinished micro-batch of cell %d again", reader.cell, extra=self.session.log_fields())
        logged = end.topics or {}
        ids = {shard: found for shard in ranges if (found := logged.get(split(shard)[0]))}
        self._hand_out(reader, ranges, {**self.ledger.source_ids, **ids})
        return tuple(ranges)

    async def prepare_available_now(self, reader: CellReader) -> None:
        """For Trigger.AvailableNow: read up to what there is now."""
        # It may be that the cell has no shard of what this reader reads, but not that it has none at all.
        while not self.ledger.readable(reader.cell) or not self._readable(reader).keys() <= self._end_offsets.known().keys():
            if self._to_stop(reader.cell):
                break
            self._records.clear()
            await self._records.wait()
        known, wanted = self._end_offsets.known(), self._readable(reader)
        reader.bounds = EndOffsets({shard: known[shard] for shard in wanted if shard in known}, epochs_in(known))

    def unread(self, reader: CellReader, start: Offsets) -> bool:
        """Whether a query with Trigger.AvailableNow must not end yet, although there was nothing to hand out just now."""
        if reader.bounds is None or not self.held_up or self._to_stop(reader.cell):
            return False
        places = ((self._place(reader, start, shard), end) for shard, end in reader.bounds.items())
        return any(place is not None and place < end for place, end in places)

    def batch(self, cell: int) -> HandedBatch | None:
        """What the query of this cell reads now, over all of its readers."""
        return self._batches.get(cell)

    def known_end_offsets(self, reader: CellReader) -> Mapping[ShardId, Offset]:
        """The known ends of what this reader reads."""
        readable = self._readable(reader)
        return {shard: end for shard, end in self._end_offsets.known().items() if shard in readable}

    def _to_stop(self, cell: int) -> bool:
        return self._closed or self.session.ending or cell not in self.ledger.running or cell in self.ledger.to_stop()

    def _readable(self, reader: CellReader) -> dict[ShardId, int]:
        """The shards that this reader may be given more of, with their epochs."""
        return {shard: epoch for shard, epoch in self.ledger.readable(reader.cell).items() if reader.reads(shard)}

    def _positions(self, reader: CellReader, start: Offsets) -> dict[ShardId, Offset]:
        """Where this reader goes on: where Spark's log ends, or where the state begins of a shard that is not in it yet."""
        found: dict[ShardId, Offset] = {}
        for shard in self._readable(reader):
            if (place := self._place(reader, start, shard)) is None:
                self.lose(reader.cell, f"Spark's log does not have {shard}, which has been read", "that of its query")
                return {}
            found[shard] = place
        return found

    def _place(self, reader: CellReader, start: Offsets, shard: ShardId) -> Offset | None:
        """Where this reader goes on in a shard of its cell; None if its state is lost."""
        logged = start.shards.get(shard)
        if logged is not None and not self.ledger.of_another_topic(shard, start.topic_id(shard)):
            return logged.stop
        return self.ledger.begin_of(reader.cell, shard)

    async def _sizes(self, reader: CellReader, start: Offsets) -> Mapping[ShardId, float]:
        """How many bytes the next records have, if the user bounds them."""
        if reader.limits.max_bytes is None:
            return {}
        known = self._end_offsets.known()
        positions = self._positions(reader, start)
        return await self._end_offsets.sizes({shard: at for shard, at in positions.items() if known.get(shard, 0) > at})

    def _next(self, reader: CellReader, start: Offsets, limits: Limits, sizes: Mapping[ShardId, float]) -> Offsets | None:
        if self.session.too_silent:
            return None
        ends = self._end_offsets.known() if reader.bounds is None else reader.bounds
        positions = self._positions(reader, start)
        available = {shard: ends[shard] - at for shard, at in positions.items() if ends.get(shard, 0) > at}
        waited = self._now() - reader.records_at
        if not available or (reader.bounds is None and limits.waits(sum(available.values()), waited)):
            return None
        paced = reader.bounds is None or limits.max_records is None
        counts = limits.share(available, sizes, reader.sizing.bound if paced else None)
        epochs = self.ledger.readable(reader.cell)
        ranges = {shard: ReadRange(at, at + counts.get(shard, 0), epochs[shard]) for shard, at in positions.items()}
        now = topics_of(ranges, self.ledger.source_ids) or {}
        anew = {split(shard)[0] for shard in ranges if self.ledger.of_another_topic(shard, start.topic_id(shard))}
        # A shard that is not held for a while stays in Spark's log: it knows alone how far its state has got.
        kept = {
            shard: ReadRange(each.stop, each.stop, each.epoch)
            for shard, each in start.shards.items()
            if split(shard)[0] not in anew
        }
        named = {**kept, **ranges}
        self.batch_at = reader.records_at = self._now()
        self._writing = False
        reader.sizing.begin(sum(counts.values()), self._now())
        self._observer.began({shard: each for shard, each in ranges.items() if each.start < each.stop}, reader.asked_at)
        self._hand_out(reader, ranges)
        # With the ids of those that are kept: if they are of another topic when they come back, their positions mean nothing.
        topics = {**(topics_of(kept, {shard: start.topic_id(shard) for shard in kept}) or {}), **now}
        return Offsets(self.settings.group_uid, start.warm, named, topics or None, leaders=leaders_of(start, named, ends))

    def _hand_out(
        self, reader: CellReader, ranges: Mapping[ShardId, ReadRange], topic_ids: Mapping[ShardId, str] | None = None
    ) -> None:
        if reader.cell not in self.ledger.running:
            return
        if ranges or reader.handed:
            epochs = self.ledger.readable_epochs()
            reader.handed = {
                shard: BatchRange(each.start, each.stop, epochs.get(shard, each.epoch))
                for shard, each in ranges.items()
                if each.start < each.stop
            }
            ids = self.ledger.source_ids if topic_ids is None else topic_ids
            reader.topic_ids = {shard: ids[shard] for shard in reader.handed if shard in ids}
            self.ledger.hand_out(reader.cell, reader.number, ranges)
        # Of micro-batches without records sinks ask, too, and each time there is another one to ask of.
        together = [other for other in self._readers.values() if other.cell == reader.cell]
        self._batches[reader.cell] = HandedBatch(
            {shard: each for other in together for shard, each in other.handed.items()},
            {shard: each for other in together for shard, each in other.topic_ids.items()},
        )


def _shown(failure: str) -> str:
    """The first line of an error as a heartbeat can have it: it must be printable, and not empty."""
    line = failure.strip().partition("\n")[0][:SHOWN]
    return "".join(each if each.isprintable() else " " for each in line) or "it does not say why"
