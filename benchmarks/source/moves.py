"""What a rebalance does to the shards that are read: how long the moved ones pause, and whether the others notice.

Two Spark applications with a core each, both warm, share 8 shards under a coordinator, while a producer writes to all of them.
One is cordoned, so the other gains its shards; then it gets them back. A shard's pause is the time between the ends of two
micro-batches that had records of it. Nothing else does this without a restart of the query, so the rows compare with the
promise (DESIGN: one micro-batch of each side and 100 ms) and with the same shards before the move.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kafka import KafkaProducer

from benchmarks.serving import NAMESPACE, uid_of
from benchmarks.table import Row, middle

ROOT = Path(__file__).parents[2]
SHARDS = 8
GROUP = "moves"
START = 180.0
CALM = 15
"""Micro-batches of steady reading that a move is compared with."""

AFTER = 12
"""Micro-batches after a move that are still looked at."""

WARM = 40
"""Micro-batches before the first move: the JVM compiles what runs often."""

ALLOWANCE = 0.1
"""Seconds beside a micro-batch of each side that a moved shard may pause."""

NOTICED = 1.1
"""How many times longer a pause of the shards that stay may be before it is one."""


@dataclass
class Follower:
    """One consumer's application, and when it had read which shards."""

    process: subprocess.Popen[str]
    batches: list[tuple[float, frozenset[str]]] = field(default_factory=list)

    def listen(self) -> None:
        """Take its lines until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                self.batches.append((said["at"], frozenset(said["shards"])))

    def latest(self, since: float = 0.0) -> frozenset[str]:
        """The shards of its last micro-batch, if it ended after then."""
        return self.batches[-1][1] if self.batches and self.batches[-1][0] > since else frozenset()

    def read(self, since: float) -> int:
        """How many micro-batches ended after then."""
        return sum(1 for at, _ in list(self.batches) if at > since)

    def durations(self, begin: float, end: float) -> list[float]:
        """Times from one micro-batch's end to the next's."""
        return gaps([at for at, _ in self.batches if begin <= at <= end])


@dataclass(frozen=True, slots=True)
class Move:
    """One move's figures in seconds: pauses of the shards that moved and of those that stayed, and of these before it."""

    moved: float
    promised: float
    stayed: float
    before: float


def rows(servers: str, topic: str, rounds: int) -> tuple[list[Row], list[Move]]:
    """Both rows of the table, and what was measured. There are two moves a round."""
    with (
        _stream(servers, topic),
        coordinator(servers, topic) as server,
        _followers(servers, port(server)) as (first, second),
    ):
        until(lambda: min(first.read(0.0), second.read(0.0)) > WARM, f"{WARM} micro-batches of each consumer")
        found = []
        for _ in range(rounds):
            found.append(_move(server, "cordon 1", second, first, keeps=False))
            found.append(_move(server, "cordon", first, second, keeps=True))
    return [
        Row(
            "a shard moves: its pause / a micro-batch of each side + 100 ms",
            1000 * middle([move.moved for move in found]),
            1000 * middle([move.promised for move in found]),
            1.0,
        ),
        Row(
            "a shard moves: longest pause of the others / before it",
            1000 * middle([move.stayed for move in found]),
            1000 * middle([move.before for move in found]),
            round(1 / NOTICED, 2),
        ),
    ], found


def _move(server: subprocess.Popen[str], order: str, loser: Follower, gainer: Follower, *, keeps: bool) -> Move:
    """`keeps`: the loser keeps half of its shards, otherwise none."""
    calm = time.monotonic()
    until(lambda: loser.read(calm) > CALM, f"{CALM} micro-batches before {order!r}")
    begin = time.monotonic()
    held, had = loser.latest(calm), gainer.latest(calm)
    tell(server, order)
    wanted = SHARDS // 2 if keeps else SHARDS
    until(lambda: len(gainer.latest(begin)) == wanted, f"{order!r}: {wanted} shards are read by the other consumer")
    end = time.monotonic()
    until(lambda: gainer.read(end) > AFTER and (not keeps or loser.read(end) > AFTER), f"some micro-batches after {order!r}")
    over = time.monotonic()
    read = times(loser, gainer)
    moved = gainer.latest() - had
    stayed = (held | had) - moved
    took = middle(loser.durations(calm, begin))
    # One that was cordoned has none to show.
    as_long = middle(gainer.durations(calm, begin) or [took])
    pauses = [gap for shard in moved for gap in gaps(within(read[shard], begin, end))]
    return Move(
        moved=max(pauses),
        promised=took + as_long + ALLOWANCE,
        stayed=max(gap for shard in stayed for gap in gaps(within(read[shard], begin, over))),
        before=max(gap for shard in stayed for gap in gaps(within(read[shard], calm, begin))),
    )


def times(*followers: Follower) -> dict[str, list[float]]:
    """When each shard was read, whoever did."""
    found: dict[str, list[float]] = {}
    for follower in followers:
        for at, shards in list(follower.batches):
            for shard in shards:
                found.setdefault(shard, []).append(at)
    return {shard: sorted(times) for shard, times in found.items()}


def within(times: list[float], begin: float, end: float) -> list[float]:
    """Those times, and the one before and after: a pause may begin before the window and end after it."""
    first = max((at for at, each in enumerate(times) if each < begin), default=0)
    last = min((at for at, each in enumerate(times) if each > end), default=len(times) - 1)
    return times[first : last + 1]


def gaps(times: list[float]) -> list[float]:
    """The time from each to the next."""
    return [after - before for before, after in itertools.pairwise(times)]


def until(true: Callable[[], bool], what: str, timeout: float = 180.0) -> None:
    """Wait for what other processes do."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {timeout:g} s: {what}")
        time.sleep(0.01)


@contextlib.contextmanager
def coordinator(
    servers: str, topic: str, group: str = GROUP, shards: int = SHARDS, cells: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Of a group of two consumers. It takes the orders of `benchmarks.serving`."""
    command = [sys.executable, "-m", "benchmarks.serving", "--consumers", "2", "--shards", str(shards), "--group", group]
    command += ["--topic", topic, "--kafka", servers, "--cells", str(cells)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def port(server: subprocess.Popen[str]) -> int:
    """Where it serves."""
    assert server.stdout is not None
    return int(server.stdout.readline())


def tell(server: subprocess.Popen[str], order: str) -> None:
    """Give it an order."""
    assert server.stdin is not None
    server.stdin.write(order + "\n")
    server.stdin.flush()


def follower(module: str, log: Path, variables: dict[str, str]) -> Follower:
    """Start an application that prints its micro-batches."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.open("ab"),
        text=True,
    )
    made = Follower(process)
    threading.Thread(target=made.listen, daemon=True).start()
    return made


def end(made: Iterable[Follower]) -> None:
    """End these applications."""
    for each in made:
        each.process.terminate()
    for each in made:
        try:
            each.process.wait(60)
        except subprocess.TimeoutExpired:
            each.process.kill()


@contextlib.contextmanager
def _followers(servers: str, port: int) -> Iterator[list[Follower]]:
    """Both applications, each with half of the shards."""
    folder = Path(tempfile.mkdtemp(prefix="bench-moves-"))
    made: list[Follower] = []
    try:
        for ordinal in range(2):
            made.append(
                follower("benchmarks.source.follower", folder / f"{ordinal}.log", environment(folder, ordinal, servers, port))
            )
        until(lambda: all(len(each.latest()) == SHARDS // 2 for each in made), f"each reads its half; see {folder}", START)
        yield made
    finally:
        end(made)
    shutil.rmtree(folder)


def environment(folder: Path, ordinal: int, servers: str, port: int, group: str = GROUP) -> dict[str, str]:
    """What the controller gives a driver pod."""
    run = folder / str(ordinal)
    run.mkdir()
    (run / "token").write_text(f"token-{ordinal}")
    conf = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("SHARDHERD_", "SPARK_"))},
        "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}",
        "SHARDHERD_GROUP": group,
        "SHARDHERD_GROUP_UID": uid_of(group),
        "SHARDHERD_NAMESPACE": NAMESPACE,
        "SHARDHERD_CONSUMER": f"{group}-{ordinal}",
        "SHARDHERD_POD_UID": f"uid-{ordinal}",
        "SHARDHERD_START": "1",
        "SHARDHERD_COORDINATOR_URL": f"http://127.0.0.1:{port}",
        "SHARDHERD_TOKEN_FILE": str(run / "token"),
        "SHARDHERD_RUN_DIR": str(run),
        "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": servers,
        "SHARDHERD_CHECKPOINT_PATH": str(folder / "checkpoints"),
        "SHARDHERD_DRIVER_CORES": "1",
        "SHARDHERD_SPARK_CONF": json.dumps(conf),
        "SPARK_LOCAL_DIRS": str(run / "work"),
    }


@contextlib.contextmanager
def _stream(servers: str, topic: str) -> Iterator[None]:
    """A producer that writes five records to every shard, fifty times a second."""
    enough = threading.Event()

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
        while not enough.wait(0.02):
            for number in range(5 * SHARDS):
                producer.send(topic, value=b"x" * 160, partition=number % SHARDS)
        producer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
