"""The source of one world: its shards, and what is written to them. Users and faults make, close and take away shards here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import Offset, Reset, ResetTo, ShardId
from tests.simulation import kinesis
from tests.simulation.history import applying
from tests.simulation.history_entries import Shard

if TYPE_CHECKING:
    from tests.simulation.world import World


class Source:
    """The shards of one world. What is really there is in the history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._resetting: Reset | None = None
        self._ids = 1

    @property
    def resetting(self) -> bool:
        """Whether a user is about to reset what was made anew."""
        return self._resetting is not None

    def name(self, number: int) -> ShardId:
        """What the shard is called that the source got as its `number`-th, from 0."""
        return kinesis.shard_id(number) if self._world.plan.kinesis else ShardId(f"t/{number}")

    def add(self, name: ShardId, parents: tuple[ShardId, ...] = ()) -> None:
        """A new shard."""
        shard = Shard(name, parents, born=self._world.time)
        if self._world.plan.kinesis:
            shard.source_id = f"id-{self._ids}"
            shard.begin = shard.end = shard.prefix = kinesis.begin_at(self._world.time, len(self._world.history.shards))
        shard.ordered_from_birth = self._world.spec.settings.ordered
        self._world.history.shards[name] = shard

    def begin(self) -> None:
        """The first shards, and when something is written to some of them."""
        world = self._world
        for number in range(world.plan.shards):
            self.add(self.name(number))
        # In a schedule of days most is written on the first day: what is not written to for long may be forgotten.
        until = world.plan.chaos if world.plan.time_scale == 1.0 else world.plan.chaos / 8
        for _ in range(18):
            world.timeline.at(world.rng.uniform(1.0, until), None, self._write)

    def _write(self) -> None:
        rng = self._world.rng
        open_shards = [shard for shard in self.present() if shard.open]
        for shard in rng.sample(open_shards, min(len(open_shards), rng.randint(1, 3))):
            shard.end += rng.randint(1, 60)

    def write(self, shards: Iterable[ShardId]) -> None:
        """New records on these shards, as far as they are open."""
        for shard in shards:
            actual = self._world.history.shards[shard]
            if actual.open and actual.present and not self._world.healed:
                actual.end += self._world.rng.randint(1, 30)

    def end(self, shard: ShardId) -> Offset | None:
        """Where the next record of this shard will be written; None if there is no such shard now."""
        actual = self._world.history.shards[shard]
        return actual.end if actual.present else None

    def present(self) -> list[Shard]:
        """The shards that are there now."""
        return [shard for shard in self._world.history.shards.values() if shard.present]

    def names(self) -> set[ShardId]:
        """Their names."""
        return {shard.name for shard in self.present()}

    def plain(self) -> list[Shard]:
        """Those of them that have to do with no other shard, as all of Kafka's."""
        parents = {parent for shard in self._world.history.shards.values() for parent in shard.parents}
        return [shard for shard in self.present() if shard.open and not shard.parents and shard.name not in parents]

    # Shards that go, come back, and are made anew.

    def _asking(self) -> set[tuple[ShardId, Offset]]:
        """The positions that users wait to be told of."""
        return {each for operator in self._world.operators if operator.alive for each in operator.asking}

    def vanish(self, shards: Sequence[Shard], *, for_good: bool = False) -> None:
        """These shards are not there any more."""
        world, asking = self._world, self._asking()
        for shard in shards:
            shard.present, shard.was_away, shard.gone = False, True, for_good
            world.history.sightings.vanished(shard.name)
            world.kafka.drop_asked(shard.name, asking)
        world.say(f"{[shard.name for shard in shards]} vanish{', for good' if for_good else ''}")
        world.history.counts["shards that vanished for good" if for_good else "shards that vanished"] += len(shards)

    def come_back(self, shards: Sequence[Shard]) -> None:
        """These shards are there again, as they were."""
        for shard in shards:
            # Not one that was made anew meanwhile.
            if self._world.history.shards[shard.name] is shard and not shard.present and not shard.gone:
                shard.present = True
                self._world.say(f"{shard.name} is there again")
                self._world.history.counts["shards that came back"] += 1

    def make_anew(self, shards: Sequence[Shard]) -> None:
        """These shards are deleted and made anew under their names. Mostly their offsets are deleted with them."""
        world = self._world
        if world.history.rebuilding:
            # What tells a shard from one that bears its name is in the ownership, and in notes that go with the offsets.
            self.come_back(shards)
            return
        self._ids += 1
        # Those of Kinesis are not kept there.
        with_offsets = world.plan.kinesis or world.rng.random() < 0.25
        asking = self._asking()
        for number, old in enumerate(shards):
            shard = Shard(old.name, born=world.time, source_id=f"id-{self._ids}", was_away=True)
            shard.forced_under = old.forced_under  # who has not heard of it yet reads this one under the grant that it ended
            shard.succeeds_started = old.succeeds_started or old.highest is not None
            shard.ordered_from_birth = old.ordered_from_birth
            if world.plan.kinesis:
                shard.begin = shard.prefix = kinesis.begin_at(world.time, number)
            shard.end = shard.begin + world.rng.randint(0, 40)
            world.history.shards[old.name] = shard
            world.kafka.drop_asked(old.name, asking)
            if not with_offsets:
                world.kafka.committed.pop(old.name, None)
                world.kafka.notes.pop(old.name, None)
                world.history.lose_epochs(old.name)
        world.say(f"{[shard.name for shard in shards]} are made anew")
        world.history.counts["shards made anew"] += len(shards)

    def put_right(self) -> None:
        """A user who sees that nothing is granted any more pauses the group, resets what was made anew, and goes on."""
        world, stored = self._world, self._world.history.stored
        wrong = world.history.sightings.others(stored)
        reset = self._resetting
        if reset is None:
            if not wrong or stored is None or applying(stored) is not None:
                return
            to = world.rng.choice((ResetTo.EARLIEST, ResetTo.EARLIEST, ResetTo.LATEST))
            in_cells = world.spec.settings.cells > 0
            some = () if in_cells else tuple(wrong)
            self._resetting = Reset(f"made-anew-at-{world.time:.3f}", to, shards=some, discard_state=in_cells)
            world.change_spec(paused=True, reset=self._resetting)
            return
        report = stored.group.reset if stored is not None else None
        made = report is not None and report.id == reset.id and applying(stored) is None
        if made or world.spec.reset != reset or not wrong:
            world.history.counts["resets of shards made anew"] += made
            world.last_start = world.time
            self._resetting = None
            world.change_spec(paused=False)
        elif not world.spec.settings.paused:
            world.change_spec(paused=True)
