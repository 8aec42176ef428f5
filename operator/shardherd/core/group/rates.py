"""How much is written to each shard in a second: the weights of the Weighted assignor, as far as the source shows them.

Called by `balance` at every look at the source; the rebalance reads them. Records per second are seen from the growth of
the shards' ends, smoothed over about five minutes, and not stored: a coordinator that has just taken over knows none for a few
seconds. Bytes per second are records per second times the mean size of the records that the shard holds now: sizes alone tell
less, as they shrink whenever old records are dropped. Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardherd.core.model.nouns import Offset, ShardId, ShardInfo, Weights

FIRST = 5.0
"""Seconds between the first two looks: rates are known soon after a start."""

INTERVAL = 30.0
"""Seconds between further looks that are compared."""

MEMORY = 300.0
"""Seconds after which about two thirds of an old rate are forgotten: shorter bursts must not move shards."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates as of `seen_at`, when the ends were `ends`. `known` is False until two looks could be compared.

    `unit` is what is wanted. `per_second` are records; `record_sizes` mean sizes of records in bytes, as far as they are known,
    and empty where records are wanted.
    """

    seen_at: float
    ends: Mapping[ShardId, Offset]
    known: bool = False
    per_second: Mapping[ShardId, float] = field(default_factory=dict)
    unit: Weights = Weights.RECORDS
    record_sizes: Mapping[ShardId, float] = field(default_factory=dict)

    def due(self, now: float) -> bool:
        """Whether it is time to compare again."""
        return now >= self.seen_at + (INTERVAL if self.known else FIRST)

    @property
    def weights(self) -> Mapping[ShardId, float]:
        """How much work each shard is, in one unit for all: bytes per second if any size is known, else records per second.

        Records of a shard whose size is not known are as large as the mean of those that are.
        """
        if not self.record_sizes:
            return self.per_second
        mean = sum(self.record_sizes.values()) / len(self.record_sizes)
        return {shard: rate * self.record_sizes.get(shard, mean) for shard, rate in self.per_second.items()}


def first(infos: Mapping[ShardId, ShardInfo], now: float, unit: Weights) -> Rates:
    """The first look."""
    return Rates(now, {shard: info.end for shard, info in infos.items()}, unit=unit, record_sizes=_sizes(infos, unit, {}))


def in_unit(before: Rates, infos: Mapping[ShardId, ShardInfo], unit: Weights) -> Rates:
    """The same rates for another unit."""
    return replace(before, unit=unit, record_sizes=_sizes(infos, unit, {}))


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
    sizes = _sizes(infos, before.unit, before.record_sizes)
    return Rates(now, {shard: info.end for shard, info in infos.items()}, True, rates, before.unit, sizes)


def _sizes(infos: Mapping[ShardId, ShardInfo], unit: Weights, before: Mapping[ShardId, float]) -> Mapping[ShardId, float]:
    """Mean sizes of records; of a shard that has none now, or whose size was not shown, what was known before."""
    if unit is not Weights.BYTES:
        return {}
    sizes = {shard: size for shard, size in before.items() if shard in infos}
    for shard, info in infos.items():
        if info.size is not None and info.end > info.begin:
            sizes[shard] = info.size / (info.end - info.begin)
    return sizes
