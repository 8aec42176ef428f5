"""What of a micro-batch a sink still has to write: the rule that makes each record stand there once.

A sink keeps the position of every shard beside its rows, and changes both at once. `exactly_once` asks here before each try.
Batch ids mean nothing, and the sink's position wins over the group's checkpoint: what is below it is not written again,
whoever wrote it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import ShardId
from shardherd.spark.running_batch import BatchRange
from shardherd.transactions.outcomes import SinkError, Stored


class GapError(SinkError):
    """The micro-batch begins above the sink's position: records between the two would be missing."""

    def __init__(self, said: str, position: int) -> None:
        super().__init__(said)
        self.position = position


class StaleWriterError(SinkError):
    """A consumer with a newer grant of the shard has written already: this one must not."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The records of a shard that are still to be written: start <= offset < stop, in Kinesis the sequence number.

    `before` is the position that the sink must have until then, None if it has none.
    """

    start: int
    stop: int
    epoch: int
    before: int | None


def pending(ranges: Mapping[str, BatchRange], stored: Mapping[str, Stored], *, accept_gaps: bool = False) -> dict[str, Pending]:
    """What is still to be written of each shard; shards that the sink has whole are left out. Raises SinkError.

    With `accept_gaps` a micro-batch may begin above the sink's position, as after a checkpoint that was forced ahead.
    """
    found = {}
    for shard, each in sorted(ranges.items()):
        has = stored.get(shard)
        if has is None:
            found[shard] = Pending(each.start, each.stop, each.epoch, None)
            continue
        if has.position >= each.stop:
            continue
        if has.epoch > each.epoch:
            raise StaleWriterError(
                f"shard {shard} was written under epoch {has.epoch} already, and this consumer was given it under "
                f"{each.epoch}: the shard is another consumer's now, and nothing of it is written; the "
                "application starts anew with the shards that it holds"
            )
        if has.position < each.start and not accept_gaps:
            missing = f"{each.start - has.position} offsets are missing in between"
            if is_of_kinesis(ShardId(shard)):
                missing = "the records in between are missing"
            raise GapError(
                f"the sink has shard {shard} up to offset {has.position}, and this micro-batch begins at {each.start}: "
                f"{missing}. If the sink was restored from a copy, force the "
                f"group's checkpoint of the shard back to {has.position}; if a checkpoint was forced ahead on purpose, start "
                "the application once with accept_gaps=True",
                has.position,
            )
        start = max(each.start, has.position)
        found[shard] = Pending(start, each.stop, each.epoch, has.position)
    return found
