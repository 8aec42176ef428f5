"""One consumer in a process of its own, ours or a peer's: `benchmarks.member <protocol> <where> <group> <topic> <ordinal>`.

It prints `joining <time>` before it joins, and `<time> <number of shards>` whenever what it holds has changed, on the machine's
monotonic clock. SIGTERM makes it leave in the way of its protocol.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from types import FrameType

LOOK = 0.005
"""Seconds between looks at what is held; the same for everyone."""


class Reporter:
    """Prints changes."""

    def __init__(self) -> None:
        self._count = -1

    def joining(self) -> None:
        """It is about to join."""
        print("joining", time.monotonic(), flush=True)

    def holds(self, count: int) -> None:
        """It holds so many shards now."""
        if count != self._count:
            self._count = count
            print(time.monotonic(), count, flush=True)


async def ours(url: str, group: str, ordinal: int) -> None:
    """A consumer of the coordinator at `url`."""
    from benchmarks.serving import NAMESPACE, uid_of
    from shardherd.client import AsyncConsumer, AsyncConsumerClient
    from shardherd.core.model.nouns import ConsumerId, Incarnation

    stop_requested, reporter = asyncio.Event(), Reporter()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop_requested.set)
    # The number of the start must grow from run to run of one name.
    run = Incarnation(f"uid-{ordinal}", int(time.monotonic() * 1000))
    async with AsyncConsumerClient(url, NAMESPACE, group, lambda: f"token-{ordinal}") as client:
        reporter.joining()
        async with AsyncConsumer(client, ConsumerId(f"{group}-{ordinal}"), run, group_uid=uid_of(group)) as consumer:
            print("start", run.start, flush=True)
            while not stop_requested.is_set():
                reporter.holds(len(consumer.held()))
                await asyncio.sleep(LOOK)
        reporter.holds(0)


def kafka(protocol: str, servers: str, group: str, topic: str) -> None:
    """A consumer of Kafka's own protocols, as librdkafka has them; the broker's and the client's defaults."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "latest"}
    if protocol == "kip848":
        settings["group.protocol"] = "consumer"
    else:
        settings["partition.assignment.strategy"] = "cooperative-sticky"
        # By default a new partition is noticed after up to five minutes; that would measure nothing but this setting.
        settings["topic.metadata.refresh.interval.ms"] = 1000
    stopping: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    reporter, consumer = Reporter(), Consumer(settings)
    reporter.joining()
    consumer.subscribe([topic])
    while not stopping:
        consumer.poll(LOOK)
        reporter.holds(len(consumer.assignment()))
    consumer.close()
    reporter.holds(0)


def main(arguments: list[str]) -> None:
    """See the module."""
    protocol, where, group, topic, ordinal = arguments
    if protocol == "ours":
        asyncio.run(ours(where, group, int(ordinal)))
    else:
        kafka(protocol, where, group, topic)


if __name__ == "__main__":
    main(sys.argv[1:])
