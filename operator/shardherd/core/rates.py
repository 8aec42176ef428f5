"""How many records a second are written to each shard: the weights of the Weighted assignor, as far as the source shows them.

Called by `core.discovery` at every look at the source; the rebalance reads them. Rates are seen from the growth of the shards'
ends, smoothed over about five minutes, and not stored: a coordinator that has just taken over knows none for a few seconds.
Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardherd.core.model import Offset, ShardId, ShardInfo

FIRST = 5.0
"""Seconds between the first two looks: rates are known soon after a start."""

INTERVAL = 30.0
"""Seconds between further looks that are compared."""

MEMORY = 300.0
"""Seconds after which about two thirds of an old rate are forgotten: shorter bursts must not move shards."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates as of `seen_at`, when the ends were `ends`. `known` is False until two looks could be compared."""

    seen_at: float
    ends: Mapping[ShardId, Offset]
    known: bool = False
    per_second: Mapping[ShardId, float] = field(default_factory=dict)

    def due(self, now: float) -> bool:
        """Whether it is time to compare again."""
        return now >= self.seen_at + (INTERVAL if self.known else FIRST)


def first(infos: Mapping[ShardId, ShardInfo], now: float) -> Rates:
    """The first look."""
    return Rates(now, {shard: info.end for shard, info in infos.items()})


def again(before: Rates, infos: Mapping[ShardId, ShardInfo], now: float) -> Rates:
    """The next look: every shard that both have seen gets a rate; a shard that was cut back has none."""
    elapsed = now - before.seen_at
    fresh = 1.0 - math.exp(-elapsed / MEMORY)
    rates: dict[ShardId, float] = {}
    for shard, info in infos.items():
        end = before.ends.get(shard)
        if end is None or info.end < end:
            continue
        seen = (info.end - end) / elapsed
        old = before.per_second.get(shard, seen)
        rates[shard] = old + fresh * (seen - old)
    return Rates(now, {shard: info.end for shard, info in infos.items()}, True, rates)
