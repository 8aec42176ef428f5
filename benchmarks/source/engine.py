"""A Spark application that runs queries of both sides when it is told to: one line of JSON in, one out.

`python -m benchmarks.source.engine CORES`, with the jars of Spark's Kafka source in SHARDHERD_BENCH_JARS. One session serves
both sides, so that their settings, their JVM and its state of warmth are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import shardherd.spark
from benchmarks.source import cases
from benchmarks.source.usage import cpu_seconds
from shardherd.spark import python_path

EVERY = {**cases.CASES, "trigger": cases.TRIGGER, "cold": cases.COLD}


def session(cores: int, *more: Path) -> SparkSession:
    """The session of both sides, with the jars of these folders, too."""
    folders = (Path(os.environ["SHARDHERD_BENCH_JARS"]), *more)
    jars = sorted(str(jar) for folder in folders for jar in folder.glob("*.jar"))
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("bench-source")
        .config("spark.jars", ",".join(jars))
        .config("spark.driver.memory", "2g")
        .config("spark.python.daemon.module", "shardherd.spark.daemon")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
    )
    with python_path.launched():  # as a session of ours has it; Spark's own source starts no Python process
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(spark: SparkSession, order: dict[str, Any]) -> dict[str, Any]:
    """One query: until all is read, or for so many micro-batches of a fixed trigger."""
    case = EVERY[order["case"]]
    options = {
        "kafka.bootstrap.servers": order["servers"],
        "subscribe": order["topic"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(order["batch"]),
    }
    if order["side"] == "ours":  # not before, so that a cold start of the other side does not pay for it
        shardherd.spark.register(spark)
    frame = (case.ours if order["side"] == "ours" else case.peer)(spark, options)
    rows: list[Any] = []
    first_at: list[float] = []
    first_cpu: list[float] = []

    def sink(batch: DataFrame, _number: int) -> None:
        rows.extend(batch.selectExpr(*case.sums).collect())
        if not first_at:
            first_at.append(time.time())
            first_cpu.append(cpu_seconds(os.getpid()))

    folder = tempfile.mkdtemp(prefix="bench-source-")
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", folder)
    before, begun = cpu_seconds(os.getpid()), time.monotonic()
    try:
        if batches := order.get("batches"):
            query = writer.trigger(processingTime="200 milliseconds").start()
            while len(query.recentProgress) < batches and query.isActive:
                time.sleep(0.05)
            query.stop()
        else:
            query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        wall, used = time.monotonic() - begun, cpu_seconds(os.getpid()) - before
        triggers = [
            progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress if progress["numInputRows"]
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "sums": [str(_total(case.sums[at], [row[at] for row in rows])) for at in range(len(case.sums))],
        "wall": wall,
        "cpu": used,
        "triggers": triggers,
        "first_at": first_at[0],
        "first_cpu": first_cpu[0],
    }


def _total(of: str, values: list[Any]) -> Any:
    """What a sum or maximum is over all micro-batches."""
    there = [value for value in values if value is not None]
    return (max if of.startswith("max") else sum)(there) if there else None


def main(cores: int) -> None:
    """Serve until the input ends."""
    spark = session(cores)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(spark, json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
