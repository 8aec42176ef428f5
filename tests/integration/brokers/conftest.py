"""Fixtures of the tests on three brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.core.model.security import Security
from shardherd.source.kafka.brokers import Brokers
from tests.harness.kafka import KafkaLab
from tests.harness.memory_secrets import MemorySecrets

Connect = Callable[..., Brokers]
Coordinate = Callable[[MemorySecrets], KafkaConnector]


@pytest.fixture(scope="module")
def topic(kafka: KafkaLab) -> str:
    """Two partitions of 50 records."""
    name = kafka.create(2)
    kafka.send(name, 2, 50)
    return name


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects as a worker of Spark does."""
    made: list[Brokers] = []

    def connect(bootstrap: str, security: Security | None = None, *, rack: str = "") -> Brokers:
        made.append(Brokers(bootstrap, security, rack=rack))
        return made[-1]

    yield connect
    for brokers in made:
        brokers.close()


@pytest.fixture
async def coordinate() -> AsyncIterator[Coordinate]:
    """Connects as the coordinator does."""
    made: list[KafkaConnector] = []

    def coordinate(secrets: MemorySecrets) -> KafkaConnector:
        made.append(KafkaConnector(secrets))
        return made[-1]

    yield coordinate
    for connector in made:
        await connector.close()
