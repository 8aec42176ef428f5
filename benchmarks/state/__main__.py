"""`make bench-state`: what it costs that keyed state moves, against a Spark query over all shards that is stopped and started.

Two applications share the cells of a group, with so much state in each, under a coordinator, while a producer writes to all of
them. With little state each runs one task at a time (`driver.cores: 1`), with much state one for each cell, as docs/state.md
advises. One is cordoned, so the other gains its cells; then it gets them back. A cell's pause is the time between
the ends of two of its micro-batches with records. The peer is one application with two slots and one query over all
shards, with the same state in all: it is ended and started anew, which is how a query gets another number of cores, and,
only printed, its query is stopped and started in the session that is warm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from benchmarks.broker import broker, create_topic, delete_topic
from benchmarks.source import moves
from benchmarks.source.moves import ROOT, Follower, gaps, times, until, within
from benchmarks.source.usage import cpu_seconds
from benchmarks.table import Row, middle, render

GROUP = "state"
MODULE = "benchmarks.state.follower"
VALUE = 1000
"""Characters of the value of each key."""

CALM = 8
"""Micro-batches of each cell that a move is compared with."""

AFTER = 4
MEASURED = 20.0
"""Seconds for which processor time is measured."""

MOST_BATCHES, RESTARTS, NOTICED = 3, 3.0, 1.1
LITTLE = 10
"""Megabytes of state up to which a cell is to move within MOST_BATCHES of its micro-batches."""


@dataclass(frozen=True, slots=True)
class Size:
    """What there is: cells, keys in each, and how much memory and how many task slots a driver has."""

    cells: int
    keys: int
    memory: str
    slots: int

    def shards(self) -> list[str]:
        return [f"cell/{number}" for number in range(self.cells)]


@dataclass(frozen=True, slots=True)
class Move:
    """One move's figures in seconds: pauses of the cells that moved and of those that stayed, and of these before it."""

    moved: float
    batch: float
    stayed: float
    before: float


@dataclass(frozen=True, slots=True)
class Use:
    """Seconds of a core that are needed in a second, and for a micro-batch."""

    second: float
    batch: float


def load(servers: str, topic: str, size: Size) -> None:
    """A record for every key of every cell."""
    python = str(ROOT / ".venv-bench" / "bin" / "python")
    sizes = (str(each) for each in (size.cells, size.keys, VALUE))
    subprocess.run([python, "-m", "benchmarks.state.load", servers, topic, *sizes], cwd=ROOT, check=True)


@contextlib.contextmanager
def stream(servers: str, topic: str, size: Size) -> Iterator[None]:
    """Twenty records a second to each cell, of keys that have state."""
    enough = threading.Event()

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
        rng = random.Random(2)
        while not enough.wait(0.05):
            for cell in range(size.cells):
                key = b"%d-%d" % (cell, rng.randrange(size.keys))
                producer.send(topic, key=key, value=rng.randbytes(VALUE // 2).hex().encode(), partition=cell)
        producer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def read(follower: Follower, since: float) -> dict[str, int]:
    """How many micro-batches of each cell ended after then."""
    found: dict[str, int] = {}
    for at, cells in list(follower.batches):
        for cell in cells if at > since else ():
            found[cell] = found.get(cell, 0) + 1
    return found


def calm(followers: Sequence[Follower], cells: int, batches: int = CALM) -> float:
    """Wait until each cell has had so many micro-batches, one after the other as the trigger says; when that began."""
    begin = time.monotonic()

    def enough() -> bool:
        found = [each for follower in followers for each in read(follower, begin).values()]
        return len(found) == cells and min(found) >= batches

    until(enough, f"{batches} micro-batches of {cells} cells", 1800.0)
    return begin


def processor(followers: Sequence[Follower]) -> Use:
    """What these need of the processor."""
    began, used = time.monotonic(), sum(cpu_seconds(each.process.pid) for each in followers)
    time.sleep(MEASURED)
    took = sum(cpu_seconds(each.process.pid) for each in followers) - used
    batches = sum(count for each in followers for count in read(each, began).values())
    return Use(took / (time.monotonic() - began), took / batches)


def move(server: Any, order: str, loser: Follower, gainer: Follower, size: Size, keeps: int) -> Move:
    """The loser keeps so many cells."""
    before = calm([each for each in (loser, gainer) if read(each, time.monotonic() - 5.0)], size.cells)
    begin = time.monotonic()
    held = set(read(loser, before))
    moves.tell(server, order)
    until(lambda: len(read(gainer, begin)) == size.cells - keeps, f"{order!r}: the other consumer reads {size.cells - keeps}")
    end = time.monotonic()
    calm([each for each in (loser, gainer) if each is gainer or keeps], size.cells, AFTER)
    over = time.monotonic()
    found = times(loser, gainer)
    moved = {cell for cell in read(gainer, end) if cell in held}
    stayed = set(size.shards()) - moved
    return Move(
        moved=max(gap for cell in moved for gap in gaps(within(found[cell], begin, end))),
        batch=middle([gap for cell in moved for gap in gaps([at for at in found[cell] if before <= at <= begin])]),
        stayed=max(gap for cell in stayed for gap in gaps(within(found[cell], begin, over))),
        before=max(gap for cell in stayed for gap in gaps(within(found[cell], before, begin))),
    )


def cells(servers: str, topic: str, size: Size, rounds: int) -> tuple[list[Move], Use]:
    """Our side: the moves, two a round, and the processor's load."""
    folder = Path(tempfile.mkdtemp(prefix="bench-state-"))
    made: list[Follower] = []
    with moves.coordinator(servers, topic, GROUP, size.cells, size.cells) as server:
        port = moves.port(server)
        try:
            for ordinal in range(2):
                variables = moves.environment(folder, ordinal, servers, port, GROUP)
                variables["SHARDHERD_STATE_LOCATION"] = str(folder / "state")
                variables["SHARDHERD_DRIVER_CORES"] = str(size.slots)
                variables["SHARDHERD_SPARK_CONF"] = json.dumps({"spark.driver.memory": size.memory})
                made.append(moves.follower(MODULE, folder / f"{ordinal}.log", variables))
            print(f"logs of the drivers: {folder}", flush=True)
            half = size.cells // 2
            until(lambda: all(len(read(each, 0.0)) == half for each in made), "each reads half of the cells", 1800.0)
            first, second = made
            calm(made, size.cells)
            load_of_both = processor(made)
            found = []
            for _ in range(rounds):
                found.append(move(server, "cordon 1", second, first, size, keeps=0))
                found.append(move(server, "cordon", first, second, size, keeps=half))
        finally:
            moves.end(made)
    shutil.rmtree(folder, ignore_errors=True)
    return found, load_of_both


def one_query(servers: str, topic: str, size: Size, rounds: int) -> tuple[list[float], list[float], Use]:
    """The peer: pauses when it is ended and started anew, when only its query is, and the processor's load."""
    folder = Path(tempfile.mkdtemp(prefix="bench-state-"))
    variables = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("SHARDHERD_", "SPARK_"))},
        "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}",
        "PYSPARK_PYTHON": sys.executable,
        "BENCH_SERVERS": servers,
        "BENCH_TOPIC": topic,
        "BENCH_LOCATION": str(folder / "location"),
        "BENCH_MEMORY": size.memory,
        "SPARK_LOCAL_DIRS": str(folder / "work"),
    }
    made = [moves.follower(MODULE, folder / "one.log", variables)]
    ended: list[Follower] = []
    anew, warm = [], []
    try:
        print(f"log of the one query: {folder}", flush=True)
        calm(made, 1)
        load_of_it = processor(made)
        for _ in range(rounds):
            calm(made, 1, AFTER)
            begin = time.monotonic()
            assert made[0].process.stdin is not None
            made[0].process.stdin.write("again\n")
            made[0].process.stdin.flush()
            calm(made, 1, AFTER)
            warm.append(max(gaps(within(times(*made)["all"], begin, time.monotonic()))))
        for _ in range(rounds):
            calm(made, 1, AFTER)
            begin = time.monotonic()
            moves.end(made)
            ended += made
            made = [moves.follower(MODULE, folder / "one.log", variables)]
            calm(made, 1, AFTER)
            anew.append(max(gaps(within(times(*ended, *made)["all"], begin, time.monotonic()))))
    finally:
        moves.end(made)
    shutil.rmtree(folder, ignore_errors=True)
    return anew, warm, load_of_it


def say(what: str, seconds: Sequence[float]) -> None:
    print(f"{what}: {', '.join(f'{1000 * each:,.0f}' for each in seconds)} ms", flush=True)


def measured(servers: str, size: Size, megabytes: int, rounds: int) -> list[Row]:
    """All rows for this much state."""
    topic = create_topic(servers, size.cells)
    try:
        load(servers, topic, size)
        with stream(servers, topic, size):
            found, ours = cells(servers, topic, size, rounds)
            for what in ("moved", "batch", "stayed", "before"):
                say(f"{megabytes} MB: {what}", [getattr(each, what) for each in found])
            anew, warm, theirs = one_query(servers, topic, size, rounds)
            say(f"{megabytes} MB: one query, its application started anew", anew)
            say(f"{megabytes} MB: one query, stopped and started in a session that is warm", warm)
    finally:
        delete_topic(servers, topic)
    for what, use in ((f"{size.cells} cells", ours), ("one query", theirs)):
        print(
            f"{megabytes} MB: {what}: {use.second:.2f} s of a core in a second, {use.batch:.2f} for a micro-batch", flush=True
        )
    moved, batch = (1000 * middle([getattr(each, what) for each in found]) for what in ("moved", "batch"))
    stayed, before = (1000 * middle([getattr(each, what) for each in found]) for what in ("stayed", "before"))
    # State comes from the storage: only a little of it can come within some micro-batches.
    soon = 1.0 if megabytes <= LITTLE else 0.0
    return [
        Row(
            f"{megabytes} MB: a cell moves: its pause / {MOST_BATCHES} of its micro-batches", moved, MOST_BATCHES * batch, soon
        ),
        Row(f"{megabytes} MB: a cell moves: longest pause of the others / before it", stayed, before, round(1 / NOTICED, 2)),
        Row(
            f"{megabytes} MB: a cell moves / the one query's application is started anew", moved, 1000 * middle(anew), RESTARTS
        ),
        Row(f"{megabytes} MB: a cell moves / the one query is stopped and started, warm", moved, 1000 * middle(warm), 0.0),
        Row(f"{megabytes} MB: {size.cells} cells / one query: of a core in a second", ours.second, theirs.second, 0.0, "s"),
        Row(f"{megabytes} MB: a cell / one query: of a core for a micro-batch", ours.batch, theirs.batch, 0.0, "s"),
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=4, help="an even number")
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[10, 1000], help="of state in each cell: 1000 takes 12 GB of disk"
    )
    parser.add_argument("--rounds", type=int, default=2)
    asked: Any = parser.parse_args()
    rows: list[Row] = []
    with broker() as servers:
        for megabytes in asked.megabytes:
            large = megabytes > 100
            memory, slots = ("2g", asked.cells) if large else ("640m", 1)
            size = Size(asked.cells, megabytes * 1_000_000 // VALUE, memory, slots)
            rows += measured(servers, size, megabytes, asked.rounds)
    print(render(rows))


if __name__ == "__main__":
    main()
