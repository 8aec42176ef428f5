"""What the sink holds, and what can be counted from it. Called by the demo's steps and its table.

Every row that the application wrote carries shard, offset, owner, processed_at and event_time; everything here follows from
those five. It reads Parquet files and never asks the operator anything, so that the count is a witness of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

NAMES: tuple[tuple[str, pa.DataType], ...] = (("shard", pa.string()), ("offset", pa.int64()), ("owner", pa.string()))
PLAIN = pa.schema([*NAMES, ("processed_at", pa.timestamp("us")), ("event_time", pa.timestamp("us"))])
SCHEMA = pa.schema([*NAMES, *((name, pa.timestamp("us", tz="UTC")) for name in ("processed_at", "event_time"))])


HIDDEN = ("_", ".")
"""How the names begin of what Spark's readers leave out."""


@dataclass(frozen=True)
class Rows:
    """Rows in the order of (shard, offset, processed_at). `shard` and `owner` are indices into the two name lists.

    Times are seconds since 1970.
    """

    shards: tuple[str, ...]
    owners: tuple[str, ...]
    shard: Numbers
    offset: Numbers
    owner: Numbers
    processed_at: Seconds
    event_time: Seconds

    @staticmethod
    def of(table: pa.Table) -> Rows:
        """From a table with at least the columns of SCHEMA."""
        shards, shard = _encoded(table, "shard")
        owners, owner = _encoded(table, "owner")
        offset = table.column("offset").cast(pa.int64()).to_numpy()
        processed, event = _seconds(table, "processed_at"), _seconds(table, "event_time")
        order = np.lexsort((processed, offset, shard))
        return Rows(shards, owners, shard[order], offset[order], owner[order], processed[order], event[order])

    def __len__(self) -> int:
        return len(self.offset)

    def between(self, since: float, until: float) -> Rows:
        """The rows with since <= processed_at < until."""
        keep = (self.processed_at >= since) & (self.processed_at < until)
        return Rows(
            self.shards,
            self.owners,
            self.shard[keep],
            self.offset[keep],
            self.owner[keep],
            self.processed_at[keep],
            self.event_time[keep],
        )


def _encoded(table: pa.Table, column: str) -> tuple[tuple[str, ...], Numbers]:
    values = table.column(column).combine_chunks().dictionary_encode()
    names = tuple(str(name) for name in values.dictionary.to_pylist())
    return names, np.asarray(values.indices.to_numpy(), dtype=np.int64)


def _seconds(table: pa.Table, column: str) -> Seconds:
    micros = table.column(column).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return np.asarray(micros / 1e6, dtype=np.float64)


@dataclass
class Sink:
    """The folder that the application writes to. `rows` reads each file once, however often it is asked.

    Files last written before `since`, in seconds since 1970, are left out: who looks on while an application runs must not
    take its cores by reading all that it ever wrote.
    """

    path: Path
    since: float = 0.0
    _tables: dict[Path, pa.Table] = field(default_factory=dict)

    def rows(self) -> Rows:
        """All rows of these files that have been committed to the sink by now."""
        for file in self._files():
            if file not in self._tables:
                # Spark writes times as nanoseconds without a zone, and means UTC.
                plain = pq.ParquetFile(file).read(columns=[column.name for column in SCHEMA])
                self._tables[file] = plain.cast(PLAIN).cast(SCHEMA)
        return Rows.of(pa.concat_tables([SCHEMA.empty_table(), *self._tables.values()]))

    def _files(self) -> Iterable[Path]:
        """Parquet files outside the folders that a running job still writes to, and may take away at any moment."""
        for folder, folders, names in os.walk(self.path):
            folders[:] = sorted(name for name in folders if not name.startswith(HIDDEN))
            for name in sorted(names):
                if name.endswith(".parquet") and not name.startswith(HIDDEN):
                    file = Path(folder, name)
                    if file.stat().st_mtime >= self.since:
                        yield file


@dataclass(frozen=True)
class Count:
    """How the sink compares with what was produced. `duplicates` are rows beyond the first of their (shard, offset)."""

    produced: int
    distinct: int
    missing: int
    foreign: int
    duplicates: int


def count(rows: Rows, produced: Mapping[str, int]) -> Count:
    """`produced` is the number of records of each shard, offsets 0 to n-1. Rows outside of it are `foreign`."""
    repeated = _repeated(rows)
    distinct = len(rows) - int(repeated.sum())
    limits = np.array([produced.get(shard, 0) for shard in rows.shards], dtype=np.int64)
    inside = rows.offset < limits[rows.shard] if len(rows) else np.zeros(0, dtype=bool)
    known = int((inside & ~repeated).sum())
    total = sum(produced.values())
    return Count(total, distinct, total - known, distinct - known, int(repeated.sum()))


def _repeated(rows: Rows) -> npt.NDArray[np.bool_]:
    """For each row, whether an earlier row has its (shard, offset)."""
    same = np.zeros(len(rows), dtype=bool)
    same[1:] = (rows.shard[1:] == rows.shard[:-1]) & (rows.offset[1:] == rows.offset[:-1])
    return same


@dataclass(frozen=True)
class Duplicate:
    """One row too many: who read it first, when, and when it was read again."""

    shard: str
    offset: int
    first_owner: str
    first_at: float
    again_by: str
    again_at: float


def duplicates(rows: Rows) -> list[Duplicate]:
    """Every row too many, in the order of (shard, offset, time)."""
    found: list[Duplicate] = []
    first = 0
    repeated = _repeated(rows)
    for index in np.flatnonzero(repeated):
        if not repeated[index - 1]:
            first = int(index) - 1
        found.append(
            Duplicate(
                rows.shards[rows.shard[index]],
                int(rows.offset[index]),
                rows.owners[rows.owner[first]],
                float(rows.processed_at[first]),
                rows.owners[rows.owner[index]],
                float(rows.processed_at[index]),
            )
        )
    return found


def owners_of(rows: Rows) -> dict[str, list[str]]:
    """Who read each shard, in the order of time, each change of owner once."""
    order = np.lexsort((rows.processed_at, rows.shard))
    shard, owner = rows.shard[order], rows.owner[order]
    changed = np.ones(len(rows), dtype=bool)
    changed[1:] = (shard[1:] != shard[:-1]) | (owner[1:] != owner[:-1])
    result: dict[str, list[str]] = {}
    for index in np.flatnonzero(changed):
        result.setdefault(rows.shards[shard[index]], []).append(rows.owners[owner[index]])
    return result


def batches_of(rows: Rows, owner: str, before: float) -> list[tuple[float, int]]:
    """The micro-batches of one owner up to a moment: (processed_at, rows), oldest first."""
    if owner not in rows.owners:
        return []
    mine = (rows.owner == rows.owners.index(owner)) & (rows.processed_at < before)
    times, sizes = np.unique(rows.processed_at[mine], return_counts=True)
    return [(float(at), int(size)) for at, size in zip(times, sizes, strict=True)]


def disorder(rows: Rows) -> int:
    """How many records were first read earlier than a record before them in their shard. 0: every shard was read in order."""
    first = ~_repeated(rows)
    shard, at = rows.shard[first], rows.processed_at[first]
    return int(((shard[1:] == shard[:-1]) & (at[1:] < at[:-1])).sum())


def first_read_after(rows: Rows, shard: str, moment: float, *, not_by: str) -> float | None:
    """When another owner than `not_by` first read this shard after `moment`, or None."""
    if shard not in rows.shards:
        return None
    mine = (rows.shard == rows.shards.index(shard)) & (rows.processed_at > moment)
    if not_by in rows.owners:
        mine &= rows.owner != rows.owners.index(not_by)
    return float(rows.processed_at[mine].min()) if mine.any() else None


def longest_pauses(rows: Rows, since: float, until: float) -> dict[str, float]:
    """The longest time in seconds, per shard, without a read although there was something to read, in [since, until).

    A pause ends with a read (one value of `processed_at`), and began with the read before it, or when the first record
    of that read was produced, whichever is later. The first read of a shard within the window ends a pause only if
    there was a read before the window.
    """
    order = np.lexsort((rows.offset, rows.processed_at, rows.shard))
    shard, at, made = rows.shard[order], rows.processed_at[order], rows.event_time[order]
    starts = np.ones(len(rows), dtype=bool)
    starts[1:] = (shard[1:] != shard[:-1]) | (at[1:] != at[:-1])
    first = np.flatnonzero(starts)
    shard, at, made = shard[first], at[first], made[first]
    longest: dict[str, float] = {}
    follows = shard[1:] == shard[:-1]
    begun = np.maximum(at[:-1], made[1:])
    pause = np.maximum(at[1:] - begun, 0.0)
    inside = follows & (at[1:] >= since) & (at[1:] < until)
    for index in np.flatnonzero(inside):
        name = rows.shards[shard[index + 1]]
        longest[name] = max(longest.get(name, 0.0), float(pause[index]))
    return longest
