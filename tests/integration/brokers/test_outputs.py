"""Outputs of a worker that is killed in the middle, with a real broker, process and database: each record is there once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shardherd.testing.group import PlayedGroup
from tests.harness.kafka import KafkaLab

ROOT = Path(__file__).resolve().parents[3]
SHARDS, RECORDS = 2, 800
WITHIN = 120.0

PROGRAM = """
import os, sqlite3, time
from shardherd.worker import DatabaseOutput, Outputs, run

class Rows(DatabaseOutput):
    placeholder = "?"

    def connect(self):
        return sqlite3.connect(os.environ["DATABASE"], check_same_thread=False, timeout=30)

    def insert(self, cursor, records):
        time.sleep(0.05)
        cursor.executemany("INSERT INTO rows (name, value) VALUES (?, ?)", [(self.name, each.value) for each in records])

class First(Rows):
    name = "first"

class Second(Rows):
    name = "second"

class Clicks(Outputs):
    outputs = (First, Second)
    guarantee = "exactly-once"
    batch_size = 50
    batch_wait = 0.2
    queue_directory = os.environ["QUEUES"]

run(Clicks, save_interval=0.5, max_pending=400)
"""


@pytest.mark.timeout(400)
def test_a_worker_that_is_killed_in_the_middle_has_each_record_once_in_every_output(kafka: KafkaLab, tmp_path: Path) -> None:
    topic = kafka.create(SHARDS)
    kafka.send(topic, SHARDS, RECORDS, size=0)
    program, database, queues = tmp_path / "clicks.py", tmp_path / "rows.db", tmp_path / "queues"
    program.write_text(PROGRAM)
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE rows (name TEXT, value BLOB)")

    def count() -> int:
        with sqlite3.connect(database, timeout=30) as connection:
            return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])

    def start() -> subprocess.Popen[bytes]:
        where = {"SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": kafka.trio.bootstrap(), "DATABASE": str(database), "QUEUES": str(queues)}
        env = {**os.environ, **group.environment("played-0"), **where, "PYTHONPATH": str(ROOT / "operator")}
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, str(program)], env=env, stdout=log, stderr=log)

    with PlayedGroup(shards=SHARDS, topic=topic) as group:
        worker = start()
        try:
            until(lambda: count() > 200, worker, tmp_path / "log")
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            found, left = count(), sorted(path.name for path in queues.rglob("*.queue"))
            assert (found < 2 * SHARDS * RECORDS, left) == (True, [f"{topic}%2F{shard}.queue" for shard in range(SHARDS)])
            worker = start()
            until(lambda: set(group.checkpoints().values()) == {RECORDS}, worker, tmp_path / "log")
        finally:
            worker.terminate()
            assert worker.wait(60) == 0
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT name, value FROM rows ORDER BY rowid").fetchall()
    for name in ("first", "second"):
        for shard in range(SHARDS):
            values = [value for of, value in rows if of == name and value.startswith(b"%d:" % shard)]
            assert values == [b"%d:%d:" % (shard, number) for number in range(RECORDS)]
    assert [path.name for path in queues.rglob("*.queue")] == [], "nothing is left in them"


def until(true: Callable[[], bool], worker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WITHIN
    while not true():
        assert (worker.poll(), time.monotonic() < deadline) == (None, True), log.read_text()[-4000:]
        time.sleep(0.05)
