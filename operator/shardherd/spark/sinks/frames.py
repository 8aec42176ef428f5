"""What a sink asks of a DataFrame before it writes: the columns by which its rows are known, and types that it can write.

All sinks call it on the driver, also for the rows that are left to write. It starts no job.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import ShardId
from shardherd.spark.sinks.positions import Pending
from shardherd.spark.sinks.rows import OFFSET, SEQUENCE_NUMBER, SHARD, number_of
from shardherd.spark.task_planning import plan_tasks
from shardherd.transactions.outcomes import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TYPES: tuple[type[DataType], ...] = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""What a column of a table may be, where it is no structure."""


class ColumnsError(SinkError):
    """A DataFrame that a sink cannot write. Names the column and the remedy."""


def known_by(schema: StructType, shards: Collection[str]) -> str:
    """The column by which records are known in these shards; as the DataFrame has it, if nothing was read yet."""
    if shards:
        return number_of(shards)
    return SEQUENCE_NUMBER if SEQUENCE_NUMBER in schema.names and OFFSET not in schema.names else OFFSET


def stored_columns(
    schema: StructType, leave_out: Collection[str], shards: Collection[str], *, by_record: bool = True
) -> StructType:
    """The columns that are written. Raises ColumnsError if one is missing by which rows are known, or is there twice."""
    names = [field.name for field in schema.fields]
    number = known_by(schema, shards)
    marks = ((SHARD, StringType()), (number, LongType() if number == OFFSET else StringType()))
    for name, wanted in marks if by_record else ():
        if name not in names:
            raise ColumnsError(
                f"the DataFrame has no column {name!r}, by which this sink knows which rows it has already: keep the source's "
                f"columns shard and {number} (.select('shard', '{number}', ...)), and name them in leave_out=[...] if the "
                "table shall not have them. Rows of several records, like those of groupBy, are known by their cell: give the "
                "sink cell=cell in the function that run_cells calls"
            )
        found = schema[name].dataType
        if found != wanted:
            raise ColumnsError(
                f"the column {name!r} is {found.simpleString()}, and must be the source's, which is {wanted.simpleString()}: "
                "rename yours"
            )
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ColumnsError(f"the DataFrame has the column {twice[0]!r} twice: remove one, or rename it")
    if strange := [name for name in leave_out if name not in names]:
        near = difflib.get_close_matches(strange[0], names, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
        raise ColumnsError(f"leave_out names the column {strange[0]!r}, which the DataFrame does not have; {hint}")
    kept = [field for field in schema.fields if field.name not in leave_out]
    if not kept:
        raise ColumnsError("leave_out names every column of the DataFrame: nothing would be written")
    return StructType(kept)


def still_wanted(frame: DataFrame, wanted: Collection[str], ranges: Collection[str]) -> DataFrame:
    """The rows of these shards: of those that the sink has as a whole, none is even sent to the workers."""
    return frame if len(wanted) == len(ranges) else frame.where(functions.col(SHARD).isin(*wanted))


def shard_by_shard(frame: DataFrame, wanted: Mapping[str, Pending], ranges: Collection[str]) -> DataFrame:
    """The rows with all of each shard in one task: a position can be moved only when all rows below it are there."""
    slots = frame.sparkSession.sparkContext.defaultParallelism
    fresh = still_wanted(frame, wanted, ranges)
    tasks = plan_tasks({ShardId(shard): _weight(ShardId(shard), each) for shard, each in wanted.items()}, slots)
    if len(tasks) == 1:
        return fresh.coalesce(1)
    task_of = {part.shard: number for number, task in enumerate(tasks) for part in task}
    literals = (functions.lit(each) for each in chain.from_iterable(sorted(task_of.items())))
    number = functions.create_map(*literals)[functions.col(SHARD)]
    return fresh.repartitionById(len(tasks), functions.coalesce(number, functions.lit(0)))


def _weight(shard: ShardId, wanted: Pending) -> ReadRange:
    """A range of as many records, as far as positions count them: those of Kinesis do not."""
    return ReadRange(0, 1 if is_of_kinesis(shard) else wanted.stop - wanted.start, 0)


def refused(fields: Sequence[StructField], why: str) -> ColumnsError:
    """The error for columns of types that cannot be written."""
    said = ", ".join(f"{field.name!r} ({field.dataType.simpleString()})" for field in fields)
    return ColumnsError(f"the columns {said} cannot be written: {why}")
