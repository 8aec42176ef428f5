"""What an assignor is asked, as arrays: names became integers where the arrays were built, and become names again in a `Delta`.

Built by the rebalance, by tests and by benchmarks; read by every assignor, plug-ins included. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardherd.core.model.naming import split
from shardherd.core.model.nouns import ConsumerId, ShardId

NOBODY = -1

Indexes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Amounts = npt.NDArray[np.float64]
Names = npt.NDArray[np.object_]

Assignment = Indexes
"""For each shard the index of its consumer, or NOBODY."""


@dataclass(frozen=True, slots=True, eq=False)
class Interned:
    """The names of shards in their natural order, and the number of each shard's topic. Made once for a set of shards."""

    names: Names
    topics: Indexes

    @classmethod
    def of(cls, shards: Sequence[ShardId]) -> Interned:
        """These shards, which are in their order."""
        return cls(names_array(shards), topic_numbers(shards)[0])


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Shards and consumers, each in their natural order, and who holds what now. With n shards and m consumers:

    `shards` (n) and `consumers` (m) are the names. `topics` (n) numbers the shards' topics, in the order of the
    shards. `current` (n) is the consumer of each shard, or NOBODY. `pending` (n) marks shards that are on their way to their
    current consumer: moving them elsewhere costs nothing more. `receives` (m) tells whether a consumer may be given more than
    it has.

    What is None does not matter. `subscribed` (m x topics): which topics a consumer reads; all if None. `weights` (n): how
    much work a shard is, in any unit that is the same for all, NaN where unknown; `capacities` (m): how much of it a consumer
    can do, relative to the others. `shard_zones` (n) and `consumer_zones` (m): numbers of zones, NOBODY where unknown.
    """

    shards: Names
    consumers: Names
    topics: Indexes
    current: Assignment
    pending: Flags
    receives: Flags
    subscribed: Flags | None = None
    weights: Amounts | None = None
    capacities: Amounts | None = None
    shard_zones: Indexes | None = None
    consumer_zones: Indexes | None = None

    @classmethod
    def of(
        cls,
        shards: Sequence[ShardId],
        consumers: Sequence[ConsumerId],
        current: Mapping[ShardId, ConsumerId] | None = None,
        *,
        subscriptions: Mapping[ConsumerId, Iterable[str]] | None = None,
        weights: Mapping[ShardId, float] | None = None,
        capacities: Mapping[ConsumerId, float] | None = None,
        zones: Mapping[str, str] | None = None,
    ) -> Problem:
        """A problem in which all consumers may receive; holders that are not consumers count as nobody.

        `subscriptions` are names of topics; `zones` has names of shards and of consumers as keys.
        """
        index: dict[ConsumerId | None, int] = {consumer: at for at, consumer in enumerate(consumers)}
        held = current or {}
        topics, names = topic_numbers(shards)
        subscribed = None
        if subscriptions is not None:
            wanted = [frozenset(subscriptions[consumer]) for consumer in consumers]
            subscribed = np.array([[name in each for name in names] for each in wanted], dtype=np.bool_)
            subscribed = subscribed.reshape(len(consumers), len(names))
        numbers = {zone: at for at, zone in enumerate(sorted(set(zones.values())))} if zones is not None else {}

        def zoned(members: Sequence[str]) -> Indexes | None:
            if zones is None:
                return None
            return np.array([numbers[zones[name]] if name in zones else NOBODY for name in members], dtype=np.int64)

        return cls(
            names_array(shards),
            names_array(consumers),
            topics,
            np.array([index.get(held.get(shard), NOBODY) for shard in shards], dtype=np.int64),
            np.zeros(len(shards), dtype=np.bool_),
            np.ones(len(consumers), dtype=np.bool_),
            subscribed,
            None if weights is None else np.array([weights.get(shard, np.nan) for shard in shards], dtype=np.float64),
            None if capacities is None else np.array([capacities[consumer] for consumer in consumers], dtype=np.float64),
            zoned(shards),
            zoned(consumers),
        )

    @property
    def differing(self) -> bool:
        """Whether some consumer does not read some topic."""
        return self.subscribed is not None and not bool(self.subscribed.all())

    def loads(self, assignment: Assignment) -> Indexes:
        """How many shards each consumer has in this assignment."""
        return np.bincount(assignment + 1, minlength=len(self.consumers) + 1)[1:]

    def named(self, assignment: Assignment) -> dict[ConsumerId, tuple[ShardId, ...]]:
        """The shards of every consumer, in the order of the shards."""
        return {consumer: tuple(self.shards[assignment == at].tolist()) for at, consumer in enumerate(self.consumers)}


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What a target changes, by name: `shards[i]` goes to `takers[i]`."""

    shards: Names
    takers: Names

    @classmethod
    def of(cls, problem: Problem, target: Assignment) -> Delta:
        """From `problem.current` to `target`. Shards that the target gives to nobody are not in it."""
        changed = (target != problem.current) & (target != NOBODY)
        # Where everything changes, as in a first assignment, nothing need be picked.
        rows = slice(None) if changed.all() else np.flatnonzero(changed)
        return cls(problem.shards[rows], problem.consumers[target[rows]])

    def __len__(self) -> int:
        return len(self.shards)


def names_array(names: Sequence[str]) -> Names:
    """An array of these names."""
    array = np.empty(len(names), dtype=np.object_)
    array[:] = names
    return array


def topic_numbers(shards: Sequence[ShardId]) -> tuple[Indexes, tuple[str, ...]]:
    """For each shard the number of its topic, and the topics in that order."""
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(split(shard)[0], len(numbers)) for shard in shards]
    return np.array(found, dtype=np.int64), tuple(numbers)


def zone_numbers(shards: Sequence[str], consumers: Sequence[str]) -> tuple[Indexes, Indexes]:
    """The number of the zone of each shard and of each consumer, NOBODY for those of which none is known (empty)."""
    numbers = {zone: at for at, zone in enumerate(sorted({*shards, *consumers} - {""}))} | {"": NOBODY}
    return np.array([numbers[zone] for zone in shards]), np.array([numbers[zone] for zone in consumers])
