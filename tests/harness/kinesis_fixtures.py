"""Kinesis for tests of any folder: played in a thread of their process, started on first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.kinesis import PlayedKinesis


@pytest.fixture(scope="session")
def _kinesis() -> Iterator[PlayedKinesis]:
    from tests.harness.kinesis import PlayedKinesis  # moto takes a while, and few tests need it

    with PlayedKinesis() as service:
        yield service


@pytest.fixture
def kinesis(_kinesis: PlayedKinesis) -> PlayedKinesis:
    """The service, with nothing said to it yet."""
    _kinesis.played.reset()
    return _kinesis
