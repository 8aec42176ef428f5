"""Records that failed too often, as a broker gets them of kafka-python's own producer: none is changed, and none is stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse
from kafka.record import MemoryRecords

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker.dead_letters import LONGEST_REASON, DeadLetterError, KafkaDeadLetters
from shardherd.worker.records import Record
from tests.unit.source.played_kafka import TOPIC, Log, PlayedKafka

SHARD = ShardId("orders/3")
TOO_LARGE, INVALID_RECORD, NOT_ALLOWED = 10, 87, 29


class TakingKafka(PlayedKafka):
    """A broker that takes records, or refuses them with `code`. `taken` are their keys, values and headers."""

    def __init__(self, code: int = 0) -> None:
        super().__init__({0: Log(1, 0)})
        self.code = code
        self.taken: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = []

    def answers(self) -> dict[int, tuple[Any, Callable[[int, Any], Any], tuple[int, int]]]:
        more = {0: (ProduceRequest, self._produce, (3, 8)), 22: (InitProducerIdRequest, self._producer, (0, 4))}
        return super().answers() | more

    def _producer(self, _node: int, _request: Any) -> Any:
        return InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0)

    def _produce(self, _node: int, request: Any) -> Any:
        kind = ProduceResponse.TopicProduceResponse
        for topic in request.topic_data:
            for part in topic.partition_data:
                batches = MemoryRecords(bytes(part.records))
                while self.code == 0 and (batch := batches.next_batch()) is not None:
                    self.taken += [(each.key, each.value, list(each.headers)) for each in batch]
        answer = kind.PartitionProduceResponse(
            index=0,
            error_code=self.code,
            base_offset=0,
            log_append_time_ms=-1,
            log_start_offset=0,
            record_errors=[],
            error_message=None,
        )
        return ProduceResponse(responses=[kind(name=TOPIC, partition_responses=[answer])], throttle_time_ms=0)


def record(**given: Any) -> Record:
    return Record(**{"offset": 7, "key": b"key", "value": b"value", "timestamp": 1000, "headers": (), **given})


def bury(kafka: TakingKafka, record: Record, reason: str = "it failed") -> None:
    letters = KafkaDeadLetters(TOPIC, KafkaAccess(kafka.bootstrap, Security(), None))
    try:
        letters.bury(SHARD, record, reason, 5)
    finally:
        letters.close()


def told(reason: bytes = b"it failed") -> list[tuple[str, bytes | None]]:
    return [
        ("shardherd.shard", b"orders/3"),
        ("shardherd.offset", b"7"),
        ("shardherd.timestamp", b"1000"),
        ("shardherd.tries", b"5"),
        ("shardherd.reason", reason),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"key": None},
        {"value": None},
        {"key": None, "value": None},
        {"key": b"", "value": b""},
        {"headers": (("a", None), ("b", b""), ("a", b"1"), ("c", None))},
        {"key": None, "value": None, "headers": (("a", None),)},
        {"value": b"x" * 3_000_000},
    ],
    ids=["plain", "no key", "no value", "neither", "empty", "headers without a value", "nothing but one", "3 MB"],
)
def test_a_dead_letter_is_the_record_as_it_was_whatever_of_it_is_null_and_however_large_it_is(given: dict[str, Any]) -> None:
    dead = record(**given)
    with TakingKafka() as kafka:
        bury(kafka, dead)
    assert kafka.taken == [(dead.key, dead.value, [*dead.headers, *told()])]


@pytest.mark.parametrize(
    ("reason", "arrives"),
    [
        ("no such caf\u00e9", "no such caf\u00e9".encode()),
        ("cannot parse \udcff", b"cannot parse \\udcff"),
        ("x" * 1_000_000, b"x" * LONGEST_REASON),
    ],
    ids=["text", "what is no text", "one that quotes its record"],
)
def test_whatever_its_reason_is_a_dead_letter_can_be_sent(reason: str, arrives: bytes) -> None:
    with TakingKafka() as kafka:
        bury(kafka, record(), reason)
    assert kafka.taken == [(b"key", b"value", told(arrives))]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (TOO_LARGE, "raise its max.message.bytes above that of the topics that are read, as a record has more headers there"),
        (INVALID_RECORD, "a compacted topic takes no record without a key: name a topic that is not compacted"),
        (NOT_ALLOWED, "allow the worker's user WRITE on it"),
    ],
    ids=["too large", "without a key", "not allowed"],
)
def test_a_record_that_brokers_refuse_is_named_with_what_to_do(code: int, remedy: str) -> None:
    said = f"record 7 of shard orders/3 cannot be written to topic 'clicks' of dead_letters: .*; {remedy}"
    with TakingKafka(code) as kafka, pytest.raises(DeadLetterError, match=said):
        bury(kafka, record(headers=(("a", None),)))
    assert kafka.taken == []


def test_a_record_that_brokers_refuse_keeps_no_other_from_being_sent() -> None:
    with TakingKafka() as kafka:
        letters = KafkaDeadLetters(TOPIC, KafkaAccess(kafka.bootstrap, Security(), None))
        for code in (TOO_LARGE, INVALID_RECORD):
            kafka.code = code
            with pytest.raises(DeadLetterError):
                letters.bury(SHARD, record(), "it failed", 5)
        kafka.code = 0
        letters.bury(SHARD, record(), "it failed", 5)
        letters.close()
    assert kafka.taken == [(b"key", b"value", told())]
