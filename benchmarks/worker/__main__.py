"""`make bench-worker`: a worker with a trivial handler, one process, against confluent-kafka's and kafka-python's consumers.

One broker and one topic for all sides, which take turns, each in a process of its own that reads the topic once. A row shows
medians; the lines before it have each run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.broker import broker, create_topic, delete_topic
from benchmarks.table import Row, middle, render
from benchmarks.worker.sides import LATENCY_OURS, RATE, READY, WARM
from shardherd.testing.group import PlayedGroup

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-bench" / "bin" / "python"
PARTITIONS = 4
SIDES = {"ours": sys.executable, "arrow": sys.executable, "confluent": str(PEERS), "kafka-python": sys.executable}


INTERVAL = 0.05
LATENCIES = {
    "ours": (sys.executable, LATENCY_OURS),
    "ours, looking now and then": (sys.executable, f"{LATENCY_OURS}{INTERVAL}"),
    "confluent": (str(PEERS), "latency-confluent"),
}
AT_REST = 120.0
"""MiB that a consumer of ours may take at rest."""


@contextlib.contextmanager
def side(python: str, name: str, servers: str, topic: str, records: int) -> Iterator[subprocess.Popen[str]]:
    """One side's process, whose output can be read. The coordinator of our group is played in this one."""
    command = [python, "-m", "benchmarks.worker.sides", name, servers, topic, str(PARTITIONS), str(records)]
    with contextlib.ExitStack() as stack:
        where = dict(os.environ)
        if python == sys.executable and name != "kafka-python":
            where |= stack.enter_context(PlayedGroup(shards=PARTITIONS, topic=topic)).environment("played-0")
        process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, env=where, stdout=subprocess.PIPE, text=True))
        yield process
        if process.wait():
            raise SystemExit(f"{name} ended with {process.returncode}")


def run(python: str, name: str, servers: str, topic: str, records: int) -> str:
    """One side's process, to its end; the last line that it printed."""
    with side(python, name, servers, topic, records) as process:
        return process.communicate()[0].strip().rpartition("\n")[2]


def measure(servers: str, topic: str, records: int, rounds: int) -> dict[str, dict[str, float]]:
    """Records a second, microseconds of processor time a record and MiB at the most of each side.

    The first round, in which all become warm, counts as any other.
    """
    found: dict[str, dict[str, list[float]]] = {name: {"rate": [], "cpu": [], "mib": []} for name in SIDES}
    sizes = set()
    for number in range(rounds):
        for name, python in SIDES.items():
            said = json.loads(run(python, name, servers, topic, records))
            sizes.add((said["records"], said["size"]))
            rate, cpu, mib = said["records"] / said["seconds"], 1e6 * said["cpu"] / said["records"], said["mib"]
            for key, value in (("rate", rate), ("cpu", cpu), ("mib", mib)):
                found[name][key].append(value)
            print(
                f"{number + 1}. {name}: {rate:,.0f} records/s, {cpu:.2f} us of processor a record, at most {mib:.0f} MiB",
                flush=True,
            )
    if len(sizes) != 1:
        raise SystemExit(f"the sides have not read the same: {sizes}")
    return {name: {key: middle(values) for key, values in each.items()} for name, each in found.items()}


def latencies(servers: str, seconds: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds from the producer to the handler and percent of a core, at 1,000 records a second; then MiB at rest."""
    found: dict[str, dict[str, list[float]]] = {name: {"p99": [], "cpu": [], "rest": []} for name in LATENCIES}
    for number in range(rounds):
        for name, (python, mode) in LATENCIES.items():
            topic = create_topic(servers, PARTITIONS)
            records = WARM + RATE * seconds
            try:
                with side(python, mode, servers, topic, records) as process:
                    assert process.stdout is not None
                    if process.stdout.readline().strip() != READY:
                        raise SystemExit(f"{mode} does not read")
                    run(str(PEERS), "produce-slowly", servers, topic, records)
                    said = json.loads(process.stdout.readline())
            finally:
                delete_topic(servers, topic)
            for key, values in found[name].items():
                values.append(said[key])
            print(
                f"{number + 1}. {name}: from producer to handler p50 {said['p50']:.2f}, p99 {said['p99']:.2f}, longest"
                f" {said['longest']:.1f} ms; {said['cpu']:.0f} % of a core; {said['rest']:.0f} MiB at rest",
                flush=True,
            )
    return {name: {key: middle(values) for key, values in each.items()} for name, each in found.items()}


def rows(found: dict[str, dict[str, float]], late: dict[str, dict[str, float]]) -> list[Row]:
    ours, arrow, confluent, python = (found[name] for name in ("ours", "arrow", "confluent", "kafka-python"))
    seldom = late["ours, looking now and then"]
    return [
        Row("records one by one, confluent-kafka", ours["rate"], confluent["rate"], 2.0, "rec/s", more_is_better=True),
        Row("records one by one, kafka-python", ours["rate"], python["rate"], 5.0, "rec/s", more_is_better=True),
        Row("whole batches as Arrow, confluent-kafka", arrow["rate"], confluent["rate"], 8.0, "rec/s", more_is_better=True),
        Row("p99 from producer to handler, confluent-kafka", late["ours"]["p99"], late["confluent"]["p99"], 1.0),
        Row("memory at rest, its bound", late["ours"]["rest"], AT_REST, 1.0, "MiB"),
        Row("processor at 1,000 rec/s, confluent-kafka", late["ours"]["cpu"], late["confluent"]["cpu"], 0.0, "% of a core"),
        Row(f"p99 with fetch_interval {INTERVAL}", seldom["p99"], late["confluent"]["p99"], 0.0),
        Row(f"processor with fetch_interval {INTERVAL}", seldom["cpu"], late["confluent"]["cpu"], 0.0, "% of a core"),
        Row("processor time one by one, confluent-kafka", ours["cpu"], confluent["cpu"], 0.0, "us/rec"),
        Row("processor time one by one, kafka-python", ours["cpu"], python["cpu"], 0.0, "us/rec"),
        Row("processor time as Arrow, confluent-kafka", arrow["cpu"], confluent["cpu"], 0.0, "us/rec"),
        Row("most memory one by one, confluent-kafka", ours["mib"], confluent["mib"], 0.0, "MiB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="for which latency is measured, in each round")
    options = parser.parse_args()
    with broker() as servers:
        topic = create_topic(servers, PARTITIONS)
        try:
            run(str(PEERS), "produce", servers, topic, options.records)
            found = measure(servers, topic, options.records, options.rounds)
        finally:
            delete_topic(servers, topic)
        print(render(rows(found, latencies(servers, options.seconds, options.rounds))))


if __name__ == "__main__":
    main()
