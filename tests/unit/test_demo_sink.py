"""The count of the demo: it must see every loss, every repetition and every pause."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dev.demo.sink import (
    Count,
    Duplicate,
    Rows,
    Sink,
    batches_of,
    count,
    disorder,
    duplicates,
    first_read_after,
    longest_pauses,
    owners_of,
)

Row = tuple[str, int, str, float, float]


def table(*rows: Row) -> pa.Table:
    """Rows of (shard, offset, owner, processed_at, event_time), in the sink's types."""
    columns = list(zip(*rows, strict=True))
    moments = [[datetime.fromtimestamp(at, UTC) for at in column] for column in columns[3:]]
    stamp = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "shard": pa.array(columns[0], pa.string()),
            "offset": pa.array(columns[1], pa.int64()),
            "owner": pa.array(columns[2], pa.string()),
            "processed_at": pa.array(moments[0], stamp),
            "event_time": pa.array(moments[1], stamp),
        }
    )


def rows(*given: Row) -> Rows:
    return Rows.of(table(*given))


def test_a_complete_sink_misses_nothing_and_repeats_nothing() -> None:
    held = rows(("t/0", 0, "a", 1, 0), ("t/0", 1, "a", 1, 0), ("t/1", 0, "b", 1, 0))
    assert count(held, {"t/0": 2, "t/1": 1}) == Count(produced=3, distinct=3, missing=0, foreign=0, duplicates=0)


def test_a_lost_record_a_repeated_one_and_one_never_produced_are_told_apart() -> None:
    held = rows(("t/0", 0, "a", 1, 0), ("t/0", 2, "a", 1, 0), ("t/0", 2, "b", 2, 0), ("t/0", 9, "b", 2, 0))
    assert count(held, {"t/0": 3, "t/1": 1}) == Count(produced=4, distinct=3, missing=2, foreign=1, duplicates=1)


def test_an_empty_sink_misses_everything(tmp_path: Path) -> None:
    assert count(Sink(tmp_path).rows(), {"t/0": 3}) == Count(produced=3, distinct=0, missing=3, foreign=0, duplicates=0)


def test_a_record_read_three_times_is_two_duplicates_of_the_first_read() -> None:
    held = rows(("t/0", 5, "b", 3, 0), ("t/0", 5, "a", 1, 0), ("t/0", 5, "a", 2, 0), ("t/0", 6, "a", 2, 0))
    assert duplicates(held) == [Duplicate("t/0", 5, "a", 1, "a", 2), Duplicate("t/0", 5, "a", 1, "b", 3)]


def test_owners_are_listed_in_the_order_in_which_they_read() -> None:
    held = rows(
        ("t/0", 0, "a", 1, 0), ("t/0", 1, "a", 2, 0), ("t/0", 2, "b", 3, 0), ("t/0", 3, "a", 4, 0), ("t/1", 0, "b", 1, 0)
    )
    assert owners_of(held) == {"t/0": ["a", "b", "a"], "t/1": ["b"]}


def test_a_shard_read_out_of_order_is_seen_and_a_repetition_is_not_disorder() -> None:
    in_order = (
        ("t/0", 0, "a", 1, 0),
        ("t/0", 1, "a", 2, 0),
        ("t/0", 1, "b", 5, 0),
        ("t/0", 2, "b", 5, 0),
        ("t/1", 0, "a", 1, 0),
    )
    assert disorder(rows(*in_order)) == 0
    assert disorder(rows(*in_order, ("t/0", 3, "a", 4, 0))) == 1


def test_batches_of_a_consumer_end_at_the_moment_asked_for() -> None:
    held = rows(
        ("t/0", 0, "a", 1, 0), ("t/1", 0, "a", 1, 0), ("t/0", 1, "a", 2, 0), ("t/0", 2, "a", 9, 0), ("t/2", 0, "b", 1, 0)
    )
    assert batches_of(held, "a", before=5) == [(1, 2), (2, 1)]
    assert batches_of(held, "c", before=5) == []


def test_the_first_read_by_another_consumer_ignores_the_one_that_died() -> None:
    held = rows(("t/0", 0, "a", 1, 0), ("t/0", 1, "a", 6, 0), ("t/0", 2, "b", 7, 0))
    assert first_read_after(held, "t/0", 5, not_by="a") == 7
    assert first_read_after(held, "t/0", 7, not_by="a") is None
    assert first_read_after(held, "t/9", 5, not_by="a") is None


def test_a_pause_is_time_without_a_read_while_there_was_something_to_read() -> None:
    held = rows(("t/0", 0, "a", 10, 1), ("t/0", 1, "a", 14, 2))
    assert longest_pauses(held, 0, 100) == {"t/0": 4}


def test_time_without_anything_to_read_is_no_pause() -> None:
    held = rows(("t/0", 0, "a", 10, 1), ("t/0", 1, "a", 60, 59), ("t/0", 2, "a", 60, 59.5))
    assert longest_pauses(held, 0, 100) == {"t/0": 1}


def test_only_pauses_that_end_in_the_window_count_and_each_shard_has_its_own() -> None:
    held = rows(
        ("t/0", 0, "a", 10, 1),
        ("t/0", 1, "b", 19, 1),
        ("t/0", 2, "b", 21, 1),
        ("t/1", 0, "a", 10, 1),
        ("t/1", 1, "a", 23, 1),
        ("t/1", 2, "a", 50, 1),
    )
    assert longest_pauses(held, 20, 30) == {"t/0": 2, "t/1": 13}


def test_a_folder_that_is_taken_away_while_the_sink_is_looked_through_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a-0.1", "a-0.1/_temporary", "a-0.1/day=1"):
        (tmp_path / folder).mkdir()
    pq.write_table(table(("t/0", 0, "a", 1, 0)), tmp_path / "a-0.1" / "part-0.parquet")
    scan = os.scandir

    def scan_late(path: str) -> object:
        if Path(path).name in ("_temporary", "day=1"):
            Path(path).rmdir()
        return scan(path)

    monkeypatch.setattr("os.scandir", scan_late)
    assert count(Sink(tmp_path).rows(), {"t/0": 1}) == Count(produced=1, distinct=1, missing=0, foreign=0, duplicates=0)


def test_the_sink_reads_committed_files_only_and_sees_new_ones(tmp_path: Path) -> None:
    pq.write_table(table(("t/0", 0, "a", 1, 0)), tmp_path / "part-0.parquet")
    unfinished = tmp_path / "_temporary" / "0"
    unfinished.mkdir(parents=True)
    pq.write_table(table(("t/0", 1, "a", 2, 0)), unfinished / "part-1.parquet")
    sink = Sink(tmp_path)
    assert sink.rows().offset.tolist() == [0]

    (unfinished / "part-1.parquet").rename(tmp_path / "part-1.parquet")
    assert sink.rows().offset.tolist() == [0, 1]


def test_a_sink_since_a_moment_leaves_out_what_was_written_before_it(tmp_path: Path) -> None:
    for number, written in enumerate((99.0, 100.0, 101.0)):
        file = tmp_path / f"part-{number}.parquet"
        pq.write_table(table(("t/0", number, "a", written, 0)), file)
        os.utime(file, (written, written))
    assert Sink(tmp_path, since=100.0).rows().offset.tolist() == [1, 2]
