"""The programs of simulated workers: processors that are slow, fail and forget, and what each of them is promised.

`worker` makes one for each shard that its worker holds. A `Book` sees in which order records are given and what comes of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.asynchronous import AsyncOperator
from shardherd.worker.processor import AsyncCheckpoint, AsyncProcessor
from shardherd.worker.record_processor import Ack, RecordProcessor
from shardherd.worker.records import Record, Records
from shardherd.worker.trees import Out, TreeProcessor, Tuple
from tests.simulation.history_entries import ProgramError

if TYPE_CHECKING:
    from tests.simulation.worker import WorkerRun


class Book:
    """What a worker's program was given of a shard in hand, and what it has done. Tells what should not be."""

    def __init__(self, run: WorkerRun, shard: ShardId, position: Offset, epoch: int) -> None:
        self.shard, self.epoch = shard, epoch
        self._run = run
        self._waits: list[float] = []
        self._open: dict[Offset, None] = {}
        self._failed: set[Offset] = set()
        self._next = position
        # Of batches: all before it is processed.
        self._upto = position
        self._emitted = -1

    @property
    def waits_since(self) -> float:
        """Since when it waits for its sink."""
        return min(self._waits, default=float("inf"))

    @property
    def pending(self) -> int:
        """How many records were given and are not done."""
        return len(self._open)

    def waiting(self, position: Offset) -> int:
        """How many records before this position are not processed."""
        return min(position - self._upto, position - self._next + len(self._open))

    def takes(self) -> float:
        """Seconds that a record takes, while the sink is not away."""
        draw = self._run.draw
        return draw.uniform(0.01, 0.2) if draw.random() < 0.97 else draw.uniform(1.0, 6.0)

    async def sink(self, away: Callable[[], bool] = lambda: False) -> None:
        """A record, or a batch, goes to the sink, which may be away."""
        await asyncio.sleep(self.takes())
        since = self._run.world.time
        self._waits.append(since)
        try:
            while self._run.hang_until > self._run.world.time or away():  # noqa: ASYNC110
                await asyncio.sleep(2.0)
        finally:
            self._waits.remove(since)

    def later(self, then: Callable[[], None]) -> None:
        """As `sink`, for what is no coroutine, and cannot be cancelled: in an ordered group the program sees to its time."""
        loop, run, until = self._run.process.loop, self._run, self._run.world.time + self._run.options.ack_timeout

        def look() -> None:
            if run.world.history.ordered and run.world.time >= until:
                return
            if run.hang_until > run.world.time:
                loop.call_later(2.0, look)
            else:
                then()

        loop.call_later(self.takes(), look)

    # Batches.

    def processes(self, records: Records, record: Record) -> None:
        """The next record of a batch is processed."""
        if record.offset > self._upto:
            self._run.broken(f"{record.offset} of {records!r} is processed before {self._upto}")
        self._run.wrote(self, record)
        self._upto = max(self._upto, record.offset + 1)

    # Records that are acknowledged.

    def given(self, record: Record, ack: Ack) -> Ack:
        """A record is handed out. What becomes of its acknowledgement is seen here, too."""
        run, offset, options = self._run, record.offset, self._run.options
        if ack.tries == 1:
            if offset != self._next:
                run.broken(f"{offset} of {self.shard} is handed out, next is {self._next}")
            if options.in_order and self._failed:
                run.broken(f"{offset} of {self.shard} is handed out before {sorted(self._failed)}, which failed")
            self._next = offset + 1
        elif offset not in self._open:
            run.broken(f"{offset} of {self.shard} is handed out again, and was done")
        self._failed.discard(offset)
        self._open[offset] = None
        if len(self._open) > options.max_pending:
            run.broken(f"{len(self._open)} records of {self.shard} are pending, {options.max_pending} may be")

        def settle(record: Record, tries: int, reason: str | None, bad: bool) -> bool:
            counts = ack._settle(record, tries, reason, bad)
            if counts and reason is None:
                self._open.pop(offset, None)
                self._failed.discard(offset)
            elif counts:
                self._failed.add(offset)
            elif reason is None:
                # It failed by its time, or the shard is given up: what was written is written again.
                run.run.violent = run.run.violent or "an acknowledgement came too late"
            return counts

        return Ack(ack.record, ack.tries, settle)

    def emits(self, offset: Offset) -> None:
        """A result of a first call comes out of an ordered operator."""
        if offset < self._emitted:
            self._run.broken(f"a result of {offset} of {self.shard} is emitted after one of {self._emitted}")
        self._emitted = offset

    def buried(self, record: Record) -> None:
        self._open.pop(record.offset, None)
        self._failed.discard(record.offset)


class _OfShard:
    """What all of them have."""

    book: Book

    def __init__(self, run: WorkerRun) -> None:
        self.run = run

    def begin(self, shard: ShardId) -> None:
        self.book = self.run.books[shard]

    def gone(self, record: Record) -> None:
        self.book.buried(record)


class Batches(_OfShard, AsyncProcessor):
    """Fails in the middle or at the end, goes back, saves in between, with and without being told."""

    entered = False

    async def initialize(self, shard: ShardId) -> None:
        self.begin(shard)
        if self.run.fails():
            raise ProgramError("initialize")

    async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> Offset | None:
        run, book, draw = self.run, self.book, self.run.draw
        if self.entered:
            run.broken(f"two hands are on {records.shard}")
        self.entered = True
        try:
            for count, record in enumerate(records):
                await book.sink()
                if count and run.fails():
                    if draw.random() < 0.5:
                        raise ProgramError("in between")
                    return record.offset
                book.processes(records, record)
                if draw.random() < 0.1:
                    await self._save(checkpoint, record.offset + 1)
            if run.fails():
                raise ProgramError("at the end")
        except asyncio.CancelledError:
            run.run.violent = run.run.violent or "a batch was given up"
            raise
        finally:
            self.entered = False
        return None

    async def _save(self, checkpoint: AsyncCheckpoint, position: Offset) -> None:
        run, shard = self.run, checkpoint.shard
        actual = run.world.history.shards[shard]

        def told(position: Offset, error: Exception | None) -> None:
            run.untold -= 1
            same = run.world.history.shards[shard] is actual and not actual.rewound
            # Unless the source has forgotten it, or the group is another one.
            highest = actual.highest if run.run.group == run.world.history.uid else None
            if error is None and same and highest is not None and highest < position:
                run.broken(f"position {position} of {shard} is said to be durable, durable is {actual.highest}")

        run.untold += 1
        try:
            await checkpoint.save(position, now=run.draw.random() < 0.5, callback=told)
        except BaseException:
            run.untold -= 1
            raise


class RecordsInThreads(_OfShard, RecordProcessor):
    """Acknowledges later, fails at once and later, and forgets records."""

    def initialize(self, shard: ShardId) -> None:
        self.begin(shard)

    def process(self, record: Record, ack: Ack) -> None:
        run, book, ack = self.run, self.book, self.book.given(record, ack)
        if not run.fails():

            def write() -> None:
                if not run.process.dead:
                    run.wrote(book, record)
                    ack()

            book.later(write)
            return
        how = run.draw.choice(("raises", "fails", "fails and acknowledges", "forgets"))
        if how == "raises":
            raise ProgramError(how)
        if how != "forgets":
            ack.fail(how)
        if how == "fails and acknowledges":
            book.later(lambda: None if run.process.dead else self._refused(record, ack))

    def _refused(self, record: Record, ack: Ack) -> None:
        if ack():
            self.run.broken(f"an acknowledgement of {record.offset} counts, which failed before")


class RecordsInCoroutines(_OfShard, RecordProcessor):
    """The same with coroutines."""

    async def initialize(self, shard: ShardId) -> None:
        self.begin(shard)

    async def process(self, record: Record, ack: Ack) -> None:
        run, book, ack = self.run, self.book, self.book.given(record, ack)
        await book.sink()
        if run.fails():
            if run.draw.random() < 0.5:
                raise ProgramError("in a coroutine")
            return  # it forgets the record
        run.wrote(book, record)
        ack()


class _Tree:
    """One attempt of a record: how many of its tuples are not processed."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.open = 1


class Trees(_OfShard, TreeProcessor):
    """Trees of a drawn form. Some tuples are kept, and acknowledged, failed or forgotten later."""

    manual = frozenset({"kept"})

    def initialize(self, shard: ShardId) -> None:
        self.begin(shard)
        self.trees: dict[Offset, _Tree] = {}

    def gone(self, record: Record) -> None:
        TreeProcessor.gone(self, record)
        self.book.buried(record)

    def process(self, record: Record, ack: Ack) -> None:
        watched = self.book.given(record, ack)
        self.trees[record.offset] = tree = _Tree(record)

        def settle(record: Record, tries: int, reason: str | None, bad: bool) -> bool:
            if reason is None and tree.open:
                self.run.broken(f"the tree of {record.offset} is done, and {tree.open} of its tuples are not")
            return watched._settle(record, tries, reason, bad)

        super().process(record, Ack(ack.record, ack.tries, settle))

    def root(self, record: Record, out: Out) -> None:
        self._grow(self.trees[record.offset], 2, out)
        self._processed(self.trees[record.offset])

    def grows(self, tuple_: Tuple, out: Out) -> None:
        tree, depth = tuple_.value
        self._grow(tree, depth, out)
        if self.run.fails():
            raise ProgramError("in a stage")
        self._processed(tree)

    def kept(self, tuple_: Tuple, out: Out) -> None:
        tree, depth = tuple_.value
        self._grow(tree, depth, out)

        def later() -> None:
            if self.run.process.dead:
                return
            if not self.run.fails():
                self._processed(tree)
                out.ack(tuple_)
            elif self.run.draw.random() < 0.5:
                out.fail(tuple_, "it was drawn")

        self.book.later(later)

    def _grow(self, tree: _Tree, depth: int, out: Out) -> None:
        for _ in range(self.run.draw.randrange(3) if depth else 0):
            tree.open += 1
            out.emit(self.run.draw.choice(("grows", "kept")), (tree, depth - 1))

    def _processed(self, tree: _Tree) -> None:
        tree.open -= 1
        if not tree.open:
            self.run.wrote(self.book, tree.record)


class Operators(_OfShard, AsyncOperator):
    """Calls with none, one or two results. A record is written with its last one."""

    retries = 1

    async def initialize(self, shard: ShardId) -> None:
        self.begin(shard)
        self.ordered = self.run.draw.random() < 0.5
        self.timeout = self.run.draw.choice((0.0, 10.0))
        self.first: dict[Offset, int] = {}

    async def process(self, record: Record, ack: Ack) -> None:
        self.first[record.offset] = ack.tries
        await super().process(record, self.book.given(record, ack))

    async def invoke(self, record: Record) -> list[tuple[Record, bool]]:
        await self.book.sink()
        if self.run.fails():
            raise ProgramError("in a call")
        count = self.run.draw.randrange(3)
        if not count:
            self.run.wrote(self.book, record)
        return [(record, each == count) for each in range(1, count + 1)]

    async def emit(self, result: tuple[Record, bool]) -> None:
        record, last = result
        if self.ordered and self.first[record.offset] == 1:
            self.book.emits(record.offset)
        await asyncio.sleep(0.01)
        if self.run.fails():
            raise ProgramError("in a sink")
        if last:
            self.run.wrote(self.book, record)


KINDS: Mapping[str, Callable[[WorkerRun], Any]] = {
    "batches": Batches,
    "records": RecordsInThreads,
    "coroutines": RecordsInCoroutines,
    "trees": Trees,
    "operators": Operators,
}
