"""How long ago the oldest record was written that a group has not checkpointed. The lag in seconds, and never a guess.

A record's own timestamp says it, read at the position of a shard that lags; the coordinator's `ages` reads a few shards at a
time, those that were asked about longest ago first. What was read at a position holds while the position does not move. Once
it has, the age counts that the shard had when it was looked at, for `FRESH` seconds; then it is unknown, and with it that of
the group. A shard without lag has no age: whatever is written to it later is younger than the look that found it so. Pure:
`now` is monotonic seconds, `wall` seconds since 1970. Reads nothing and holds no lock: a value, replaced by another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardherd.core.model.nouns import GroupView, Offset, ShardId, ShardState

MOST = 128
"""Shards that one look asks about at most."""

FRESH = 120.0
"""Seconds for which an age counts although the position has moved since."""

AGAIN = 600.0
"""Seconds after which a record is read once more although the position has not moved: a topic may be another one by then."""


class Found(NamedTuple):
    """What a look found of one shard: when its first record at or after `position` was written, None if there was none."""

    position: Offset
    written: float | None
    age: float
    at: float


class Unread(NamedTuple):
    """The shards of a picture: those that have nothing left to read, and the positions of the others, None if not known."""

    level: frozenset[ShardId]
    positions: Mapping[ShardId, Offset | None]


def unread(view: GroupView) -> Unread:
    """Of the shards that count: those that the source has and that are not done with."""
    level: list[ShardId] = []
    positions: dict[ShardId, Offset | None] = {}
    for shard in view.shards:
        if not shard.present or shard.state is ShardState.OVER:
            continue
        if not view.counts_records:
            if shard.end is not None and shard.checkpoint is not None and shard.checkpoint >= shard.end:
                level.append(shard.shard)
            else:
                # Whether there is anything to read, only a look at the position shows.
                positions[shard.shard] = shard.checkpoint
        elif shard.end is None or shard.lag_records is None:
            positions[shard.shard] = None
        elif shard.lag_records <= 0:
            level.append(shard.shard)
        else:
            # What was there before the first record is gone, and no record of it waits.
            positions[shard.shard] = max(shard.end - shard.lag_records, shard.begin or 0)
    return Unread(frozenset(level), positions)


@dataclass(frozen=True, slots=True)
class Ages:
    """What is known since the last look, which was at `looked`. `asked` is when each shard was asked about last."""

    found: Mapping[ShardId, Found] = field(default_factory=dict)
    asked: Mapping[ShardId, float] = field(default_factory=dict)
    level: frozenset[ShardId] = frozenset()
    looked: float = -math.inf

    def wanted(self, seen: Unread, now: float) -> dict[ShardId, Offset]:
        """The positions to look at next: those that were asked about longest ago come first, then those never answered."""
        due = {
            shard: position
            for shard, position in seen.positions.items()
            if position is not None and not self._holds(self.found.get(shard), position, now)
        }
        order = sorted(due, key=lambda shard: (self.asked.get(shard, -math.inf), self._at(shard), shard))
        return {shard: due[shard] for shard in order[:MOST]}

    def after(
        self,
        seen: Unread,
        asked: Mapping[ShardId, Offset],
        answers: Mapping[ShardId, float | None],
        now: float,
        wall: float,
    ) -> Ages:
        """What is known when these were asked about and so answered. Shards that do not lag any more are forgotten.

        A source answers in order for as long as it has room: what comes after its last answer was not looked at, and is asked
        about first the next time.
        """
        found = {shard: known for shard, known in self.found.items() if shard in seen.positions}
        for shard, written in answers.items():
            found[shard] = Found(asked[shard], written, 0.0 if written is None else max(0.0, wall - written), now)
        times = {shard: at for shard, at in self.asked.items() if shard in seen.positions}
        order = list(asked)
        reached = 1 + max((place for place, shard in enumerate(order) if shard in answers), default=len(order) - 1)
        return Ages(found, times | dict.fromkeys(order[:reached], now), seen.level, now)

    def seconds(self, seen: Unread, now: float, wall: float) -> int | None:
        """The age of the oldest record of all shards, None unless that of every shard is known, and there is one."""
        if not seen.level and not seen.positions:
            return None
        oldest = 0.0
        for shard, position in seen.positions.items():
            age = None if position is None else self._age(shard, position, now, wall)
            if age is None:
                return None
            oldest = max(oldest, age)
        return round(oldest)

    def _age(self, shard: ShardId, position: Offset, now: float, wall: float) -> float | None:
        known = self.found.get(shard)
        if known is not None and known.position == position and known.written is not None:
            return max(0.0, wall - known.written)
        if known is not None:
            return known.age if now - known.at <= FRESH else None
        return 0.0 if shard in self.level and now - self.looked <= FRESH else None

    def _holds(self, known: Found | None, position: Offset, now: float) -> bool:
        """Whether there is nothing to learn. Where no record was, one may be by now."""
        return known is not None and known.position == position and known.written is not None and now - known.at < AGAIN

    def _at(self, shard: ShardId) -> float:
        known = self.found.get(shard)
        return -math.inf if known is None else known.at
