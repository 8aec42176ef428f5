"""What all who write to a topic in transactions share: one connection of the process, and whether the topic can be written.

The Kafka sink of Spark and a worker's `KafkaOutput` call it before they write. It decides which topics are refused, and how.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from itertools import zip_longest

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.core.planning.durability import Level
from shardherd.source.encoding.record_encoding import Batch
from shardherd.source.kafka.partitions import partition_of
from shardherd.transactions.kafka_transactions import DELIVERY_TIMEOUT, Transactions
from shardherd.transactions.outcomes import TableError

log = logging.getLogger(__name__)

_connections: dict[tuple[str, Security, float], Transactions] = {}
_opening = threading.Lock()


def connection(bootstrap_servers: str, security: Security, timeout: float = DELIVERY_TIMEOUT) -> Transactions:
    """This process's connection to a cluster, on which a step is tried for `timeout` seconds."""
    with _opening:
        key = bootstrap_servers, security, timeout
        if (found := _connections.get(key)) is None:
            found = _connections[key] = Transactions(bootstrap_servers, security, timeout=timeout)
        return found


def partitions_of(kafka: Transactions, topic: str) -> int:
    """How many partitions the topic has. Raises TableError if there is none of this name."""
    found = kafka.partitions(topic)
    if not found:
        servers = kafka.bootstrap_servers
        raise TableError(f"Kafka at {servers} has no topic {topic!r}: create it, with as many partitions as you want")
    return found


def check_topic(kafka: Transactions, topic: str, shards: Iterable[ShardId]) -> int:
    """Whether positions of these shards can be kept beside records of the topic, and whether those are safe there. Raises
    TableError; what is only unsafe is a warning. Returns how many partitions the topic has."""
    partitions = partitions_of(kafka, topic)
    read: dict[str, int] = {}
    for of, number in map(partition_of, shards):
        read[of] = max(read.get(of, 0), number + 1)
    for of, wanted in read.items():
        if kafka.partitions(of) < wanted:
            raise TableError(
                f"Kafka at {kafka.bootstrap_servers} has no topic {of!r} with {wanted} partitions, as the source has it. The"
                " positions of this sink are offsets of the source's partitions, and Kafka takes none of others:"
                " write to the cluster that is read, or make a topic of this name there, which stays empty"
            )
    found = kafka.durability(topic)
    if found.level is Level.BAD:
        raise TableError(f"the topic {topic}: {found.said}; {found.remedy}")
    if found.level is Level.NOTE:
        log.warning("the topic %s: %s", topic, found.said)
    return partitions


def rounds_of(batches: Iterable[Batch]) -> list[list[Batch]]:
    """In which order batches are sent: a request may have one of a partition."""
    by_partition: dict[int, list[Batch]] = {}
    for batch in batches:
        by_partition.setdefault(batch.partition, []).append(batch)
    return [[each for each in row if each is not None] for row in zip_longest(*by_partition.values())]
