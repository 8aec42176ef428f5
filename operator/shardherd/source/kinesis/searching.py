"""Where records are in a shard: the first and the last of those that come next, the newest, the first since a time.

Kinesis tells no end of an open shard. The planner of micro-batches asks here where one ends: at a record that is there, so that
the batch has the same records whenever it is read. Few records are read for it, however many there are: times lead there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardherd.clock import boot_time
from shardherd.source.kinesis.client import Kinesis, KinesisUnavailableError
from shardherd.source.kinesis.deleted import CAUGHT, DAY, may_be_caught_up
from shardherd.source.kinesis.listing import ListedShard
from shardherd.source.kinesis.pacing import Pace
from shardherd.source.kinesis.shard_reader import (
    BEGINNING,
    MOST_RECORDS,
    Answer,
    NumberError,
    Record,
    ShardReader,
    Start,
    after,
    of_position,
    patiently,
    since,
)

PATIENCE = 10.0
"""Seconds for which one question is asked again."""

LOOKED_AT = 1000
"""Records that a look at what comes next reads at most: what a shard takes in a second."""

FEW = 100
"""Records that a search for a place reads at most at one time."""

EMPTY_ANSWERS = 5
"""Kinesis may answer with nothing although records follow; after so many a look is over, and the next one goes on there."""

KEPT = 240.0
"""Seconds for which a reader is used again that nobody has read with. Its iterator lives for five minutes; one that is opened
after them begins behind whatever retention has deleted by then, and would not say so."""

EMPTY_IN_SEARCH = 2000
"""After so many a search for a place is given up. A quiet shard has hundreds, and a place must not be missed for them."""


class Found(NamedTuple):
    """The records that come next: first <= number < stop. The first is there; without any, both are the end of the shard.

    With a `gap` the record before the position is gone, and perhaps others before the first, or the end.
    """

    first: int
    stop: int
    gap: bool = False


class Peek(NamedTuple):
    """The next record at a position: when it arrived (seconds since 1970), and for how many seconds records follow it.

    Once it is `over` there will never be one. With a `gap` the record before the position is gone, and perhaps others before
    this one, which then is the oldest that the shard has.
    """

    first: int | None
    arrived: float | None
    behind: float
    over: bool
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a shard a micro-batch has at most: seconds of its records, and if given records, bytes and a position."""

    span: float
    records: int | None = None
    size: int | None = None
    until: int | None = None

    @property
    def counted(self) -> bool:
        """Whether records must be looked at one by one to find where it ends."""
        return self.records is not None or self.size is not None


class _Kept(NamedTuple):
    """Where the last look at a shard ended, and when; `proven`: whether nothing before that place can have been missed.

    At the `tip` nothing followed: what does now is younger than that look.
    """

    position: int
    reader: ShardReader
    proven: bool
    tip: bool
    at: float


class Search:
    """Looks at the shards of one stream, within their limits. Threads may share it, for different shards.

    Where tasks read the same shards meanwhile and cannot know of it, `next` keeps to narrower accounts: `beside` where the next
    records end by times, `counting` where each of them is read.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        pace: Pace,
        now: Callable[[], float] = time.time,
        wait: Callable[[float], object] = time.sleep,
        *,
        beside: Pace | None = None,
        counting: Pace | None = None,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._kinesis = kinesis
        self._pace = pace
        self._beside = pace if beside is None else beside
        self._counting = pace if counting is None else counting
        self._now = now
        self._wait = wait
        self._clock = clock
        self._readers: dict[str, _Kept] = {}
        """By shard, so that the next look goes on there without a new iterator."""

    def forget(self, shard: str) -> None:
        """No look at this shard will come."""
        self._readers.pop(shard, None)

    def follows(self, shard: str) -> bool:
        """Whether the last look ended where records follow: it found none, or not all, and the next one goes on there."""
        kept = self._readers.get(shard)
        return kept is not None and not kept.tip

    def due(self, shard: str) -> float:
        """When this shard may be asked for again, by whoever knows nothing of what was asked here."""
        return self._pace.due(shard)

    # --- what comes next -------------------------------------------------------------------------------------------------

    def next(self, shard: ListedShard, position: int, bounds: Bounds) -> Found | None:
        """What comes next at this position, None if there is nothing yet.

        Raises KinesisUnavailableError, KinesisRefusedError, NumberError, ShardGoneError.
        """
        until = bounds.until
        if until is not None and position >= until:
            return None
        reader, proven = self._reader(shard, position)
        limit = LOOKED_AT if bounds.records is None else min(LOOKED_AT, bounds.records + 1)
        pace = self._counting if bounds.counted else self._beside
        answer, seen = self._first_records(reader, limit, position, pace=pace)
        gap = not proven and seen is not None and seen > position
        records = [each for each in answer.records if each.number >= position]
        if not records:
            if answer.over and shard.end is not None:
                # Nothing proves that there was nothing, if the record before the position is gone as well.
                return Found(shard.end, shard.end, not proven and seen is None)
            self._readers[shard.id] = _Kept(position, reader, proven or seen is not None, not answer.behind, self._clock())
            return None
        first = records[0].number
        if until is not None and first >= until:
            return None
        exhausted = True
        if bounds.counted:
            stop, answer, exhausted = self._counted(reader, answer, position, bounds)
        elif answer.over or not answer.behind:
            stop = records[-1].number + 1
        else:
            stop, exhausted = self._far(shard, answer, records, bounds), False
        if exhausted:
            if answer.over and shard.end is not None:
                stop = shard.end
            # So far behind an iterator may go on behind what retention deletes meanwhile.
            if not answer.behind or not may_be_caught_up(records[0].arrived.timestamp(), self._now()):
                self._readers[shard.id] = _Kept(stop, reader, True, not answer.behind, self._clock())
        return Found(first, stop if until is None else min(stop, until), gap)

    def _reader(self, shard: ListedShard, position: int) -> tuple[ShardReader, bool]:
        """What reads on at this position, and whether nothing before it can have been missed."""
        kept = self._readers.pop(shard.id, None)
        proven = position <= shard.begin
        if kept is not None and kept.position == position:
            ago = self._clock() - kept.at
            if ago < KEPT:
                return kept.reader, kept.proven
            # Retention cannot have deleted what is younger than it lasts.
            proven |= kept.proven and kept.tip and ago < CAUGHT * DAY
        return self._open(shard.id, of_position(position, shard.begin)), proven

    def _counted(self, reader: ShardReader, answer: Answer, position: int, bounds: Bounds) -> tuple[int, Answer, bool]:
        """Where so many records, or bytes, end; the last answer, and whether nothing was read beyond that place."""
        left = MOST_RECORDS**2 if bounds.records is None else bounds.records
        size = bounds.size
        stop = 0
        while True:
            for each in answer.records:
                if each.number < position:
                    continue
                length = len(each.data) + len(each.key)
                if stop and (not left or (size is not None and length > size)):
                    return stop, answer, False
                stop = each.number + 1
                left -= 1
                size = None if size is None else max(0, size - length)
            if answer.over or not answer.behind or not left or size == 0:
                return stop, answer, True
            answer = self._ask(reader, min(LOOKED_AT, left), self._counting)

    def _far(self, shard: ListedShard, answer: Answer, records: Sequence[Record], bounds: Bounds) -> int:
        """Where the span ends that begins with these records, if more follow than were answered: at one, or the shard's end."""
        first, last = records[0], records[-1]
        newest = last.arrived.timestamp() + answer.behind
        border = first.arrived.timestamp() + bounds.span
        if border < newest:
            following = self._since(shard.id, border, 1, self._beside)
            if following is not None and following.records:
                return max(last.number + 1, following.records[0].number)
        if shard.end is not None:
            return shard.end
        back = 1.0
        while (seconds := newest - back) > last.arrived.timestamp():
            recent = self._since(shard.id, seconds, LOOKED_AT, self._beside)
            if recent is not None and recent.records:
                return max(last.number, recent.records[-1].number) + 1
            back *= 4
        return last.number + 1

    # --- single places ---------------------------------------------------------------------------------------------------

    def peek(self, shard: ListedShard, position: int) -> Peek:
        """The record that comes next at this position."""
        # The one before the position and this one in one answer.
        limit = 2 if position > shard.begin else 1
        answer, seen = self._first_records(self._open(shard.id, of_position(position, shard.begin)), limit, position)
        gap = position > shard.begin and seen is not None and seen > position
        records = [each for each in answer.records if each.number >= position]
        if not records:
            return Peek(None, None, answer.behind, answer.over)
        return Peek(records[0].number, records[0].arrived.timestamp(), answer.behind, answer.over, gap)

    def first_since(self, shard: ListedShard, seconds: float) -> int | None:
        """The number of the first record that arrived then or later, None if there is none."""
        answer = self._since(shard.id, seconds, 1)
        return answer.records[0].number if answer is not None and answer.records else None

    def newest(self, shard: ListedShard) -> int | None:
        """The number of the newest record, None if there is none."""
        now, back = self._now(), 1.0
        # Up to a time with records behind it, eight times as far back each time; then halving what is between.
        while True:
            answer = self._since(shard.id, now - back, FEW)
            if answer is not None and answer.records:
                break
            if back > now:
                return None
            back = min(back * 8, now + 1.0)
        older, newer = back, back / 8
        while answer.behind and older - newer > 1.0:
            middle = (older + newer) / 2
            tried = self._since(shard.id, now - middle, FEW)
            if tried is not None and tried.records:
                answer, older = tried, middle
            else:
                newer = middle
        reader = self._open(shard.id, (after(answer.records[-1].number),))
        number = answer.records[-1].number
        while answer.behind and not answer.over:
            answer = self._ask(reader, MOST_RECORDS)
            number = answer.records[-1].number if answer.records else number
        return number

    def _since(self, shard: str, seconds: float, limit: int, pace: Pace | None = None) -> Answer | None:
        """The first records from that time on; None if Kinesis says that it has not come yet."""
        try:
            reader = self._open(shard, (since(seconds) if seconds > 0 else BEGINNING,))
            answer, _ = self._first_records(reader, limit, 0, EMPTY_IN_SEARCH, pace)
        except NumberError:
            return None
        if answer.behind and not answer.over and not answer.records:
            raise KinesisUnavailableError(f"shard {shard}: {EMPTY_IN_SEARCH} answers without records, though some follow")
        return answer

    def _first_records(
        self, reader: ShardReader, limit: int, position: int, empty: int = EMPTY_ANSWERS, pace: Pace | None = None
    ) -> tuple[Answer, int | None]:
        """The first answer with a record at or after the position, or the last one for now; and the first number seen."""
        answer, seen = self._ask(reader, limit, pace), None
        for left in range(empty, -1, -1):
            if seen is None and answer.records:
                seen = answer.records[0].number
            if not left or answer.over or not answer.behind or (answer.records and answer.records[-1].number >= position):
                break
            answer = self._ask(reader, limit, pace)
        return answer, seen

    def _open(self, shard: str, starts: tuple[Start, ...]) -> ShardReader:
        return ShardReader(self._kinesis, shard, starts)

    def _ask(self, reader: ShardReader, limit: int, pace: Pace | None = None) -> Answer:
        pace = self._pace if pace is None else pace
        return patiently(reader, pace, min(limit, pace.most(reader.shard)), boot_time() + PATIENCE, wait=self._wait)
