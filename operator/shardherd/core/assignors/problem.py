"""What an assignor is asked, as arrays.

Built by the rebalance and by tests. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardherd.core.model import ConsumerId, ShardId

NOBODY = -1

Assignment = npt.NDArray[np.int64]
"""For each shard the index of its consumer, or NOBODY."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Shards and consumers, each in their natural order, and who holds what now.

    `current` has one consumer index per shard, or NOBODY. `pending` marks shards that are on their way to their current
    consumer: moving them elsewhere costs nothing more. `receives` tells of each consumer whether it may be given more than it
    has.
    """

    shards: Sequence[ShardId]
    consumers: Sequence[ConsumerId]
    current: Assignment
    pending: npt.NDArray[np.bool_]
    receives: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        shards: Sequence[ShardId],
        consumers: Sequence[ConsumerId],
        current: Mapping[ShardId, ConsumerId] | None = None,
    ) -> Problem:
        """A problem in which all consumers may receive; holders that are not consumers count as nobody."""
        index = {consumer: at for at, consumer in enumerate(consumers)}
        held = current or {}
        return cls(
            shards,
            consumers,
            np.array([index.get(held.get(shard, ConsumerId("")), NOBODY) for shard in shards], dtype=np.int64),
            np.zeros(len(shards), dtype=np.bool_),
            np.ones(len(consumers), dtype=np.bool_),
        )

    def named(self, assignment: Assignment) -> dict[ConsumerId, tuple[ShardId, ...]]:
        """The shards of every consumer, in the order of the shards."""
        return {
            consumer: tuple(self.shards[int(row)] for row in np.flatnonzero(assignment == at))
            for at, consumer in enumerate(self.consumers)
        }
