"""Decodes the column `value` of the batches that `record_batches` makes, where typed values are wanted.

`range_reader` calls it for each shard's part of an answer. It counts, and says in the log, how many values took the slow path.
What values mean is `values`' business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.reading.range_reader import Decode
from shardherd.source.values.decoded_values import Decoder, MalformedValueError

log = logging.getLogger(__name__)


def typed(decoder: Decoder, count: Callable[[int, int, int], None]) -> Decode:
    """`record_batches.decode` with the column `value` typed.

    `count` gets how many values there were, how many took the slow path, and how many were malformed.
    """

    def decode(
        shard: ShardId, scanned: record_batches.Scan, start: Offset, stop: Offset, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        rows = slow = malformed = 0
        for batch in record_batches.decode(shard, scanned, start, stop, columns):
            at = batch.schema.get_field_index("value")
            try:
                found = decoder.decode(batch.column(at))
            except MalformedValueError as error:
                offsets = [
                    offset
                    for each in record_batches.decode(shard, scanned, start, stop, ("offset",))
                    for offset in each.column(0).to_pylist()
                ]
                row = rows + error.row
                raise MalformedValueError(row, f"shard {shard}, offset {offsets[row]}: {error}") from error
            rows, slow, malformed = rows + batch.num_rows, slow + found.slow, malformed + found.malformed
            values = batch.set_column(at, batch.schema.field(at).with_type(found.values.type), found.values)
            yield values if found.keep is None else values.filter(pa.array(found.keep))
        count(rows, slow, malformed)
        if slow:
            log.info("shard %s: %d of %d values took the slow path, %d of them are malformed", shard, slow, rows, malformed)

    return decode
