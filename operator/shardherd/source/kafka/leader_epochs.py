"""Whether a log still is the one that a range was planned for, by its leader epochs.

A log that an unclean election cut off, and that has grown past our position since, looks like one that was never cut. But each
leader's reign has a number, its epoch, and the present leader knows where the log of every earlier epoch ended. The sides that
plan note under which epoch they saw a log reach an offset (`EndOffsets`); a task asks again (`LogChecks`) when the
shard is led under another one. Pure; `brokers` asks, and `lost_records` decides what becomes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardherd.core.model.nouns import Offset, ShardId

UNKNOWN = -1
"""In place of an epoch, from brokers that are too old to say."""


class Mark(NamedTuple):
    """The log had records up to this offset when it was led under this epoch."""

    offset: Offset
    epoch: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """The log is not what a mark says: led under `now`, the records of epochs up to `epoch` end at `at`.

    `at` is None if the leader's epoch is below the mark's: a topic that was made anew has that, or a broker that is behind.
    """

    epoch: int
    now: int
    at: Offset | None = None


class EndOffsets(dict[ShardId, Offset]):
    """Where shards end, and under which epoch each one's leader said so, as far as it is known."""

    def __init__(
        self, end_offsets: Mapping[ShardId, Offset] | None = None, leaders: Mapping[ShardId, int] | None = None
    ) -> None:
        super().__init__(end_offsets or {})
        self.leaders: dict[ShardId, int] = dict(leaders or {})


def epochs_in(end_offsets: Mapping[ShardId, Offset]) -> Mapping[ShardId, int]:
    """The leader epochs that came with these ends; none with ends that are only numbers."""
    return end_offsets.leaders if isinstance(end_offsets, EndOffsets) else {}


class LogChecks:
    """What must hold of the logs that one task reads, and what was asked already."""

    def __init__(self, marks: Mapping[ShardId, Collection[Mark]] | None = None) -> None:
        self._marks = {shard: tuple(each) for shard, each in (marks or {}).items()}
        self._verified: dict[ShardId, int] = {}

    def marked(self, epochs: Mapping[ShardId, int]) -> dict[ShardId, int]:
        """Of these shards, and the epochs under which they are led, those with marks: there is nothing to ask of the others."""
        return {shard: epochs[shard] for shard in self._marks if shard in epochs}

    def ahead(self, shard: ShardId, epoch: int) -> Mark | None:
        """A mark of a later epoch than the one under which the shard is led, as far as we know."""
        later = (mark for mark in self._marks.get(shard, ()) if mark.epoch > epoch >= 0)
        return max(later, key=lambda mark: mark.epoch, default=None)

    def doubtful(self, shard: ShardId, epoch: int) -> tuple[Mark, ...]:
        """What to ask the shard's leader, which leads under this epoch. Nothing is asked twice."""
        if epoch < 0 or self._verified.get(shard) == epoch:
            return ()
        return tuple(mark for mark in self._marks.get(shard, ()) if mark.epoch < epoch)

    def verified(self, shard: ShardId, epoch: int) -> None:
        """The leader of this epoch has answered, whatever it was."""
        self._verified[shard] = epoch

    def forget(self, shards: Iterable[ShardId]) -> None:
        """These logs are read on as they are."""
        for shard in shards:
            self._marks.pop(shard, None)
