"""Reads the timestamps of the oldest records that a group has not checkpointed, and adds their age to its views.

Called by the group's runner. What to look at and what follows from it is `core.group.ages`. That a look fails withholds
nothing: it is counted and logged, and the age is shown for as long as it may be.
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

    def shown(self, view: GroupView) -> GroupView:
        """The view, with the age. From any thread."""
        return replace(view, lag_seconds=self._ages.seconds(unread(view), self._clock.now(), self._clock.wall()))

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
        begun = self._clock.now()
        view = unread(group.view(begun, self._clock.wall()))
        wanted = self._ages.wanted(view, begun)
        took = self._clock.now() - begun
        try:
            answers = await self._timed("written_at", lambda: source.written_at(wanted)) if wanted else {}
        except SourceUnavailableError as error:
            log.info("group %s: how old its lag is was not found out: %s", self._identity, error)
            return max(waited, min(2 * waited, LONGEST))
        self._ages = self._ages.after(view, wanted, answers, self._clock.now(), self._clock.wall())
        return max(self._interval, SHARE * took)
