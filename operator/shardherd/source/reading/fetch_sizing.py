"""How many bytes of each shard a Fetch asks for: about what is still wanted of it, estimated from its answers so far.

`range_reader` asks before every Fetch. Without it, a small micro-batch on a long backlog would fetch megabytes for a few rows.
A wrong guess costs a Fetch, never a record: Kafka always sends the first batch of the first shard whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.brokers import SHARD_FETCH_BYTES

LEAST = 64 * 1024
"""Fewest bytes to ask for: less does not make an answer faster."""

UNKNOWN = 1024 * 1024
"""Bytes to ask for of a shard without an answer yet: what Kafka's own consumer asks for."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Bytes for each offset in the last answer, and its largest batch."""

    density: float
    batch: int


class FetchSizing:
    """The last answer for each shard that this process has read."""

    def __init__(self) -> None:
        self._answers: dict[ShardId, _Answer] = {}

    def learn(self, shard: ShardId, size: int, offsets: int, batch: int) -> None:
        """An answer of `size` bytes went on by `offsets`, and its largest batch has `batch` bytes."""
        if offsets > 0:
            self._answers[shard] = _Answer(size / offsets, batch)

    def wanted(
        self, left: Mapping[ShardId, Offset], stops: Mapping[ShardId, Offset], hungry: Collection[ShardId]
    ) -> dict[ShardId, int]:
        """Bytes to ask for of every shard that is left; the `hungry` got nothing the last time, and ask for all they may."""
        return {shard: self._wanted(shard, stops[shard] - at, shard in hungry) for shard, at in left.items()}

    def largest_batch(self, shards: Collection[ShardId]) -> int:
        """Bytes of the largest batch in the answers for these shards, 0 without any."""
        return max((self._answers[shard].batch for shard in shards if shard in self._answers), default=0)

    def _wanted(self, shard: ShardId, offsets: int, hungry: bool) -> int:
        answer = self._answers.get(shard)
        if hungry:
            return SHARD_FETCH_BYTES
        if answer is None:
            return UNKNOWN
        # The first and the last batch may reach beyond what is wanted.
        return max(LEAST, min(SHARD_FETCH_BYTES, int(offsets * answer.density) + 2 * answer.batch))
