"""Writes a micro-batch to a store so that each record stands there once, whatever was tried before and whoever tries too.

The sinks call `Writings.write` with their store, which calls `write_once`. It reads the positions, has the
rest written, and tries again from new positions when somebody else was faster, or when nobody knows whether a commit has
happened: the positions tell. It starts no Spark job and knows no table; what is still to be written is decided by
`positions`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from shardherd.spark.running_batch import BatchRange, BatchRanges, Running
from shardherd.spark.sinks.positions import Pending, pending
from shardherd.transactions.outcomes import ConflictError, SinkError, Stored

log = logging.getLogger(__name__)

TRIES = 5
"""How often a micro-batch is tried: again when somebody else has moved a position, or when a commit was lost."""


class Store(Protocol):
    """Rows and positions, which change together."""

    def positions(self) -> Mapping[str, Stored]:
        """What the store has of the shards of this micro-batch, as it is now."""
        ...

    def write(self, wanted: Mapping[str, Pending]) -> None:
        """Write the rows of these records, and move each shard's position from `before` to `stop`.

        Each shard's rows become visible with its position or not at all. Raises ConflictError if a position was another one
        meanwhile, or if that cannot be known.
        """
        ...


def write_once(store: Store, ranges: Mapping[str, BatchRange], *, accept_gaps: bool = False, tries: int = TRIES) -> None:
    """Write what the store does not have yet. Raises SinkError, or what the store raises."""
    for left in reversed(range(tries)):
        wanted = pending(ranges, store.positions(), accept_gaps=accept_gaps)
        if not wanted:
            return
        try:
            store.write(wanted)
        except ConflictError as error:
            if not left:
                raise
            log.warning("reading the sink's positions again: %s", error)
        else:
            return


class Writings:
    """Which sinks have been written in which micro-batch: twice in the same would leave out what came second."""

    def __init__(self) -> None:
        self._last: dict[str, Running] = {}

    def check(self, sink: str, ranges: BatchRanges, key: str = "") -> None:
        """Raises SinkError if this sink has been written in this micro-batch already."""
        if self._last.get(key or sink) == Running(ranges.run, ranges.batch_id):
            raise SinkError(
                f"{sink} was written in micro-batch {ranges.batch_id} already, so that it has the positions of its end: write "
                "one DataFrame to it (unionByName joins two), or give each sink a name of its own by name=..."
            )

    def done(self, sink: str, ranges: BatchRanges) -> None:
        """This sink has all of this micro-batch."""
        self._last[sink] = Running(ranges.run, ranges.batch_id)

    def write(self, sink: str, store: Store, ranges: BatchRanges, *, accept_gaps: bool, key: str = "") -> None:
        """`write_once`, to a sink that was not written in this micro-batch yet. Raises SinkError too if it was.

        `key` is what no other sink has, if `sink`, as errors call it, is not.
        """
        self.check(sink, ranges, key)
        write_once(store, ranges, accept_gaps=accept_gaps)
        self.done(key or sink, ranges)


WRITINGS = Writings()
"""Of this process."""
