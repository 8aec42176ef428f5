"""What a real Spark says of tasks that were cancelled: they go on for a while."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from shardherd.spark.tasks import running

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
# Spark ends a worker whose task was cancelled some seconds ago; here it goes on until it is told to end.
spark = builder.config("spark.python.task.killTimeout", "1h").getOrCreate()
print("before it began", running(spark))
here = str(Path.cwd())

def work(records):
    for number in records:
        Path(here, f"began-{number}").touch()
        while not Path(here, "end").exists():
            time.sleep(0.05)
        yield number

def job():
    try:
        spark.sparkContext.parallelize([1, 2], 2).mapPartitions(work).count()
    except Exception:
        pass

def wait(true):
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)

thread = threading.Thread(target=job)
thread.start()
wait(lambda: Path("began-1").exists() and Path("began-2").exists())
print("while it runs", running(spark))
spark.sparkContext.cancelAllJobs()
thread.join()
print("when its job was cancelled and is over", running(spark))
Path("end").touch()
wait(lambda: not running(spark))
print("when its tasks have ended", running(spark))
spark.stop()
print("when Spark was stopped", running(spark))
"""


def test_a_task_that_was_cancelled_counts_until_it_has_ended(tmp_path: object) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=str(tmp_path), capture_output=True, text=True, timeout=240, check=False
    )
    assert completed.stdout.splitlines() == [
        "before it began False",
        "while it runs True",
        "when its job was cancelled and is over True",
        "when its tasks have ended False",
        "when Spark was stopped True",
    ], completed.stderr[-3000:]
