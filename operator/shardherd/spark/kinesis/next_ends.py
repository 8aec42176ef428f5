"""Where the next micro-batch of a group's shards ends: what the agent knows in the place of the ends of Kafka's partitions.

The runtime makes it where the group reads Kinesis, and the agent plans by it. A thread looks behind the position of every shard
that is held (`source.kinesis.searching`), and finds a record at which a micro-batch can end, so that tasks read the same
records however often. It decides how far that is; the agent decides when it is read. Errors are logged once and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kinesis.client import KinesisRefusedError, KinesisUnavailableError
from shardherd.source.kinesis.listing import ListedShard
from shardherd.source.kinesis.searching import Bounds, Found
from shardherd.source.kinesis.shard_reader import NumberError, ShardGoneError
from shardherd.source.look_thread import LookThread
from shardherd.spark.flow import Limits

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at a shard: Kinesis answers five requests a second for it, and tasks need most of them."""

LIST_INTERVAL = 2.0
"""Seconds between two looks at which shards there are."""

AT_ONCE = 16
"""Shards that are looked at at the same time."""

SPAN = 10.0
"""Seconds of a shard's records that a micro-batch has at most: a rebalance waits for it. Kinesis gives them in five."""

STALE = 30.0
"""Seconds after the last look at all shards, after which there may be more to read than is known."""


class Service(Protocol):
    """What is asked of Kinesis; `planner.StreamService` is the real one."""

    def shards(self) -> tuple[ListedShard, ...]: ...

    def next(self, shard: ListedShard, position: int, bounds: Bounds) -> Found | None: ...

    def newest(self, shard: ListedShard) -> int | None: ...


@dataclass(slots=True)
class _Question:
    """How far do these shards reach? `found` are those that are known by now."""

    shards: Collection[ShardId]
    answer: Future[Mapping[ShardId, Offset]] = field(default_factory=Future)
    found: dict[ShardId, Offset] = field(default_factory=dict)


class NextEnds:
    """The newest known ends; implements `agent_ports.KnownEndOffsets`. `changed` is called in its thread.

    `wanted` gives the positions of the shards that may be read, and what the query wants of its micro-batches.
    """

    def __init__(
        self,
        service: Service,
        changed: Callable[[], None],
        wanted: Callable[[], tuple[Mapping[ShardId, Offset], Limits]],
        *,
        interval: float = INTERVAL,
    ) -> None:
        self._service = service
        self._changed = changed
        self._asks = wanted
        self._interval = interval
        self._wanted: dict[ShardId, int] = {}
        self._known: dict[ShardId, Offset] = {}
        self._keeping = threading.Lock()
        self._listed: dict[str, ListedShard] = {}
        self._listed_at = float("-inf")
        self._questions: deque[_Question] = deque()
        self._away = ""
        self._complete_at: float | None = None
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kinesis-look")
        self._thread = LookThread(self._look)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.close()
        self._pool.shutdown()

    def watch(self, shards: Mapping[ShardId, int], stops: Mapping[ShardId, Offset] | None = None) -> None:  # noqa: ARG002
        wanted = dict(shards)
        with self._keeping:
            before, self._wanted = self._wanted, wanted
            # What was found under another grant may lie too far behind where this one begins, or before it.
            self._known = _of_grants(self._known, before, wanted)
        if wanted != before:
            self._complete_at = None
            self._thread.wake()

    def known(self) -> Mapping[ShardId, Offset]:
        return self._known

    async def reached(self, shards: Collection[ShardId]) -> Mapping[ShardId, Offset]:
        """The end of what each shard has by now, however long it takes to find that. One without records ends at 0."""
        question = _Question(tuple(shards))
        self._questions.append(question)
        self._thread.wake()
        return await asyncio.wrap_future(question.answer)

    def failing(self) -> bool:
        return bool(self._wanted) and (self._complete_at is None or boot_time() - self._complete_at > STALE)

    async def sizes(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float]:  # noqa: ARG002
        """None: how many bytes a micro-batch has was decided when its end was looked for."""
        return {}

    # --- in the thread ---------------------------------------------------------------------------------------------------

    def _look(self) -> float | None:
        """Seconds until the next look."""
        try:
            self._answer()
            if not self._wanted:
                return None
            self._look_at_shards()
        except (KinesisUnavailableError, KinesisRefusedError) as error:
            self._tell(str(error))
            self._thread.rest()
        return self._interval

    def _answer(self) -> None:
        """Find how far shards reach, for whoever has asked. What was not found is looked for again the next time."""
        while self._questions:
            question = self._questions[0]
            listed = {each.id: each for each in self._service.shards()}

            def one(shard: ShardId, listed: Mapping[str, ListedShard] = listed) -> Offset:
                return self._reach(listed.get(shard.rpartition("/")[2]))

            asked = {shard: self._pool.submit(one, shard) for shard in question.shards if shard not in question.found}
            trouble: Exception | None = None
            for shard, found in asked.items():
                try:
                    question.found[shard] = found.result()
                except (KinesisUnavailableError, KinesisRefusedError) as error:
                    trouble = error
            if trouble is not None:
                raise trouble
            self._questions.popleft()
            if question.answer.set_running_or_notify_cancel():
                question.answer.set_result(question.found)

    def _reach(self, shard: ListedShard | None) -> Offset:
        """The end of what this shard has by now; one that is not listed any more has nothing."""
        if shard is None:
            return 0
        try:
            return shard.reaches(self._service.newest(shard) if shard.end is None else None)
        except ShardGoneError:
            return 0

    def _look_at_shards(self) -> None:
        """Look at every shard behind whose position nothing is known."""
        with self._keeping:
            wanted, known = self._wanted, self._known
        positions, limits = self._asks()
        positions = {shard: at for shard, at in positions.items() if shard in wanted}
        asked = [(shard, at) for shard, at in positions.items() if known.get(shard, 0) <= at]
        if self._listed_at + LIST_INTERVAL <= boot_time():
            self._listed = {each.id: each for each in self._service.shards()}
            self._listed_at = boot_time()
        readable = [
            (self._listed[name], shard, at)
            for shard, at in asked
            if (name := shard.rpartition("/")[2]) in self._listed and not _is_read(self._listed[name], at)
        ]
        bounds = _bounds(limits, len(readable))
        trouble: list[str] = []

        def one(each: tuple[ListedShard, ShardId, Offset]) -> tuple[ShardId, Offset | None]:
            listed, shard, at = each
            try:
                found = self._service.next(listed, at, bounds)
            except KinesisUnavailableError as error:
                trouble.append(str(error))
            except NumberError as error:
                log.warning("shard %s is looked at anew: %s", shard, error)
            except ShardGoneError as error:
                log.warning("shard %s has no records any more: %s", shard, error)
            else:
                return shard, None if found is None else found.stop
            return shard, None

        news = {shard: end for shard, end in self._pool.map(one, readable) if end is not None}
        if trouble:
            self._tell(trouble[0])
        else:
            if self._away:
                log.info("Kinesis answers again")
            self._away = ""
            if wanted == self._wanted:
                self._complete_at = boot_time()
        with self._keeping:
            # Not in place: whoever has asked goes on with what was known.
            self._known = _of_grants({**known, **news}, wanted, self._wanted)
        if news:
            self._changed()

    def _tell(self, why: str) -> None:
        if not self._away:
            log.warning("cannot learn what follows in the shards, trying on: %s", why)
        self._away = why


def _of_grants(
    known: Mapping[ShardId, Offset], then: Mapping[ShardId, int], now: Mapping[ShardId, int]
) -> dict[ShardId, Offset]:
    """What is known of shards whose grants are the same now as then."""
    return {shard: end for shard, end in known.items() if shard in now and then.get(shard) == now[shard]}


def _bounds(limits: Limits, shards: int) -> Bounds:
    """How much of each of so many shards a micro-batch has."""
    records = None if limits.max_records is None else max(1, limits.max_records // max(1, shards))
    size = None if limits.max_bytes is None else max(1, limits.max_bytes // max(1, shards))
    return Bounds(limits.max_span or SPAN, records, size)


def _is_read(shard: ListedShard, position: Offset) -> bool:
    return shard.end is not None and position >= shard.end
