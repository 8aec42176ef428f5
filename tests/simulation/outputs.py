"""The programs of simulated workers that send records by Outputs, and the outputs that they send to.

`worker` makes one for each shard that its worker holds, in schedules that have such. What is promised of a grant is seen here:
who has a record is not sent it again, nothing new is sent before what was not taken. What is promised beyond is the `places`'.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.guarantees import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from shardherd.worker.options import Options
from shardherd.worker.output import MovedPositionError, Output, ShardGrant, TransactionalOutput
from shardherd.worker.outputs import Outputs
from shardherd.worker.record_processor import Ack
from shardherd.worker.records import Record
from tests.simulation.history_entries import ProgramError
from tests.simulation.places import FAILS, HANGS, REFUSES, TAKES_AND_FAILS, Place, Sent
from tests.simulation.programs import Book

if TYPE_CHECKING:
    from tests.simulation.worker import WorkerRun

FILTERED = 11
"""Of so many records one is filtered: the same in every run."""


def options_of(options: Options, draw: random.Random, guarantee: str) -> Options:
    """These options, as a worker has them that sends to outputs."""
    return replace(
        options,
        in_order=options.in_order or guarantee == EXACTLY_ONCE,
        # One that is away for long is no reason to be given its records again and again.
        ack_timeout=draw.choice((0.0, 0.0, options.ack_timeout)),
    )


class Sends(Outputs):
    """Sends to all places. Raises in `select`, filters, and sees what is acknowledged."""

    book: Book

    def __init__(self, run: WorkerRun) -> None:
        self.run = run
        draw, places = run.draw, run.world.places
        self.guarantee = places.guarantee
        self.batch_size = draw.randint(1, 8)
        self.batch_wait = draw.choice((0.0, 0.5, 5.0))
        self.queue_bytes = draw.choice((300, 1 << 20))
        threads = draw.random() < 0.3
        made = Keeps if self.guarantee == EXACTLY_ONCE else InThreads if threads else InCoroutines
        self.outputs = tuple(partial(made, self, place) for place in places.all)
        self.given: list[Given] = []
        self.told: set[Offset] = set()
        self.committed: list[Sent] = []

    async def initialize(self, shard: ShardId) -> None:
        self.book, self.given = self.run.books[shard], []
        await super().initialize(shard)

    def select(self, record: Record) -> Record | None:
        run = self.run
        if not run.world.healed and run.draw.random() < run.failing:
            raise ProgramError("in select")
        if record.offset % FILTERED:
            return record
        self.passes(record)
        return None

    def process(self, record: Record, ack: Ack) -> None:
        watched = self.book.given(record, ack)

        def settle(record: Record, tries: int, reason: str | None, bad: bool) -> bool:
            counts = watched._settle(record, tries, reason, bad)
            if counts and reason is None:
                self._is_done(record)
            return counts

        super().process(record, Ack(ack.record, ack.tries, settle))

    async def shutdown(self, checkpoint: Any) -> None:
        await super().shutdown(checkpoint)
        unsent = [key[3] for key in self.committed if self.run.world.places.unsent(key)]
        if unsent and not checkpoint.lost and not self.run.run.violent:
            self.run.broken(f"{unsent} of {self.book.shard} are durable and were not sent before the shard went")

    def acknowledged(self, records: Sequence[Record]) -> None:
        offsets = [each.offset for each in records]
        if again := self.told.intersection(offsets):
            self.run.broken(f"{again} of {self.book.shard} are told twice to be in all outputs")
        if self.run.options.in_order and offsets != sorted({*offsets, max(self.told, default=-1)})[-len(offsets) :]:
            self.run.broken(f"{offsets} of {self.book.shard} are told to be in all outputs after {max(self.told)}")
        self.told.update(offsets)
        self.run.world.history.counts["records told to be in all outputs"] += len(records)

    def gone(self, record: Record) -> None:
        super().gone(record)
        self.book.buried(record)
        if self.given and all(record.offset in each.took for each in self.given):
            self.run.broken(f"{record.offset} of {self.book.shard} is buried, and all outputs have taken it")
        self.run.world.places.buries(self.key(record), self.run.run, self._lent.shard.epoch)

    async def abandoned(self) -> None:
        self.run.run.violent = self.run.run.violent or "outputs were given up"
        self.run.world.history.counts["outputs given up at the end of a shard"] += 1
        await super().abandoned()

    def key(self, record: Record) -> Sent:
        return self.run.world.places.key(self.run, self.book.shard, record)

    def passes(self, record: Record) -> None:
        """It is done, and not sent."""
        self.run.world.places.gone.add(self.key(record))

    def took(self, record: Record) -> None:
        """An output has taken it. Where that makes it done, it counts as written when the last one has."""
        if self.guarantee == AT_LEAST_ONCE and all(record.offset in each.took for each in self.given):
            self.run.wrote(self.book, record)

    def is_waited_for(self, records: Sequence[Record]) -> bool:
        """Whether something of a batch is not gone: nothing waits for what is buried meanwhile."""
        return any(self.key(each) not in self.run.world.places.gone for each in records)

    def _is_done(self, record: Record) -> None:
        """Its acknowledgement counts."""
        places, key = self.run.world.places, self.key(record)
        if key in places.gone:
            # Filtered now; or nobody waits for it who has it again, as it was buried before or an output stands beyond it.
            self.run.wrote(self.book, record)
            return
        if self.guarantee == AT_MOST_ONCE:
            places.committed[key] = self.run.run
            self.committed.append(key)
            self.run.wrote(self.book, record)
        elif (missing := places.lacks(key)) and places.is_judged(key):
            self.run.broken(f"{record.offset} of {self.book.shard} is done, and {missing} have not taken it")
        elif self.guarantee == EXACTLY_ONCE:
            self.run.wrote(self.book, record)


class Given:
    """What one output was given of a shard in hand, and took of it. Tells what should not be."""

    def __init__(self, program: Sends, place: Place) -> None:
        self.program, self.place, self.name = program, place, place.name
        self.took: set[Offset] = set()
        self.refusals: Counter[Offset] = Counter()
        self._left: dict[Offset, None] = {}
        self._last: Offset = -1
        self._writing = False
        program.given.append(self)

    @property
    def trouble(self) -> str:
        return self.program.run.world.places.trouble(self.place)

    def opens(self) -> None:
        if self.trouble == FAILS and self.program.run.draw.random() < 0.5:
            raise ProgramError("in open")

    def begins(self, records: Sequence[Record]) -> None:
        """A batch is on its way."""
        program, run, shard = self.program, self.program.run, self.program.book.shard
        offsets = [each.offset for each in records]
        in_order = run.options.in_order
        if self._writing:
            run.broken(f"{offsets} of {shard} are sent to {self.name} beside others")
        if not 0 < len(set(offsets)) == len(offsets) <= program.batch_size or (in_order and offsets != sorted(offsets)):
            run.broken(f"{offsets} of {shard} are sent to {self.name} in one batch")
        self._writing = True
        if again := [each for each in offsets if each in self.took]:
            run.broken(f"{again} of {shard} are sent to {self.name}, which took them before")
        new = [each for each in offsets if each not in self._left]
        if in_order and new and (left := self._waiting()):
            run.broken(f"{new} of {shard} are sent to {self.name} before {left}, which it did not take")
        if in_order and new and new[0] <= self._last:
            run.broken(f"{new} of {shard} are sent to {self.name} after {self._last}")
        self._left.update(dict.fromkeys(offsets))
        self._last = max(self._last, offsets[-1])
        places = run.world.places
        for record in records:
            run.world.judge(places.sends, self.place, program.key(record), run.run)

    def _waiting(self) -> list[Offset]:
        """What it was given, did not take, and is to be given again."""
        if self.program.guarantee == AT_MOST_ONCE:
            return []
        program, tries = self.program, self.program.run.options.tries
        over = {each[3] for each in program.run.world.places.gone if each[1] == program.book.shard}
        bad = {each for given in program.given for each, count in given.refusals.items() if tries and count >= tries}
        return [each for each in self._left if each not in over | bad]

    def ends(self) -> None:
        """The batch is not on its way any more."""
        self._writing = False

    def takes(self, records: Sequence[Record]) -> list[Record]:
        """A batch arrives. Returns what is refused of it."""
        program, place, trouble = self.program, self.place, self.trouble
        run, counts = program.run, program.run.world.history.counts
        keys = {each.offset: program.key(each) for each in records}
        if run.process.dead:
            return []
        if trouble == FAILS:
            counts["batches that an output failed at"] += 1
            place.failed.update(keys.values())
            raise ConnectionError(f"{self.name} is away")
        refused = [each for each in records if trouble == REFUSES and run.draw.random() < 0.4]
        if refused:
            counts["batches that an output took in part"] += len(refused) < len(records)
            place.failed.update(keys[each.offset] for each in refused)
            self.refusals.update(each.offset for each in refused)
        taken = [each for each in records if each not in refused]
        place.has.update(keys[each.offset] for each in taken)
        if trouble == TAKES_AND_FAILS:
            counts["batches that an output took and failed at"] += 1
            raise ConnectionError(f"{self.name} does not answer")
        counts["records taken by outputs"] += len(taken)
        for each in taken:
            self._left.pop(each.offset, None)
            self.took.add(each.offset)
            program.took(each)
        return refused


class InCoroutines(Output):
    """Takes its time, hangs for long, and may be cancelled before and after it has taken a batch."""

    def __init__(self, program: Sends, place: Place) -> None:
        self.name = place.name
        self._given = Given(program, place)

    async def open(self, shard: ShardId) -> None:
        await asyncio.sleep(0.01)
        self._given.opens()

    async def write(self, records: Sequence[Record]) -> list[Record]:
        given, draw = self._given, self._given.program.run.draw
        given.begins(records)
        try:
            await given.program.book.sink(lambda: given.trouble == HANGS and given.program.is_waited_for(records))
            refused = given.takes(records)
            await asyncio.sleep(draw.choice((0.0, 0.0, 0.1)))
            return refused
        finally:
            given.ends()

    async def close(self) -> None:
        await asyncio.sleep(0.01)
        if self._given.trouble == FAILS:
            raise ProgramError("in close")


class InThreads(Output):
    """Functions: they are not cancelled, and last a moment."""

    def __init__(self, program: Sends, place: Place) -> None:
        self.name = place.name
        self._given = Given(program, place)

    def open(self, shard: ShardId) -> None:
        self._given.opens()

    def write(self, records: Sequence[Record]) -> list[Record] | None:
        self._given.begins(records)
        try:
            return self._given.takes(records) or None
        finally:
            self._given.ends()


class Keeps(TransactionalOutput):
    """Keeps the position of each shard beside its records."""

    def __init__(self, program: Sends, place: Place) -> None:
        self.name = place.name
        self._program, self._place = program, place

    @property
    def _trouble(self) -> str:
        return self._program.run.world.places.trouble(self._place)

    async def position(self, grant: ShardGrant) -> Offset | None:
        await asyncio.sleep(0.05)
        if self._trouble:
            raise ConnectionError(f"{self.name} is away")
        return self._place.stands.get((grant.group, grant.shard, grant.topic_id))

    async def write_once(self, records: Sequence[Record], grant: ShardGrant, before: Offset | None, position: Offset) -> None:
        run, place = self._program.run, self._place
        await self._program.book.sink(lambda: self._trouble == HANGS)
        if run.process.dead:
            return
        if self._trouble == FAILS:
            run.world.history.counts["batches that an output failed at"] += 1
            raise ConnectionError(f"{self.name} is away")
        if place.stands.get((grant.group, grant.shard, grant.topic_id)) != before:
            raise MovedPositionError(f"{self.name} does not stand at {before}")
        keys = [self._program.key(each) for each in records]
        run.world.judge(run.world.places.writes_once, place, grant, keys, position, run.run)
        run.world.history.counts["records taken by outputs exactly once"] += len(records)
        if self._trouble in (TAKES_AND_FAILS, REFUSES):
            raise ConnectionError(f"{self.name} does not answer")
