"""The page on local mode, command by command, with the clickstream application as it is: a real Spark driver, a real broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml
from kafka import KafkaAdminClient, KafkaProducer

from tests.harness.broker import Broker
from tests.harness.quick_spark import inherited

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "laptop.md"
SHARDS, EACH = 4, 100
WITHIN = 400.0
"""Seconds for a driver that starts on a busy machine."""


class Laptop:
    """A folder with an example application, in which the page's commands are typed."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        topic: str = "clickstream",
        namespace: str = "demo",
        application: str = "clickstream",
    ) -> None:
        shutil.copytree(ROOT / "spark_apps" / application, folder)
        self.folder = folder
        self.bootstrap = bootstrap
        self.topic = topic
        self.namespace = namespace
        self.typed: list[str] = []
        self.running: list[subprocess.Popen[str]] = []

    def start(self, command: str) -> subprocess.Popen[str]:
        """Type a command that goes on."""
        self.typed.append(command)
        arguments = command.replace("localhost:9092", self.bootstrap).split()[1:]
        log = (self.folder / f"terminal-{len(self.running)}").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "shardherd", *arguments],
            cwd=self.folder,
            stdout=log,
            stderr=log,
            text=True,
            env=inherited() | {"PYTHONPATH": str(ROOT / "operator")},
        )
        self.running.append(process)
        return process

    def said(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"terminal-{self.running.index(process)}").read_text()

    def type(self, command: str) -> str:
        """Type a command and wait for its end, which must be a good one; what it printed."""
        process = self.start(command)
        assert process.wait(WITHIN) == 0, self.said(process)
        return self.said(process)

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WITHIN
        while not holds():
            assert time.monotonic() < deadline, f"{what}\n" + "\n".join(self.said(each)[-2000:] for each in self.running)
            time.sleep(0.3)

    def volume(self, claim: str) -> Path:
        """Where the files of a claim are."""
        return self.folder / ".shardherd" / "volumes" / self.namespace / claim

    def write(self) -> None:
        """Write as many events to every shard."""
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
        event = json.dumps({"user": "u1", "page": "/", "event_time": "2026-01-01T00:00:00.000Z"}).encode()
        for number in range(SHARDS * EACH):
            producer.send(self.topic, value=event, partition=number % SHARDS)
        producer.close()

    def rows(self) -> list[tuple[str, int]]:
        """Shard and offset of every row of the sink."""
        files = [str(file) for file in (self.volume("clickstream-data") / self.topic / "rows").glob("*/*.parquet")]
        table = ds.dataset(files, format="parquet").to_table(columns=["shard", "offset"]) if files else None
        return [] if table is None else list(zip(*(table[name].to_pylist() for name in ("shard", "offset")), strict=True))

    def close(self) -> None:
        """End everything that was started here."""
        down = [sys.executable, "-m", "shardherd", "local", "down"]
        subprocess.run(down, cwd=self.folder, check=False, capture_output=True, timeout=WITHIN)
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def laptop(tmp_path: Path, broker: Broker) -> Iterator[Laptop]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"clickstream": {"num_partitions": SHARDS, "replication_factor": 1}}, wait_for_metadata=True)
    found = Laptop(tmp_path / "app", broker.bootstrap)
    yield found
    found.close()
    admin.close()


@pytest.mark.timeout(1800)
def test_every_command_of_the_page_does_what_it_says_with_the_clickstream_application(laptop: Laptop) -> None:
    up = laptop.start("shardherd local up -f consumergroup.yaml --bootstrap localhost:9092")
    laptop.until("it leads", lambda: "leading: " in laptop.said(up) or up.poll() is not None)
    assert "warning: ConsumerGroup demo/clickstream: spec.application.image: there are no images here" in laptop.said(up)
    laptop.write()
    wanted = {(f"clickstream/{shard}", offset) for shard in range(SHARDS) for offset in range(EACH)}
    laptop.until("the first events are rows", lambda: set(laptop.rows()) == wanted)
    assert sorted(laptop.rows()) == sorted(wanted)

    def shown() -> list[str]:
        said = laptop.type("shardherd local status").splitlines()
        return next(line for line in said if line.startswith("clickstream-0")).split()[2:4]

    laptop.until("it is shown as ready, which is asked now and then", lambda: shown() == ["running", "yes"])
    logs = laptop.start("shardherd local logs clickstream-0 --follow")
    laptop.until("what it says is printed", lambda: "warm, and may be given shards" in laptop.said(logs))
    logs.kill()

    laptop.type("shardherd local kill clickstream-0")
    laptop.write()
    wanted = {(f"clickstream/{shard}", offset) for shard in range(SHARDS) for offset in range(2 * EACH)}
    laptop.until("all events are rows", lambda: set(laptop.rows()) == wanted)

    assert "sent SIGSTOP to clickstream-0" in laptop.type("shardherd local kill clickstream-0 --signal STOP")
    assert "sent SIGCONT to clickstream-0" in laptop.type("shardherd local kill clickstream-0 --signal CONT")

    manifest = laptop.folder / "consumergroup.yaml"
    declared = yaml.safe_load(manifest.read_text())
    declared["spec"] |= {"scaling": {"mode": "External"}, "replicas": 1}
    declared["spec"]["source"]["kafka"]["bootstrapServers"] = laptop.bootstrap
    manifest.write_text(yaml.safe_dump(declared))
    assert laptop.type("shardherd local apply -f consumergroup.yaml").endswith("demo/clickstream is declared\n")
    laptop.type("shardherd local scale clickstream 2")
    laptop.until("another driver starts", lambda: "clickstream-1" in laptop.type("shardherd local status"))

    laptop.type("shardherd local down")
    assert up.wait(WITHIN) == 0
    assert set(laptop.rows()) == wanted
    assert commands() - set(laptop.typed) == set()


def test_the_pages_example_of_a_test_of_a_spark_function_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# test_pages\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "test_pages.py").write_text(example)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator"), "TMPDIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pages.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN,
    )

    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def commands() -> set[str]:
    """Every command of local mode that the page shows."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return {line for block in blocks for line in block.splitlines() if line.startswith("shardherd local ")}
