"""A note goes with every durable position: whose it is, and the epochs under which it was committed.

Written by the coordinator's commits, read when a group's ownership is loaded. It tells an ownership that was lost, or is older
than the positions, from a group that is new, and below which epochs nothing may be granted. Decides nothing.

The note of a forced position says so: it is durable before its holder is fenced, so the epoch alone would let a holder that was
fenced since claim the shard, if the ownership that says so were lost, and go on from its own position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardherd.core.group.records import Ownership
from shardherd.core.model.nouns import ShardId

FORMAT = "1"

FORCED = "forced"
"""A sixth part, of a forced position's note only. Earlier versions did not write it."""

GENERATION = "generation="
"""How a part at the end begins, of the notes of a group with cells whose state was discarded."""

GROWN = "grown="
"""How the last part begins of the note of a shard that waits since its topic grew: with the number of shards before."""


@dataclass(frozen=True, slots=True)
class Note:
    """One position's note: the UID of its group, the epochs of the leader and of the grant, and which shard bore the name.

    `forced`: whoever was granted the shard under this epoch is not to go on from where it is. `generation` is that of the state
    of the group's cells. `grown`: it waited for a shard of those that its topic had before, so many; 0 if it did not wait.
    """

    uid: str
    leader_epoch: int
    owner_epoch: int
    source_id: str = ""
    forced: bool = False
    generation: int = 0
    grown: int = 0

    def __str__(self) -> str:
        numbers = {"generation": self.generation, "grown": self.grown}
        return text(self.uid, self.leader_epoch, self.owner_epoch, self.source_id, forced=self.forced, **numbers)

    @property
    def lowest_claim(self) -> int:
        """The lowest epoch under which somebody may still hold the shard."""
        return self.owner_epoch + 1 if self.forced else self.owner_epoch


def text(
    uid: str,
    leader_epoch: int,
    owner_epoch: int,
    source_id: str,
    *,
    forced: bool = False,
    generation: int = 0,
    grown: int = 0,
) -> str:
    """A note as it is written. Earlier versions wrote none of the parts after the fifth, and none is written without need."""
    parts = [FORMAT, uid, str(leader_epoch), str(owner_epoch), source_id, *[FORCED] * forced]
    parts += [f"{name}{number}" for name, number in ((GENERATION, generation), (GROWN, grown)) if number > 0]
    return " ".join(parts)


def parse(written: str) -> Note | None:
    """The note that was written, or None for a text that is none of ours or of another format."""
    parts = written.split(" ")
    numbers = {}
    for name in (GROWN, GENERATION):
        found = len(parts) > 5 and parts[-1].startswith(name)
        numbers[name] = parts.pop().removeprefix(name) if found else "0"
    forced = parts[5:] == [FORCED]
    if len(parts) != 5 + forced or parts[0] != FORMAT or not all(map(str.isdecimal, (parts[2], parts[3], *numbers.values()))):
        return None
    return Note(parts[1], int(parts[2]), int(parts[3]), parts[4], forced, int(numbers[GENERATION]), int(numbers[GROWN]))


def of_group(uid: str, texts: Mapping[ShardId, str]) -> dict[ShardId, Note]:
    """The notes of this very group among these texts."""
    notes = {shard: parse(written) for shard, written in texts.items()}
    return {shard: note for shard, note in notes.items() if note is not None and note.uid == uid}


def outdated(ownership: Ownership, texts: Mapping[ShardId, str]) -> bool:
    """Whether positions were committed under a leader or a grant that this ownership, taken over already, never heard of."""
    notes = of_group(ownership.group.uid, texts)
    leader, rows = ownership.group.leader_epoch, ownership.shards
    return any(
        note.leader_epoch >= leader or (shard in rows and note.owner_epoch > rows[shard].owner_epoch)
        for shard, note in notes.items()
    )
