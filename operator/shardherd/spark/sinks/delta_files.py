"""Writes the Parquet files of one task for a Delta table. In the executors' workers, called by `delta_table`.

It decides how rows are laid out in files and what statistics say of them. It commits nothing: a file of a task that failed,
or of a commit that was refused, is in no version of the table.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import PyFileSystem

from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks.positions import Pending
from shardherd.spark.sinks.rows import Rows
from shardherd.transactions.outcomes import SinkError

BUFFERED = 64 * 1024 * 1024
"""Bytes of rows that a task keeps before they become row groups: small groups are slow to read."""

LONGEST_BOUND = 32
"""Characters of a text that may be a bound in the statistics."""

EPOCH = datetime.date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = datetime.date.min.toordinal() - EPOCH, datetime.date.max.toordinal() - EPOCH
"""The days that a value of a partition may be, as Arrow counts them."""

_FIELDS: dict[str, pa.DataType] = {"path": pa.string(), "size": pa.int64(), "partition": pa.string(), "stats": pa.string()}
FILES = pa.schema(_FIELDS)
"""What a task says of each file."""

FILES_DDL = "path string, size long, partition string, stats string"


@dataclass(frozen=True, slots=True)
class FileJob:
    """What every task of a micro-batch is told."""

    table: str
    storage_options: Mapping[str, str] = field(repr=False)
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    ranges: Mapping[str, BatchRange]
    wanted: Mapping[str, Pending]
    by_record: bool = True


def write_files(batches: Iterable[pa.RecordBatch], job: FileJob) -> Iterator[pa.RecordBatch]:
    """Write the rows that the table does not have yet. Gives one row for each file, of `FILES`."""
    from deltalake.fs import DeltaStorageHandler

    rows = Rows(job.ranges, job.wanted, by_record=job.by_record)
    # A column that is not written is null, and so is its value in what the log says of a file.
    nowhere: dict[str, str | None] = dict.fromkeys(job.partition_by)
    split_by = tuple(name for name in job.partition_by if name in job.columns)
    files: dict[tuple[str | None, ...], _File] = {}
    storage: PyFileSystem | None = None
    for each in batches:
        batch = rows.of_batch(each)
        if not batch.num_rows:
            continue
        if storage is None:
            storage = PyFileSystem(DeltaStorageHandler(job.table, dict(job.storage_options)))
        for values, part in _by_partition(batch, split_by):
            if values not in files:
                files[values] = _File(storage)
            files[values].add(part.select([name for name in job.columns if name not in job.partition_by]))
        if sum(file.buffered for file in files.values()) > BUFFERED:
            for file in files.values():
                file.flush()
    answer = [
        {
            "path": file.path,
            "size": file.close(),
            "partition": json.dumps(nowhere | dict(zip(split_by, values, strict=True))),
            "stats": json.dumps(statistics(file.about[0])),
        }
        for values, file in files.items()
    ]
    yield pa.RecordBatch.from_pylist(answer, FILES)


class _File:
    """One file under construction."""

    def __init__(self, storage: PyFileSystem) -> None:
        self.path = f"part-{uuid.uuid4()}.snappy.parquet"
        self.about: list[Any] = []
        self.buffered = 0
        self._stream = storage.open_output_stream(self.path)
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.buffered += batch.nbytes

    def flush(self) -> None:
        if not self._batches:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._stream, self._batches[0].schema, compression="snappy", metadata_collector=self.about
            )
        self._writer.write_table(pa.Table.from_batches(self._batches))
        self._batches, self.buffered = [], 0

    def close(self) -> int:
        """The file's size in bytes. Only now is it there, as a whole."""
        self.flush()
        assert self._writer is not None
        self._writer.close()
        size = int(self._stream.tell())
        self._stream.close()
        return size


def _by_partition(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each combination of values, with these values as Delta writes them into its log."""
    if not columns:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    texts: list[list[str | None]] = []
    for column in columns:
        values = batch.column(column).dictionary_encode(null_encoding="encode")
        texts.append([None if value is None else _text(value) for value in _values(column, values.dictionary)])
        codes = codes * len(texts[-1]) + values.indices.to_numpy()
    for code in np.unique(codes):
        found: list[str | None] = []
        left = int(code)
        for names in reversed(texts):
            left, index = divmod(left, len(names))
            found.append(names[index])
        yield tuple(reversed(found)), batch.filter(pa.array(codes == code))


def _values(column: str, found: pa.Array[Any]) -> list[Any]:
    """The values as Python has them. Raises SinkError for what Delta's log cannot have: some days, and texts of other bytes."""
    try:
        return found.to_pylist()
    except (OverflowError, ValueError) as error:
        has, remedy = "a text that is not UTF-8", "none such: mend it before it is written, by make_valid_utf8"
        if pa.types.is_date(found.type):
            days = found.cast(pa.int32()).to_pylist()
            strange = next(day for day in days if day is not None and not FIRST_DAY <= day <= LAST_DAY)
            said = pa.scalar(strange, pa.int32()).cast(pa.date32()).cast(pa.string()).as_py()
            has, remedy = f"the day {said}", "the years 1 to 9999 only: make it null, or another day, before it is written"
        raise SinkError(
            f"a row has {has} in the column {column!r}, by which the Delta table is partitioned: its log has {remedy}"
        ) from error


def _text(value: str | int | bool | datetime.date) -> str | None:
    if value == "":
        return None  # as Delta has it: an empty text is no value of a partition
    return str(value).lower() if isinstance(value, bool) else str(value)


def statistics(about: pq.FileMetaData) -> dict[str, Any]:
    """What Delta's readers skip files by: how many rows there are, and bounds of the columns whose bounds are exact."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    rows = about.num_row_groups
    for number in range(about.num_columns):
        name = about.schema.column(number).path
        if "." in name:
            continue
        groups = [
            each for each in (about.row_group(group).column(number).statistics for group in range(rows)) if each is not None
        ]
        if len(groups) < rows:
            continue
        nulls[name] = sum(each.null_count or 0 for each in groups)
        filled: list[Any] = [each for each in groups if each.num_values]
        if not filled or not all(each.has_min_max for each in filled):
            continue
        try:
            least = _bound(min(each.min for each in filled), up=False)
            most = _bound(max(each.max for each in filled), up=True)
        except (OverflowError, ValueError):  # a time or a day that Python has none of, as after the year 9999
            continue
        if least is not None and most is not None:
            low[name], high[name] = least, most
    return {"numRecords": about.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bound(value: Any, *, up: bool) -> str | int | None:
    """A bound as JSON, None for what is left without one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST_BOUND else None
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return None
        # Milliseconds, and never above the least or below the greatest value.
        value = value.astimezone(datetime.UTC)
        spare = value.microsecond % 1000
        value += datetime.timedelta(microseconds=(1000 - spare if up and spare else -spare))
        return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    if isinstance(value, datetime.date):
        return str(value)
    return None
