"""Decodes the column `value` of the batches that `records` makes, where a query wants typed values.

`reader` calls it in Spark's Python workers. It keeps a decoder for each value format of its process, and counts and says in the
log how many values took the slow path. What values mean is `values`' business.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark import records
from shardherd.spark.tally import mine
from shardherd.spark.values import MalformedValueError, ValueFormat
from shardherd.spark.values.format import Decoder

log = logging.getLogger(__name__)

Decode = Callable[[ShardId, records.Scan, Offset, Offset, Sequence[str]], Iterator[pa.RecordBatch]]


def decoding(values: ValueFormat, columns: Sequence[str]) -> Decode:
    """`records.decode`, or the same with the column `value` typed."""
    decoder = _decoder(values, session_time_zone()) if "value" in columns else None
    if decoder is None:
        return records.decode

    def decode(
        shard: ShardId, scanned: records.Scan, start: Offset, stop: Offset, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        rows = slow = malformed = 0
        for batch in records.decode(shard, scanned, start, stop, columns):
            at = batch.schema.get_field_index("value")
            try:
                found = decoder.decode(batch.column(at))
            except MalformedValueError as error:
                offsets = [
                    offset
                    for each in records.decode(shard, scanned, start, stop, ("offset",))
                    for offset in each.column(0).to_pylist()
                ]
                row = rows + error.row
                raise MalformedValueError(row, f"shard {shard}, offset {offsets[row]}: {error}") from error
            rows, slow, malformed = rows + batch.num_rows, slow + found.slow, malformed + found.malformed
            typed = batch.set_column(at, batch.schema.field(at).with_type(found.values.type), found.values)
            yield typed if found.keep is None else typed.filter(pa.array(found.keep))
        mine().add(rows, slow, malformed)
        if slow:
            log.info("shard %s: %d of %d values took the slow path, %d of them are malformed", shard, slow, rows, malformed)

    return decode


@lru_cache(maxsize=16)
def _decoder(values: ValueFormat, time_zone: str) -> Decoder | None:
    return values.decoder(time_zone)


def session_time_zone() -> str:
    """The time zone of the Spark session that runs this task: Spark hands its settings on, but not its defaults.

    The default is the zone of the machine, as Java finds it.
    """
    context = TaskContext.get()
    zone = None if context is None else context.getLocalProperty("spark.sql.session.timeZone")
    if zone:
        return zone
    if zone := os.environ.get("TZ", "").removeprefix(":"):
        return zone
    link = Path("/etc/localtime")
    if link.is_symlink():
        _, _, name = str(link.resolve()).partition("/zoneinfo/")
        if name:
            return name
    return "UTC"
