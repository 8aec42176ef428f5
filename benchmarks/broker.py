"""The broker that benchmarks measure on: a real one of `dev.cluster`, alone, and removed at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

from kafka import KafkaAdminClient

from dev.cluster import Cluster

NAME = os.environ.get("SHARDHERD_BENCH_CLUSTER", "bench")


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Its address. One that runs already under SHARDHERD_BENCH_CLUSTER is used and left; ours is removed on SIGTERM, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster = Cluster(NAME)
    running = "SHARDHERD_BENCH_CLUSTER" in os.environ
    cluster.up(kafka=True, prometheus=False, node=False)
    try:
        yield cluster.kafka_bootstrap
    finally:
        if not running:
            cluster.down()


def create_topic(servers: str, partitions: int) -> str:
    """A fresh topic."""
    name = f"bench-{time.time_ns():x}"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True)
    finally:
        admin.close()
    return name


def delete_topic(servers: str, topic: str) -> None:
    """It is of no use any more; thousands of partitions make a broker slow."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.delete_topics([topic])
    finally:
        admin.close()


def grow_topic(servers: str, topic: str, partitions: int) -> None:
    """So many partitions from now on."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_partitions({topic: partitions})
    finally:
        admin.close()
