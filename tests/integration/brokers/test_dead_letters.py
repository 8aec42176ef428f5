"""Records that failed too often, in a topic of a real broker."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer, TopicPartition

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker.dead_letters import DeadLetterError, KafkaDeadLetters
from shardherd.worker.records import Record
from tests.harness.kafka import KafkaLab


def test_a_dead_letter_is_the_record_with_where_it_came_from_and_why_in_its_headers(kafka: KafkaLab) -> None:
    topic = kafka.create(1)
    letters = KafkaDeadLetters(topic, KafkaAccess(kafka.trio.bootstrap(), Security(), None))
    record = Record(7, b"key", b"value", 1000, (("own", b"1"),))
    letters.bury(ShardId("clicks/3"), record, "ValueError: no JSON", 5)
    letters.close()

    consumer = KafkaConsumer(bootstrap_servers=kafka.trio.bootstrap(), auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    found = next(consumer)
    consumer.close()
    assert (found.key, found.value, dict(found.headers)) == (
        b"key",
        b"value",
        {
            "own": b"1",
            "shardherd.shard": b"clicks/3",
            "shardherd.offset": b"7",
            "shardherd.timestamp": b"1000",
            "shardherd.tries": b"5",
            "shardherd.reason": b"ValueError: no JSON",
        },
    )


def test_what_is_null_in_a_record_is_null_in_its_dead_letter(kafka: KafkaLab) -> None:
    topic = kafka.create(1)
    letters = KafkaDeadLetters(topic, KafkaAccess(kafka.trio.bootstrap(), Security(), None))
    letters.bury(ShardId("clicks/3"), Record(7, None, None, 1000, (("own", None),)), "it failed", 5)
    letters.close()

    consumer = KafkaConsumer(bootstrap_servers=kafka.trio.bootstrap(), auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    found = next(consumer)
    consumer.close()
    assert (found.key, found.value, found.headers[0]) == (None, None, ("own", None))


def test_a_record_that_no_broker_takes_is_not_buried(kafka: KafkaLab) -> None:
    topic = kafka.create(1, max_message_bytes="1000")
    letters = KafkaDeadLetters(topic, KafkaAccess(kafka.trio.bootstrap(), Security(), None))
    with pytest.raises(DeadLetterError, match="MessageSizeTooLargeError"):
        letters.bury(ShardId("clicks/3"), Record(7, None, b"x" * 5000, 1000, ()), "it failed", 1)
    letters.close()
