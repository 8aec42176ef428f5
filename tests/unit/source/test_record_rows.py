"""Decoded rows: what they are as Python objects and in Arrow, and that memory which is used again is nobody's."""

from __future__ import annotations

import numpy as np
import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding.record_columns import arrow_of, rows_of_arrow
from shardherd.source.decoding.record_rows import FEW, Rows, Texts, rows_of
from tests.unit.source.kafka_bytes import Record, batch_of

SHARD = ShardId("clicks/3")
COLUMNS = ("offset", "key", "value", "timestamp", "headers")
HEADERS = (("trace", b"abc"), ("none", None), ("", b""))
RECORDS = [
    Record(7, 1_700_000_000_123, b"k", b"value", HEADERS),
    Record(9, 1_700_000_000_124, None, None),
    Record(10, 1_700_000_000_125, b"", b"", HEADERS[:1]),
]


def decoded(data: bytes, *, most: int | None = None) -> list[Rows]:
    scanned = record_batches.scan(SHARD, data, 0)
    return list(record_batches.decode_rows(SHARD, scanned, 0, 1 << 40, COLUMNS, most=most))


def objects(rows: Rows) -> list[tuple[object, ...]]:
    times = rows.timestamps.tolist()
    return list(zip(rows.offsets.tolist(), rows.keys.list(), rows.values.list(), times, rows.headers.list(), strict=True))


def test_columns_are_what_was_produced_and_so_are_parts_of_them() -> None:
    (rows,) = decoded(batch_of(RECORDS))

    everything = [
        (7, b"k", b"value", 1_700_000_000_123_000, HEADERS),
        (9, None, None, 1_700_000_000_124_000, ()),
        (10, b"", b"", 1_700_000_000_125_000, HEADERS[:1]),
    ]
    assert objects(rows) == everything
    assert [objects(rows.slice(first, 2)) for first in (0, 1, 2, 3)] == [everything[:2], everything[1:], everything[2:], []]


def test_rows_of_objects_and_of_arrow_are_the_same() -> None:
    (rows,) = decoded(batch_of(RECORDS))

    again = rows_of_arrow(SHARD, arrow_of(rows, COLUMNS))
    offsets, keys, values, times, headers = (list(column) for column in zip(*objects(rows), strict=True))
    made = rows_of(SHARD, offsets, times, [0, 0, 0], keys, values, headers)
    assert objects(again) == objects(made) == objects(rows)
    assert arrow_of(made, COLUMNS).equals(arrow_of(rows, COLUMNS))
    assert arrow_of(rows.slice(1, 2), COLUMNS).equals(arrow_of(rows, COLUMNS).slice(1, 2))


def test_a_name_of_a_header_that_is_no_text_is_the_same_as_in_arrow() -> None:
    data = batch_of([Record(7, headers=(("x" * 3, b"1"),))]).replace(b"xxx", b"x\xffx")
    rows = decoded_without_checksums(data)

    assert rows.headers.list() == [(("x\ufffdx", b"1"),)]
    assert arrow_of(rows, ("headers",)).to_pylist() == [{"headers": [{"key": "x\ufffdx", "value": b"1"}]}]


def decoded_without_checksums(data: bytes) -> Rows:
    scanned = record_batches.scan(SHARD, data, 0, checksums=False)
    (rows,) = record_batches.decode_rows(SHARD, scanned, 0, 1 << 40, COLUMNS)
    return rows


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("count", [1, 2, FEW - 2, FEW - 1, FEW, 3 * FEW])
def test_a_column_has_the_same_objects_however_many_they_are(count: int, *, nulls: bool) -> None:
    expected = [None if nulls and at % 3 == 1 else b"%d" % at * (at % 4) for at in range(count)]
    made = rows_of(SHARD, range(count), range(count), [0] * count, expected, expected[::-1], [()] * count)
    assert (made.keys.list(), made.values.list()) == (expected, expected[::-1])
    assert made.slice(1, count).keys.list() == expected[1:]


@pytest.mark.parametrize("more", [0, FEW])
@pytest.mark.parametrize(("ends", "data"), [([0, 2, 1], b"ab"), ([0, 3], b"ab"), ([-1, 1], b"ab")])
def test_ends_beyond_the_bytes_are_refused(ends: list[int], data: bytes, more: int) -> None:
    texts = Texts(np.array([*ends, *[ends[-1]] * more], np.int32), np.frombuffer(data, np.uint8))

    with pytest.raises(ValueError, match="the ends of a column are not within it"):
        texts.list()


def many(first: int) -> bytes:
    """Twenty batches of one record."""
    return b"".join(batch_of([Record(first + at, key=b"k%02d" % at, value=b"v%03d" % (first + at))]) for at in range(20))


@pytest.fixture
def _little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "GROUP_BYTES", 1)
    monkeypatch.setattr(record_batches, "_spare", [])


@pytest.mark.usefixtures("_little_by_little")
def test_rows_that_somebody_has_are_never_written_to_again() -> None:
    """Neither while their answer is decoded, nor by the next one; in whichever way they are held."""
    kept = decoded(many(0), most=1)
    tables = [arrow_of(rows, COLUMNS) for rows in decoded(many(100), most=1)]
    values = [rows.slice(0, 1).values for rows in decoded(many(200), most=1)]
    decoded(many(300), most=1)

    assert [rows.values.list() for rows in kept] == [[b"v%03d" % at] for at in range(20)]
    assert [table.column("value").to_pylist() for table in tables] == [[b"v%03d" % at] for at in range(100, 120)]
    assert [each.list() for each in values] == [[b"v%03d" % at] for at in range(200, 220)]


@pytest.mark.usefixtures("_little_by_little")
def test_memory_is_used_again_once_nobody_has_its_rows() -> None:
    found, places = [], set()
    for first in (0, 100, 200):
        scanned = record_batches.scan(SHARD, many(first), 0)
        for rows in record_batches.decode_rows(SHARD, scanned, 0, 1 << 40, COLUMNS, most=1):
            found += rows.values.list()
            places.add(rows.values.data.__array_interface__["data"][0])

    assert found == [b"v%03d" % (first + at) for first in (0, 100, 200) for at in range(20)]
    assert len(places) <= record_batches.ROOMS


@pytest.mark.usefixtures("_little_by_little")
def test_the_memory_of_a_large_batch_is_not_kept() -> None:
    large = batch_of([Record(0, value=b"x" * (record_batches.LARGEST_SPARE + 1))])

    assert [len(rows.values.data) for rows in decoded(large, most=1)] == [record_batches.LARGEST_SPARE + 1]
    assert [len(memory.rooms) for memory in record_batches._spare] == [0]
    decoded(many(10), most=1)
    assert [len(memory.rooms) for memory in record_batches._spare] == [record_batches.ROOMS]
