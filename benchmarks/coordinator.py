"""`make bench-coordinator`: what one coordinator on one core carries over real HTTP.

2,000 consumers hold 10,000 shards. Measured are heartbeats (as many as it takes, and at their natural rate), the join of one
more consumer until everybody has its new assignment, and checkpoints in batches, in memory and on a real broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.broker import broker, create_topic
from benchmarks.serving import NAMESPACE, uid_of
from benchmarks.table import Row, render
from benchmarks.wire import Connection, post
from shardherd.protocol import PROTOCOL_VERSION

ROOT = Path(__file__).resolve().parents[1]
BASE = f"/v1/namespaces/{NAMESPACE}/consumergroups/g"

JOIN_GOAL, CHECKPOINT_GOAL = 1.0, 50_000.0
BROKER_SHARDS = 1000


@dataclass
class Server:
    """The coordinator's process."""

    process: subprocess.Popen[str]
    port: int

    def cpu(self) -> float:
        """CPU seconds that it has used."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("cpu\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


@dataclass
class Consumer:
    """One consumer, as cheap as can be: it holds what is confirmed and gives up all else at once."""

    ordinal: int
    connection: Connection
    seq: int = 0
    revision: int = 0
    held: dict[str, int] = field(default_factory=dict)
    offset: int = 0

    def _incarnation(self) -> dict[str, Any]:
        return {"podUid": f"uid-{self.ordinal}", "start": 1}

    async def heartbeat(self, wait: float = 0.0) -> bytes:
        """The answer's body, applied."""
        self.seq += 1
        body = {
            "consumer": f"g-{self.ordinal}",
            "incarnation": self._incarnation(),
            "groupUid": uid_of("g"),
            "seq": self.seq,
            "revision": self.revision,
            "held": [{"shard": shard, "ownerEpoch": epoch} for shard, epoch in self.held.items()],
        }
        request = post(
            f"{BASE}/heartbeat?waitMs={round(wait * 1000)}", self._token, json.dumps(body).encode(), PROTOCOL_VERSION
        )
        status, answer = await self.connection.ask(request)
        if status != 200:
            raise RuntimeError(f"heartbeat of g-{self.ordinal}: status {status}: {answer[:300]!r}")
        reply = json.loads(answer)
        self.revision = reply["revision"]
        self.held = {each["shard"]: each["ownerEpoch"] for each in reply["confirmed"]}
        return answer

    async def checkpoint(self) -> int:
        """All that is held, one further. How many were durable."""
        self.offset += 1
        body = {
            "consumer": f"g-{self.ordinal}",
            "incarnation": self._incarnation(),
            "groupUid": uid_of("g"),
            "checkpoints": [{"shard": shard, "ownerEpoch": epoch, "offset": self.offset} for shard, epoch in self.held.items()],
        }
        request = post(f"{BASE}/checkpoints", self._token, json.dumps(body).encode(), PROTOCOL_VERSION)
        status, answer = await self.connection.ask(request)
        if status != 200:
            raise RuntimeError(f"checkpoint of g-{self.ordinal}: status {status}: {answer[:300]!r}")
        return answer.count(b'"ok"')

    @property
    def _token(self) -> str:
        return f"token-{self.ordinal}"


@asynccontextmanager
async def serving(consumers: int, shards: int, *options: str) -> AsyncIterator[Server]:
    """A coordinator on a core of its own."""
    process = _start(f"--consumers={consumers}", f"--shards={shards}", *options)
    try:
        assert process.stdout is not None
        yield Server(process, int(await asyncio.to_thread(process.stdout.readline)))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def _start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.serving", *options]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def gather(count: int, work: Callable[[int], Awaitable[None]], width: int = 64) -> None:
    """Do `work` for 0 to count-1, so many at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(width)))


async def joined(server: Server, count: int, shards: int) -> list[Consumer]:
    """So many consumers that hold all shards."""
    consumers: list[Consumer] = [Consumer(at, await Connection.open("127.0.0.1", server.port)) for at in range(count)]

    async def beat(at: int) -> None:
        await consumers[at].heartbeat()

    for _ in range(10):
        await gather(count, beat)
        if sum(len(consumer.held) for consumer in consumers) == shards:
            return consumers
    raise RuntimeError(f"only {sum(len(consumer.held) for consumer in consumers)} of {shards} shards are held")


def quantile(values: list[float], share: float) -> float:
    """The value that so large a share of all is below."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def most_heartbeats(server: Server, consumers: list[Consumer], seconds: float) -> None:
    """As many as it takes, 64 at a time."""
    until, took = time.perf_counter() + seconds, list[float]()
    cpu, begun = server.cpu(), time.perf_counter()
    order = iter(lambda: random.randrange(len(consumers)), None)
    busy: set[int] = set()

    async def worker() -> None:
        while (now := time.perf_counter()) < until:
            at = next(at for at in order if at not in busy)
            busy.add(at)
            await consumers[at].heartbeat()
            busy.discard(at)
            took.append(time.perf_counter() - now)

    await asyncio.gather(*(worker() for _ in range(64)))
    spent, cpu = time.perf_counter() - begun, server.cpu() - cpu
    print(
        f"heartbeats, 64 at a time: {len(took) / spent:,.0f}/s, {len(took) / cpu:,.0f} per second of the coordinator's core;"
        f" p50 {quantile(took, 0.5) * 1e3:.1f} ms, p99 {quantile(took, 0.99) * 1e3:.1f} ms",
        flush=True,
    )


async def natural_heartbeats(server: Server, consumers: list[Consumer], seconds: float, interval: float) -> None:
    """Every consumer once an interval, spread evenly."""
    took: list[float] = []
    cpu, begun = server.cpu(), time.perf_counter()
    count = round(len(consumers) * seconds / interval)

    async def one(number: int) -> None:
        await asyncio.sleep(max(0.0, begun + number * interval / len(consumers) - time.perf_counter()))
        sent = time.perf_counter()
        await consumers[number % len(consumers)].heartbeat()
        took.append(time.perf_counter() - sent)

    await gather(count, one, width=256)
    spent, cpu = time.perf_counter() - begun, server.cpu() - cpu
    print(
        f"heartbeats, each consumer every {interval:g} s: {count / spent:,.0f}/s on {cpu / spent:.0%} of the core;"
        f" p50 {quantile(took, 0.5) * 1e3:.2f} ms, p99 {quantile(took, 0.99) * 1e3:.2f} ms",
        flush=True,
    )


async def join(server: Server, consumers: list[Consumer], shards: int) -> float:
    """Seconds from the join of one more until everybody holds its final share. All others wait in their long poll."""
    count = len(consumers) + 1
    newcomer = Consumer(len(consumers), await Connection.open("127.0.0.1", server.port))
    least = shards // count
    done = asyncio.Event()
    at = 0.0

    def settled() -> bool:
        everyone = [*consumers, newcomer]
        return len(newcomer.held) >= least and sum(len(consumer.held) for consumer in everyone) == shards

    async def stay(consumer: Consumer) -> None:
        nonlocal at
        while not done.is_set():
            await consumer.heartbeat(30.0)
            if consumer is newcomer and settled():
                at = time.perf_counter()
                done.set()

    waiting = [asyncio.create_task(stay(consumer)) for consumer in consumers]
    await asyncio.sleep(2.0)
    begun = time.perf_counter()
    waiting.append(asyncio.create_task(stay(newcomer)))
    await asyncio.wait_for(done.wait(), 60)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return at - begun


async def checkpoints(name: str, server: Server, consumers: list[Consumer], seconds: float) -> float:
    """Shards per second: every consumer sends all that it holds, again and again."""
    took: list[float] = []
    durable = 0
    cpu = server.cpu()
    until, begun = time.perf_counter() + seconds, time.perf_counter()

    async def save(consumer: Consumer) -> None:
        nonlocal durable
        while (now := time.perf_counter()) < until:
            saved = await consumer.checkpoint()
            durable += saved
            took.append(time.perf_counter() - now)

    await asyncio.gather(*(save(consumer) for consumer in consumers))
    spent, cpu = time.perf_counter() - begun, server.cpu() - cpu
    print(
        f"{name}: {durable / spent:,.0f} shards/s, {durable / cpu:,.0f} per second of the coordinator's core;"
        f" requests p50 {quantile(took, 0.5) * 1e3:.0f} ms, p99 {quantile(took, 0.99) * 1e3:.0f} ms",
        flush=True,
    )
    return durable / spent


async def measure(arguments: argparse.Namespace) -> list[Row]:
    """The rows that have goals; the other figures are printed as they come."""
    seconds, count, shards = arguments.seconds, arguments.consumers, arguments.shards
    async with serving(count, shards, *arguments.serving) as server:
        consumers = await joined(server, count, shards)
        await most_heartbeats(server, consumers, seconds)
        await natural_heartbeats(server, consumers, seconds, 3.0)
        took = await join(server, consumers, shards)
    async with serving(10, shards, *arguments.serving) as server:
        consumers = await joined(server, 10, shards)
        rate = await checkpoints(f"checkpoints in memory, {shards // 10:,} shards a request", server, consumers, seconds)
    if arguments.kafka:
        options = (f"--kafka={arguments.kafka}", f"--topic={arguments.topic}", *arguments.serving)
        async with serving(10, BROKER_SHARDS, *options) as server:
            consumers = await joined(server, 10, BROKER_SHARDS)
            name = f"checkpoints on a real broker, {BROKER_SHARDS // 10} shards a request"
            await checkpoints(name, server, consumers, seconds)
    note = "the peer's figure is the goal itself"
    return [
        Row(f"consumer {count + 1:,} joins: until everyone has its share", took, JOIN_GOAL, 1.0, "s", note=note),
        Row("checkpoints in memory, shards", rate, CHECKPOINT_GOAL, 1.0, "/s", more_is_better=True, note=note),
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--consumers", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--no-kafka", action="store_true", help="leave out what needs a broker")
    parser.add_argument("--serving", action="append", default=[], help="further options of benchmarks.serving")
    arguments = parser.parse_args()
    # Two connections a consumer at most; the coordinator's process inherits the limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 * arguments.consumers + 1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    cores = sorted(os.sched_getaffinity(0))
    arguments.serving.append(f"--core={cores[0]}")
    os.sched_setaffinity(0, cores[1:] or cores)
    arguments.kafka = ""
    with contextlib.ExitStack() as stack:
        if not arguments.no_kafka:
            arguments.kafka = stack.enter_context(broker())
            arguments.topic = create_topic(arguments.kafka, BROKER_SHARDS)
        rows = asyncio.run(measure(arguments))
    print(render(rows), flush=True)


if __name__ == "__main__":
    main()
