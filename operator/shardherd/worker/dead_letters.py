"""Where records go that failed too often: a topic of Kafka. Called by `delivery`, in the threads of the program's code.

Decides how such a record looks there. How often a record is tried before is an option.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from shardherd.core.model.nouns import ShardId
from shardherd.source.security.credentials import of_files
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker.records import Record

TIMEOUT = 30.0
"""Seconds within which Kafka has to say that a record is durable; then it is tried again."""


class DeadLetters(Protocol):
    """Where records go that failed too often."""

    def bury(self, shard: ShardId, record: Record, reason: str, tries: int) -> None:
        """The record is durable there when this returns. Raises whatever kept it from being."""
        ...


class KafkaDeadLetters:
    """A topic. It connects with the first record."""

    def __init__(self, topic: str, access: KafkaAccess) -> None:
        self._topic = topic
        self._access = access
        self._producer: Any = None
        self._lock = threading.Lock()

    def bury(self, shard: ShardId, record: Record, reason: str, tries: int) -> None:
        headers = [*record.headers, *headers_of(shard, record, reason, tries)]
        sent = self._connected().send(self._topic, key=record.key, value=record.value, headers=headers)
        sent.get(timeout=TIMEOUT)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout=TIMEOUT)

    def _connected(self) -> Any:
        with self._lock:
            if self._producer is None:
                from kafka import KafkaProducer

                self._producer = KafkaProducer(
                    bootstrap_servers=self._access.bootstrap_servers.split(","),
                    acks="all",
                    **of_files(self._access.security)(),
                )
            return self._producer


def headers_of(shard: ShardId, record: Record, reason: str, tries: int) -> list[tuple[str, bytes]]:
    """Where the record comes from, and why it is here. It keeps its own key, value and headers."""
    fields = {"shard": shard, "offset": record.offset, "timestamp": record.timestamp, "tries": tries, "reason": reason}
    return [(f"shardherd.{name}", str(value).encode()) for name, value in fields.items()]
