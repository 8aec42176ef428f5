"""Looks at a group's lag every few seconds: how old it is, and how each shard is read; and adds both to the group's views.

Called by the group's runner. Which records' timestamps are read and what follows from them is `core.group.ages`, what is said
of the shards `core.planning.verdicts`. That a look at records fails withholds nothing: it is counted and logged, and the age is
shown for as long as it may be. No heartbeat comes by here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from shardherd.coordinator.ports import CoordinatorPorts
from shardherd.coordinator.timed import Timed
from shardherd.core.group.ages import Ages, unread
from shardherd.core.group.group import Group
from shardherd.core.model.nouns import GroupIdentity, GroupView
from shardherd.core.planning.verdicts import History, looked
from shardherd.ports import ShardSource, SourceUnavailableError

log = logging.getLogger(__name__)

EVERY = 5.0
"""Looks at the source's ends to one look at records: by default, those are 5 s apart."""

SHARE = 20.0
"""No look is made for so many times as long as choosing what to look at took last: a group may have very many shards."""

LONGEST = 60.0
"""Seconds to the next look after several that failed: a request that takes too long closes the connection under all groups."""


class LagAge:
    """Of one group, whose ends are looked at so often (seconds). `group` is None until it is loaded."""

    def __init__(
        self, ports: CoordinatorPorts, identity: GroupIdentity, interval: float, *, group: Callable[[], Group | None]
    ) -> None:
        self._clock = ports.clock
        self._identity = identity
        self._interval = EVERY * interval
        self._group = group
        self._timed = Timed(ports, identity)
        self._ages = Ages()
        self._history: History | None = None

    def shown(self, view: GroupView) -> GroupView:
        """The view, with the age and the verdicts. From any thread."""
        seconds, history = self._ages.seconds(unread(view), self._clock.now(), self._clock.wall()), self._history
        if history is None:
            return replace(view, lag_seconds=seconds)
        return replace(view, lag_seconds=seconds, verdict=history.verdict, verdicts=history.said)

    async def work(self, source: ShardSource) -> None:
        """Look for ever."""
        wait = self._interval
        while True:
            await asyncio.sleep(wait)
            group = self._group()
            if group is not None:
                wait = await self.look(group, source, wait)

    async def look(self, group: Group, source: ShardSource, waited: float) -> float:
        """One look, `waited` seconds after the one before. How many seconds to wait for the next."""
        begun, wall = self._clock.now(), self._clock.wall()
        seen = group.view(begun, wall)
        view = unread(seen)
        wanted = self._ages.wanted(view, begun)
        # What waits meanwhile, heartbeats of a large group, comes between the two.
        took = self._clock.now() - begun
        await asyncio.sleep(0)
        begun = self._clock.now()
        self._history = looked(self._history, seen, begun, wall, group.spec.settings)
        took += self._clock.now() - begun
        asked = self._clock.now()
        try:
            answers = await self._timed("written_at", lambda: source.written_at(wanted)) if wanted else {}
        except SourceUnavailableError as error:
            log.info("group %s: how old its lag is was not found out: %s", self._identity, error)
            return max(self._interval, min(2 * max(waited, self._interval), LONGEST))
        self._ages = self._ages.after(view, wanted, answers, self._clock.now(), self._clock.wall())
        return max(self._interval - (self._clock.now() - asked), SHARE * took)
