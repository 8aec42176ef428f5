"""Starts Spark applications as a driver pod would, but as plain processes, and reads what they wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from dev.cluster import Cluster
from tests.harness.quick_spark import OPTIONS

START = 300.0
"""Seconds within which an application must be up; on two busy cores a JVM, Spark and its Python workers need many."""

APPLICATION = Path(__file__).with_name("application.py")


class Driver:
    """One run of a consumer's application. Its log is `log`."""

    def __init__(self, site: Site, consumer: str, start: int, extra: dict[str, str]) -> None:
        self.name = f"{consumer}.{start}"
        self._site = site
        run_dir = site.folder / f"run-{consumer}"
        run_dir.mkdir(exist_ok=True)
        self.log = site.folder / f"{self.name}.log"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SHARDHERD_", "SPARK_"))},
            "PYTHONPATH": str(Path(__file__).parents[3] / "operator"),
            "SHARDHERD_GROUP": "clicks",
            "SHARDHERD_GROUP_UID": "group-uid",
            "SHARDHERD_NAMESPACE": "demo",
            "SHARDHERD_CONSUMER": consumer,
            "SHARDHERD_POD_UID": f"uid-of-{consumer}",
            "SHARDHERD_START": str(start),
            "SHARDHERD_COORDINATOR_URL": site.coordinator_url,
            "SHARDHERD_RUN_DIR": str(run_dir),
            "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": site.bootstrap,
            "SHARDHERD_CHECKPOINT_PATH": str(site.folder / "checkpoints"),
            "SHARDHERD_HEARTBEAT_INTERVAL_MS": "1000",
            "SHARDHERD_DRAIN_TIMEOUT_MS": "20000",
            "SHARDHERD_GRACE_PERIOD_MS": "60000",
            "SHARDHERD_DRIVER_CORES": "1",
            "SHARDHERD_SPARK_CONF": json.dumps({"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}),
            "SPARK_LOCAL_DIRS": str(site.folder / f"work-{self.name}"),
            OPTIONS: os.environ[OPTIONS],
            "TEST_SINK": str(site.sink),
            **extra,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, extra.get("TEST_APPLICATION", str(APPLICATION))],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=site.folder,
                start_new_session=True,
            )

    @property
    def started(self) -> bool:
        return (self._site.sink / f"started-{self.name}").exists()

    def children(self) -> list[int]:
        """Processes of this run that live: the JVM and Python's workers, by their session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found

    def terminate(self, timeout: float = 90.0) -> int:
        """SIGTERM to the driver's process alone, as tini does it. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        """SIGKILL to the driver's process alone."""
        self.process.kill()
        self.process.wait(60)

    def clean_up(self) -> None:
        """End whatever is left of this run."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        for pid in self.children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


class Site:
    """A folder with a sink, and the drivers that were started in it."""

    def __init__(self, folder: Path, bootstrap: str, coordinator_url: str) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.coordinator_url = coordinator_url
        self.sink = folder / "sink"
        self.sink.mkdir()
        self._drivers: list[Driver] = []

    def start(self, consumer: str, start: int = 1, token: str = "a-token", **extra: str) -> Driver:
        token_file = self.folder / f"token-{consumer}"
        token_file.write_text(token)
        extra["SHARDHERD_TOKEN_FILE"] = str(token_file)
        driver = Driver(self, consumer, start, extra)
        self._drivers.append(driver)
        return driver

    def rows(self) -> list[tuple[str, int, str]]:
        """Every row that was written: shard, offset, run."""
        return [
            (row["shard"], row["offset"], row["run"])
            for path in sorted(self.sink.glob("*.jsonl"))
            for row in map(json.loads, path.read_text().splitlines())
        ]

    def counted(self) -> Counter[tuple[str, int]]:
        """How often every record was written."""
        return Counter((shard, offset) for shard, offset, _ in self.rows())

    def wait_until(self, true: Callable[[], bool], what: str, timeout: float = 90.0) -> None:
        """Wait for something that happens in other processes."""
        deadline = time.monotonic() + timeout
        while not true():
            for driver in self._drivers:
                if driver.process.poll() not in (None, 0, -signal.SIGKILL):
                    raise AssertionError(f"{driver.name} ended with {driver.process.poll()}:\n{driver.log.read_text()[-4000:]}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {driver.name}\n{driver.log.read_text()[-3000:]}" for driver in self._drivers)
                raise AssertionError(f"not within {timeout:g} s: {what}\n{logs}")
            time.sleep(0.02)

    def close(self) -> None:
        for driver in self._drivers:
            driver.clean_up()


def until(true: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait for something that Kafka or Spark does in its own time."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)


def grow(cluster: Cluster, topic: str, partitions: int) -> None:
    """Add partitions to a topic; returns once the broker shows them."""
    cluster.kafka_tool("kafka-topics", "--alter", "--topic", topic, "--partitions", str(partitions))
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)

    def shown() -> bool:
        (found,) = admin.describe_topics([topic])
        return len(found["partitions"]) == partitions

    until(shown, f"{topic} has {partitions} partitions")
    admin.wait_for_topics([topic])
    admin.close()


def produce(bootstrap: str, topic: str, shards: int, count: int, *, first: int = 0) -> Counter[tuple[str, int]]:
    """Write `count` numbered records to each shard; `first` is the offset of the first. Returns what must be read."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, acks="all")
    for number in range(first, first + count):
        for partition in range(shards):
            producer.send(topic, value=f"{partition}:{number}".encode(), partition=partition)
    producer.flush()
    producer.close()
    return Counter((f"{topic}/{partition}", number) for partition in range(shards) for number in range(first, first + count))
