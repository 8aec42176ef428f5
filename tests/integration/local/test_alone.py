"""`shardherd run`: an application of a group as it is, by itself, with a real Spark and a real broker."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from kafka import KafkaAdminClient, KafkaProducer

from shardherd.spark.python_path import LAUNCH
from tests.harness.broker import Broker

ROOT = Path(__file__).resolve().parents[3]
WITHIN = 400.0

COMMAND = "shardherd run --bootstrap localhost:9092 --topic clickstream --option startingOffsets=earliest app.py rows"
"""As the page on local mode has it."""


@pytest.mark.timeout(900)
def test_the_clickstream_application_runs_by_itself(broker: Broker, tmp_path: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"alone": {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(20):
        producer.send("alone", value=b'{"user": "u1"}', partition=number % 2)
    producer.close()
    rows, log = tmp_path / "rows", tmp_path / "log"
    assert COMMAND in (ROOT / "docs" / "laptop.md").read_text().splitlines()
    shutil.copy(ROOT / "spark_apps" / "clickstream" / "app.py", tmp_path)
    arguments = COMMAND.replace("localhost:9092", broker.bootstrap).replace("--topic clickstream", "--topic alone").split()[1:]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardherd", *arguments],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        )
    try:
        deadline = time.monotonic() + WITHIN
        found: list[tuple[str, int]] = []
        while len(found) < 20:
            assert (process.poll(), time.monotonic() < deadline) == (None, True), log.read_text()[-4000:]
            time.sleep(0.5)
            files = [str(file) for file in rows.glob("*/*.parquet")]
            if files:
                table = ds.dataset(files, format="parquet").to_table(columns=["shard", "offset"])
                found = list(zip(*(table[name].to_pylist() for name in ("shard", "offset")), strict=True))
        assert path_of_jvm(tmp_path / "checkpoint").split(os.pathsep) == [str(LAUNCH), str(ROOT / "operator")]
    finally:
        process.kill()
        process.wait()
        admin.close()
    assert sorted(found) == [(f"alone/{shard}", offset) for shard in range(2) for offset in range(10)]
    assert (tmp_path / "checkpoint" / "clickstream").is_dir()


def path_of_jvm(checkpoint: Path) -> str:
    """PYTHONPATH of the one JVM of an application whose checkpoints are there."""
    found = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if name.read_text().strip() == "java":
                said = name.with_name("environ").read_text().split("\0")
                found.append(dict(each.partition("=")[::2] for each in said))
    (ours,) = [each for each in found if each.get("SHARDHERD_CHECKPOINT_PATH") == str(checkpoint)]
    return ours["PYTHONPATH"]
