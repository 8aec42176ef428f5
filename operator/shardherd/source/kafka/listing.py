"""The topics and partitions that a query without a coordinator selects, and where they begin and end.

Asked in the process that plans; a ConsumerGroup's own list is the coordinator's. It retries what is only late, and decides
nothing about what is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import kafka.errors as kafka_errors

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka import lookup
from shardherd.source.kafka.batch_headers import sizes_at
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, SourceRefusedError
from shardherd.source.kafka.leader_epochs import Mark
from shardherd.source.kafka.partitions import EARLIEST, shard_of
from shardherd.source.kafka.selection import Selection

T = TypeVar("T")

RETRY_DELAY = 0.1
"""Seconds until what was only late is asked again."""

APPEARS_WITHIN = 5.0
"""Seconds that a topic that was just made may need to be known to every broker."""


class TopicMissingError(Exception):
    """A topic that is to be read does not exist. Names it, the brokers and the option."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The shards of a selection, and the ids of their topics: a topic that was deleted and made anew has another one."""

    shards: frozenset[ShardId]
    topics: Mapping[str, str]


class Listing:
    """Asks one Kafka about one selection. Every method takes a timeout in seconds and raises BrokersUnavailableError."""

    def __init__(self, brokers: Brokers, selection: Selection) -> None:
        self._brokers = brokers
        self._selection = selection

    def close(self) -> None:
        self._brokers.close()

    def now(self, timeout: float) -> Listed:
        """What there is now; topics that do not exist are left out. Raises SourceRefusedError."""
        selection = self._selection
        names = selection.names()

        def wanted(topic: str, internal: bool) -> bool:
            return (not internal or topic in names) and selection.reads(topic)

        found = lookup.Topics()
        request = lookup.topics_request(None if selection.pattern else names)
        lookup.add_topics(found, self._brokers.send(request, timeout), wanted)
        for topic, error in found.refused.items():
            if not issubclass(error, kafka_errors.RetriableError):
                raise SourceRefusedError(f"topic {topic!r}: Kafka refuses it: {error.__name__}: {error.description}")
        shards = (shard_of(*partition) for partition in (*found.leaders, *found.leaderless))
        return Listed(frozenset(shard for shard in shards if selection.takes(shard)), found.ids)

    def complete(self, timeout: float) -> Listed:
        """The same, with everything that the options name. Raises TopicMissingError."""

        def look() -> tuple[Listed | None, str]:
            found = self.now(timeout)
            lacking = sorted(set(self._selection.names()) - found.topics.keys())
            lacking += sorted(set(self._selection.shards) - found.shards)
            return (None if lacking else found), next(iter(lacking), "")

        found, missing = _until(look, min(timeout, APPEARS_WITHIN))
        if found is None:
            raise TopicMissingError(
                f"{missing!r} does not exist at {self._brokers.bootstrap_servers}: create it, or correct the options"
            )
        return found

    def offsets(self, times: Mapping[ShardId, int], timeout: float) -> Mapping[ShardId, Offset]:
        """As `start_positions.Lookup`: of every shard, waiting for those whose leader does not answer yet."""
        found: dict[ShardId, Offset] = {}

        def look() -> tuple[Mapping[ShardId, Offset] | None, str]:
            left = {shard: at for shard, at in times.items() if shard not in found}
            found.update(self._brokers.offsets(left, timeout) if left else {})
            lacking = sorted(times.keys() - found.keys())
            return (None if lacking else found), next(iter(lacking), "")

        complete, missing = _until(look, timeout)
        if complete is None:
            raise BrokersUnavailableError(
                f"shard {missing}: its leader did not say its offsets within {timeout:g} s; check Kafka at "
                f"{self._brokers.bootstrap_servers}"
            )
        return complete

    def begins(self, shards: frozenset[ShardId], timeout: float) -> Mapping[ShardId, Offset]:
        """The beginnings of those whose leader answers at once."""
        return self._brokers.offsets(dict.fromkeys(shards, EARLIEST), timeout) if shards else {}

    def end_offsets(self, shards: frozenset[ShardId], timeout: float) -> Mapping[ShardId, Offset]:
        """The ends of those whose leader answers at once."""
        return self._brokers.end_offsets(shards, timeout) if shards else {}

    def log_ends(self, shards: frozenset[ShardId], timeout: float) -> Mapping[ShardId, Offset]:
        """As `Brokers.log_ends`."""
        return self._brokers.log_ends(shards, timeout)

    def cuts(self, marks: Mapping[ShardId, Mark], timeout: float) -> Mapping[ShardId, Offset]:
        """As `Brokers.cuts`."""
        return self._brokers.cuts(marks, timeout)

    def sizes(self, positions: Mapping[ShardId, Offset], timeout: float) -> Mapping[ShardId, float]:
        """Bytes a record, as the broker keeps it, at each position; those that cannot be learned at once are left out."""
        return sizes_at(self._brokers, positions, timeout)


def _until(look: Callable[[], tuple[T | None, str]], timeout: float) -> tuple[T | None, str]:
    """Look until there is something or the time is over; what is missing otherwise."""
    deadline = boot_time() + timeout
    while True:
        found, missing = look()
        if found is not None or boot_time() >= deadline:
            return found, missing
        time.sleep(RETRY_DELAY)
