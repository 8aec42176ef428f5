"""How much of what there is the next micro-batch gets: the limits that the user set.

The agent and the standalone side ask before they hand out. Pure: what there is and the time are arguments. How long a
micro-batch takes is `batch_sizing`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardherd.core.consumer.tracker import split_by_backlog
from shardherd.core.model.nouns import ShardId


@dataclass(frozen=True, slots=True)
class Limits:
    """What the options say of a micro-batch's size. Durations are in seconds; None: no limit.

    `max_span` is for Kinesis: seconds of a shard's records.
    """

    max_records: int | None = None
    min_records: int | None = None
    max_delay: float = 900.0
    max_bytes: int | None = None
    target_seconds: float | None = None
    max_span: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the agent's socket; `Limits(**...)` is the way back."""
        return asdict(self)

    @property
    def counted(self) -> bool:
        """Whether all records must be read to find where a micro-batch of Kinesis ends."""
        return self.max_records is not None or self.max_bytes is not None

    def waits(self, available: int, waited: float) -> bool:
        """Whether so few records wait on, `waited` seconds after the last micro-batch."""
        return self.min_records is not None and available < self.min_records and waited < self.max_delay

    def share(
        self, available: Mapping[ShardId, int], sizes: Mapping[ShardId, float], bound: int | None = None
    ) -> dict[ShardId, int]:
        """How many of its available records each shard gives: at most `max_records` and `bound`, about `max_bytes`.

        `sizes` are bytes a record; a shard without one counts for nothing. However many bytes its next record has, a shard
        gives at least that one: or it would wait for ever.
        """
        budgets = [each for each in (self.max_records, bound) if each is not None]
        given = split_by_backlog(available, min(budgets) if budgets else None)
        if self.max_bytes is None or not given:
            return given
        wanted = {shard: round(count * sizes.get(shard, 0.0)) for shard, count in given.items()}
        if sum(wanted.values()) <= self.max_bytes:
            return given
        allowed = split_by_backlog(wanted, self.max_bytes)
        return {
            shard: count if not wanted[shard] else min(count, max(1, int(allowed.get(shard, 0) / sizes[shard])))
            for shard, count in given.items()
        }
