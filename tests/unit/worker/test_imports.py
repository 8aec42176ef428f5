"""What a worker's process imports before it has read anything: each megabyte is there once for every consumer."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.without_pandas import WITHOUT_PANDAS

NOT_NEEDED = ("kopf", "kubernetes", "numba", "opentelemetry", "pandas", "prometheus_client", "py4j", "pyspark")


def test_a_worker_imports_neither_spark_nor_numba_nor_what_is_the_operators() -> None:
    program = f"""{WITHOUT_PANDAS}
import shardherd.worker.starting
print([name for name in {NOT_NEEDED!r} if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
