"""Writes a record for every key of every cell: `python -m benchmarks.state.load <servers> <topic> <cells> <keys> <characters>`.

Run by `__main__` in the environment of the benchmarks: kafka-python needs minutes for each GB.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from confluent_kafka import Producer


def main(servers: str, topic: str, *sizes: str) -> None:
    """Values are of characters that do not compress, and the same in each run."""
    cells, keys, characters = map(int, sizes)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.size": 512 * 1024})
    rng = random.Random(1)

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not written: {error}")

    for number in range(keys):
        value = rng.randbytes(characters // 2).hex().encode()
        for cell in range(cells):
            while True:
                try:
                    producer.produce(topic, value, b"%d-%d" % (cell, number), cell, delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    if left := producer.flush(60.0):
        raise RuntimeError(f"{left} records were not written within 60 s")


if __name__ == "__main__":
    main(*sys.argv[1:])
