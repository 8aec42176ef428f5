"""Which coordinator has been shown that a shard is another one than before under the same name, or gone: what it may do then.

Of another one nothing is granted then, and nobody is told to read it, until a reset says from where on it is read. What is gone
nobody is told to read either, and it is forgotten only after it has been for long. The history asks here for everything that a
coordinator tells and writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shardherd.core.group.records import Ownership
from shardherd.core.model.nouns import ShardId, ShardInfo
from tests.simulation.history_entries import BrokenError, Shard


class Sightings:
    """What the coordinators of one world were shown by its source. `patience`: seconds that one has to act upon it."""

    def __init__(self, shards: Mapping[ShardId, Shard], patience: float) -> None:
        self._shards = shards
        self._patience = patience
        self._shown: dict[tuple[str, ShardId, str], float] = {}
        self._missed: dict[tuple[str, ShardId], float] = {}
        self._found_again: dict[tuple[str, ShardId], float] = {}
        self._missed_last: dict[ShardId, float] = {}
        self._unlooked_last: dict[ShardId, float] = {}
        self._looked_last: dict[tuple[str, ShardId], float] = {}

    def begin(self, coordinator: str) -> None:
        """This coordinator loads the group: it has seen nothing yet."""
        self._missed = {key: since for key, since in self._missed.items() if key[0] != coordinator}
        self._found_again = {key: when for key, when in self._found_again.items() if key[0] != coordinator}
        self._looked_last = {key: when for key, when in self._looked_last.items() if key[0] != coordinator}

    def looked(self, coordinator: str, infos: Collection[ShardInfo], now: float, unlooked: Collection[ShardId] = ()) -> None:
        """This coordinator was shown these shards. What went while the answer was under way counts as gone."""
        for info in infos:
            if info.source_id != Shard.source_id and self._shards[info.shard].present:
                self._shown.setdefault((coordinator, info.shard, info.source_id), now)
        there = {info.shard for info in infos}.union(unlooked)
        for shard in self._shards.keys() - there:
            self._missed.setdefault((coordinator, shard), now)
            self._missed_last[shard] = now
        for shard in there:
            if self._missed.pop((coordinator, shard), None) is not None:
                self._found_again[coordinator, shard] = now
        self._unlooked_last.update(dict.fromkeys(unlooked, now))
        self._looked_last.update(dict.fromkeys(((coordinator, info.shard) for info in infos), now))

    def missed_for(self, coordinator: str, shard: ShardId, now: float) -> float:
        """For how long every look of this coordinator has been without this shard."""
        return now - self._missed.get((coordinator, shard), now)

    def misses(self, coordinator: str, shard: ShardId) -> bool:
        """Whether the last look of this coordinator was without this shard."""
        return (coordinator, shard) in self._missed

    def missed_since(self, coordinator: str, shard: ShardId, when: float) -> bool:
        """Whether the last look of this coordinator was without this shard, or at that time still was."""
        return self.misses(coordinator, shard) or self._found_again.get((coordinator, shard), float("-inf")) > when

    def missed_within(self, seconds: float, shard: ShardId, now: float) -> bool:
        """Whether some look was without this shard lately."""
        return now - self._missed_last.get(shard, float("-inf")) < seconds

    def unlooked_within(self, seconds: float, coordinator: str, shard: ShardId, now: float) -> bool:
        """Whether some look lately told no more of this shard than that it is there, or this coordinator saw no more since."""
        unlooked = self._unlooked_last.get(shard, float("-inf"))
        return now - unlooked < seconds or unlooked > self._looked_last.get((coordinator, shard), float("-inf"))

    def granted_of_gone(self, coordinator: str, consumer: str, shard: ShardId, now: float) -> None:
        """A consumer is told to read a shard: one that this coordinator has not seen for long is gone for it."""
        if (since := self.missed_for(coordinator, shard, now)) > self._patience:
            raise BrokenError(f"{coordinator} tells {consumer} to read {shard}, which it has not seen for {since:.0f} s")

    def vanished(self, shard: ShardId) -> None:
        """It is not there any more. Nobody can read it until it is, and then it must be seen anew."""
        self._shown = {key: when for key, when in self._shown.items() if key[1] != shard}

    def another(self, ownership: Ownership | None, shard: ShardId) -> bool:
        """Whether this shard is another one than that of which this ownership tells."""
        row = ownership.shards.get(shard) if ownership is not None else None
        return row is not None and row.source_id not in ("", self._shards[shard].source_id)

    def others(self, ownership: Ownership | None) -> list[ShardId]:
        """All shards that are there and of which `another` holds."""
        return [shard for shard, actual in self._shards.items() if actual.present and self.another(ownership, shard)]

    def granted_of_another(self, coordinator: str, consumer: str, shard: ShardId, now: float) -> None:
        """A consumer is told to read a shard that is another one than before."""
        if self._knows(coordinator, shard, now):
            raise BrokenError(f"{coordinator} tells {consumer} to read {shard}, and knows that it is another shard than before")

    def stored(self, coordinator: str, before: Ownership, after: Ownership, now: float) -> None:
        """An ownership was written."""
        known = [shard for shard in self.others(after) if self._knows(coordinator, shard, now)]
        if not known:
            return
        for name, row in after.shards.items():
            was = before.shards.get(name)
            if row.holder is not None and was is not None and was is not row and was.holder != row.holder:
                raise BrokenError(f"{coordinator} gives {name} to {row.holder}, and knows that {known[0]} is another shard")

    def _knows(self, coordinator: str, shard: ShardId, now: float) -> bool:
        """Whether it has known this for long enough to act upon it."""
        return now - self._shown.get((coordinator, shard, self._shards[shard].source_id), now) > self._patience
