"""A coordinator in a process of its own, on one core, for the benchmarks: `python -m benchmarks.serving`.

It stands on the in-memory twins; with `--kafka` its source and its offsets are a real broker's. It prints its port and serves
until its standard input closes. `cpu` there is answered with the CPU seconds that it has used; `died <ordinal> <start>` is a
proof of death; `cordon <ordinals>` makes these consumers hold nothing, and all others what they should. It makes traces
if OpenTelemetry's variables ask for them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
import time
from dataclasses import replace

import uvloop
from prometheus_client import CollectorRegistry

from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.memory import (
    MemoryConnector,
    MemoryEvents,
    MemoryKafka,
    MemoryLeadership,
    MemoryOwnership,
    MemoryTokens,
)
from shardherd.cli.operator_process import GC_THRESHOLDS, watched
from shardherd.clock import SystemClock
from shardherd.coordinator import CoordinatorPorts, CoordinatorServer
from shardherd.coordinator.metrics import OperatorCounters
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSettings, GroupSpec, Incarnation, KafkaSource
from shardherd.ports import Caller, SourceConnector
from shardherd.telemetry import tracing
from shardherd.telemetry.operator_metrics import OperatorMetrics

NAMESPACE, TOPIC = "bench", "t"


def uid_of(group: str) -> str:
    """The UID of a group of this name."""
    return f"uid-of-{group}"


def group_spec(name: str, topic: str, consumers: int, servers: str, session: float, cells: int = 0) -> GroupSpec:
    """A group of the benchmark."""
    return GroupSpec(
        GroupIdentity(NAMESPACE, name, uid_of(name)),
        KafkaSource(servers, (topic,), "", f"{NAMESPACE}.{name}"),
        GroupSettings(session_timeout=session, initial_assignment_delay=600.0, cells=cells),
        consumers,
    )


async def serve(arguments: argparse.Namespace) -> None:
    """Serve one group until the standard input closes."""
    clock, tokens = SystemClock(), MemoryTokens()
    for ordinal in range(arguments.consumers + 100):
        name = f"{arguments.group}-{ordinal}"
        group, uid = arguments.group, uid_of(arguments.group)
        tokens.callers[f"token-{ordinal}"] = Caller(NAMESPACE, "default", name, f"uid-{ordinal}", group, group_uid=uid)
    kafka = MemoryKafka()
    connector: SourceConnector = KafkaConnector() if arguments.kafka else MemoryConnector(kafka)
    if not arguments.kafka:
        kafka.create_topic(arguments.topic, arguments.shards)
    ports = CoordinatorPorts(
        clock=clock,
        leadership=MemoryLeadership(clock),
        tokens=tokens,
        events=MemoryEvents(),
        metrics=OperatorCounters(OperatorMetrics(CollectorRegistry())),
        **watched(MemoryOwnership(), connector, tracing.start(os.environ, "shardherd-benchmark", {})),
    )
    server = CoordinatorServer(ports, host="127.0.0.1", port=0, discovery_interval=1.0)
    await server.start()
    servers = arguments.kafka or "memory:9092"
    spec = group_spec(arguments.group, arguments.topic, arguments.consumers, servers, arguments.session, arguments.cells)
    server.coordination.apply(replace(spec, service_account="default"))
    await server.lead()
    for _ in range(1200):
        view = server.coordination.view(spec.identity)
        if view is not None and len(view.shards) == arguments.shards and all(row.checkpoint is not None for row in view.shards):
            break
        await asyncio.sleep(0.05)
    else:
        raise RuntimeError(f"the group does not have its {arguments.shards} shards within a minute")
    print(server.port, flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        match line.split():
            case [b"cpu"]:
                print(time.process_time(), flush=True)
            case [b"died", number, start]:
                dead = int(number)
                consumer, run = ConsumerId(f"{arguments.group}-{dead}"), Incarnation(f"uid-{dead}", int(start))
                server.coordination.consumer_died(spec.identity, consumer, run)
            case [b"cordon", *numbers]:
                cordoned = frozenset(ConsumerId(f"{arguments.group}-{int(each)}") for each in numbers)
                server.coordination.apply(replace(spec, cordoned=cordoned))
    await server.stop()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--consumers", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--group", default="g")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--session", type=float, default=600.0, help="seconds of silence until a consumer is expired")
    parser.add_argument("--kafka", default="")
    parser.add_argument("--cells", type=int, default=0, help="into so many cells the shards are dealt")
    parser.add_argument("--core", type=int, default=-1, help="the only core to use")
    parser.add_argument("--log", default="WARNING", help="level of the log, on standard error")
    parser.add_argument("--profile", default="", help="write a profile to this file at the end")
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log, format="%(asctime)s %(name)s %(message)s")
    gc.set_threshold(*GC_THRESHOLDS)
    if arguments.core >= 0:
        os.sched_setaffinity(0, {arguments.core})
    if arguments.profile:
        import cProfile

        cProfile.runctx("uvloop.run(serve(arguments))", globals(), locals(), arguments.profile)
    else:
        uvloop.run(serve(arguments))


if __name__ == "__main__":
    main()
