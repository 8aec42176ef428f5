"""Deletes the durable positions of shards that a group has forgotten, where its resource declares that.

Called by the group's runner: with what was forgotten, with every look at the source, and after it. Nothing fences a deletion,
so it is made between two looks only, by one that has just proven that it leads: nothing can have come back that is deleted.
What it does not come to stays in the source, as all does by default. Decides nothing about the group.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.event_reasons import OFFSETS_KEPT
from shardherd.core.model.nouns import GroupSpec, ShardId
from shardherd.core.model.wording import some
from shardherd.ports import Discovered, EventRecorder, SourceUnavailableError

log = logging.getLogger(__name__)


class Cleaning:
    """One group's."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._forgotten: set[ShardId] = set()

    def put(self, shards: Iterable[ShardId]) -> None:
        """The group has forgotten these."""
        self._forgotten.update(shards)

    def seen(self, looked: Discovered) -> None:
        """The source has these: nothing of them is deleted."""
        if self._forgotten:
            self._forgotten.difference_update(looked.unlooked, (info.shard for info in looked.shards))

    async def remind(self, forget: Callable[[Iterable[ShardId]], Awaitable[None]], spec: GroupSpec) -> None:
        """Called after every look. `forget` deletes, once it is proven that we lead. Raises LeadershipLostError."""
        if not self._forgotten:
            return
        gone, self._forgotten = sorted(self._forgotten), set()
        if not spec.source.delete_offsets:
            return
        try:
            await forget(gone)
        except (SourceUnavailableError, CoordinatorUnavailableError) as error:
            needs = "spec.cleanup Delete needs the right DELETE on the Kafka group"
            message = f"the offsets of {some(gone, 5)} stay in the source, though these shards are forgotten; {needs}: {error}"
            log.warning("group %s: %s", spec.identity, message)
            self._events.record(spec.identity, OFFSETS_KEPT, message, warning=True)
        else:
            log.info("group %s: deleted the offsets of %s", spec.identity, some(gone, 5))
