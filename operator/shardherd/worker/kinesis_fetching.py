"""Fetches what a stream asks for, of Kinesis. Called by `worker` in threads: see `fetching.InThreads`.

It keeps a reader of every shard, with its iterator, and asks within what Kinesis allows for a shard: a request that is under
way when a call ends is taken up by the next one. It decides when a shard is read to its end, and what becomes of records that
are gone; which shards are read is `stream`'s business.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kinesis.client import Kinesis, KinesisUnavailableError
from shardherd.source.kinesis.columns import rows_of
from shardherd.source.kinesis.deleted import Edge, Timed, Trail, gap_at, is_there
from shardherd.source.kinesis.listing import ListedShard, list_shards
from shardherd.source.kinesis.pacing import Pace
from shardherd.source.kinesis.ranges import RecordsLostError
from shardherd.source.kinesis.shard_reader import (
    MOST_RECORDS,
    NumberError,
    Record,
    ShardGoneError,
    ShardReader,
    ThrottledError,
    of_position,
)
from shardherd.worker.fetched import Part
from shardherd.worker.kinesis_records import cutting
from shardherd.worker.stream import Wanted

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Requests that are under way at the same time, for either kind of shards; each answer may have 10 MB."""

FETCH_WAIT = 0.5
"""Seconds after which a call ends though nothing has come: other shards may be wanted by then."""

LOOK_INTERVAL = 1.0
"""Seconds between two requests for a shard that was read to its end: others may read it too, of five requests a second."""

LIST_INTERVAL = 1.0
"""Seconds between two looks at which shards there are."""

FORGOTTEN_AFTER = 300.0
"""Seconds after which a shard that nobody wants is forgotten, with an answer that came meanwhile: so long do iterators live."""

FIRST_LIMIT = 1000
"""Records that are asked for of a shard before their size is known."""

REMEDY = "set fail_on_data_loss to false to go on without them, or reset the shard"


@dataclass(slots=True)
class _Reading:
    """How far one shard is read. `proven`: nothing before this place can have been missed."""

    at: Offset
    reader: ShardReader
    proven: bool
    wanted_at: float
    trail: Trail = field(default_factory=Trail)
    mean: float = 0.0
    asked_at: float = float("-inf")
    answer: Future[Timed] | None = None


class KinesisFetcher:
    """Reads the shards of one stream. `now` is monotonic seconds, `clock` the time of day."""

    def __init__(
        self,
        kinesis: Kinesis,
        *,
        fail_on_data_loss: bool,
        now: Callable[[], float] = boot_time,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kinesis = kinesis
        self._fail = fail_on_data_loss
        self._now = now
        self._clock = clock
        self._pace = Pace()
        self._edge = Edge(kinesis, now, clock)
        # Of all that follows: two calls may run at the same time, though not for the same shards but by a change between them.
        self._lock = threading.Lock()
        self._readings: dict[ShardId, _Reading] = {}
        self._listed: dict[str, ListedShard] = {}
        self._listed_at = float("-inf")
        self._pools = {
            behind: ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"kinesis-{'more' if behind else 'ends'}")
            for behind in (True, False)
        }

    def connect(self) -> None:
        with self._lock:
            self._list()

    def fetch(self, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]:
        """See `fetching.BlockingFetcher`.

        Raises KinesisUnavailableError, which is worth another try, and KinesisRefusedError, RecordsLostError, which are not.
        """
        until = self._now() + FETCH_WAIT
        trouble: KinesisUnavailableError | None = None
        while True:
            with self._lock:
                asked, due_in = self._submit(wanted, behind)
            left = until - self._now()
            done = self._awaited(asked, max(0.0, left if due_in is None else min(left, due_in)))
            parts: list[Part] = []
            with self._lock:
                for shard in done:
                    try:
                        part = self._taken(shard)
                    except KinesisUnavailableError as error:
                        trouble = None if isinstance(error, ThrottledError) else error
                        continue
                    if part is not None:
                        parts.append(part)
            if parts:
                return parts
            if trouble is not None:
                raise trouble
            if self._now() >= until:
                return []

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    # --- asking ----------------------------------------------------------------------------------------------------------

    def _submit(self, wanted: Mapping[ShardId, Wanted], behind: bool) -> tuple[dict[ShardId, Future[Timed]], float | None]:
        """Ask for every shard that may be asked for by now; what is under way, and in how many seconds the next one may be."""
        under_way: dict[ShardId, Future[Timed]] = {}
        ready: list[tuple[float, ShardId]] = []
        now = self._now()
        for shard in [each for each, reading in self._readings.items() if now - reading.wanted_at > FORGOTTEN_AFTER]:
            del self._readings[shard]
        for shard, each in wanted.items():
            reading = self._reading(shard, each.position)
            if reading is None:
                continue
            reading.wanted_at = now
            if reading.answer is not None:
                under_way[shard] = reading.answer
                continue
            due = self._pace.due(reading.reader.shard)
            ready.append((due if behind else max(due, reading.asked_at + LOOK_INTERVAL), shard))
        for due, shard in sorted(ready):
            if len(under_way) >= AT_ONCE:
                return under_way, None
            if (left := due - self._now()) > 0:
                return under_way, left
            reading = self._readings[shard]
            reading.asked_at = self._now()
            self._pace.asked(reading.reader.shard, reading.asked_at)
            # The record before the position comes first where it is the proof.
            least = 1 if reading.proven else 2
            limit = FIRST_LIMIT if not reading.mean else max(least, int(wanted[shard].most / reading.mean))
            reading.answer = under_way[shard] = self._pools[behind].submit(
                self._edge.read, reading.reader, min(MOST_RECORDS, limit)
            )
        return under_way, None

    def _awaited(self, asked: Mapping[ShardId, Future[Timed]], pause: float) -> list[ShardId]:
        if not asked:
            time.sleep(pause)
            return []
        wait(asked.values(), pause, FIRST_COMPLETED)
        return [shard for shard, each in asked.items() if each.done()]

    def _reading(self, shard: ShardId, position: Offset) -> _Reading | None:
        """The reader of this shard at this position; None if it is not listed, or has nothing more for good."""
        name = shard.rpartition("/")[2]
        if name not in self._listed:
            self._list()
        listed = self._listed.get(name)
        if listed is None or (listed.end is not None and position >= listed.end):
            return None
        reading = self._readings.get(shard)
        if reading is None or reading.at != position:
            reader = ShardReader(self._kinesis, name, of_position(position, listed.begin))
            reading = self._readings[shard] = _Reading(position, reader, position <= listed.begin, self._now())
        return reading

    def _open_anew(self, reading: _Reading) -> None:
        """Begin where it is now: an iterator goes on behind what retention has deleted meanwhile, and does not say so."""
        listed = self._listed.get(reading.reader.shard)
        begin = 0 if listed is None else listed.begin
        reading.reader = ShardReader(self._kinesis, reading.reader.shard, of_position(reading.at, begin))
        reading.proven = reading.at <= begin

    def _list(self) -> None:
        if self._now() - self._listed_at >= LIST_INTERVAL:
            self._listed = {each.id: each for each in list_shards(self._kinesis)}
            self._listed_at = self._now()

    # --- answers ---------------------------------------------------------------------------------------------------------

    def _taken(self, shard: ShardId) -> Part | None:
        """What has come of a shard; None if it says nothing of it."""
        reading = self._readings.get(shard)
        if reading is None or reading.answer is None or not reading.answer.done():
            return None  # a call beside this one has it, at another position
        asked, reading.answer, name, at = reading.answer, None, reading.reader.shard, reading.at
        try:
            answer, answered, took = asked.result()
        except NumberError:
            # The last record that was read is gone, and its iterator had expired: the position is looked for anew.
            del self._readings[shard]
            return None
        except KinesisUnavailableError:
            self._pace.refused(name, self._now())
            raise
        except ShardGoneError as error:
            return self._gone(shard, at, str(error))
        self._pace.answered(name, answer.size, took=took)
        if answer.records:
            reading.mean = answer.size / len(answer.records)
        try:
            if reading.proven and self._edge.passed(reading.trail, answered):
                # What comes before this answer may be deleted since that one.
                self._pace.asked(name, self._now())
                if not is_there(self._kinesis, name, at - 1):
                    self._open_anew(reading)
                    return None
            if not reading.proven and (answer.records or answer.over):
                self._prove(shard, at, answer.records[0] if answer.records else None)
                reading.proven = True
            end = self._end_of(name) if answer.over else None
            records = answer.records
            if records and records[0].number < at:
                records = [each for each in records if each.number >= at]
        except KinesisUnavailableError:
            # The answer is dropped, and its reader, which is beyond it: it is asked for again.
            self._readings.pop(shard, None)
            raise
        next_ = records[-1].number + 1 if records else at
        if end is not None:
            next_ = end
        more = answer.over if end is None else False
        reading.at = next_
        reading.trail.goes_on(answer, records, answered)
        # Only after new ones: a reader would be opened for ever where an answer has room for one record.
        if records and self._edge.ahead(reading.trail):
            self._open_anew(reading)
        return Part(
            shard,
            at,
            next_,
            next_ + 1 if more or answer.behind else next_,
            answer.size,
            behind=answer.behind,
            cut=cutting(partial(self._rows, shard, records)),
        )

    def _rows(self, shard: ShardId, records: list[Record]) -> list[Record]:
        listed = self._listed.get(shard.rpartition("/")[2])
        return list(rows_of(records, None if listed is None else listed.hashes, shard))

    def _end_of(self, name: str) -> Offset | None:
        """Where a closed shard ends; None while the list of shards does not say it yet."""
        if name in self._listed and self._listed[name].end is None:
            self._list()
        listed = self._listed.get(name)
        return None if listed is None else listed.end

    # --- what is lost ----------------------------------------------------------------------------------------------------

    def _prove(self, shard: ShardId, position: Offset, first: Record | None) -> None:
        """The record before the position should come first. Raises RecordsLostError where it tells that others are lost."""
        if (gap := gap_at(self._kinesis, shard, position, first, self._clock())) is None:
            return
        if gap.lost and self._fail:
            raise RecordsLostError(f"{gap.what}; {REMEDY}")
        log.warning("%s", gap.what)

    def _gone(self, shard: ShardId, at: Offset, why: str) -> Part | None:
        """Kinesis has no such shard any more, and its records from there on neither. Without the stream, it is refused."""
        self._listed_at = float("-inf")
        before, name = self._listed, shard.rpartition("/")[2]
        self._list()
        listed = self._listed.get(name, before.get(name))
        what = f"shard {shard}: the records from {at} on are lost; {why}"
        if self._fail:
            raise RecordsLostError(f"{what}; {REMEDY}")
        del self._readings[shard]
        if listed is None or listed.end is None:
            return None
        log.warning("%s; going on without them, as fail_on_data_loss is false", what)
        return Part(shard, at, listed.end, listed.end, 0, behind=0.0, cut=cutting(list))
