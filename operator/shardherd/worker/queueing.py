"""A processor whose records wait in a queue of its own after they were handed out: what a delivery asks and tells it beside.

`outputs` is one. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.client.in_hand import ShardInHand
from shardherd.core.model.nouns import Place
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker.counts import Counts
from shardherd.worker.crew import Crew
from shardherd.worker.options import Options
from shardherd.worker.record_processor import RecordProcessor
from shardherd.worker.records import Records


@dataclass(frozen=True, slots=True)
class Lent:
    """What a worker lends to such a processor; `group` is the UID of its group, `fields` what every line of the log names,
    `kafka` how the cluster that is read is reached."""

    shard: ShardInHand
    group: str
    options: Options
    counts: Counts
    crew: Crew
    fields: Mapping[str, Any]
    kafka: KafkaAccess | None = None


class QueueingProcessor(RecordProcessor):
    """What is called by the worker may be called from any thread. All of these have an answer for a queue that is not used."""

    @property
    def full(self) -> bool:
        """Whether nothing new may be handed out now. `wake` is to be called when that is over."""
        return False

    @property
    def queued(self) -> tuple[int, int]:
        """How many records, and about how many bytes, are in the queue."""
        return 0, 0

    @property
    def held_by(self) -> Place | None:
        """The first record in it that failed too often: those behind it are not acknowledged before it is finished."""
        return None

    def keeps(self, place: Place) -> bool:  # noqa: ARG002
        """Whether a record is in the queue and is sent yet, or was taken: then it is not bad, however often it was not
        acknowledged in time."""
        return False

    @property
    def trouble(self) -> str:
        """Why the queue does not get on; empty if it does."""
        return ""

    @property
    def defect(self) -> BaseException | None:
        """What has ended it that nobody expected: it ends the worker."""
        return None

    def lend(self, lent: Lent) -> None:
        """Called before `initialize`."""

    def kept(self) -> Records | None:
        """Records that an earlier run has kept: they are handed out first, and not read again. After `initialize`."""
        return None

    def begin(self, save: Callable[[], Awaitable[None]], wake: Callable[[], None]) -> None:
        """Records are handed out from now on. `save` makes all that is acknowledged durable, and may be awaited on any loop;
        it raises as a checkpoint's does. `wake`, from any thread: there may be room again, or trouble."""

    def finish(self) -> None:
        """Nothing more is handed out: what was should be done soon."""

    def end(self) -> None:
        """What is acknowledged from now on does not count."""

    async def abandoned(self) -> None:
        """In place of `shutdown`, where something of the program still runs: close what is one's own. When this returns,
        nothing of it goes on."""
