"""Which records the running micro-batch has, for sinks: `shardherd.spark.ranges(batch_id)`.

The agent says what it handed out last, or what it has Spark read again after a restart, as `HandedBatch`. `application` asks
`ranges_of`, which decides whether that is the micro-batch that is asked for. It must not guess: a sink that believed the ranges
of another micro-batch would lose records. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import HeldShard, ShardId


class RangesError(RuntimeError):
    """The ranges of a micro-batch cannot be told. Says why and what to do."""


class BatchRange(NamedTuple):
    """The records of a shard with start <= offset < stop, which this consumer was given under `epoch`.

    Of Kinesis it is start <= int(sequenceNumber) < stop, with numbers of up to 56 digits.
    """

    start: int
    stop: int
    epoch: int


class BatchRanges(Mapping[str, BatchRange]):
    """The range of every shard of which a micro-batch has records, by `topic/partition`.

    `group` is the UID of the ConsumerGroup, which no other group will ever have; `run` is the id of the query's run.
    `topic_ids` are those of the shards' topics, as far as Kafka has them. With `by_record` a row is made of one record, which
    its columns name; without it there is one range, to which all rows belong: see `of_cell`.
    """

    def __init__(
        self,
        ranges: Mapping[ShardId, BatchRange],
        *,
        group: str,
        batch_id: int,
        run: str,
        topic_ids: Mapping[ShardId, str] | None = None,
        by_record: bool = True,
    ) -> None:
        self._ranges: dict[str, BatchRange] = dict(sorted(ranges.items()))
        self.group = group
        self.batch_id = batch_id
        self.run = run
        self.by_record = by_record
        self.topic_ids: dict[str, str] = {shard: each for shard, each in (topic_ids or {}).items() if shard in ranges}

    def key(self, shard: str) -> str:
        """Under which a sink keeps the shard's position: that of a topic that was deleted and made again is another one."""
        found = self.topic_ids.get(shard)
        return f"{shard}@{found}" if found else shard

    def __getitem__(self, shard: str) -> BatchRange:
        return self._ranges[shard]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __repr__(self) -> str:
        return f"BatchRanges({self._ranges}, group={self.group!r}, batch_id={self.batch_id}, run={self.run!r})"


class Running(NamedTuple):
    """What Spark says of the thread that asks: the run of the query and the micro-batch that it works for."""

    run: str
    batch_id: int


@dataclass(slots=True, eq=False)
class HandedBatch:
    """What the agent has handed out last, and for which micro-batch it was asked, once it was.

    `topic_ids` are those by shard that the coordinator told with the positions, of these and perhaps of others.
    """

    ranges: Mapping[ShardId, BatchRange]
    topic_ids: Mapping[ShardId, str]
    asked_by: Running | None = None


def handed_out(ranges: Mapping[ShardId, ReadRange], topic_ids: Mapping[ShardId, str]) -> HandedBatch:
    """A micro-batch of new records."""
    return HandedBatch(
        {shard: BatchRange(each.start, each.stop, each.epoch) for shard, each in ranges.items() if each.start < each.stop},
        topic_ids,
    )


def read_again(
    ranges: Mapping[ShardId, ReadRange], held: tuple[HeldShard, ...], topic_ids: Mapping[ShardId, str]
) -> HandedBatch:
    """A micro-batch that an earlier run has left: these of its ranges are still ours, under the epochs of our grants now."""
    epochs: dict[ShardId, int] = {}
    for each in held:  # what was abandoned is named too, under an epoch of before
        epochs[each.shard] = max(each.owner_epoch, epochs.get(each.shard, 0))
    again = {shard: BatchRange(each.start, each.stop, epochs[shard]) for shard, each in ranges.items()}
    return HandedBatch(again, topic_ids)


def of_cell(cell_id: str, shard: ShardId, batch_id: int, running: Running | None) -> BatchRanges:
    """A cell's micro-batch as one range, that of its batch id, of this `shard`: by it the cell's results are known.

    Batch ids go on where the cell moves to, and begin anew only with another `cell_id`. No epoch is needed: Spark's log of the
    cell has each of them once, whoever plans it. Raises RangesError.
    """
    run = _checked(batch_id, running).run
    group, generation, _ = cell_id.rsplit("/", 2)
    found = {shard: BatchRange(batch_id, batch_id + 1, 0)}
    return BatchRanges(found, group=group, batch_id=batch_id, run=run, topic_ids={shard: generation}, by_record=False)


def _checked(batch_id: int, running: Running | None) -> Running:
    """What is running, which must be this micro-batch. Raises RangesError."""
    if running is None:
        raise RangesError(
            f"ranges({batch_id}) was called outside of a micro-batch: call it in the function that foreachBatch calls, in the "
            "thread that Spark calls it in, and hand what it returns to other threads"
        )
    if running.batch_id != batch_id:
        raise RangesError(
            f"ranges({batch_id}) was called while micro-batch {running.batch_id} is running: pass the batch id that "
            "foreachBatch was called with"
        )
    return running


def ranges_of(handed: HandedBatch | None, group: str, batch_id: int, running: Running | None) -> BatchRanges:
    """The ranges of micro-batch `batch_id`, which must be the one that is running. Raises RangesError."""
    running = _checked(batch_id, running)
    if handed is None:
        raise RangesError(
            f"nothing of this ConsumerGroup is being read, so that micro-batch {batch_id} has no ranges of it: ranges() is for "
            'the query that reads format("shardherd") of this application, while it runs'
        )
    if handed.asked_by not in (None, running):
        assert handed.asked_by is not None
        raise RangesError(
            f"micro-batch {batch_id} of this query (run {running.run}) reads nothing of this ConsumerGroup: what was handed "
            f"out last is micro-batch {handed.asked_by.batch_id} of the run {handed.asked_by.run}; call ranges() only for the "
            'query that reads format("shardherd")'
        )
    handed.asked_by = running
    return BatchRanges(handed.ranges, group=group, batch_id=batch_id, run=running.run, topic_ids=handed.topic_ids)
