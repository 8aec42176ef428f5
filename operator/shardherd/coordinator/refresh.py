"""When a group's positions are committed once more although they did not change, and which of them next.

A broker forgets the offsets of a group without members, one by one, by default after seven days. Asked by the group's
committer. When it was made last is kept with the copies of positions, and so known to the next leader. Commits nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from shardherd.core.model.nouns import ShardId
from shardherd.ports import Clock

REFRESH = 24 * 3600.0
"""Seconds after which positions are committed once more."""

REFRESH_AGAIN = 600.0
"""Seconds until it is tried again if it failed, wherever."""

REFRESH_SOON = 60.0
"""Seconds until it is made after a commit of unknown outcome: what was read back may have the note of somebody before."""

REFRESH_SPREAD = 300.0
"""Seconds within which groups that are due when they are taken over are refreshed: they may be many."""

AT_ONCE = 2000
"""Positions in one commit: checkpoints that come meanwhile wait for one of these, not for a hundred thousand."""


class Refresh:
    """Of one group, whose place among others is `place`, from 0 to 1. Nothing is due before `resume`."""

    def __init__(self, clock: Clock, place: float) -> None:
        self._clock = clock
        self._place = place
        self._at = float("inf")
        self._left: deque[ShardId] | None = None
        self._unknown = False
        # Whether some commit since it was begun had an unknown outcome.

    def resume(self, refreshed: float) -> None:
        """It was made last at this time, in seconds since 1970. If that cannot be, it is due."""
        age = self._clock.wall() - refreshed
        waits = REFRESH - age if 0 <= age < REFRESH else 0.0
        self._at = self._clock.now() + max(waits, REFRESH_SPREAD * self._place)

    @property
    def due(self) -> bool:
        return self._clock.now() >= self._at

    @property
    def begun(self) -> bool:
        """Whether some are committed and some are not."""
        return self._left is not None

    def begin(self, shards: Iterable[ShardId]) -> None:
        """These are to be committed, some at a time."""
        self._left = deque(shards)
        self._unknown = False

    def next(self) -> tuple[ShardId, ...]:
        """The shards of the next commit; none if it is done."""
        left = self._left or ()
        return tuple(shard for shard, _ in zip(left, range(AT_ONCE), strict=False))

    def made(self, shards: tuple[ShardId, ...]) -> bool:
        """Those of the last `next` are committed. Whether that was all, and each of them bears our note for certain."""
        left = self._left or deque()
        for _ in shards:
            left.popleft()
        if left:
            return False
        self._left = None
        self._at = self._clock.now() + (REFRESH_SOON if self._unknown else REFRESH)
        return not self._unknown

    def soon(self) -> None:
        """A commit had an unknown outcome. Make it soon, whenever it was made last, and if it is being made, once more."""
        self._unknown = True
        self._at = min(self._at, self._clock.now() + REFRESH_SOON)

    def failed(self) -> None:
        """Go on some time later with those that are left."""
        self._at = self._clock.now() + REFRESH_AGAIN
