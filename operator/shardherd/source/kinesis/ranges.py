"""A stretch of one Kinesis shard's records, which is what a task reads, and the error where it is gone. It has no behaviour."""

from __future__ import annotations

from typing import NamedTuple

REMEDY_IN_GROUP = "set failOnDataLoss to false to go on without them, or reset the shard"
REMEDY = "set failOnDataLoss to false to go on without them, or begin anew with another checkpointLocation"


class RecordsLostError(Exception):
    """Records that were to be read are gone: older than the retention of the stream. Names the shard, and the remedy."""


class ShardRecords(NamedTuple):
    """The records of one shard with first <= number < stop; `hashes` are its hash keys. `shard` is Kinesis's id.

    A range of a group begins at a position, which need not be the number of a record: then `begin` is where the shard began.
    `wait`: seconds after which the shard may be asked for, as whoever planned the range has read it.
    """

    shard: str
    first: int
    stop: int
    hashes: tuple[int, int] | None = None
    begin: int | None = None
    wait: float = 0.0
