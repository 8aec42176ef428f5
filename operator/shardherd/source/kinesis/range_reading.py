"""Reads ranges of Kinesis shards as Arrow record batches: what a task does.

A range begins with a record that was there when it was planned, or in a group at a position, and ends at a position, so it has
the same records whenever it is read. Where retention may delete records just before they are read, each answer proves that it
follows the one before. Shards are read side by side, each within its limits; the one that has waited longest is asked first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import pyarrow as pa

from shardherd.clock import boot_time
from shardherd.source.kinesis.client import Kinesis, KinesisUnavailableError
from shardherd.source.kinesis.columns import batch_of, rows_of
from shardherd.source.kinesis.deleted import Edge, Timed, Trail, gap_at, is_there
from shardherd.source.kinesis.pacing import Pace
from shardherd.source.kinesis.ranges import REMEDY, REMEDY_IN_GROUP, RecordsLostError, ShardRecords
from shardherd.source.kinesis.shard_reader import (
    BEGINNING,
    MOST_RECORDS,
    NumberError,
    Record,
    ShardGoneError,
    ShardReader,
    Start,
    at,
    of_position,
)

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Requests that a task has under way at the same time; each answer may have 10 MB."""

STALL_TIMEOUT = 120.0
"""Seconds without any progress after which a task fails, as in the Kafka source. An answer without records is some if less
follows it than any before: of a shard that was quiet for days there may be very many."""

LOSS_GRACE = 5.0
"""Seconds for which a shard must have nothing where records were."""

Typed = Callable[[pa.RecordBatch, Sequence[Record]], pa.RecordBatch]
"""What becomes of a batch before it is handed out."""


@dataclass(slots=True)
class _Reading:
    """How far one range is read: all below `at`. `begun`: nothing before that can have been missed. `behind`: the fewest
    seconds of records that followed an answer."""

    wanted: ShardRecords
    reader: ShardReader
    at: int
    begun: bool = False
    trail: Trail = field(default_factory=Trail)
    empty_since: float | None = None
    behind: float = float("inf")


class RangeReading:
    """The ranges of one task. `now` is monotonic seconds, `clock` the time of day.

    With `pays` a shard is first asked for after the wait of its range, and it ends only when each shard may be asked again: who
    has read it before, and who reads it next, may be on other machines, and know nothing of what this one asks. `edge` may be
    shared by who reads the same stream.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        pace: Pace,
        ranges: Sequence[ShardRecords],
        *,
        fail_on_data_loss: bool = True,
        pays: bool = False,
        edge: Edge | None = None,
        now: Callable[[], float] = boot_time,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kinesis = kinesis
        self._pace = pace
        self._fail = fail_on_data_loss
        self._pays = pays
        self._now = now
        self._clock = clock
        self._edge = edge or Edge(kinesis, now, clock)
        self._left = {
            each.shard: _Reading(each, ShardReader(kinesis, each.shard, _starts(each)), each.first, begun=_is_begin(each))
            for each in ranges
            if each.first < each.stop
        }
        for each in ranges:
            if pays and each.wait:
                pace.not_before(each.shard, now() + each.wait)

    def records(self) -> Iterator[tuple[ShardRecords, list[Record]]]:
        """All records, those of a shard in order. Raises RecordsLostError, KinesisUnavailableError, KinesisRefusedError."""
        progress_at = self._now()
        trouble: Exception | None = None
        asked: dict[Future[Timed], str] = {}
        shards = list(self._left)
        pool = ThreadPoolExecutor(max_workers=min(AT_ONCE, max(1, len(self._left))), thread_name_prefix="kinesis")
        try:
            while self._left:
                self._submit(pool, asked)
                done = self._await(asked)
                for each in done:
                    reading = self._left[asked.pop(each)]
                    behind = reading.behind
                    try:
                        records = self._taken(reading, each)
                    except KinesisUnavailableError as error:
                        self._pace.refused(reading.wanted.shard, self._now())
                        trouble = error
                        continue
                    if records or reading.wanted.shard not in self._left or reading.behind < behind:
                        progress_at, trouble = self._now(), None
                    if records:
                        yield reading.wanted, records
                        progress_at = self._now()  # the time that Spark takes for the rows is no stall
                if self._now() - progress_at > STALL_TIMEOUT:
                    reading = next(iter(self._left.values()))
                    raise KinesisUnavailableError(
                        f"shard {self._name(reading.wanted.shard)}: no record for {STALL_TIMEOUT:g} s, wanted up to "
                        f"{reading.wanted.stop}" + (f": {trouble}" if trouble else "")
                    )
            if self._pays and shards:
                time.sleep(max(0.0, max(map(self._pace.due, shards)) - self._now()))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, pool: ThreadPoolExecutor, asked: dict[Future[Timed], str]) -> None:
        """Ask for every shard that may be asked for by now, the one that has waited longest first."""
        idle = self._left.keys() - set(asked.values())
        while idle and len(asked) < AT_ONCE:
            shard = self._pace.next_of(idle)
            if self._pace.due(shard) > self._now():
                return
            idle -= {shard}
            self._pace.asked(shard, self._now())
            # The record before a place comes first where it is the proof.
            least = 1 if self._left[shard].begun else 2
            limit = min(MOST_RECORDS, max(least, self._pace.most(shard)))
            asked[pool.submit(self._edge.read, self._left[shard].reader, limit)] = shard

    def _await(self, asked: dict[Future[Timed], str]) -> set[Future[Timed]]:
        idle = self._left.keys() - set(asked.values())
        pause = None
        if idle and len(asked) < AT_ONCE:
            pause = max(0.0, min(self._pace.due(shard) for shard in idle) - self._now())
        if not asked:
            time.sleep(pause or 0.0)
            return set()
        return wait(asked, pause, FIRST_COMPLETED).done

    def _taken(self, reading: _Reading, future: Future[Timed]) -> list[Record]:
        """The records of an answer that are of the range; a range that is read is not left."""
        shard, first, stop, *_ = reading.wanted
        try:
            answer, answered, took = future.result()
        except NumberError:
            # The last record that was read is gone, and its iterator had expired.
            self._begin_again(reading)
            return []
        except ShardGoneError as error:
            self._lost(reading, stop, str(error))
            del self._left[shard]
            return []
        self._pace.answered(shard, answer.size, len(answer.records), took)
        if self._may_follow_a_gap(reading, answered):
            return []
        reading.behind = min(reading.behind, answer.behind)
        proves = reading.wanted.begin is not None or reading.at > first
        if answer.records:
            reading.empty_since = None
            if not reading.begun and proves:
                self._prove(reading, answer.records[0])
            elif not reading.begun and answer.records[-1].number >= first:
                found = next(each.number for each in answer.records if each.number >= first)
                if found != first:
                    self._lost(reading, found, "retention deleted them")
                reading.begun = True
        records = answer.records
        if records and not (reading.at <= records[0].number and records[-1].number < stop):
            records = [each for each in records if reading.at <= each.number < stop]
        if answer.over or (answer.records and answer.records[-1].number >= stop - 1):
            if answer.over and not reading.begun:
                if proves and reading.at == first:
                    self._prove(reading, None)
                else:
                    self._lost(reading, stop, "retention deleted them")
            del self._left[shard]
        elif not answer.records and not answer.behind:
            if reading.empty_since is None:
                reading.empty_since = self._now()
            elif self._now() - reading.empty_since >= LOSS_GRACE:
                self._lost(reading, stop, "the shard has nothing from there on: retention deleted them")
                del self._left[shard]
        elif answer.records:
            reading.trail.goes_on(answer, records, answered)
            if records:
                reading.at = records[-1].number + 1
                # Only after new ones: it would begin anew for ever where an answer has room for one record.
                if self._edge.ahead(reading.trail):
                    self._begin_again(reading)
        return records

    def _may_follow_a_gap(self, reading: _Reading, answered: float) -> bool:
        """Whether retention may have deleted what followed the last record before this answer, which then is not used."""
        try:
            gap = reading.begun and self._edge.passed(reading.trail, answered)
            if gap:
                self._pace.asked(reading.wanted.shard, self._now())
                gap = not is_there(self._kinesis, reading.wanted.shard, reading.at - 1)
        except KinesisUnavailableError:
            self._begin_again(reading)
            raise
        if gap:
            self._begin_again(reading)
        return gap

    def _begin_again(self, reading: _Reading) -> None:
        """Read anew from as far as it is read: an answer was dropped, or what comes next has to be proven."""
        wanted = reading.wanted
        begins = _starts(wanted) if reading.at == wanted.first else of_position(reading.at, wanted.begin or 0)
        reading.reader = ShardReader(self._kinesis, wanted.shard, begins)
        reading.begun = reading.at == wanted.first and _is_begin(wanted)

    def _prove(self, reading: _Reading, found: Record | None) -> None:
        """What goes on after a record has that one first if nothing is missing."""
        wanted = reading.wanted
        try:
            gap = gap_at(self._kinesis, self._name(wanted.shard), reading.at, found, self._clock())
        except KinesisUnavailableError:
            # The answer is dropped, and its reader, which is beyond it.
            self._begin_again(reading)
            raise
        reading.begun = True
        if gap is not None and gap.lost and self._fail:
            raise RecordsLostError(f"{gap.what}; {REMEDY if wanted.begin is None else REMEDY_IN_GROUP}")
        if gap is not None:
            log.warning("%s", gap.what)

    def _lost(self, reading: _Reading, up_to: int, why: str) -> None:
        shard, _, stop, *_ = reading.wanted
        what = f"shard {self._name(shard)}: the records from {reading.at} up to {min(up_to, stop)} are lost; {why}"
        if self._fail:
            raise RecordsLostError(f"{what}; {REMEDY if reading.wanted.begin is None else REMEDY_IN_GROUP}")
        log.warning("%s; going on without them, as failOnDataLoss is false", what)

    def _name(self, shard: str) -> str:
        return f"{self._kinesis.access.name}/{shard}"


def _starts(wanted: ShardRecords) -> tuple[Start, ...]:
    return (at(wanted.first), BEGINNING) if wanted.begin is None else of_position(wanted.first, wanted.begin)


def _is_begin(wanted: ShardRecords) -> bool:
    """Whether nothing can be missing before the range, as nothing ever was before it."""
    return wanted.begin is not None and wanted.first <= wanted.begin


def read_ranges(
    kinesis: Kinesis,
    pace: Pace,
    ranges: Sequence[ShardRecords],
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool = True,
    pays: bool = False,
    edge: Edge | None = None,
    typed: Typed | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every record of every range as Arrow batches; records of one shard come in order. Raises as `RangeReading.records`."""
    reading = RangeReading(kinesis, pace, ranges, fail_on_data_loss=fail_on_data_loss, pays=pays, edge=edge)
    for wanted, records in reading.records():
        name = f"{kinesis.access.name}/{wanted.shard}"
        rows = rows_of(records, wanted.hashes, name)
        if rows:
            batch = batch_of(rows, name, columns)
            yield batch if typed is None else typed(batch, rows)
