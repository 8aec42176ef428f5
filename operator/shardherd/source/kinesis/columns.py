"""Records of Kinesis as Arrow record batches, aggregated ones as the records that they are made of.

`range_reading` calls it with what a request brought. Only the wanted columns are built. Names and types are those of the Kafka
source where they mean the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from shardherd.source.kinesis.aggregation import MAGIC, AggregationError, belongs, is_aggregated, user_records
from shardherd.source.kinesis.shard_reader import Record

log = logging.getLogger(__name__)

_told: set[str] = set()
"""The shards of this process of which was told that records are left out."""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("sequenceNumber", pa.string()),
    pa.field("subSequenceNumber", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("shard", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
"""Every column that there is; Spark demands exactly these Arrow types."""


def rows_of(records: Sequence[Record], hashes: tuple[int, int] | None, shard: str) -> Sequence[Record]:
    """What programs have put. `hashes` are the hash keys of the shard, if they are known."""
    if not any(each.data.startswith(MAGIC) for each in records):
        return records
    rows: list[Record] = []
    for each in records:
        if not is_aggregated(each.data):
            rows.append(each)
            continue
        try:
            users = user_records(each.data)
        except AggregationError as error:
            log.warning("shard %s, record %s looks aggregated and is read as it is: %s", shard, each.sequence, error)
            rows.append(each)
            continue
        ours = [user for user in users if hashes is None or belongs(user, hashes)]
        if len(ours) < len(users):
            _tell_of_others(shard, each, len(users) - len(ours), len(users))
        rows += [Record(each.sequence, user.key, user.data, each.arrived, user.sub) for user in ours]
    return rows


def _tell_of_others(shard: str, record: Record, others: int, of: int) -> None:
    """Once for each shard. Only a producer that knows of shards sends them again, and who wrote this is not known."""
    if shard not in _told:
        _told.add(shard)
        log.warning(
            "shard %s, record %s is an aggregated one: %d of its %d records are left out, as their hash keys are other shards'."
            " The Kinesis Producer Library sends such records again after a split or a merge. Who aggregates otherwise must put"
            " only records of one shard together, or these are lost. It is told once for a shard",
            shard,
            record.sequence,
            others,
            of,
        )


def batch_of(rows: Sequence[Record], shard: str, columns: Sequence[str]) -> pa.RecordBatch:
    """These rows as one Arrow batch; `shard` is its whole name."""
    makers: dict[str, Callable[[], list[Any]]] = {
        "key": lambda: [each.key.encode() for each in rows],
        "value": lambda: [each.data for each in rows],
        "sequenceNumber": lambda: [each.sequence for each in rows],
        "subSequenceNumber": lambda: [each.sub for each in rows],
        "timestamp": lambda: [each.arrived for each in rows],
        "shard": lambda: [shard] * len(rows),
    }
    arrays: list[pa.Array[Any]] = [pa.array(makers[name](), SCHEMA.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))
