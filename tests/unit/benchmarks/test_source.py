"""What the benchmark of the source counts with."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.source.cases import KAFKA_COLUMNS
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
