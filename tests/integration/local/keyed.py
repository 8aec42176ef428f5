"""A group with cells on this machine: real drivers that run `keyed_application`, its records, and what a schedule does to it.

A schedule is drawn from a seed: in which order the group grows, shrinks, loses a driver and its operator, and a topic doubles;
which driver it is, and which of it waits for the one before. What is written while it goes on depends on the seed only, and
`Keyed.wanted` has what one query that never moves makes of it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaProducer

from shardherd.core.model.naming import cell
from shardherd.core.model.nouns import ShardId
from tests.harness.quick_spark import inherited
from tests.integration.local.herd import ROOT, Herd
from tests.integration.local.keyed_application import CELLS, LATE, QUERIES

FOLDER = Path(__file__).parent
APPLICATION = "keyed_application.py"
KEYS = 12
ROUND = LATE // 3
"""Numbers in a round. What is two rounds old has been read, before another round is written: then nothing is late."""

JOINED = list(QUERIES).index("pairs")
"""The cell whose query reads both topics: in the others nothing would ever be read of the views."""

END = 10**6
"""The number of the last record of each partition: with it the watermark passes all others."""

Rows: TypeAlias = "dict[str, Counter[tuple[Any, ...]]]"


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens to the group. `settled`: only when nothing moves and all consumers hold cells."""

    what: str
    settled: bool
    victim: int = 0

    def __str__(self) -> str:
        what = f"kill {self.victim}" if self.what == "kill" else self.what
        return what if self.settled else f"{what} at once"


def schedule(seed: int, most: int = 3) -> tuple[int, tuple[Step, ...]]:
    """With how many consumers it begins, and what happens."""
    rng = random.Random(seed)
    whats = ["grow", "shrink", "kill", "operator", "double"]
    if most > 2:
        whats += rng.choices(whats[:4], k=2)
    rng.shuffle(whats)
    begin = consumers = 1 if whats.index("grow") < whats.index("shrink") else 2
    steps = []
    for what in whats:
        if (what, consumers) in {("grow", most), ("shrink", 1)}:
            continue
        consumers += {"grow": 1, "shrink": -1}.get(what, 0)
        steps.append(Step(what, what == "grow" or rng.random() < 0.5, rng.randrange(consumers)))
    return begin, tuple(steps)


class Keyed(Herd):
    """The group, its two topics and their records; `name` is the topic `clicks`."""

    def __init__(self, folder: Path, bootstrap: str, name: str) -> None:
        super().__init__(folder, bootstrap, name, CELLS)
        self.views = f"{name}-views"
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._admin.create_topics({self.views: {"num_partitions": CELLS, "replication_factor": 1}}, wait_for_metadata=True)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, metadata_max_age_ms=200)
        self._partitions = {name: CELLS, self.views: CELLS}
        self._ends: list[dict[str, int]] = []  # of each round: the end of each shard
        self._offsets: dict[str, int] = {}
        self._replicas = 0

    def close(self) -> None:
        self._producer.close()
        self._admin.close()
        super().close()

    # --- the group -------------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> Path:
        """Where the application writes."""
        return self.state / "volumes" / "demo" / "notes"

    def manifest(self, replicas: int, more: dict[str, Any] | None = None, **environment: str) -> Path:
        self._replicas = replicas
        return self.declare(
            source={"kafka": {"topics": [self.name, self.views]}},
            replicas=replicas,
            state={"cells": CELLS, "checkpoint": {"claimName": "state"}},
            application={
                "mainApplicationFile": f"/opt/{APPLICATION}",
                "arguments": ["/notes/tables", self.name, self.views],
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "driver": {"cores": 1, "memory": "640m"},
            },
            **(more or {}),
        )

    def options(self, manifest: Path) -> tuple[str, ...]:
        return ("-f", str(manifest), "--bootstrap", self.bootstrap, "--app-dir", str(FOLDER))

    def apply(self, manifest: Path) -> None:
        self.run("apply", *self.options(manifest))

    def message(self, kind: str) -> str:
        """What the condition says, once it is True."""

        def true() -> str:
            found = self.status().get("conditions", ())
            return next((each["message"] for each in found if each["type"] == kind and each["status"] == "True"), "")

        return self.until(f"{kind} is True", true)

    def location(self, number: int, generation: int = 0) -> Path:
        """Where Spark keeps the log and the state of a cell."""
        (found,) = (self.state / "volumes" / "demo" / "state").glob(f"*/{generation}/cells/{number}")
        return found

    def scale(self, replicas: int) -> None:
        self.run("scale", self.name, str(replicas))
        self._replicas = replicas

    def holders(self) -> set[str]:
        return {str(each["holder"]) for each in self.shards() if each["state"] == "ALREADY_ALLOC"}

    def settle(self) -> None:
        """Wait until everybody that there should be holds cells, and nothing moves."""
        wanted = {f"{self.name}-{number}" for number in range(self._replicas)}
        spread = f"{sorted(wanted)} hold all cells"

        def holds() -> bool:
            shards = self.shards()
            states = {each["state"] for each in shards}
            return states == {"ALREADY_ALLOC"} and len(shards) == sum(self._partitions.values()) and self.holders() == wanted

        self.until(spread, holds)

    def take(self, step: Step) -> None:
        match step.what:
            case "grow":
                self.scale(self._replicas + 1)
            case "shrink":
                self.scale(self._replicas - 1)
            case "kill":
                name = f"{self.name}-{step.victim}"
                self.until(f"{name} runs", lambda: self.container(name).running())
                self.run("kill", name)
            case "operator":
                self.kill_operator()
                self.up()
            case "double":
                self.grow(2 * CELLS)
            case what:
                raise AssertionError(what)

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic of clicks."""
        self._admin.create_partitions({self.name: partitions})

        def shown() -> bool:
            return len(self._producer.partitions_for(self.name)) == partitions

        self.until(f"the producer knows {partitions} partitions of {self.name}", shown)
        self._partitions[self.name] = partitions

    def said(self) -> str:
        """What all drivers have said."""
        return "".join(log.read_text() for log in sorted((self.state / "logs").rglob("*.log")))

    # --- records ---------------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        return len(self._ends)

    def write_round(self) -> None:
        """A click for each number, and views of the keys of the cell that joins; a key's partition is that of its hash."""
        for number in range(self.rounds * ROUND, (self.rounds + 1) * ROUND):
            self._send(self.name, number, number % KEYS)
            if number // 2 % CELLS == JOINED:
                self._send(self.views, number, number // 2 % KEYS)
        self._written()

    def write_end(self) -> None:
        for partition in range(self._partitions[self.name]):
            self._send(self.name, END, partition)
        self._send(self.views, END, JOINED)
        self._written()

    def _send(self, topic: str, number: int, key: int) -> None:
        partition = key % self._partitions[topic]
        self._producer.send(topic, key=b"k%d" % key, value=b"%d" % number, partition=partition)
        shard = f"{topic}/{partition}"
        self._offsets[shard] = self._offsets.get(shard, 0) + 1

    def _written(self) -> None:
        self._producer.flush()
        self._ends.append(dict(self._offsets))

    def await_read(self, number: int, *, but: int | None = None) -> None:
        """Wait until the records of this round, and of those before, are finished and durable; of all cells but one."""
        ends = {shard: end for shard, end in self._ends[number].items() if cell(ShardId(shard), CELLS) != but}

        def read() -> bool:
            at = {each["shard"]: each.get("checkpoint") or 0 for each in self.shards()}
            return all(at.get(shard, 0) >= end for shard, end in ends.items())

        self.until(f"round {number} is read: {ends}", read)

    # --- what comes of it ------------------------------------------------------------------------------------------------

    def one_query(self) -> subprocess.Popen[bytes]:
        """Begin to run, from the same records, one query of each kind that never moves."""
        return start_reference(self.folder / "one", self.name, self.views, self.bootstrap)

    def wanted(self, running: subprocess.Popen[bytes]) -> Rows:
        """What these have written."""
        assert running.wait(180) == 0, (self.folder / "one.log").read_text()[-4000:]
        return tables(self.folder / "one")

    def found(self, generation: int = 0) -> Rows:
        """What the cells have written."""
        return tables(self.notes / "tables" / str(generation))

    def history(self) -> Iterator[tuple[str, int, int]]:
        """Each micro-batch that was written, in order: by which run, of which cell, and its number."""
        for line in (self.notes / "history").read_text().splitlines():
            run, cell, batch = json.loads(line)
            yield run, cell, batch


def start_reference(folder: Path, clicks: str, views: str, bootstrap: str) -> subprocess.Popen[bytes]:
    with folder.with_suffix(".log").open("wb") as log:
        command = [sys.executable, str(FOLDER / APPLICATION), str(folder), clicks, views, bootstrap]
        own = {key: text for key, text in inherited().items() if not key.startswith("SHARDHERD_")}
        own |= {"PYTHONPATH": str(ROOT / "operator"), "PYSPARK_PYTHON": sys.executable}
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder.parent, env=own)


def tables(folder: Path) -> Rows:
    """The rows of each table, and how often each is there."""
    found = {}
    for name in QUERIES:
        path = str(folder / name)
        rows = DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []
        found[name] = Counter(tuple(row.values()) for row in rows)
    return found
