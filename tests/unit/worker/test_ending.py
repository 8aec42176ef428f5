"""A worker's process that ends by itself, as something of its program goes on after its run is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardherd.testing.group import PlayedGroup
from shardherd.worker import ending
from tests.harness.long import long
from tests.unit.worker.scene import A, B

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import asyncio, os, time
import pyarrow as pa
from shardherd.source.decoding.record_columns import schema_of
from shardherd.worker import Options, Output, Outputs, Worker
from shardherd.worker.fetched import Part
from shardherd.worker.records import COLUMNS

class Hangs(Output):
    def write(self, records):
        open(os.environ["WRITING"], "w").close()
        time.sleep(600)

class Clicks(Outputs):
    outputs = (Hangs,)
    batch_wait = 0

class Fetcher:
    def connect(self):
        pass

    def close(self):
        pass

    async def fetch(self, wanted, *, behind):
        await asyncio.sleep(0.1)
        return [Part(shard, each.position, 1, 1, 100, self.tables) for shard, each in wanted.items()]

    def tables(self):
        row = {"offset": 0, "key": None, "value": b"x", "timestamp": 0, "headers": None}
        return [pa.RecordBatch.from_pylist([row], schema=schema_of(COLUMNS))]

try:
    Worker(Clicks, fetcher=Fetcher(), options=Options(drain_timeout=1.0)).run()
finally:
    time.sleep(600)  # whatever else a program does
"""


@pytest.mark.parametrize("what", ["is asked to end", pytest.param("hears nothing of the coordinator any more", marks=long)])
def test_a_worker_of_an_ordered_group_ends_its_process_though_a_write_hangs(what: str, tmp_path: Path) -> None:
    program, log, writing = tmp_path / "clicks.py", tmp_path / "log", tmp_path / "writing"
    program.write_text(PROGRAM)
    with PlayedGroup(shards=1, ordered=True) as group, log.open("wb") as file:
        where = {"SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": "played:9092", "WRITING": str(writing)}
        env = {**os.environ, **group.environment("played-0"), **where, "PYTHONPATH": str(ROOT / "operator")}
        worker = subprocess.Popen([sys.executable, str(program)], env=env, stdout=file, stderr=file)
        deadline = time.monotonic() + 100
        while not writing.exists():
            assert (worker.poll(), time.monotonic() < deadline) == (None, True), log.read_text()
            time.sleep(0.05)
        if what == "is asked to end":
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(100) == ending.ABANDONED
    assert worker.wait(100) == ending.ABANDONED
    assert "the program still runs for records/0, and this run is over: the process ends" in log.read_text()


def test_nothing_is_ended_where_nothing_runs_or_the_group_is_not_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(ending, "_exit", lambda: ended.append("ended"))
    ending.end_adrift([], ordered=True, fields={})
    ending.end_adrift([A], ordered=False, fields={})
    assert ended == []
    ending.end_adrift([A, B], ordered=True, fields={})
    assert ended == ["ended"]
