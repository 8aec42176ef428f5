"""Cuts values that are longer than an option allows, and flags them: before anything of a program sees them.

Called by `holding`, in the thread that processes. It decides how such a record looks, and changes no other one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shardherd.worker.counts import TRUNCATED, Counts
from shardherd.worker.records import Record, Records, records_of

HEADER = "shardherd.truncated"
"""The header of a record whose value was cut: how many bytes it had."""


def shortened(batches: Iterator[Records], most: int, counts: Counts) -> Iterator[Records]:
    """The same batches, with no value longer than `most` bytes; 0: as long as they are."""
    return batches if not most else (_shortened(each, most, counts) for each in batches)


def _shortened(records: Records, most: int, counts: Counts) -> Records:
    if records.longest <= most:
        return records
    given = list(records)
    made = [_cut(each, most) for each in given]
    counts.bad(TRUNCATED, sum(cut is not each for cut, each in zip(made, given, strict=True)))
    return records_of(records.shard, made, records.position, records.next)


def _cut(record: Record, most: int) -> Record:
    if record.value is None or len(record.value) <= most:
        return record
    flag = (HEADER, b"%d" % len(record.value))
    return msgspec.structs.replace(record, value=record.value[:most], headers=(*record.headers, flag))
