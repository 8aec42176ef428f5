"""How a worker reads and processes: its options, each with its reason. Nothing here has behaviour but their check."""

from __future__ import annotations

from dataclasses import dataclass

from shardherd.client.consumer import SAVE_INTERVAL
from shardherd.source.kafka.fetch_memory import LEAST_MEMORY

FIRST_RETRY, LAST_RETRY = 0.5, 30.0
"""Seconds before a batch that failed is tried again; doubled each time up to the second."""

LEAST = 4 * LEAST_MEMORY
"""Fewest bytes of `memory`: half of it is for what waits, a quarter for each of the two Fetches that are under way."""


class WorkerOptionError(ValueError):
    """An option cannot be used. Names it, its value and what is expected."""


@dataclass(frozen=True, slots=True)
class Options:
    """`threads`: how many shards are initialized or processed at once, by as many threads or coroutines; as many shut down.

    `batch_size`: most records of one call of `process`; as Kafka's `max.poll.records`. `memory`: bytes of all that was fetched
    and is not processed, with the batches in hand, as Kafka has sent it. `fetch_interval`: seconds between two looks at shards
    that were read to their end; none is needed, as Kafka keeps a Fetch until there is something. `save_interval`: a position is
    durable so many seconds after it was done. `revoke_timeout`: how long a batch in hand may keep a shard that another consumer
    waits for; less than the group's releaseTimeout. `drain_timeout`: how long it may keep a worker that is asked to end; None:
    the environment's, else 60. `fail_on_data_loss`: end when records are gone that were not read; False: warn, and go on.
    """

    threads: int = 4
    batch_size: int = 500
    memory: int = 64 * 1024 * 1024
    fetch_interval: float = 0.0
    save_interval: float = SAVE_INTERVAL
    revoke_timeout: float = 30.0
    drain_timeout: float | None = None
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        for name, value, least in (
            ("threads", self.threads, 1),
            ("batch_size", self.batch_size, 1),
            ("memory", self.memory, LEAST),
            ("fetch_interval", self.fetch_interval, 0),
            ("save_interval", self.save_interval, 0),
            ("revoke_timeout", self.revoke_timeout, 0),
            ("drain_timeout", 0 if self.drain_timeout is None else self.drain_timeout, 0),
        ):
            if value < least:
                raise WorkerOptionError(f"{name} must be {least} or more, not {value}")
