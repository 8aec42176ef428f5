"""Kinesis for the tests of this folder: played in a thread, started on first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.kinesis import PlayedKinesis


@pytest.fixture(scope="session")
def kinesis_service() -> Iterator[PlayedKinesis]:
    with PlayedKinesis() as service:
        yield service


@pytest.fixture
def kinesis(kinesis_service: PlayedKinesis) -> PlayedKinesis:
    """The service, with nothing said to it yet."""
    kinesis_service.played.reset()
    return kinesis_service
