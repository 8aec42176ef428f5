"""Where records go that failed too often: a topic of Kafka. Called by `delivery`, in the threads of the program's code.

Decides how such a record looks there. How often a record is tried before is an option.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import kafka.errors as errors
from kafka.serializer import Serializer

from shardherd.core.model.nouns import ShardId
from shardherd.source.security.credentials import of_files
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker.records import Record

TIMEOUT = 30.0
"""Seconds within which Kafka has to say that a record is durable; then it is tried again."""

LARGEST = 1 << 30
"""Bytes of a record that may be sent: as many as an answer may have with which it was read. What brokers take they say."""

LONGEST_REASON = 4096
"""Characters of a reason, which may quote all of its record."""


class DeadLetterError(Exception):
    """Kafka does not take a record that failed too often. Names the topic, the record and what to do."""


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
        headers = _Headers((name, _given(value)) for name, value in record.headers)
        headers += headers_of(shard, record, reason, tries)
        try:
            sent = self._connected().send(self._topic, key=record.key, value=_given(record.value), headers=headers)
            sent.get(timeout=TIMEOUT)
        except errors.KafkaError as error:
            raise DeadLetterError(
                f"{record.name} of shard {shard} cannot be written to topic {self._topic!r} of dead_letters: {error}"
                f"{_remedy(error)}"
            ) from error

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
                    # An idempotent one sends nothing any more, of any shard, once brokers have refused one record.
                    enable_idempotence=False,
                    max_request_size=LARGEST,
                    value_serializer=_Nulls(),
                    **of_files(self._access.security)(),
                )
            return self._producer


class _Null(bytes):
    """Stands for None where kafka-python's `send` takes none: in a header, and in a value beside a key that is None, too."""


_NULL = _Null()


def _given(value: bytes | None) -> bytes:
    return _NULL if value is None else value


class _Headers(list[tuple[str, bytes | None]]):
    """kafka-python encodes a header that is None, and would then count its bytes for what `send` returns, unless there are no
    headers. Nobody looks at that number."""

    def __bool__(self) -> bool:
        return False


class _Nulls(Serializer):  # type: ignore[misc]
    """Called when `send` has checked what it was given: what stands for None becomes it."""

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: bytes) -> bytes | None:  # noqa: ARG002
        headers[:] = [(name, None if value is _NULL else value) for name, value in headers]
        return None if data is _NULL else data


def headers_of(shard: ShardId, record: Record, reason: str, tries: int) -> list[tuple[str, bytes]]:
    """Where the record comes from, and why it is here. It keeps its own key, value and headers."""
    why = reason[:LONGEST_REASON]
    fields = {"shard": shard, "offset": record.offset, "timestamp": record.timestamp, "tries": tries, "reason": why}
    # The text of an error may have what is no text: halves of a surrogate pair, of bytes that were decoded as they are.
    return [(f"shardherd.{name}", str(value).encode(errors="backslashreplace")) for name, value in fields.items()]


def _remedy(error: errors.KafkaError) -> str:
    match error:
        case errors.MessageSizeTooLargeError() | errors.RecordListTooLargeError():
            return "; raise its max.message.bytes above that of the topics that are read, as a record has more headers there"
        case errors.InvalidRecordError():
            return "; a compacted topic takes no record without a key: name a topic that is not compacted"
        case errors.TopicAuthorizationFailedError():
            return "; allow the worker's user WRITE on it"
    return ""
