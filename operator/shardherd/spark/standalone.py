"""What a query reads that has no coordinator: Spark's checkpoint is the truth, and Kafka is asked for what is new.

The counterpart of the agent, in the stream reader's own process: `source` asks it what the next micro-batch has. It keeps no
position: each answer follows from the offsets that Spark hands in. Where to start is resolved in the first answer and carried
by it, because Spark asks for the initial offset twice and logs it never.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol, TypeVar

from shardherd.clock import boot_time
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import split
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.leader_epochs import UNKNOWN, EndOffsets, Mark, epochs_in
from shardherd.source.kafka.listing import Listed, Listing
from shardherd.source.kafka.partitions import LATEST
from shardherd.source.reading.start_positions import RangeBoundError
from shardherd.spark.batch_planner import Latest, ReaderSettings
from shardherd.spark.logged_epochs import leaders_of
from shardherd.spark.offsets import STANDALONE, Offsets, parse
from shardherd.spark.options import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT = 10.0
"""Seconds to wait for one answer of Kafka."""

FIRST_TIMEOUT = 60.0
"""Seconds to wait for Kafka before the first micro-batch: there is nothing to go on with yet."""

RETRY_DELAY = 0.5
"""Seconds between tries while Kafka is away."""

IDLE_WAIT = 0.05
"""Seconds between two looks while there is nothing new: Spark asks 90 times a second."""

LIST_INTERVAL = 1.0
"""Seconds between two looks at which partitions there are."""

LOSS_GRACE = 5.0
"""Seconds for which a loss must be seen: a broker that has just come back may know less than it should for a moment."""


NOTHING = Offsets(STANDALONE)
"""What was before the very first look."""


class DataLostError(Exception):
    """Records that were to be read are gone. Names the shard or the topic, and the remedy."""


class Kafka(Protocol):
    """What is asked of Kafka; `listing.Listing` is the real one."""

    def now(self, timeout: float) -> Listed: ...

    def complete(self, timeout: float) -> Listed: ...

    def offsets(self, times: Mapping[ShardId, int], timeout: float) -> Mapping[ShardId, Offset]: ...

    def begins(self, shards: frozenset[ShardId], timeout: float) -> Mapping[ShardId, Offset]: ...

    def end_offsets(self, shards: frozenset[ShardId], timeout: float) -> Mapping[ShardId, Offset]: ...

    def log_ends(self, shards: frozenset[ShardId], timeout: float) -> Mapping[ShardId, Offset]: ...

    def cuts(self, marks: Mapping[ShardId, Mark], timeout: float) -> Mapping[ShardId, Offset]: ...

    def sizes(self, positions: Mapping[ShardId, Offset], timeout: float) -> Mapping[ShardId, float]: ...

    def close(self) -> None: ...


def reader_settings(settings: Settings, slots: int | None) -> ReaderSettings:
    """What tasks are planned with."""
    security, committed = settings.security.as_dict(), bool(settings.committed)
    return ReaderSettings(STANDALONE, settings.bootstrap_servers, slots, security, committed=committed)


def connect(settings: Settings, slots: int | None) -> Standalone:
    """The side of a query that reads with these settings. Connects when it is first asked."""
    return Standalone(settings, slots, _listing(settings, "shardherd-query"))


def between(settings: Settings) -> Offsets:
    """What a batch reads. Raises RangeBoundError, TopicMissingError, BrokersUnavailableError, SourceRefusedError."""
    with closing(_listing(settings, "shardherd-batch")) as kafka:
        return ranges_between(settings, kafka)


def _listing(settings: Settings, name: str) -> Listing:
    brokers = Brokers(settings.bootstrap_servers, settings.security, name=name, committed=bool(settings.committed))
    return Listing(brokers, settings.selection)


def ranges_between(settings: Settings, kafka: Kafka) -> Offsets:
    """The same, of this Kafka."""
    listed = kafka.complete(FIRST_TIMEOUT)
    shards = listed.shards
    begins = settings.start.resolve(shards, kafka, TIMEOUT)
    stops = settings.stop.resolve(shards, kafka, TIMEOUT)  # after the starts: the end must not be below them
    end_offsets = kafka.offsets(dict.fromkeys(shards, LATEST), TIMEOUT) if settings.stop.offsets else {}
    for shard in sorted(shards):
        begin, stop = begins[shard], stops[shard]
        beyond = min(stop, end_offsets.get(shard, stop))
        if settings.fail_on_data_loss and (begin > stop or beyond < stop):
            wrong = f"it starts at {begin}, after that" if begin > stop else f"it has records up to {beyond} only"
            remedy = "correct the options"
            if begin <= stop and _is_held_back(settings, kafka, shard, stop):
                wrong = f"a transaction that is still open holds its records back from offset {beyond} on"
                remedy = "wait for its end"
            raise RangeBoundError(
                f"shard {shard} is to be read up to offset {stop} (option {settings.stop.option}), but {wrong}: {remedy}, or "
                "give failOnDataLoss=false to read what there is"
            )
        stops[shard] = max(begin, beyond)
    return _handed(begins, {shard: stops[shard] - begins[shard] for shard in shards}, listed.topics, {})


def _is_held_back(settings: Settings, kafka: Kafka, shard: ShardId, stop: Offset) -> bool:
    """Whether a shard that ends below this offset for us has it in its log."""
    return bool(settings.committed) and kafka.log_ends(frozenset((shard,)), TIMEOUT).get(shard, 0) >= stop


class Standalone:
    """Implements `batch_planner.BatchPlanner`. `now` is monotonic seconds."""

    ordered = False

    def __init__(self, settings: Settings, slots: int | None, kafka: Kafka, now: Callable[[], float] = boot_time) -> None:
        self.reader_settings = reader_settings(settings, slots)
        self._settings = settings
        self._kafka = kafka
        self._now = now
        self._closed = threading.Event()
        self._listed: Listed | None = None
        self._listed_at = 0.0
        self._looked_at: float | None = None  # when nothing new was found
        self._handed_at = now()
        self._bounds: Mapping[ShardId, Offset] | None = None
        self._end_offsets: dict[ShardId, Offset] = {}
        self._away = False
        self._suspected: dict[str, float] = {}
        self._in_doubt = False  # the last look has seen what may be a loss
        self._warned: set[str] = set()

    def latest(self, start: dict[str, Any], *, once: bool) -> Latest:
        """As `BatchPlanner.latest`. Raises DataLostError, RangeBoundError, TopicMissingError, SourceRefusedError."""
        begun = parse(start, STANDALONE)
        if self._looked_at is not None:
            self._closed.wait(max(0.0, self._looked_at + IDLE_WAIT - self._now()))
        asked_at = self._now()
        end = self._first(once) if begun.topics is None else self._later(begun, once)
        while end is None and self._unsure(begun, self._now() - asked_at) and not self._closed.wait(RETRY_DELAY):
            end = self._later(begun, once)
        self._looked_at = self._now() if end is None else None
        return Latest(None if end is None else end.as_dict(), dict(self._end_offsets))

    def replay(self, end: dict[str, Any]) -> frozenset[ShardId]:
        """Everything: nobody else reads for this query."""
        return frozenset(parse(end, STANDALONE).shards)

    def prepare(self) -> None:
        def look() -> Mapping[ShardId, Offset]:
            listed = self._list(complete=True)
            return self._kafka.offsets(dict.fromkeys(listed.shards, LATEST), TIMEOUT)

        self._bounds = self._patiently(look)

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._kafka.close()

    # --- what comes next -------------------------------------------------------------------------------------------------

    def _first(self, once: bool) -> Offsets:
        """Where it all starts. The answer names every shard even if there is nothing to read: Spark logs it."""

        def look() -> Offsets:
            listed = self._list(complete=True)
            positions = self._settings.start.resolve(listed.shards, self._kafka, TIMEOUT)
            log.info("starting at %s", {shard: positions[shard] for shard in sorted(positions)})
            end_offsets = self._known_end_offsets(listed.shards)
            counts = self._share(positions, end_offsets, once)
            return _handed(positions, counts, listed.topics, end_offsets)

        found = self._patiently(look)
        self._handed_at = self._now()
        return found

    def _later(self, begun: Offsets, once: bool) -> Offsets | None:
        try:
            end = self._next(begun, once)
        except BrokersUnavailableError as error:
            if not self._away:
                log.warning("cannot ask Kafka for new records, trying on: %s", error)
            self._away = True
            return None
        if self._away:
            log.warning("Kafka answers again")
        self._away = False
        if end is not None:
            self._handed_at = self._now()
        return end

    def _unsure(self, begun: Offsets, waited: float) -> bool:
        """Whether a query with Trigger.AvailableNow must not end yet, although there is nothing to hand out just now.

        That Kafka or a leader is away, or that something may be lost, is seen for a moment, and the query asks but once.
        """
        if self._bounds is None:
            return False
        if self._away or self._in_doubt:
            return True
        listed, topics = self._listed, begun.topics or {}
        left = listed is not None and any(
            shard in listed.shards
            and (each.stop < self._bounds.get(shard, 0) or _differ(topics.get(topic, ""), listed.topics.get(topic)))
            for shard, each in begun.shards.items()
            for topic in [split(shard)[0]]
        )
        return left and waited < FIRST_TIMEOUT

    def _next(self, begun: Offsets, once: bool) -> Offsets | None:
        listed = self._list(complete=False)
        suspected, self._suspected = self._suspected, {}
        self._in_doubt = False
        positions = {shard: each.stop for shard, each in begun.shards.items()}
        topics = dict(begun.topics or {})
        readable = listed.shards - self._waiting(topics, listed, suspected)
        another = {topic for topic, known in topics.items() if _differ(known, listed.topics.get(topic))}
        if anew := frozenset(shard for shard in readable if shard not in positions or split(shard)[0] in another):
            begins = self._kafka.begins(anew, TIMEOUT)
            readable -= anew - begins.keys()
            another &= {split(shard)[0] for shard in readable}
            # Of the topic before, no position means anything: neither where no leader answers yet, nor of partitions to come.
            positions = {shard: at for shard, at in positions.items() if split(shard)[0] not in another}
            positions |= begins
        # Where a loss was passed over, the new position must be logged at once: what comes after it is no loss.
        passed = bool(another & {split(shard)[0] for shard in readable})
        topics |= {topic: listed.topics[topic] for topic in {split(shard)[0] for shard in readable}}
        known = self._known_end_offsets(readable)
        end_offsets = EndOffsets(known, epochs_in(known))
        for shard, (at, lost) in self._cut(begun, positions, end_offsets).items():
            if self._lost(shard, lost, suspected):
                positions[shard] = at
                passed = True
            else:
                del end_offsets[shard]
        counts = self._share(positions, end_offsets, once)
        return _handed(positions, counts, topics, end_offsets, begun) if counts or passed else None

    def _cut(
        self, begun: Offsets, positions: Mapping[ShardId, Offset], end_offsets: EndOffsets
    ) -> Mapping[ShardId, tuple[Offset, str]]:
        """The shards whose logs lost what was read of them: where to go on, and what happened."""
        found: dict[ShardId, tuple[Offset, str]] = {}
        marks: dict[ShardId, Mark] = {}
        log_ends = self._log_ends(positions, end_offsets)
        for shard, end in log_ends.items():
            at, known, now = positions[shard], begun.leaders.get(shard, UNKNOWN), end_offsets.leaders.get(shard, UNKNOWN)
            if at > end:
                found[shard] = end, f"shard {shard} was read up to offset {at}, but ends at {end}"
            elif at and 0 <= known < now and shard in begun.shards and begun.shards[shard].stop == at:
                marks[shard] = Mark(at, known)
        for shard, end in (self._kafka.cuts(marks, TIMEOUT) if marks else {}).items():
            at, known = marks[shard]
            if 0 <= end < at:
                lost = (
                    f"shard {shard} was read up to offset {at}, but an unclean election cut its log off at {end}, and it has "
                    f"grown since (its leader's epoch was {known}, and is {end_offsets.leaders[shard]})"
                )
                found[shard] = end, lost
        return found

    def _log_ends(self, positions: Mapping[ShardId, Offset], end_offsets: Mapping[ShardId, Offset]) -> Mapping[ShardId, Offset]:
        """Where logs end, as far as that is known. Under read_committed it may be behind where the shards end for us."""
        beyond = frozenset(shard for shard, end in end_offsets.items() if positions[shard] > end)
        if not beyond or not self._settings.committed:
            return end_offsets
        # An open transaction begins before a position that was read to, or given, without read_committed.
        log_ends = self._kafka.log_ends(beyond, TIMEOUT)
        return {shard: log_ends.get(shard, end) for shard, end in end_offsets.items() if shard not in beyond - log_ends.keys()}

    def _waiting(self, topics: Mapping[str, str], listed: Listed, suspected: Mapping[str, float]) -> set[ShardId]:
        """Shards that are there and must wait, because their topic may be another one than before."""
        waiting: set[ShardId] = set()
        selection = self._settings.selection
        for topic, known in topics.items():
            if not selection.reads(topic):
                continue
            found = listed.topics.get(topic)
            if found is None:
                self._lost(topic, f"topic {topic!r} does not exist any more", suspected)
            elif _differ(known, found):
                lost = f"topic {topic!r} was deleted and made anew (its id was {known}, and is {found})"
                if not self._lost(topic, lost, suspected):
                    waiting |= {shard for shard in listed.shards if split(shard)[0] == topic}
        return waiting

    def _lost(self, what: str, loss: str, suspected: Mapping[str, float]) -> bool:
        """Whether this loss is certain and may be passed over. Raises DataLostError if it must not."""
        since = self._suspected[what] = suspected.get(what, self._now())
        if self._now() - since < LOSS_GRACE:
            self._in_doubt = True
            return False
        if self._settings.fail_on_data_loss:
            raise DataLostError(
                f"{loss}: records may have been lost. Start anew with another checkpointLocation, or give the option "
                "failOnDataLoss=false to go on with what there is"
            )
        if loss not in self._warned:
            self._warned.add(loss)
            log.warning("%s: going on with what there is, because failOnDataLoss is false", loss)
        return True

    def _share(
        self, positions: Mapping[ShardId, Offset], end_offsets: Mapping[ShardId, Offset], once: bool
    ) -> Mapping[ShardId, int]:
        """How many records of each shard come next."""
        if self._bounds is not None:
            end_offsets = {shard: min(end, self._bounds[shard]) for shard, end in end_offsets.items() if shard in self._bounds}
        available = {shard: end - positions[shard] for shard, end in end_offsets.items() if end > positions[shard]}
        limits = self._settings.limits
        if once or not available:
            return available
        if self._bounds is None and limits.waits(sum(available.values()), self._now() - self._handed_at):
            return {}
        asked = {shard: positions[shard] for shard in available}
        sizes = self._kafka.sizes(asked, TIMEOUT) if limits.max_bytes is not None else {}
        return limits.share(available, sizes)

    # --- asking Kafka ----------------------------------------------------------------------------------------------------

    def _list(self, *, complete: bool) -> Listed:
        if complete or self._listed is None or self._now() - self._listed_at >= LIST_INTERVAL:
            self._listed = (self._kafka.complete if complete else self._kafka.now)(TIMEOUT)
            self._listed_at = self._now()
        return self._listed

    def _known_end_offsets(self, shards: frozenset[ShardId]) -> Mapping[ShardId, Offset]:
        found = self._kafka.end_offsets(shards, TIMEOUT)
        self._end_offsets.update(found)
        return found

    def _patiently(self, look: Callable[[], T]) -> T:
        """What Kafka answers, even if it is away for a while."""
        deadline = self._now() + FIRST_TIMEOUT
        while True:
            try:
                return look()
            except BrokersUnavailableError as error:
                if self._now() >= deadline:
                    raise
                log.warning("Kafka is not there yet, trying on: %s", error)
                self._closed.wait(RETRY_DELAY)


def _differ(known: str, found: str | None) -> bool:
    """Whether these are the ids of two topics; brokers before Kafka 2.8 have no ids."""
    return bool(known and found) and known != found


def _handed(
    positions: Mapping[ShardId, Offset],
    counts: Mapping[ShardId, int],
    topics: Mapping[str, str],
    end_offsets: Mapping[ShardId, Offset],
    before: Offsets = NOTHING,
) -> Offsets:
    ranges = {shard: ReadRange(at, at + counts.get(shard, 0), 0) for shard, at in positions.items()}
    return Offsets(STANDALONE, 0, ranges, topics, leaders_of(before, ranges, end_offsets))
