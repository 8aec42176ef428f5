"""What `doctor --brokers` is told by real brokers: the settings of a topic, its replicas, and who wrote to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer

from dev.cluster.kafka import LIMITED
from shardherd.adapters.kafka.survey import SETTINGS, Producers
from shardherd.inspect.brokers import Asked, judged
from shardherd.inspect.checks import Check
from tests.harness.kafka import KafkaLab
from tests.integration.brokers.conftest import Coordinate


@pytest.fixture
def transaction(kafka: KafkaLab) -> Iterator[Any]:
    """A producer with a transaction that is open."""
    producer = KafkaProducer(bootstrap_servers=kafka.trio.bootstrap(), transactional_id="survey")
    producer.init_transactions()
    producer.begin_transaction()
    yield producer
    producer.abort_transaction()
    producer.close()


async def test_brokers_say_what_a_topic_demands_and_who_writes_to_it(
    kafka: KafkaLab, coordinate: Coordinate, transaction: Any
) -> None:
    topic = kafka.create(2, cleanup_policy="compact,delete", retention_ms="86400000", min_insync_replicas="2")
    transaction.send(topic, key=b"k", value=b"1", partition=0).get(timeout=30)

    found = await coordinate(kafka.secrets()).survey(kafka.group(topic))

    (survey,) = found.topics
    assert (found.brokers, survey.partitions, survey.replicas, survey.in_sync, survey.leaderless) == (3, 2, 3, 3, 0)
    assert survey.settings is not None
    demanded = {"cleanup.policy": "compact,delete", "retention.ms": "86400000", "min.insync.replicas": "2"}
    assert survey.settings.items() >= demanded.items()
    assert survey.settings.keys() == set(SETTINGS)
    assert survey.producers is not None
    assert (survey.producers.known, survey.producers.open) == (1, 1)
    assert survey.producers.quiet_since == pytest.approx(time.time(), abs=60)

    checks = {check.name: check for check in judged([Asked("shop/clicks", found)], time.time())}
    assert checks["broker of shop/clicks, from here"].message == "3 brokers of Kafka 4.3 by what they serve"
    assert checks["replicas of shop/clicks"] == Check(
        "replicas of shop/clicks", "ok", f"{topic}: 3 replicas, of which producers with acks=all need 2"
    )


async def test_who_may_see_no_topic_is_told_so(kafka: KafkaLab, coordinate: Coordinate) -> None:
    topic = kafka.create(1)
    found = await coordinate(kafka.secrets(user=LIMITED)).survey(kafka.group(topic, "SASL_PLAINTEXT", "SCRAM-SHA-256"))
    assert (found.topics, found.missing) == ((), {topic: "TopicAuthorizationFailedError"})


async def test_an_idempotent_producer_is_seen_and_another_is_not(kafka: KafkaLab, coordinate: Coordinate) -> None:
    topic = kafka.create(1)
    connector = coordinate(kafka.secrets())
    for idempotent, known in ((False, 0), (True, 1)):
        producer = KafkaProducer(bootstrap_servers=kafka.trio.bootstrap(), enable_idempotence=idempotent)
        producer.send(topic, value=b"1").get(timeout=30)
        producer.close()
        (survey,) = (await connector.survey(kafka.group(topic))).topics
        assert survey.producers == Producers(known)
