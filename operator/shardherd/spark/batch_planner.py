"""What decides which records the next micro-batch of a streaming query has, as a Protocol.

`source` calls it in the process of the query; `link` (a client of the agent) and `standalone` (a query without a coordinator)
implement it. Nothing here has behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.decode_stats import CountsAddress


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """What the stream reader needs to plan tasks. `slots`: tasks that can run at once, None if not known; it may change later.

    `security` is `core.model.security.Security.as_dict()`. `counts_address`: where decoded values are counted, None if
    nowhere. `committed`: only committed records are read. `kinesis` says how the stream is reached that is read in the place
    of Kafka: stream, region, endpoint and credentials of `KinesisSettings`.
    """

    group: str
    bootstrap_servers: str
    slots: int | None
    security: Mapping[str, Any] = field(default_factory=dict)
    counts_address: CountsAddress | None = None
    committed: bool = False
    kinesis: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Latest:
    """Where the next micro-batch ends (None: nothing to do), and the known ends of shards.

    `unread`: there is nothing to do just now, but a query with Trigger.AvailableNow has not read all that there was.
    """

    end: dict[str, Any] | None
    end_offsets: Mapping[ShardId, Offset]
    unread: bool = False


class BatchPlanner(Protocol):
    """Decides which records micro-batches have. Offsets are as Spark logs them."""

    @property
    def reader_settings(self) -> ReaderSettings:
        """Called once it is needed: it may wait for the agent."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether a shard's records must be read by one task, by the last answer."""
        ...

    def latest(self, start: dict[str, Any], *, once: bool) -> Latest:
        """What comes after the finished micro-batch that ends at `start`; `once`: all there is, whatever the limits."""
        ...

    def replay(self, end: dict[str, Any]) -> frozenset[ShardId]:
        """Which shards of an unfinished micro-batch of an earlier run are read again."""
        ...

    def prepare(self) -> None:
        """For Trigger.AvailableNow: from now on nothing is new."""
        ...

    def close(self) -> None:
        """May be called at any moment, also twice."""
        ...
