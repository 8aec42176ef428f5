"""What a benchmark leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys

PLAYED = """
import signal
from benchmarks import broker

class Cluster:
    kafka_bootstrap = "played"
    def __init__(self, name): pass
    def up(self, **_): pass
    def down(self): print("removed")

broker.Cluster = Cluster
with broker.broker() as servers:
    print(servers, flush=True)
    signal.pause()
"""


def test_a_benchmark_that_is_told_to_end_removes_its_broker() -> None:
    with subprocess.Popen([sys.executable, "-c", PLAYED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "played\n"
        process.send_signal(signal.SIGTERM)

        assert process.stdout.read() == "removed\n"
        assert process.wait() == 143
