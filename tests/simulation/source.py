"""The source of one world: its shards, and what is written to them. Users and faults make, close and take away shards here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import Offset, Reset, ResetTo, ShardId
from tests.simulation.ledger import applying
from tests.simulation.ledger_entries import Shard

if TYPE_CHECKING:
    from tests.simulation.world import World


class Source:
    """The shards of one world. What is really there is in the ledger."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._resetting: Reset | None = None
        self._ids = 1

    @property
    def resetting(self) -> bool:
        """Whether a user is about to reset what was made anew."""
        return self._resetting is not None

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
        until = world.plan.chaos if world.plan.time_scale == 1.0 else world.plan.chaos / 8
        for _ in range(18):
            world.timeline.at(world.rng.uniform(1.0, until), None, self._write)

    def _write(self) -> None:
        rng = self._world.rng
        open_shards = [book for book in self.present() if book.open]
        for book in rng.sample(open_shards, min(len(open_shards), rng.randint(1, 3))):
            book.end += rng.randint(1, 60)

    def write(self, shards: Iterable[ShardId]) -> None:
        """New records on these shards, as far as they are open."""
        for shard in shards:
            book = self._world.ledger.shards[shard]
            if book.open and book.present and not self._world.healed:
                book.end += self._world.rng.randint(1, 30)

    def end(self, shard: ShardId) -> Offset | None:
        """Where the next record of this shard will be written; None if there is no such shard now."""
        book = self._world.ledger.shards[shard]
        return book.end if book.present else None

    def present(self) -> list[Shard]:
        """The books of the shards that are there now."""
        return [book for book in self._world.ledger.shards.values() if book.present]

    def names(self) -> set[ShardId]:
        """Their names."""
        return {book.name for book in self.present()}

    def plain(self) -> list[Shard]:
        """Those of them that have to do with no other shard, as all of Kafka's."""
        parents = {parent for book in self._world.ledger.shards.values() for parent in book.parents}
        return [book for book in self.present() if book.open and not book.parents and book.name not in parents]

    # Shards that go, come back, and are made anew.

    def _asking(self) -> set[tuple[ShardId, Offset]]:
        """The positions that users wait to be told of."""
        return {each for operator in self._world.operators if operator.alive for each in operator.asking}

    def vanish(self, books: Sequence[Shard], *, for_good: bool = False) -> None:
        """These shards are not there any more."""
        world, asking = self._world, self._asking()
        for book in books:
            book.present, book.was_away, book.gone = False, True, for_good
            world.ledger.sightings.vanished(book.name)
            world.kafka.drop_asked(book.name, asking)
        world.say(f"{[book.name for book in books]} vanish{', for good' if for_good else ''}")
        world.ledger.counts["shards that vanished for good" if for_good else "shards that vanished"] += len(books)

    def come_back(self, books: Sequence[Shard]) -> None:
        """These shards are there again, as they were."""
        for book in books:
            # Not one that was made anew meanwhile.
            if self._world.ledger.shards[book.name] is book and not book.present and not book.gone:
                book.present = True
                self._world.say(f"{book.name} is there again")
                self._world.ledger.counts["shards that came back"] += 1

    def make_anew(self, books: Sequence[Shard]) -> None:
        """These shards are deleted and made anew under their names. Mostly their offsets are deleted with them."""
        world = self._world
        if world.ledger.rebuilding:
            # What tells a shard from one that bears its name is in the ownership, and in notes that go with the offsets.
            self.come_back(books)
            return
        self._ids += 1
        with_offsets = world.rng.random() < 0.25
        asking = self._asking()
        for old in books:
            book = Shard(old.name, born=world.time, source_id=f"id-{self._ids}", was_away=True)
            book.forced_under = old.forced_under  # who has not heard of it yet reads this one under the grant that it ended
            book.succeeds_started = old.succeeds_started or old.highest is not None
            book.ordered_from_birth, book.end = old.ordered_from_birth, world.rng.randint(0, 40)
            world.ledger.shards[old.name] = book
            world.kafka.drop_asked(old.name, asking)
            if not with_offsets:
                world.kafka.committed.pop(old.name, None)
                world.kafka.notes.pop(old.name, None)
        world.say(f"{[book.name for book in books]} are made anew")
        world.ledger.counts["shards made anew"] += len(books)

    def put_right(self) -> None:
        """A user who sees that nothing is granted any more pauses the group, resets what was made anew, and goes on."""
        world, stored = self._world, self._world.ledger.stored
        wrong = world.ledger.sightings.others(stored)
        reset = self._resetting
        if reset is None:
            if not wrong or stored is None or applying(stored) is not None:
                return
            to = world.rng.choice((ResetTo.EARLIEST, ResetTo.EARLIEST, ResetTo.LATEST))
            self._resetting = Reset(f"made-anew-at-{world.time:.3f}", to, shards=tuple(wrong))
            world.change_spec(paused=True, reset=self._resetting)
            return
        report = stored.group.reset if stored is not None else None
        made = report is not None and report.id == reset.id and applying(stored) is None
        if made or world.spec.reset != reset or not wrong:
            world.ledger.counts["resets of shards made anew"] += made
            world.last_start = world.time
            self._resetting = None
            world.change_spec(paused=False)
        elif not world.spec.settings.paused:
            world.change_spec(paused=True)
