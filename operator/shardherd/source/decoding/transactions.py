"""Which batches a consumer must not see because their transaction was aborted: the rule of Kafka's own consumer.

Called by `record_batches` under `isolation.level=read_committed`; `brokers` hands over what the Fetch answer says. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from shardherd.core.model.nouns import Offset


@dataclass(frozen=True, slots=True)
class Aborted:
    """A transaction that was aborted: its producer, and the offset of its first record."""

    producer: int
    first_offset: Offset


@dataclass(frozen=True, slots=True)
class Batch:
    """What the rule looks at. `control` batches hold the marker that ends a transaction; `producer` is -1 for none."""

    last_offset: Offset
    producer: int
    transactional: bool
    control: bool


def hidden(batches: Iterable[Batch], aborted: Collection[Aborted], aborts: Callable[[int], bool]) -> list[int]:
    """The positions of the batches (of one Fetch answer, in order) whose records belong to an aborted transaction.

    `aborts` says of the control batch at a position whether its marker ends a transaction by aborting it. It is asked only of
    producers that are among the aborted.
    """
    waiting = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    open_producers: set[int] = set()
    found = []
    for position, batch in enumerate(batches):
        if batch.producer < 0:
            continue
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            open_producers.add(waiting.pop().producer)
        if batch.control:
            if batch.producer in open_producers and aborts(position):
                open_producers.remove(batch.producer)
        elif batch.transactional and batch.producer in open_producers:
            found.append(position)
    return found
