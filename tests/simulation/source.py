"""The source of one world: its shards, and what is written to them. Users and faults make, close and grow shards here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardherd.core.model import Offset, ShardId
from tests.simulation.books import Shard

if TYPE_CHECKING:
    from tests.simulation.world import World


class Source:
    """The shards of one world. What is really there is in the ledger."""

    def __init__(self, world: World) -> None:
        self._world = world

    def add(self, name: ShardId, parents: tuple[ShardId, ...] = ()) -> None:
        """A new shard."""
        book = Shard(name, parents, born=self._world.time)
        book.ordered_from_birth = self._world.spec.settings.ordered
        self._world.ledger.shards[name] = book

    def begin(self) -> None:
        """The first shards, and when something is written to some of them."""
        world = self._world
        for number in range(world.plan.shards):
            self.add(ShardId(f"t/{number}"))
        # In a schedule of days most is written on the first day: what is not written to for long may be forgotten.
        until = world.plan.chaos if world.plan.pace == 1.0 else world.plan.chaos / 8
        for _ in range(18):
            world.timeline.at(world.rng.uniform(1.0, until), None, self._write)

    def _write(self) -> None:
        rng = self._world.rng
        open_shards = [book for book in self._world.ledger.shards.values() if book.open]
        for book in rng.sample(open_shards, min(len(open_shards), rng.randint(1, 3))):
            book.end += rng.randint(1, 60)

    def write(self, shards: Iterable[ShardId]) -> None:
        """New records on these shards, as far as they are open."""
        for shard in shards:
            book = self._world.ledger.shards[shard]
            if book.open and not self._world.healed:
                book.end += self._world.rng.randint(1, 30)

    def end(self, shard: ShardId) -> Offset:
        """Where the next record of this shard will be written."""
        return self._world.ledger.shards[shard].end
