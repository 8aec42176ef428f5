"""What a task does when records of its ranges no longer exist: it fails, or goes on without them.

Called by `range_reader` with every part of an answer. Kafka loses records by retention, by an unclean election, and when a
topic is deleted and made anew under its name. Which records a task reads is not decided here, and ownership is not known here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.kafka.leader_epochs import Diverged, LogChecks

log = logging.getLogger(__name__)

TRUNCATED_AFTER = 20.0
"""Seconds for which a shard must end below the range that was planned: a new leader learns its end a moment after it leads."""

REMEDY = (
    "set failOnDataLoss to false to go on without them, or move the position: that of a group by a forced checkpoint, that of "
    "a query by itself with another checkpointLocation"
)


class RangeLostError(Exception):
    """A shard no longer has records that it had: retention, an unclean election, or a topic made anew. Names the shard."""


class Losses:
    """Looks out for records that are lost in one task's ranges, whose ends are `stops` and whose logs are as `checks` says.

    `topic_ids` are the ids of the topics that the ranges were planned for, as far as they are known; any other id that is seen
    first counts as that of a topic without one. With `fail` a loss is an error, otherwise a warning.
    """

    def __init__(
        self, stops: Mapping[ShardId, Offset], topic_ids: Mapping[str, str], checks: LogChecks | None = None, *, fail: bool
    ) -> None:
        self._stops = stops
        self._checks = LogChecks() if checks is None else checks
        # Planned by brokers that had no ids yet, as before an upgrade, a topic has an empty one.
        self._ids = {topic: each for topic, each in topic_ids.items() if each}
        self._fail = fail
        self._short_since: dict[ShardId, float] = {}
        self._missing_since: dict[str, float] = {}

    def resume(self, part: Fetched, now: float) -> Offset | None:
        """Where to go on in a shard that lost records; None if it lost none. Raises RangeLostError."""
        shard, asked, stop = part.shard, part.asked, self._stops[part.shard]
        topic = shard.rpartition("/")[0]
        if part.topic_id and (planned := self._ids.setdefault(topic, part.topic_id)) != part.topic_id:
            why = f"topic {topic!r} was deleted and made anew (its id was {planned} and is {part.topic_id})"
            return self._lost(shard, asked, stop, why)
        if part.diverged is not None:
            self._rewritten(part, part.diverged, stop, now)
            return None
        if part.start is not None and asked < part.start:
            return self._lost(shard, asked, min(part.start, stop), f"it starts at {part.start} now: retention deleted them")
        # What an open transaction holds back, and what an answer had no room for, is not lost.
        if part.start is None and (part.data or part.end > asked or max(part.end, part.written) >= stop):
            self._short_since.pop(shard, None)
            return None
        if now - self._short_since.setdefault(shard, now) < TRUNCATED_AFTER:
            return None
        return self._lost(
            shard, asked, stop, f"it ends at {part.end} now: an unclean election cut it off, or it is a new topic"
        )

    def missing(self, topic: str, now: float) -> None:
        """The brokers have just said that they have no such topic, or with none, that they have said anything else."""
        self._missing_since = {topic: self._missing_since.get(topic, now)} if topic else {}

    def without(self, topic: str, left: Mapping[ShardId, Offset], now: float) -> tuple[ShardId, ...]:
        """What of `left` is of this topic, which was deleted, and is to be left out.

        Nothing if it is an error; nor if the brokers have not said so for a while and nothing else: they may be about to learn
        of it.
        """
        said_since = self._missing_since.get(topic, now)
        if self._fail or now - said_since < TRUNCATED_AFTER:
            return ()
        gone = tuple(shard for shard in left if shard.rpartition("/")[0] == topic)
        for shard in gone:
            self._lost(shard, left[shard], self._stops[shard], f"topic {topic!r} was deleted")
        return gone

    def _rewritten(self, part: Fetched, diverged: Diverged, stop: Offset, now: float) -> None:
        """The log was cut off, and may have grown since. What it has now is read, as it is what there is."""
        shard, asked = part.shard, part.asked
        under = f"it was led under epoch {diverged.epoch} when they were there, and is under {diverged.now}"
        if diverged.at is None:
            if now - self._short_since.setdefault(shard, now) < TRUNCATED_AFTER:
                return
            what = f"the records before offset {stop} are not those that were there ({under}): it is a new topic"
        elif diverged.at >= stop:
            return
        else:
            what = (
                f"an unclean election cut its log off at offset {diverged.at}; the records from there up to offset "
                f"{max(asked, stop)} are lost, and others may be in their place ({under})"
            )
        if self._fail:
            raise RangeLostError(f"shard {shard}: {what}; {REMEDY}")
        log.warning("shard %s: %s; reading from offset %d on what there is, as failOnDataLoss is false", shard, what, asked)
        self._checks.forget((shard,))

    def _lost(self, shard: ShardId, first: Offset, stop: Offset, why: str) -> Offset:
        what = f"shard {shard}: the records from offset {first} up to {stop} are lost; {why}"
        if self._fail:
            raise RangeLostError(f"{what}; {REMEDY}")
        log.warning("%s; going on without them, as failOnDataLoss is false", what)
        return stop
