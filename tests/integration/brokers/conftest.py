"""Fixtures of the tests on three brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.memory import MemorySecrets
from shardherd.core.security import Security
from shardherd.spark.brokers import Brokers

Connect = Callable[..., Brokers]
Coordinate = Callable[[MemorySecrets], KafkaConnector]


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
