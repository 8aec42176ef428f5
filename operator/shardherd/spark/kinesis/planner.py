"""Which records of Kinesis the next micro-batch has: Spark's checkpoint is the truth, and the shards are asked for what is new.

`readers` calls it in the process of the query. Kinesis tells no end of an open shard, so the end of a batch is looked for
(`source.kinesis.searching`) before it is read, and logged: a replay reads the same records. A shard is read once its parents
are read to their ends. It keeps no position: each answer follows from the offsets that Spark hands in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from shardherd.clock import boot_time
from shardherd.source.kinesis.client import Kinesis, KinesisUnavailableError
from shardherd.source.kinesis.listing import ListedShard, Stream, describe, list_shards
from shardherd.source.kinesis.pacing import COUNTED, OF_LOOKS, Pace
from shardherd.source.kinesis.ranges import REMEDY, RecordsLostError, ShardRecords
from shardherd.source.kinesis.searching import Bounds, Found, Search
from shardherd.source.kinesis.shard_reader import NumberError, ShardGoneError
from shardherd.spark.kinesis.offsets import KinesisOffsets, ShardOffsets
from shardherd.spark.kinesis.options import EARLIEST, LATEST, KinesisSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_INTERVAL = 1.0
"""Seconds between two looks at a shard: Kinesis answers five requests a second for it, and tasks need most of them."""

LIST_INTERVAL = 2.0
"""Seconds between two looks at which shards there are."""

FIRST_TIMEOUT = 60.0
"""Seconds to wait for Kinesis where there is nothing to go on with yet, or a bounded query must not end too early."""

RETRY_DELAY = 0.5

AT_ONCE = 16
"""Shards that are looked at at the same time."""

NO_BOUND = float("inf")


class Service(Protocol):
    """What is asked of Kinesis; `StreamService` is the real one."""

    def describe(self) -> Stream: ...

    def shards(self) -> tuple[ListedShard, ...]: ...

    def next(self, shard: ListedShard, position: int, bounds: Bounds) -> Found | None: ...

    def newest(self, shard: ListedShard) -> int | None: ...

    def first_since(self, shard: ListedShard, seconds: float) -> int | None: ...

    def due(self, shard: str) -> float: ...

    def follows(self, shard: str) -> bool: ...


class StreamService:
    """One stream of Kinesis, asked within the limits of its shards.

    With `executors` tasks on other machines read the same shards meanwhile: what comes next is looked for with the rest.
    """

    def __init__(self, settings: KinesisSettings, pace: Pace | None = None, *, executors: bool = False) -> None:
        self._kinesis = Kinesis(settings.access)
        beside, counting = (settings.pace(OF_LOOKS), settings.pace(COUNTED)) if executors else (None, None)
        search = Search(self._kinesis, settings.pace() if pace is None else pace, beside=beside, counting=counting)
        self.next, self.newest, self.first_since = search.next, search.newest, search.first_since
        self.due, self.follows = search.due, search.follows

    def describe(self) -> Stream:
        return describe(self._kinesis)

    def shards(self) -> tuple[ListedShard, ...]:
        return list_shards(self._kinesis)


class KinesisPlanner:
    """Decides what micro-batches have. `now` is monotonic seconds."""

    def __init__(self, settings: KinesisSettings, service: Service | None = None, now: Callable[[], float] = boot_time) -> None:
        self._settings = settings
        self._service: Service = StreamService(settings) if service is None else service
        self._now = now
        self._closed = threading.Event()
        self._source: Stream | None = None
        self._listed: dict[str, ListedShard] = {}
        self._listed_at: float | None = None
        self._looked_at: float | None = None
        self._away = False
        self._bounds: Mapping[str, int] | None = None
        self._warned: set[str] = set()

    def latest(self, start: KinesisOffsets, *, once: bool) -> KinesisOffsets | None:
        """What comes after the finished micro-batch that ends at `start`, None if there is nothing. `once`: all there is.

        Raises RecordsLostError, KinesisRefusedError, and KinesisUnavailableError where it cannot wait.
        """
        if self._looked_at is not None:
            self._closed.wait(max(0.0, self._looked_at + LOOK_INTERVAL - self._now()))
        self._looked_at = self._now()
        if not start.source:
            return self._patiently(lambda: self._first(once))
        if self._bounds is not None or once:
            return self._all_of(start, once)
        try:
            end = self._next(start, once)
        except KinesisUnavailableError as error:
            if not self._away:
                log.warning("cannot ask Kinesis for new records, trying on: %s", error)
            self._away = True
            return None
        if self._away:
            log.warning("Kinesis answers again")
        self._away = False
        return end

    def prepare(self) -> None:
        """For Trigger.AvailableNow: from now on nothing is new."""
        self._bounds = self._patiently(lambda: self._ends(self._list(anew=True)))

    def between(self) -> KinesisOffsets:
        """What a batch reads: from its start to what there is, of all shards."""

        def look() -> KinesisOffsets:
            listed = self._list(anew=True)
            positions = self._starting(listed)
            ends = self._ends(listed)
            wanted = {shard: position for shard, position in positions.items() if position < ends[shard]}

            def one(shard: str) -> Found | None:
                return self._service.next(listed[shard], wanted[shard], Bounds(NO_BOUND, records=1, until=ends[shard]))

            found: dict[str, Found | None] = dict.fromkeys(wanted)
            while missing := [shard for shard, each in found.items() if each is None]:
                found |= self._patiently(partial(self._each, missing, one))
                if any(found[shard] is not None or self._service.follows(shard) for shard in missing):
                    continue
                raise KinesisUnavailableError(f"shard {missing[0]} has records before {ends[missing[0]]}, and none is answered")
            return KinesisOffsets(
                self._stream().source_id,
                {shard: ShardOffsets(each.first, ends[shard]) for shard, each in found.items() if each is not None},
            )

        return self._patiently(look)

    def ranges(self, end: KinesisOffsets) -> list[ShardRecords]:
        """What the micro-batch that ends there reads. Tasks elsewhere wait for what this process has read to find its end."""
        wanted = {shard: each for shard, each in end.shards.items() if each.start < each.stop}
        listed = self._patiently(lambda: self._list(anew=not wanted.keys() <= self._listed.keys()))
        return [
            ShardRecords(
                shard,
                each.start,
                each.stop,
                listed[shard].hashes if shard in listed else None,
                wait=max(0.0, self._service.due(shard) - self._now()),
            )
            for shard, each in sorted(wanted.items())
        ]

    def close(self) -> None:
        """May be called at any moment, also twice."""
        self._closed.set()

    # --- what comes next -------------------------------------------------------------------------------------------------

    def _first(self, once: bool) -> KinesisOffsets:
        """Where it all starts. The answer names every shard even if there is nothing to read: Spark logs it."""
        listed = self._list(anew=True)
        positions = self._starting(listed)
        log.info("starting at %s", positions)
        return self._looked(KinesisOffsets(self._stream().source_id), positions, listed, once)[0]

    def _all_of(self, start: KinesisOffsets, once: bool) -> KinesisOffsets | None:
        """The next part of a query that ends: that nothing was found for a moment must not end it.

        Nor that nothing is found for long, as long as a shard says that records follow.
        """
        deadline = self._now() + FIRST_TIMEOUT
        while True:
            end = self._patiently(lambda: self._next(start, once))
            if end is not None or self._bounds is None:
                return end
            positions = {shard: each.stop for shard, each in start.shards.items()}
            left = [shard for shard, bound in self._bounds.items() if shard in self._listed and positions.get(shard, 0) < bound]
            if not left or (self._now() >= deadline and not any(map(self._service.follows, left))):
                return None
            if self._closed.wait(LOOK_INTERVAL):
                return None

    def _next(self, start: KinesisOffsets, once: bool) -> KinesisOffsets | None:
        if start.source != self._stream().source_id:
            self._lost(
                f"stream {self._settings.stream} was deleted and made anew (it was {start.source}, and is "
                f"{self._stream().source_id})"
            )
            start = KinesisOffsets(self._stream().source_id)
        listed = self._list(anew=False)
        for shard, each in start.shards.items():
            if shard not in listed and not each.over:
                self._lost(f"shard {shard} is gone, and was read up to {each.stop} only: retention deleted its last records")
        positions = {shard: start.shards[shard].stop if shard in start.shards else 0 for shard in listed}
        end, news = self._looked(start, positions, listed, once)
        return end if news else None

    def _looked(
        self, before: KinesisOffsets, positions: Mapping[str, int], listed: Mapping[str, ListedShard], once: bool
    ) -> tuple[KinesisOffsets, bool]:
        """Where the next micro-batch ends, and whether it is another place than before."""
        readable = [
            shard for shard in listed if _unread(listed[shard], positions[shard]) and self._may(shard, positions, listed)
        ]
        bounds = {shard: self._bound(shard, len(readable), once) for shard in readable}
        found = self._each(readable, lambda shard: self._service.next(listed[shard], positions[shard], bounds[shard]))
        shards: dict[str, ShardOffsets] = {}
        for shard, each in listed.items():
            position = positions[shard]
            shards[shard] = ShardOffsets(position, position, not _unread(each, position))
            if (one := found.get(shard)) is not None:
                if one.gap:
                    self._lost(
                        f"shard {shard}: the record before {position} is gone, and so may be those from there up to "
                        f"{one.first}: retention deleted them"
                    )
                shards[shard] = ShardOffsets(one.first, one.stop, not _unread(each, one.stop))
        return KinesisOffsets(before.source, shards), any(each is not None for each in found.values())

    def _may(self, shard: str, positions: Mapping[str, int], listed: Mapping[str, ListedShard]) -> bool:
        """Whether a shard's parents are read to their ends; those that Kinesis lists no more have no records any more."""
        if self._bounds is not None and shard not in self._bounds:
            return False
        return not any(_unread(listed[each], positions[each]) for each in listed[shard].parents if each in listed)

    def _bound(self, shard: str, shards: int, once: bool) -> Bounds:
        until = None if self._bounds is None else self._bounds[shard]
        if once:
            return Bounds(NO_BOUND, until=until)
        settings = self._settings
        records = None if settings.max_records is None else max(1, settings.max_records // shards)
        size = None if settings.max_bytes is None else max(1, settings.max_bytes // shards)
        return Bounds(settings.span, records, size, until)

    def _starting(self, listed: Mapping[str, ListedShard]) -> dict[str, int]:
        """Where each shard of the first look starts."""
        start = self._settings.start
        if start == EARLIEST:
            return dict.fromkeys(listed, 0)
        ends = self._ends(listed)
        if start == LATEST:
            return ends
        found = self._each(listed, lambda shard: self._service.first_since(listed[shard], float(start)))
        return {shard: ends[shard] if found[shard] is None else found[shard] or 0 for shard in listed}

    def _ends(self, listed: Mapping[str, ListedShard]) -> dict[str, int]:
        """The end of each shard: of an open one, that of what it has by now."""
        newest = self._each(
            [shard for shard, each in listed.items() if each.end is None], lambda shard: self._service.newest(listed[shard])
        )
        return {shard: each.reaches(newest.get(shard)) for shard, each in listed.items()}

    def _lost(self, what: str) -> None:
        if self._settings.fail_on_data_loss:
            raise RecordsLostError(f"{what}; {REMEDY}")
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s; going on without them, as failOnDataLoss is false", what)

    # --- asking Kinesis --------------------------------------------------------------------------------------------------

    def _stream(self) -> Stream:
        if self._source is None:
            self._source = self._service.describe()
        return self._source

    def _list(self, *, anew: bool) -> Mapping[str, ListedShard]:
        if anew or self._listed_at is None or self._now() - self._listed_at >= LIST_INTERVAL:
            self._listed = {each.id: each for each in self._service.shards()}
            self._listed_at = self._now()
        return self._listed

    def _each(self, shards: Mapping[str, object] | list[str], ask: Callable[[str], T]) -> dict[str, T]:
        """What is answered for each shard, several at once. A shard that vanishes meanwhile is an error of the next look; one
        whose last record Kinesis takes for none any more is looked at anew."""
        names = list(shards)
        if not names:
            return {}

        def one(shard: str) -> T:
            try:
                return ask(shard)
            except (ShardGoneError, NumberError) as error:
                self._listed_at = None
                raise KinesisUnavailableError(str(error)) from error

        with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(names)), thread_name_prefix="kinesis-look") as pool:
            return dict(zip(names, pool.map(one, names), strict=True))

    def _patiently(self, look: Callable[[], T]) -> T:
        """What Kinesis answers, even if it is away for a while."""
        deadline = self._now() + FIRST_TIMEOUT
        while True:
            try:
                return look()
            except KinesisUnavailableError as error:
                if self._now() >= deadline or self._closed.is_set():
                    raise
                log.warning("Kinesis is not there, trying on: %s", error)
                self._closed.wait(RETRY_DELAY)


def _unread(shard: ListedShard, position: int) -> bool:
    return shard.end is None or position < shard.end
