"""How a worker reads and processes: its options, each with its reason. Nothing here has behaviour but their check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardherd.client.consumer import SAVE_INTERVAL
from shardherd.consumer.settings_given import no_number, no_truth
from shardherd.source.kafka.fetch_memory import LEAST_MEMORY

FIRST_RETRY, LAST_RETRY = 0.5, 30.0
"""Seconds before a batch that failed is tried again; doubled each time up to the second."""

LEAST = 4 * LEAST_MEMORY
"""Fewest bytes of `memory`: half of it is for what waits, a quarter for each of the two Fetches that are under way."""


HOLD = "hold"

BAD_RECORDS = (HOLD, "fail", "skip", "dead-letter")
"""What may become of a record that fails again and again."""


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
    `max_value_bytes`: a longer value is cut there, and its record flagged; 0: none is.

    Of a processor whose records are acknowledged one by one: `max_pending`: most records of a shard that are emitted and not
    finished. `in_order`: what failed comes again before anything new. `ack_timeout`: seconds after which a record that is not
    acknowledged has failed; 0: never. `tries`: how often a record is tried before `bad_records` is done with it: it is held
    ("hold": no limit), ends the worker ("fail"), is passed over and counted ("skip"), or written to the topic `dead_letters`
    ("dead-letter"). `alarm_after`: seconds after which a position that does not move is warned of; 0: never.
    """

    threads: int = 4
    batch_size: int = 500
    memory: int = 64 * 1024 * 1024
    fetch_interval: float = 0.0
    save_interval: float = SAVE_INTERVAL
    revoke_timeout: float = 30.0
    drain_timeout: float | None = None
    fail_on_data_loss: bool = True
    max_value_bytes: int = 0
    max_pending: int = 1000
    in_order: bool = True
    ack_timeout: float = 0.0
    tries: int = 0
    bad_records: str = HOLD
    dead_letters: str = ""
    alarm_after: float = 60.0

    def __post_init__(self) -> None:
        for name, wrong in self._wrong():
            raise WorkerOptionError(f"{name} {wrong}")
        if (self.bad_records == HOLD) != (self.tries == 0):
            raise WorkerOptionError(
                f"tries says after how many tries bad_records is done, so both are set or none: tries is {self.tries} and"
                f" bad_records {self.bad_records!r}"
            )
        if (self.bad_records == "dead-letter") != bool(self.dead_letters):
            raise WorkerOptionError(
                f"dead_letters names the topic of bad_records=dead-letter, so both are set or none: dead_letters is"
                f" {self.dead_letters!r} and bad_records {self.bad_records!r}"
            )

    def _wrong(self) -> Iterator[tuple[str, str]]:
        """The options that cannot be, whatever the others are: each by its name and what it must be."""
        if self.bad_records not in BAD_RECORDS:
            yield "bad_records", f"must be one of {', '.join(BAD_RECORDS)}, not {self.bad_records!r}"
        if not_text := _no_text(self.dead_letters):
            yield "dead_letters", not_text
        for name in ("fail_on_data_loss", "in_order"):
            if wrong := no_truth(getattr(self, name)):
                yield name, wrong
        for name, least in _NUMBERS.items():
            if wrong := no_number(getattr(self, name), least, whole=True):
                yield name, wrong
        for name in _SECONDS:
            value = getattr(self, name)
            if (value is not None or name != "drain_timeout") and (wrong := no_number(value, 0)):
                yield name, wrong


_NUMBERS = {"threads": 1, "batch_size": 1, "memory": LEAST, "max_value_bytes": 0, "max_pending": 1, "tries": 0}
"""The options that are whole numbers, with the least that each may be."""

_SECONDS = ("fetch_interval", "save_interval", "revoke_timeout", "ack_timeout", "alarm_after", "drain_timeout")


def _no_text(value: object) -> str:
    return "" if isinstance(value, str) else f"must be the name of a topic, or empty for none, not {value!r}"
