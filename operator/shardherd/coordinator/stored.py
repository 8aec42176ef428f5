"""What may be shown of a group that is not loaded yet: its stored ownership, and what keeps it from being loaded.

Called by the group's runner. Nothing here is known to be true now, so no position and no consumer is shown. Decides nothing.
"""

from __future__ import annotations

from shardherd.coordinator.restrictions import Restrictions
from shardherd.core.group.records import Ownership
from shardherd.core.model.nouns import Condition, GroupView, ShardView
from shardherd.core.model.reasons import OWNERSHIP_UNREADABLE


def view_of_stored(stored: Ownership | None, restrictions: Restrictions, problem: str, unreadable: str) -> GroupView:
    """The view. `problem` is what keeps the group from being loaded, `unreadable` why its ownership cannot be read."""
    return GroupView(
        group_epoch=stored.group.group_epoch if stored else 0,
        revision=stored.group.revision if stored else 0,
        shards=tuple(
            ShardView(row.shard, row.state, row.holder, row.next_consumer, row.owner_epoch)
            for row in (stored.shards.values() if stored else ())
        ),
        consumers=(),
        source_reachable=not restrictions.error,
        source_error=restrictions.error or problem,
        withheld=(
            *restrictions.withheld(),
            *restrictions.limits(),
            *((Condition(OWNERSHIP_UNREADABLE, unreadable),) if unreadable else ()),
        ),
        discovered=stored.group.discovered if stored else False,
        source=restrictions.source.kind,
        last_reset=stored.group.last_reset if stored else None,
    )
