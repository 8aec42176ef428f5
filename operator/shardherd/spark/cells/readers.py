"""A stream reader of a cell's query, as the agent of cells knows it: what it reads, and what it was given to read last.

`agent` makes and changes it, `serve` holds it for a connection. It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardherd.core.model.naming import split
from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.leader_epochs import EndOffsets
from shardherd.spark.batch_sizing import BatchSizing
from shardherd.spark.flow import Limits
from shardherd.spark.running_batch import BatchRange


class NoCellError(RuntimeError):
    """A stream reader is of no cell's query that runs now. Says what to do."""


@dataclass(eq=False)
class CellReader:
    """One `cell.read` of a running query, with what it was given to read last."""

    number: int
    cell: int
    topics: frozenset[str]
    limits: Limits
    sizing: BatchSizing
    asked_at: float
    records_at: float
    parked: bool = False
    bounds: EndOffsets | None = None
    handed: dict[ShardId, BatchRange] = field(default_factory=dict)
    topic_ids: dict[ShardId, str] = field(default_factory=dict)

    def reads(self, shard: ShardId) -> bool:
        return not self.topics or split(shard)[0] in self.topics
