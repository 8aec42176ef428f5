"""A group of plain consumers on this machine, run by the command line as a user runs it, on a real broker; and what was read.

Its application notes every range before it checkpoints it (`tests.e2e.plain_consumer`), so what is noted twice was read again.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kafka import KafkaAdminClient, KafkaProducer

from shardherd.adapters.local.containers import Container
from shardherd.adapters.local.database import Database
from shardherd.adapters.local.identity import holder
from shardherd.adapters.local.objects import GROUP, POD, Json, Objects
from shardherd.controller.merge import merge
from shardherd.local.report import shards
from shardherd.local.state import State
from tests.harness.quick_spark import inherited

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[3]
WITHIN = 300.0
"""Seconds for anything that a test waits for: other tests may have the machine."""

APPLICATION = "/opt/plain/plain_consumer.py"
MANIFEST: Json = {
    "apiVersion": "shardherd.dev/v1alpha1",
    "kind": "ConsumerGroup",
    "metadata": {"namespace": "demo"},
    "spec": {
        "source": {"kafka": {"bootstrapServers": "kafka:9092"}},
        "heartbeatInterval": "1s",
        "sessionTimeout": "10s",
        "initialAssignmentDelay": "2s",
        "drainTimeout": "20s",
        "scaling": {"mode": "External"},
        "application": {
            "image": "example/plain:1",
            "mainApplicationFile": APPLICATION,
            "arguments": ["/notes/ranges"],
            "driver": {
                "template": {
                    "spec": {
                        "containers": [{"name": "driver", "volumeMounts": [{"name": "notes", "mountPath": "/notes"}]}],
                        "volumes": [{"name": "notes", "persistentVolumeClaim": {"claimName": "notes"}}],
                    }
                }
            },
            "executor": {"instances": 0},
        },
    },
}


class Herd:
    """One state folder with one group `name`, which reads the topic of the same name."""

    def __init__(self, folder: Path, bootstrap: str, name: str, shards: int = 6) -> None:
        """The topic is made, unless it is to have no shards: then it is there already."""
        self.folder = folder
        self.state = folder / "state"
        self.name = name
        self.bootstrap = bootstrap
        State(self.state).make()
        self._short = State(self.state).machine("", {}).short
        self.operators: list[subprocess.Popen[bytes]] = []
        self.written: Counter[str] = Counter()
        self._shards = shards
        self._database: Database | None = None
        self._writing = threading.Event()
        self._writer: threading.Thread | None = None
        if shards:
            admin = KafkaAdminClient(bootstrap_servers=bootstrap)
            admin.create_topics({name: {"num_partitions": shards, "replication_factor": 1}}, wait_for_metadata=True)
            admin.close()

    # --- what a user does ----------------------------------------------------------------------------------------------------

    def declare(self, **spec: Any) -> Path:
        """Write the manifest; its file."""
        made = merge(copy.deepcopy(MANIFEST), {"metadata": {"name": self.name}, "spec": spec})
        if "topicPattern" not in made["spec"]["source"]["kafka"]:
            made["spec"]["source"]["kafka"].setdefault("topics", [self.name])
        path = self.folder / "consumergroup.yaml"
        path.write_text(yaml.safe_dump(made))
        return path

    def up(self, *more: str) -> subprocess.Popen[bytes]:
        """Start the operator in the foreground, and wait until it leads."""
        begun = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "shardherd", "local", "up", "--state", str(self.state), *more]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=inherited())
        self.operators.append(process)

        def leads() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"the operator ended with {process.returncode}:\n{self.log.read_text()[begun:]}")
            return "\nleading: " in self.log.read_text()[begun:] or self.log.read_text()[begun:].startswith("leading: ")

        self.until("the operator leads", leads)
        return process

    def run(self, *arguments: str) -> str:
        """A command of `shardherd local`, which must succeed: what it printed."""
        done = self.tried(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tried(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of `shardherd local`, however it ends."""
        command = [sys.executable, "-m", "shardherd", "local", arguments[0], "--state", str(self.state), *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=WITHIN)

    def manifest_options(self, manifest: Path) -> tuple[str, ...]:
        """How `up` and `apply` are told of it."""
        return ("-f", str(manifest), "--bootstrap", self.bootstrap, "--app-dir", str(ROOT / "tests" / "e2e"))

    def kill_operator(self) -> None:
        """End the operator as a machine that runs out of memory does."""
        self.operators[-1].kill()
        self.operators[-1].wait()

    def close(self) -> None:
        """End everything."""
        self.stop_writing()
        for process in self.operators:
            process.kill()
            process.wait()
        if (detached := self.leader()) is not None:
            with suppress(ProcessLookupError):
                os.kill(detached, signal.SIGKILL)
            self.until("the operator in the background is gone", lambda: self.leader() is None)
        if self._database is not None:
            self._database.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- what there is -------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        """What the operators wrote."""
        return self.folder / "operator.log"

    @property
    def objects(self) -> Objects:
        """The state folder's objects, read by another process as the command line does."""
        path = self.state / "state.db"
        if self._database is None and path.exists():
            self._database = Database(path)
        assert self._database is not None, f"{path} is not there"
        return Objects(self._database)

    def pods(self) -> dict[str, Json]:
        """The pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self.objects.all(POD)}

    def status(self) -> Json:
        """The group's status."""
        found = self.objects.get((GROUP, "demo", self.name))
        assert found is not None
        status: Json = found.get("status", {})
        return status

    def condition(self, kind: str) -> str:
        """The status of one of the group's conditions."""
        return str(next((each["status"] for each in self.status().get("conditions", ()) if each["type"] == kind), "Unknown"))

    def pid(self, consumer: str) -> int:
        """The process of the consumer's application."""
        running = self.container(consumer).running()
        assert running is not None, f"{consumer} does not run"
        return running.driver.pid

    def container(self, consumer: str) -> Container:
        """The consumer's container."""
        return State(self.state).machine("", {}).container(self.pods()[consumer]["metadata"]["uid"])

    def processes(self) -> list[int]:
        """Every process of any pod of this state folder."""
        folder, found = f"SHARDHERD_RUN_DIR={self._short}/".encode(), []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if entry.name.isdigit() and any(each.startswith(folder) for each in variables):
                    found.append(int(entry.name))
        return found

    def shards(self) -> list[Json]:
        """Every shard as the coordinator shows it; none while it does not answer."""
        return shards(State(self.state), self.objects, "demo", self.name) or []

    def spread(self) -> dict[str, int]:
        """How many shards each consumer holds for good."""
        return dict(Counter(str(shard["holder"]) for shard in self.shards() if shard["state"] == "ALREADY_ALLOC"))

    def leader(self) -> int | None:
        """The operator's process, if there is one."""
        return holder(self.state / "operator.lock")

    # --- waiting -------------------------------------------------------------------------------------------------------------

    def until(self, what: str, holds: Callable[[], T], within: float = WITHIN) -> T:
        """Wait until it holds; what it gave."""
        deadline = time.monotonic() + within
        while not (found := holds()):
            tail = self.log.read_text()[-3000:] if self.log.exists() else ""
            assert time.monotonic() < deadline, f"not within {within:g} s: {what}\n{tail}"
            time.sleep(0.05)
        return found

    def await_spread(self, spread: Mapping[str, int]) -> None:
        """Wait until these hold so many shards each, and nobody else any."""
        wanted = {f"{self.name}-{name}": count for name, count in spread.items()}
        self.until(f"shards are held as {wanted}", lambda: self.spread() == wanted)

    # --- records -------------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write records to all shards in turn from now on, until `stop_writing`."""

        def work() -> None:
            producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
            for number in itertools.count():
                if self._writing.is_set():
                    break
                partition = number % self._shards
                producer.send(self.name, value=b"%d" % number, partition=partition).get(60)
                self.written[f"{self.name}/{partition}"] += 1
                time.sleep(0.005)
            producer.close()

        self._writer = threading.Thread(target=work, name="writer")
        self._writer.start()

    def stop_writing(self) -> None:
        self._writing.set()
        if self._writer is not None:
            self._writer.join()

    def read(self) -> Iterator[tuple[str, int]]:
        """Every record that any consumer noted: shard and offset, once for each time."""
        for file in (self.state / "volumes" / "demo" / "notes" / "ranges").glob("*"):  # made with the first note
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    found = json.loads(line)
                    yield from ((found["shard"], offset) for offset in range(found["begin"], found["end"]))

    def account(self) -> tuple[int, int, int]:
        """Stop writing and wait until all is read: how many records were written, are missing, and were read again."""
        self.stop_writing()
        wanted = {(shard, offset) for shard, count in self.written.items() for offset in range(count)}
        with suppress(AssertionError):
            self.until("everything is read", lambda: wanted <= set(self.read()), 60)
        times = Counter(self.read())
        return len(wanted), len(wanted - times.keys()), sum(times.values()) - len(times)
