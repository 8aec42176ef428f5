"""Watches the end offsets of the shards that this consumer holds, so that planning a micro-batch sends no request to Kafka.

The agent says which shards; a thread asks Kafka a few times a second and calls back when something grew. Errors are logged
once and tried again: the consumer then simply sees nothing new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.batch_headers import Sampled, sizes_at
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, SourceRefusedError
from shardherd.source.kafka.leader_epochs import EndOffsets, epochs_in
from shardherd.source.look_thread import LookThread

log = logging.getLogger(__name__)

INTERVAL = 0.1
"""Seconds between two looks: a tenth of a small micro-batch, and one small request a broker."""

TIMEOUT = 10.0
"""Seconds to wait for Kafka's answer."""

STALE = 30.0
"""Seconds after the last answer with the end offsets of all shards, after which there may be more to read than is known."""


class EndOffsetSource(Sampled, Protocol):
    """Says where shards end (with `committed`, before the first open transaction), and what the next records are."""

    committed: bool

    def end_offsets(self, shards: Iterable[ShardId], timeout: float) -> Mapping[ShardId, Offset]: ...


class EndWatcher:
    """The newest known ends. `changed` is called in the watcher's thread."""

    def __init__(self, source: EndOffsetSource, changed: Callable[[], None], interval: float = INTERVAL) -> None:
        self._source = source
        self._changed = changed
        self._interval = interval
        self._wanted: tuple[ShardId, ...] = ()
        self._stops: Mapping[ShardId, Offset] = {}
        self._known = EndOffsets()
        self._failing = False
        self._complete_at: float | None = None
        self._thread = LookThread(self._look_at_wanted)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.close(TIMEOUT)

    def watch(self, shards: Iterable[ShardId], stops: Mapping[ShardId, Offset] | None = None) -> None:
        """From now on, these are the shards whose ends are wanted; new ones are asked for at once. None of `stops` ends above
        what that says.
        """
        wanted, self._stops = tuple(shards), stops or {}
        if wanted != self._wanted:
            self._wanted = wanted
            self._complete_at = None
            self._thread.wake()

    def known(self) -> Mapping[ShardId, Offset]:
        known, stops = self._known, self._stops
        if not stops:
            return known
        return EndOffsets({shard: min(end, stops.get(shard, end)) for shard, end in known.items()}, epochs_in(known))

    async def reached(self, shards: Collection[ShardId]) -> Mapping[ShardId, Offset]:
        """How far these shards reach: what is known of them, and under which leaders."""
        known = self.known()
        leaders = epochs_in(known)
        there = [shard for shard in shards if shard in known]
        return EndOffsets({each: known[each] for each in there}, {each: leaders[each] for each in there if each in leaders})

    def failing(self) -> bool:
        if not self._wanted:
            return False
        # A leader that is silent leaves its shards out of an answer, and a look that hangs says nothing at all.
        return self._complete_at is None or boot_time() - self._complete_at > STALE

    def read_committed(self, committed: bool) -> None:
        """Whether ends are those of decided transactions from now on. What is known until then is forgotten."""
        if committed != self._source.committed:
            self._source.committed = committed
            self._known = EndOffsets()
            self._thread.wake()

    async def sizes(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float]:
        """Bytes a record at each position; none if Kafka does not say."""
        try:
            return await asyncio.to_thread(sizes_at, self._source, positions, TIMEOUT) if positions else {}
        except (BrokersUnavailableError, SourceRefusedError) as error:
            log.warning("cannot learn how large the next records are, maxBytesPerTrigger has no effect now: %s", error)
            return {}

    def _look_at_wanted(self) -> float | None:
        """Seconds until the next look."""
        return self._look(wanted) if (wanted := self._wanted) else None

    def _look(self, wanted: tuple[ShardId, ...]) -> float:
        committed = self._source.committed
        found = self._ask(wanted)
        if committed != self._source.committed:
            return 0.0
        if found is None:
            self._failing = True
            self._thread.rest()
            return self._interval
        if self._failing:
            log.info("Kafka answers again")
        self._failing = False
        self._note(wanted, found)
        return self._interval

    def _ask(self, wanted: tuple[ShardId, ...]) -> Mapping[ShardId, Offset] | None:
        """The ends that the source says; None if it could not be learned, and the reason is logged."""
        try:
            return self._source.end_offsets(wanted, TIMEOUT)
        except (BrokersUnavailableError, SourceRefusedError) as error:
            if not self._failing:
                log.warning("cannot learn where the shards end, trying on: %s", error)
        return None

    def _note(self, wanted: tuple[ShardId, ...], found: Mapping[ShardId, Offset]) -> None:
        if wanted == self._wanted and found.keys() >= set(wanted):
            self._complete_at = boot_time()
        merged = EndOffsets()
        for shard in wanted:
            # An end offset and the leader epoch that it was answered under stay together.
            look = found if shard in found else self._known
            if shard in look:
                merged[shard] = look[shard]
                if shard in (epochs := epochs_in(look)):
                    merged.leaders[shard] = epochs[shard]
        grown = merged != self._known
        self._known = merged
        if grown:
            self._changed()
