"""What the benchmark of the source counts with."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.source import moves
from benchmarks.source.cases import CASES, KAFKA_COLUMNS, Data
from benchmarks.source.engine import _total
from benchmarks.source.usage import cpu_seconds
from shardherd.spark.schema import SCHEMA


def test_a_processs_use_of_the_processor_is_its_descendants_too() -> None:
    before = cpu_seconds(os.getpid())
    code = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"], check=True
    )

    assert cpu_seconds(os.getpid()) - before > 0.29


def test_nobodys_use_is_counted_but_the_roots() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert cpu_seconds(child.pid) < 0.2
        child.kill()


def test_sums_and_maxima_are_taken_over_all_micro_batches() -> None:
    assert _total("sum(offset)", [1, None, 5]) == 6
    assert _total("max(timestamp)", [1, None, 5]) == 5
    assert _total("sum(offset)", [None]) is None


def test_all_columns_are_those_of_sparks_own_source() -> None:
    assert [field.split()[0] for field in KAFKA_COLUMNS.split(", ")] == SCHEMA.names[:7]


def test_data_of_a_fixed_number_of_rows_are_produced_apart() -> None:
    assert Data(160, "lz4").name != Data(160, "lz4", rows=1000).name
    assert CASES["small"].data.name == CASES["narrow"].data.name == CASES["json"].data.name


def test_a_pause_may_begin_before_the_window_and_end_after_it() -> None:
    times = [1.0, 2.0, 5.0, 5.5, 9.0]

    assert moves.within(times, 3.0, 5.2) == [2.0, 5.0, 5.5]
    assert moves.gaps(moves.within(times, 3.0, 5.2)) == [3.0, 0.5]
    assert moves.within(times, 0.0, 10.0) == times


def test_a_shard_that_moved_is_followed_across_both_consumers() -> None:
    loser, gainer = moves.Follower(None), moves.Follower(None)  # type: ignore[arg-type]  # no process is asked
    loser.batches += [(1.0, frozenset({"t/0", "t/1"})), (2.0, frozenset({"t/0"}))]
    gainer.batches += [(2.5, frozenset({"t/1"}))]

    assert moves.times(loser, gainer) == {"t/0": [1.0, 2.0], "t/1": [1.0, 2.5]}
    assert loser.latest() == frozenset({"t/0"})
    assert (loser.latest(2.0), loser.read(1.0)) == (frozenset(), 1)
    assert loser.durations(0.0, 2.0) == [1.0]
