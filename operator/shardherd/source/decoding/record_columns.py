"""Rows as Arrow columns: the schema that Spark demands, and the record batch that decoded rows become, without a copy.

Called by `record_batches` for Spark's source, and by the worker for a program that asks for Arrow. Decides nothing of which
records there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding.record_rows import Headers, Rows, Texts, rows_of

Column: TypeAlias = "pa.Array[Any]"

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("headers", HEADERS),
    pa.field("shard", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
"""Every column that there is; Spark demands exactly these Arrow types."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in their order."""
    return pa.schema([SCHEMA.field(name) for name in columns])


def arrow_of(rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
    """These columns, which were wanted when the rows were decoded."""
    topic, _, partition = rows.shard.rpartition("/")
    count = rows.count
    makers: dict[str, Callable[[], Column]] = {
        "key": lambda: _binary(rows.keys, count),
        "value": lambda: _binary(rows.values, count),
        "topic": lambda: _constant_text(topic, count),
        "partition": lambda: _fixed(pa.int32(), np.full(count, int(partition), np.int32)),
        "offset": lambda: _fixed(pa.int64(), rows.offsets),
        "timestamp": lambda: _fixed(SCHEMA.field("timestamp").type, rows.timestamps),
        "timestampType": lambda: _fixed(pa.int32(), rows.types),
        "headers": lambda: _headers(rows.headers, count),
        "shard": lambda: _constant_text(rows.shard, count),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in columns], schema=schema_of(columns))


def rows_of_arrow(shard: ShardId, table: pa.RecordBatch) -> Rows:
    """The other way, by a copy: for records that nobody has decoded here."""
    lists: dict[str, list[Any]] = {name: table.column(name).to_pylist() for name in ("offset", "key", "value", "headers")}
    times: list[Any] = table.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [[(each["key"], each["value"]) for each in row or ()] for row in lists["headers"]]
    return rows_of(shard, lists["offset"], times, [0] * len(times), lists["key"], lists["value"], headers)


def _headers(headers: Headers, count: int) -> Column:
    """A row without headers has a null, as in Spark's own source."""
    keys = _text(headers.keys)
    values = _binary(headers.values, len(headers.values.ends) - 1)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    nulls = count - int(np.count_nonzero(headers.set))
    validity = _validity(headers.set) if nulls else None
    return pa.Array.from_buffers(HEADERS, count, [validity, _buffer(headers.ends)], null_count=nulls, children=[pairs])


def _binary(texts: Texts, count: int, kind: pa.DataType | None = None) -> Column:
    nulls = 0 if texts.set is None else count - int(np.count_nonzero(texts.set))
    validity = _validity(texts.set) if texts.set is not None and nulls else None
    buffers = [validity, _buffer(texts.ends), _buffer(texts.data)]
    return pa.Array.from_buffers(kind or pa.binary(), count, buffers, null_count=nulls)


def _text(texts: Texts) -> Column:
    """Bytes as text; what is not UTF-8 gets replacement characters, as Kafka's Java client gives it."""
    made = _binary(texts, len(texts.ends) - 1, pa.string())
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([(each or b"").decode(errors="replace") for each in texts.list()], pa.string())
    return made


def _validity(given: npt.NDArray[np.uint8]) -> pa.Buffer:
    return _buffer(np.packbits(given, bitorder="little"))


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _fixed(kind: pa.DataType, values: npt.NDArray[Any]) -> Column:
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)], null_count=0)


def _constant_text(text: str, count: int) -> Column:
    raw = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    return pa.Array.from_buffers(pa.string(), count, [None, _buffer(ends), pa.py_buffer(raw * count)], null_count=0)
