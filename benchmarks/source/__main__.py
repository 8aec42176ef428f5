"""`make bench-source`: our source against Spark's own Kafka source, and its decoder against Kafka's Java consumer.

One broker, one set of records, one SparkSession for both sides, which take turns after both are warm. A row of the table shows
medians; the lines before it show the spread, CPU time, and the times of triggers and of first micro-batches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.broker import broker, create_topic, delete_topic
from benchmarks.source import moves
from benchmarks.source.cases import ALONE, CASES, COLD, PARTITIONS, TRIGGER, Data
from benchmarks.source.usage import cpu_seconds
from benchmarks.table import Row, middle, render
from dev.cluster.tools import Tools

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIDES = ("ours", "peer")
TRIGGER_ROWS, TRIGGER_SKIPPED = 2000, 10
COLD_ROWS = 1000
CPU_GOAL = 1.11
"""Of CPU seconds a row: at most 0.9 of the peer's."""

MOVE_ROUNDS = 11
"""Least rounds of moving shards: single pauses differ by a quarter, and ten of them gave 0.88 to 1.15 for the same code."""

QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


@dataclass
class Spark:
    """A running `benchmarks.source.engine`."""

    process: subprocess.Popen[str]

    def ask(self, **order: Any) -> dict[str, Any]:
        """Run one query. Raises RuntimeError if the application ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Spark application ended with {self.process.wait()}; see what it printed above")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def spark(cores: int) -> Iterator[Spark]:
    """An application that is ready."""
    command = [sys.executable, "-m", "benchmarks.source.engine", str(cores)]
    settings = {
        "SHARDHERD_BENCH_JARS": str(Tools().spark_jars),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}",
    }
    environment = {**os.environ, **settings}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    made = Spark(process)
    try:
        made.answer()
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


@dataclass
class Topics:
    """The topics of this run, each filled when it is first wanted."""

    servers: str
    rows: int
    _made: dict[str, str] = field(default_factory=dict)

    def of(self, data: Data) -> str:
        """A topic with these records."""
        if data.name not in self._made:
            self._made[data.name] = topic = create_topic(self.servers, PARTITIONS)
            tools, rows = Tools(), self.size(data)
            print(f"producing {rows:,} records of {data.size} bytes, {data.codec}", flush=True)
            arguments = [self.servers, topic, str(PARTITIONS), str(rows), str(data.size), data.codec, data.form]
            command = [tools.java_compiler, "-Xmx1g", QUIET, "-cp", f"{tools.kafka}/*", str(HERE / "Produce.java"), *arguments]
            subprocess.run(command, check=True)
        return self._made[data.name]

    def size(self, data: Data) -> int:
        """How many records there are."""
        return data.rows or int(self.rows * data.share)

    def close(self) -> None:
        for topic in self._made.values():
            delete_topic(self.servers, topic)


def throughput(engine: Spark, case_name: str, topics: Topics, rounds: int, batches: int) -> list[Row]:
    """One case of CASES, both sides in turn: its rows a second, and the CPU seconds that a row takes.

    The first run of each side warms up and does not count.
    """
    case = CASES[case_name]
    topic, rows = topics.of(case.data), topics.size(case.data)
    order = {"case": case_name, "servers": topics.servers, "topic": topic, "batch": max(1, rows // batches)}
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            answer = engine.ask(side=side, **order)
            if number:
                found[side].append(answer)
            else:
                print(
                    f"{case.name}: {side}, first run in the session: {rows / sum(answer['triggers']):,.0f} rows/s", flush=True
                )
    sums = {tuple(answer["sums"]) for answers in found.values() for answer in answers}
    if len(sums) != 1 or next(iter(sums))[0] != str(rows):
        raise RuntimeError(f"{case.name}: both sides should come to the same sums of {rows} rows, but did to {sums}")
    rates = {side: [rows / sum(answer["triggers"]) for answer in answers] for side, answers in found.items()}
    cpu = {side: [answer["cpu"] * 1e6 / rows for answer in answers] for side, answers in found.items()}
    for side, answers in found.items():
        triggers = sorted(each for answer in answers for each in answer["triggers"])
        bytes_each = case.data.size + 16
        say(
            f"{case.name}: {side}",
            rates[side],
            "rows/s",
            f"{middle(rates[side]) * bytes_each / 1e6:,.0f} MB/s",
            f"{middle(cpu[side]):.2f} CPU s per million rows ({min(cpu[side]):.2f} to {max(cpu[side]):.2f})",
            f"trigger p50 {middle(triggers):.2f} s, p99 {triggers[int(len(triggers) * 0.99)]:.2f} s",
            f"first batch {middle([answer['triggers'][0] for answer in answers]):.2f} s",
        )
    return [
        Row(case.name, middle(rates["ours"]), middle(rates["peer"]), case.goal, "rows/s", more_is_better=True),
        Row(f"{case.name}: CPU", middle(cpu["ours"]), middle(cpu["peer"]), CPU_GOAL, "s/M rows"),
    ]


def alone(topics: Topics, rounds: int) -> Row:
    """Our reader in a process of its own against Kafka's ConsumerPerformance, which starts anew each time too."""
    topic, rows = topics.of(ALONE.data), topics.size(ALONE.data)
    tools = Tools()
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in SIDES}
    ours = [sys.executable, "-m", "benchmarks.source.alone", topics.servers, topic, str(PARTITIONS)]
    peer = [tools.java_compiler, "-Xmx1g", QUIET, "-cp", f"{tools.kafka}/*", "org.apache.kafka.tools.ConsumerPerformance"]
    peer += ["--bootstrap-server", topics.servers, "--topic", topic, "--hide-header"]
    peer += ["--num-records", str(rows), "--timeout", "60000"]
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            before = cpu_seconds(os.getpid())
            command = ours if side == "ours" else [*peer, "--group", f"bench-{number}-{time.time_ns()}"]
            printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
            cpu[side].append(cpu_seconds(os.getpid()) - before)
            if side == "ours":
                answer = json.loads(printed)
                read, rate = answer["rows"], answer["rows"] / answer["seconds"]
            else:
                # start, end, MB, MB/s, records, records/s, ms of rebalance, ms of fetching, MB/s and records/s of fetching
                fields = [each.strip() for each in printed.strip().splitlines()[-1].split(",")]
                read, rate = int(fields[4]), float(fields[9])
            if read < rows:
                raise RuntimeError(f"{side} read {read} of {rows} records")
            found[side].append(rate)
    for side in SIDES:
        spent = f"{middle(cpu[side]) * 1e6 / rows:.2f} CPU s per million rows, start included"
        say(f"{ALONE.name}: {side}", found[side], "rows/s", spent)
    return Row(ALONE.name, middle(found["ours"]), middle(found["peer"]), ALONE.goal, "rows/s", more_is_better=True)


def trigger(topics: Topics, rounds: int, batches: int) -> Row:
    """Small micro-batches of all shards, every 200 ms, on one core."""
    # No more than what is read: a query that is stopped in the middle of a micro-batch prints a page.
    topic = topics.of(replace(TRIGGER.data, rows=TRIGGER_ROWS * (batches + TRIGGER_SKIPPED)))
    order = {"case": "trigger", "servers": topics.servers, "topic": topic, "batch": TRIGGER_ROWS}
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    medians: dict[str, list[float]] = {side: [] for side in SIDES}
    with spark(1) as engine:
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                answer = engine.ask(side=side, batches=batches + TRIGGER_SKIPPED, **order)
                times = answer["triggers"][TRIGGER_SKIPPED:]
                found[side] += times
                medians[side].append(middle(times) * 1000)
    for side in SIDES:
        times = sorted(found[side])
        say(f"{TRIGGER.name}: {side}", medians[side], "ms", f"p99 {times[int(len(times) * 0.99)] * 1000:,.0f} ms")
    return Row(TRIGGER.name, middle(medians["ours"]), middle(medians["peer"]), TRIGGER.goal)


def cold(topics: Topics, rounds: int, cores: int) -> Row:
    """From the start of the application's process until its first rows are through."""
    topic = topics.of(replace(COLD.data, rows=COLD_ROWS))
    order = {"case": "cold", "servers": topics.servers, "topic": topic, "batch": COLD_ROWS, "batches": 1}
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            begun = time.time()
            with spark(cores) as engine:
                answer = engine.ask(side=side, **order)
            found[side].append(answer["first_at"] - begun)
            cpu[side].append(answer["first_cpu"])
    for side in SIDES:
        say(f"{COLD.name}: {side}", found[side], "s", f"{middle(cpu[side]):.2f} CPU s of the whole application until then")
    return Row(COLD.name, middle(found["ours"]), middle(found["peer"]), COLD.goal, "s")


def moved(servers: str, rounds: int) -> list[Row]:
    """A shard gained or lost, with two applications on a topic of their own."""
    topic = create_topic(servers, moves.SHARDS)
    try:
        rows, found = moves.rows(servers, topic, rounds)
    finally:
        delete_topic(servers, topic)
    for what in ("moved", "promised", "stayed", "before"):
        say(f"a shard moves, {what}", [1000 * getattr(move, what) for move in found], "ms")
    return rows


def say(what: str, samples: Sequence[float], unit: str, *more: str) -> None:
    """One side's median, its spread, and whatever else was measured."""
    digits = 2 if max(samples) < 100 else 0
    spread = f"{middle(samples):,.{digits}f} {unit} ({min(samples):,.{digits}f} to {max(samples):,.{digits}f}"
    deviation = f", deviation {statistics.stdev(samples) / statistics.mean(samples):.0%}" if len(samples) > 1 else ""
    print("; ".join([f"{what}: {spread}{deviation}, {len(samples)} runs)", *more]), flush=True)


def main() -> None:
    """See the module."""
    every = (*CASES, "alone", "trigger", "cold", "moves")
    parser = argparse.ArgumentParser(prog="benchmarks.source", description=__doc__)
    parser.add_argument("--rows", type=int, default=16_000_000, help="records of 160 bytes; other sizes in proportion")
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of each side (default: 5)")
    parser.add_argument("--batches", type=int, default=4, help="micro-batches of a run (default: 4)")
    parser.add_argument("--triggers", type=int, default=50, help="small micro-batches of a run (default: 50)")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="tasks at once (default: all cores)")
    parser.add_argument("--only", nargs="*", choices=every, default=every, help="cases; all without it")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with broker() as servers:
        topics = Topics(servers, arguments.rows)
        try:
            wanted = [name for name in CASES if name in arguments.only]
            if wanted:
                with spark(arguments.cores) as engine:
                    for name in wanted:
                        rows += throughput(engine, name, topics, arguments.rounds, arguments.batches)
            if "alone" in arguments.only:
                rows.append(alone(topics, arguments.rounds))
            if "trigger" in arguments.only:
                rows.append(trigger(topics, arguments.rounds, arguments.triggers))
            if "cold" in arguments.only:
                rows.append(cold(topics, arguments.rounds, arguments.cores))
            if "moves" in arguments.only:
                rows += moved(servers, max(MOVE_ROUNDS, arguments.rounds))
        finally:
            topics.close()
    print(render(rows), flush=True)


if __name__ == "__main__":
    main()
