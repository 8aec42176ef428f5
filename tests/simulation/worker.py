"""One run of a worker: the real processing of `shardherd.worker` on the real consumer, with a program that fails and is slow.

It stands where a run with the Spark agent does, and meets the same faults. Records come from the world's source, and count as
written once the program has put them into its sink. What it draws is from a stream of its own: it changes no other schedule.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa

from shardherd.client.consumer import AsyncConsumer
from shardherd.consumer.ports import Coordinator
from shardherd.core.model.nouns import Heartbeat, HeartbeatReply, Leave, Offset, Phase, ShardId
from shardherd.source.decoding.record_columns import schema_of
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.worker.fetched import Part
from shardherd.worker.fetching import InThreads
from shardherd.worker.options import LEAST, Options
from shardherd.worker.processor import AsyncCheckpoint, Checkpoint
from shardherd.worker.records import COLUMNS, Record
from shardherd.worker.stream import Wanted
from shardherd.worker.worker import Processing
from tests.harness.loop_crew import LoopCrew
from tests.simulation.history_entries import BrokenError
from tests.simulation.outputs import Sends, options_of
from tests.simulation.plain import PlainRun
from tests.simulation.programs import KINDS, Book

SIZE = 512 * 1024
"""Bytes that a record is said to have, so that few of them fill a worker's memory."""

WAITING = (LEAST // 2 + 4 * 1024 * 1024) // SIZE
"""Most records of a shard that may wait to be processed: all of the memory for what waits, and one Fetch."""

OUTPUTS = "outputs"
"""The kind of programs that send records to outputs."""

CALLED_AFTER = 0.05
"""Seconds after which a function that was given to the crew runs: Fetches take a moment."""

MANY = 1000


@lru_cache
def _records(source: str, thousands: int) -> pa.RecordBatch:
    """The first records of a shard: the value says which shard bears the name. Made once, as to make them takes long."""
    rows = [
        {"offset": at, "key": None, "value": source.encode(), "timestamp": 0, "headers": None} for at in range(thousands * MANY)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema_of(COLUMNS))


class Phased:
    """A client that looks at what the worker says of itself: one that waits for its sink says so."""

    def __init__(self, client: Coordinator, run: WorkerRun) -> None:
        self._client, self._run = client, run
        self.checkpoint = client.checkpoint

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        self._run.says(heartbeat.phase)
        return await self._client.heartbeat(heartbeat, wait)

    async def leave(self, leave: Leave) -> None:
        await self._client.leave(leave)


class WorkerRun(PlainRun):
    """One run. See ConsumerRun. It is the fetcher, the listener and the place of dead letters of its worker, too."""

    draw: random.Random
    options: Options
    processing: Processing
    failing = 0.0
    """How likely it is that the program fails with a record."""

    def _boot(self) -> None:
        world, run = self.world, self.run
        self.draw = draw = random.Random(f"{world.plan.seed} worker {run}")
        self.failing = draw.choice((0.0, 0.03, 0.15))
        self.kind = OUTPUTS if world.plan.outputs else draw.choice(tuple(KINDS))
        self.books: dict[ShardId, Book] = {}
        self.untold = 0
        # Only what a thread gets is buried at once.
        buries = self.kind in ("records", "trees", OUTPUTS) and draw.random() < 0.5
        self.options = Options(
            threads=draw.randint(1, 3),
            batch_size=draw.randint(2, 30),
            memory=LEAST,
            fetch_interval=draw.choice((2.0, 10.0)),
            revoke_timeout=draw.choice((5.0, 20.0)),
            max_pending=draw.choice((1, 5, 20)),
            in_order=draw.random() < 0.5,
            ack_timeout=20.0,
            alarm_after=0.0,
            tries=3 if buries else 0,
            bad_records="dead-letter" if buries else "hold",
            dead_letters="graveyard" if buries else "",
        )
        if self.kind == OUTPUTS:
            self.options = options_of(self.options, draw, world.places.guarantee)
        make = Sends if self.kind == OUTPUTS else KINDS[self.kind]
        crew = LoopCrew(lambda _: CALLED_AFTER, self.process.loop)
        self.processing = Processing(lambda: make(self), InThreads(self, crew), crew, self.options, self, self)
        self._consumer = AsyncConsumer(
            Phased(self._client, self),
            run.consumer,
            run.incarnation,
            group_uid=self._settings.group_uid,
            save_interval=draw.choice((5.0, 60.0)),
            loss_limit=self._settings.coordinator_loss_limit,
            about=self.processing.about,
            now=self.process.loop.time,
        )
        self.process.loop.create_task(self._main(self._consumer))

    async def _main(self, consumer: AsyncConsumer) -> None:
        async with consumer:
            await self.processing.run(consumer)
            if consumer.stopped and not consumer.draining:
                self.run.violent = self.run.violent or consumer.stopped
        if not consumer.session.clean:
            self.run.violent = self.run.violent or "drained with work left over"
        if not self.process.dead:
            if consumer.session.clean and self.untold:
                self.broken(f"{self.untold} callbacks of saves were never called, though all is durable")
            self.exit("drained" if consumer.draining else f"stopped itself: {consumer.stopped}")

    async def _drain(self) -> None:
        if self._consumer is None:
            self.exit("drained")
            return
        # Then `_main` ends the process.
        if not await self._consumer.drain(60.0):
            self.run.violent = self.run.violent or "drained with work left over"

    def _query_again(self) -> None:
        """Its program fails with every record for a while."""
        self.run.violent = self.run.violent or "its program failed"
        before, self.failing = self.failing, 1.0
        self.process.loop.call_later(10.0, lambda: setattr(self, "failing", before))

    def broken(self, what: str) -> None:
        """A promise of the worker does not hold."""

        def fail() -> None:
            raise BrokenError(f"{self.run}, {self.kind}: {what}")

        self.world.judge(fail)

    def fails(self) -> bool:
        """Whether the program fails now. What it has written meanwhile may be written again, by whoever gets the shard."""
        if self.world.healed or self.draw.random() >= self.failing:
            return False
        self.run.violent = self.run.violent or "its program failed"
        return True

    def wrote(self, book: Book, record: Record) -> None:
        """The record has reached the sink, or the place of dead letters."""
        world, actual = self.world, self.world.history.shards[book.shard]
        if self.process.dead or record.value is None or record.value.decode() != actual.source_id:
            return  # or it is one of the shard that bore the name before
        self.run.sources[book.shard] = actual.source_id
        world.writes(book.shard, record.offset, record.offset + 1, book.epoch, self.run)
        world.history.counts["records written by workers"] += 1

    def says(self, phase: Phase | None) -> None:
        """A heartbeat is about to be sent."""
        waits = [book.shard for book in self.books.values() if book.waits_since < self.world.time - 10.0]
        if waits and phase is not Phase.WRITING:
            self.broken(f"says that it is {phase}, and waits for its sink with {waits}")

    # The fetcher.

    def connect(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def fetch(self, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]:
        if not self.world.reaches(self.process.name, "kafka"):
            raise BrokersUnavailableError("no broker")
        return [part for shard, each in wanted.items() if (part := self._part(shard, each)) is not None]

    def _part(self, shard: ShardId, wanted: Wanted) -> Part | None:
        world, end, start = self.world, self.world.end_of(shard), wanted.position
        if end is None or end < start:
            return None
        stop = min(end, start + max(1, wanted.most // SIZE))
        if start == stop:
            return Part(shard, start, start, end, 0, tuple)
        book, spare = self.books.get(shard), 0 if self.kind == "batches" else self.options.max_pending
        if book is not None and (waiting := book.waiting(start)) > WAITING + spare:
            self.broken(f"{shard} is read on from {start}, though {waiting} records before that wait to be processed")
        if not world.reads(shard, start, stop, self.run):
            return None
        table = _records(world.history.shards[shard].source_id, stop // MANY + 1).slice(start, stop - start)
        return Part(shard, start, stop, end, SIZE * table.num_rows, lambda: [table])

    # The listener.

    def on_assigned(self, shard: ShardId, position: Offset) -> None:
        if shard in self.books:
            self.broken(f"{shard} is assigned, and was not said to go before")
        epoch = next(each.shard.epoch for each in self.processing._holdings.values() if each.name == shard)
        self.books[shard] = Book(self, shard, position, epoch)

    def on_revoked(self, shard: ShardId, checkpoint: Checkpoint | AsyncCheckpoint) -> None:
        book = self.books.pop(shard, None)
        if book is None:
            self.broken(f"{shard} is revoked, and was not assigned")
        elif not checkpoint.lost and self.grants().get(shard) != book.epoch:
            self.broken(f"{shard} is released before it is revoked")
        elif book.pending:
            # Failed, or given up: what was written of them is written again.
            self.run.violent = self.run.violent or "records were given up"
        self.world.history.counts["shards of workers revoked"] += 1

    def on_lost(self, shard: ShardId) -> None:
        if self.books.pop(shard, None) is None:
            self.broken(f"{shard} is lost, and was not assigned")
        self.run.violent = self.run.violent or f"lost {shard}"
        self.world.history.counts["shards of workers lost"] += 1

    # The place of dead letters.

    def bury(self, shard: ShardId, record: Record, reason: str, tries: int) -> None:
        if not self.world.healed and self.draw.random() < 0.2:
            raise ConnectionError("no broker")
        if (book := self.books.get(shard)) is not None:
            self.wrote(book, record)
        self.world.history.counts["records of workers buried"] += 1
