"""A producer by librdkafka: it produces the lines `key,value` of its standard input, and ends once all are acknowledged.

`python librdkafka_producer.py SERVERS TOPIC [SETTING=VALUE ...]`, run in the environment that `benchmarks/environment` makes.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Producer


def main() -> int:
    servers, topic, *settings = sys.argv[1:]
    producer = Producer({"bootstrap.servers": servers, **dict(setting.split("=", 1) for setting in settings)})
    refused: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            refused.append(f"{message.key()} to {message.partition()}: {error}")

    for line in sys.stdin.buffer:
        key, value = line.rstrip().split(b",")
        producer.produce(topic, value, key, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(150)
    if left or refused:
        print(f"ERROR: {left} records are not acknowledged, {len(refused)} were refused: {refused[:5]}", file=sys.stderr)
    return int(bool(left or refused))


if __name__ == "__main__":
    sys.exit(main())
