"""Writes what a cell's query gives: rows of several records, which are known by their cell and the micro-batch's id.

Every sink calls it on the driver; a micro-batch of records goes on as it is. To `positions` a cell is one shard, whose
positions are the batch ids: so all that holds for records holds for micro-batches. It decides under which name a cell's
position is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import ShardId
from shardherd.spark.running_batch import BatchRanges
from shardherd.spark.sinks.positions import GapError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardherd.spark.cells.build import Cell

    Write = Callable[[DataFrame, BatchRanges], None]


def shard_of(cell: Cell) -> ShardId:
    """The cell as a shard. With the generation of its state behind it (`BatchRanges.key`) no partition is called so."""
    return ShardId(f"cell/{cell.number}")


def write_batch(write: Write, frame: DataFrame, batch_id: int, cell: Cell | None, shard: ShardId | None = None) -> None:
    """Write the micro-batch that foreachBatch has: its records or, of a `cell`, its results. Raises as `write_results`."""
    from shardherd.spark import ranges

    if cell is None:
        write(frame, ranges(batch_id))
    else:
        write_results(write, frame, cell, batch_id, shard or shard_of(cell))


def write_results(write: Write, frame: DataFrame, cell: Cell, batch_id: int, shard: ShardId) -> None:
    """Write a micro-batch of the cell, whose position is kept as that of `shard`. Raises SinkError, RangesError."""
    from shardherd.spark.application import cell_batch_now

    ranges = cell_batch_now(cell.id, shard, batch_id)
    try:
        write(frame, ranges)
    except GapError as error:
        raise GapError(
            f"the sink has the micro-batches of cell {cell.number} ({cell.id}) below {error.position}, and this one is"
            f" {batch_id}: the results in between are missing. If the sink was restored from a copy, reset the group with"
            " discardState: true, which makes all results anew under other positions; if micro-batches were left out on"
            " purpose, start the application once with accept_gaps=True",
            error.position,
        ) from error
