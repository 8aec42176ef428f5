"""What a user writes of a place where records go: an output, and one whose transactions take records and position together.

`sending` calls both. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.records import Record


class Output:
    """Takes records in batches. Each shard has one of its own, with one batch at a time.

    Each method is a function, which is called in a thread, or a coroutine. `name` is what metrics and logs call it: that of its
    class, unless it has another.
    """

    name: str = ""

    def open(self, shard: ShardId) -> Any:
        """Called first. If it raises, it is called again after a while, on a new one."""

    def write(self, records: Sequence[Record]) -> Any:
        """Take a batch. None: all of it is taken. A list of records of it: these are not, and are sent again after a while.

        If it raises, or returns anything else, nothing is taken, and all of it is sent again.
        """
        raise NotImplementedError

    def close(self) -> Any:
        """Called last, after the last `write` has ended."""


class ShardGrant(NamedTuple):
    """For which group, by its UID, and under which epoch a shard is written; `start` is the group's position at the grant.

    `topic_id` is that of the shard's topic, empty where it is not known: one that was made anew under its name has another.
    """

    group: str
    shard: ShardId
    epoch: int
    start: Offset = 0
    topic_id: str = ""


class MovedPositionError(RuntimeError):
    """Somebody else has written meanwhile: the position is asked for again."""


class TransactionalOutput(Output):
    """An output that keeps the position of each shard beside the records, and changes both at once: exactly once.

    It is asked for its position before the first batch, and whenever a batch has failed: only it knows what it has.
    """

    def position(self, grant: ShardGrant) -> Any:
        """All before it is there. None: nothing was ever written of this shard for this group."""
        raise NotImplementedError

    def write_once(self, records: Sequence[Record], grant: ShardGrant, before: Offset | None, position: Offset) -> Any:
        """Take all records and move the position to `position`, if it still is `before`; else raise, and take nothing.

        Returns None. Of whoever returns something else nobody knows what is taken: it is given nothing more.
        """
        raise NotImplementedError
