"""What has to stay out of a group whose stored ownership is as large as it may be, and when it is tried again.

Called by the group's runner: with what became of each attempt to let something in, and before new shards are shown to the group
or a reset is begun. Everything that is in the group goes on meanwhile: who died, who came, and what moves is never refused for
its size. Decides nothing of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable

from shardherd.core.model.nouns import ShardId, ShardInfo
from shardherd.core.model.requests import ResetDue
from shardherd.core.model.wording import count
from shardherd.ports import Clock

AGAIN = 60.0
"""Seconds between attempts: to find out how large an ownership is takes a second where it is that large."""


class SizeLimit:
    """One group's. `size` counts the shards that it has. `tell` is called with what stays out, and why; empty: nothing does."""

    def __init__(self, clock: Clock, size: Callable[[], int], tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._size = size
        self._tell = tell
        self._refused = False
        self._again_at = float("-inf")
        self._shards_wait = False

    def tried(self, what: str, why: str) -> None:
        """This was let in, or was not because of `why`."""
        self._refused = bool(why)
        if why:
            self._again_at = self._clock.now() + AGAIN
            self._tell(
                f"{why}: {what} must stay out, and what the group has, {count(self._size(), 'shard')}, is served as before;"
                f" split the group, or reset fewer shards at once; it is tried again every {AGAIN:g} s"
            )
        else:
            self._tell("")

    def changed(self) -> None:
        """The group was declared anew: it may fit now."""
        self._again_at = float("-inf")

    def sift(
        self, shards: tuple[ShardInfo, ...], unadmitted: Callable[[tuple[ShardInfo, ...]], frozenset[ShardId]]
    ) -> tuple[tuple[ShardInfo, ...], frozenset[ShardId]]:
        """These shards without those that have to stay out for now, of the ones that the group does not have; and those."""
        if not self._refused:
            return shards, frozenset()
        fresh = unadmitted(shards)
        self._shards_wait = bool(fresh)
        if not fresh or not self._full:
            return shards, frozenset()
        return tuple(info for info in shards if info.shard not in fresh), fresh

    def reset(self, due: ResetDue | None, *, begun: bool) -> ResetDue | None:
        """The reset to go on with now, if there is one. Asked after `sift`: where nothing waits, nothing stays out any more."""
        waits = due is not None and not begun
        if self._refused and not waits and not self._shards_wait:
            self._refused = False
            self._tell("")
        return None if waits and self._full else due

    @property
    def _full(self) -> bool:
        return self._refused and self._clock.now() < self._again_at
