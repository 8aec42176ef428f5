"""`make bench-worker`: a worker with a trivial handler, one process, against confluent-kafka's and kafka-python's consumers.

One broker and one topic for all sides, which take turns, each in a process of its own that reads the topic once. A row shows
medians; the lines before it have processor time and memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.broker import broker, create_topic, delete_topic
from benchmarks.table import Row, middle, render

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-bench" / "bin" / "python"
PARTITIONS = 4
SIDES = {"ours": sys.executable, "arrow": sys.executable, "confluent": str(PEERS), "kafka-python": sys.executable}


def run(python: str, side: str, servers: str, topic: str, records: int) -> str:
    """One side's process, to its end; what it printed."""
    command = [python, "-m", "benchmarks.worker.sides", side, servers, topic, str(PARTITIONS), str(records)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(servers: str, topic: str, records: int, rounds: int) -> dict[str, float]:
    """Records a second of each side; the first round, in which all become warm, counts as any other."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    sizes = set()
    for number in range(rounds):
        for side, python in SIDES.items():
            found = json.loads(run(python, side, servers, topic, records))
            sizes.add((found["records"], found["size"]))
            rates[side].append(found["records"] / found["seconds"])
            print(
                f"{number + 1}. {side}: {rates[side][-1]:,.0f} records/s,"
                f" {1e6 * found['cpu'] / found['records']:.2f} us of processor a record, at most {found['mib']:.0f} MiB"
            )
    if len(sizes) != 1:
        raise SystemExit(f"the sides have not read the same: {sizes}")
    return {side: middle(found) for side, found in rates.items()}


def rows(rates: dict[str, float]) -> list[Row]:
    ours, arrow = rates["ours"], rates["arrow"]
    return [
        Row("records one by one, confluent-kafka", ours, rates["confluent"], 2.0, "rec/s", more_is_better=True),
        Row("records one by one, kafka-python", ours, rates["kafka-python"], 5.0, "rec/s", more_is_better=True),
        Row("whole batches as Arrow, confluent-kafka", arrow, rates["confluent"], 8.0, "rec/s", more_is_better=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with broker() as servers:
        topic = create_topic(servers, PARTITIONS)
        try:
            run(str(PEERS), "produce", servers, topic, options.records)
            print(render(rows(measure(servers, topic, options.records, options.rounds))))
        finally:
            delete_topic(servers, topic)


if __name__ == "__main__":
    main()
