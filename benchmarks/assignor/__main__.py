"""Runs both sides in turn and prints the table; see benchmarks/README.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from benchmarks.assignor.kafka import Answered, Kafka, kafka
from benchmarks.assignor.ours import Ours
from benchmarks.table import Row, middle, render
from shardherd.core.assignors import Assignment, Delta, Problem

SIZES = ((1_000_000, 2_000, 500), (500_000, 10_000, 1_000))
"""Shards, consumers, topics."""

Event = Callable[[], tuple[Problem, Assignment, Delta]]

WARM, WARM_SLOW = 12, 5
"""Times that an event runs before it is measured: until the JIT compiler has done with it."""


def measured(event: Event) -> Answered:
    """One event of ours."""
    begun = time.perf_counter()
    problem, target, delta = event()
    taken = (time.perf_counter() - begun) * 1000
    loads = problem.loads(target)
    return Answered(taken, len(delta), int(loads.min()), int(loads.max()))


def compared(name: str, ours: Event, peer: Kafka, event: str, goal: float, warm: int, repeats: int) -> Row:
    """Both sides in turn, after both are warm. Raises AssertionError if an answer of ours is not even."""
    for _ in range(warm):
        measured(ours)
        peer.ask(event)
    pairs = [(measured(ours), peer.ask(event)) for _ in range(repeats)]
    our, their = pairs[-1]
    assert our.most - our.least <= 1, f"loads of ours are {our.least} to {our.most}"
    return Row(
        name,
        middle([mine.milliseconds for mine, _ in pairs]),
        middle([his.milliseconds for _, his in pairs]),
        goal,
        note=f"moved {our.moved:,} and {their.moved:,}; loads {our.least}-{our.most} and {their.least}-{their.most}",
    )


def main() -> int:
    """Prints the table. Ends with 0 whatever the score is."""
    parser = argparse.ArgumentParser(prog="benchmarks.assignor", description="The Sticky assignor against Kafka's.")
    parser.add_argument("--repeats", type=int, default=15, help="how often each event is measured (default: 15)")
    repeats = parser.parse_args().repeats
    rows = []
    for shards, consumers, topics in SIZES:
        size = f"{shards:,} x {consumers:,}"
        print(f"{size}: preparing both sides", file=sys.stderr, flush=True)
        ours = Ours(shards, consumers, topics)
        with kafka(shards, consumers, topics) as peer:
            for name, event, asked, goal, warm in (
                ("full, uniform", ours.full, "uniform-full", 4.0, WARM),
                ("one leaves, uniform", ours.one_leaves, "uniform-leave", 1.2, WARM),
                ("one leaves, cooperative sticky", ours.one_leaves, "cooperative-leave", 50.0, WARM_SLOW),
            ):
                print(f"{size}: {name}", file=sys.stderr, flush=True)
                rows.append(compared(f"{size}: {name}", event, peer, asked, goal, warm, repeats))
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
