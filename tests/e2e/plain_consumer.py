"""An application that is not of Spark: it reads Kafka's records, and notes in a file of this run what it read and when.

Runs in the pods of `plain`'s groups, to which a ConfigMap brings it; the argument is the folder of the notes. It notes a range
before it checkpoints it, so what is there twice was read again. At SIGUSR1 it takes more memory than its container may have, at
SIGUSR2 more of the disk, and does not drain any more. Decides nothing: the consumer on the real protocol does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from kafka import KafkaConsumer, TopicPartition

from shardherd.client.pod import consumer_of_pod
from shardherd.core.model.errors import ConsumerStoppedError, CoordinatorUnavailableError, FencedEpochError

WAIT_MS = 100
"""How long one look at a shard waits for a record."""


class Records:
    """What Kafka has of one shard, from any position on."""

    def __init__(self, shard: str) -> None:
        topic, _, partition = shard.rpartition("/")
        self._partition = TopicPartition(topic, int(partition))
        self._kafka = KafkaConsumer(bootstrap_servers=os.environ["SHARDHERD_KAFKA_BOOTSTRAP_SERVERS"], group_id=None)
        self._kafka.assign([self._partition])
        self._next = -1

    def end_after(self, position: int) -> int:
        """The position after the last record that there is now from this one on; the same if there is none."""
        if position != self._next:
            self._kafka.seek(self._partition, position)
        found = self._kafka.poll(timeout_ms=WAIT_MS).get(self._partition, [])
        if found and found[0].offset != position:
            raise RuntimeError(f"{self._partition}: asked for {position}, the first record is {found[0].offset}")
        self._next = found[-1].offset + 1 if found else position
        return self._next


def take_too_much(*_: object) -> None:
    """More memory than any container here may have, page by page."""
    taken = [bytearray(b"x" * (64 << 20)) for _ in range(64)]
    raise RuntimeError(f"{len(taken)} blocks of memory were given: there is no limit")


def write_too_much(*_: object) -> None:
    """More than any pod here may have on disk, into its working directory, a volume of the pod; and hear no SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path("too-much").write_bytes(b"x" * (128 << 20))


async def read(notes: TextIO) -> None:
    """Read what this pod is given, until it has to stop."""
    sources: dict[str, Records] = {}
    async with consumer_of_pod() as consumer:
        while True:
            try:
                async with consumer.take() as shard:
                    if shard.name not in sources:
                        sources[shard.name] = await asyncio.to_thread(Records, shard.name)
                    end = await asyncio.to_thread(sources[shard.name].end_after, shard.position)
                    if end > shard.position:
                        found = {"shard": shard.name, "begin": shard.position, "end": end, "at": time.time()}
                        notes.write(json.dumps(found) + "\n")
                        await shard.save_checkpoint(end, now=True)
            except (CoordinatorUnavailableError, FencedEpochError):
                continue  # the one is sent again behind our back; what the other is about is read by somebody else
            except ConsumerStoppedError:
                return


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name, uid, start = (os.environ[f"SHARDHERD_{each}"] for each in ("CONSUMER", "POD_UID", "START"))
    signal.signal(signal.SIGUSR1, take_too_much)
    signal.signal(signal.SIGUSR2, write_too_much)
    with (folder / f"{name}.{uid}.{start}").open("a", buffering=1) as notes:
        asyncio.run(read(notes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
