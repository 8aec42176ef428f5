"""Topics that are read up to a time only: records of before it, and then others. Called by tests of groups that do so."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka import KafkaAdminClient, KafkaProducer

ENDS_AT = int(time.time()) - 1800
"""The time, in seconds since 1970."""


def write(bootstrap: str, topic: str, partition: int, before: int, after: int) -> None:
    """So many records of before the time, and then so many others."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for number in range(before + after):
        at = ENDS_AT - 600 + number if number < before else ENDS_AT + number - before
        producer.send(topic, value=b"%d" % number, partition=partition, timestamp_ms=at * 1000).get(60)
    producer.close()


def grow(bootstrap: str, topic: str, partitions: int, until: Callable[[str, Callable[[], bool]], object]) -> None:
    """The topic has so many partitions from now on."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_partitions({topic: partitions})
    until("has its new partitions", lambda: len(admin.describe_topics([topic])[0]["partitions"]) == partitions)
    admin.close()
