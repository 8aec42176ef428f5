"""A herd on the run's broker, for every test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.broker import Broker, broker
from tests.harness.quick_spark import _quick_spark
from tests.integration.local.herd import Herd

__all__ = ["_quick_spark", "broker"]


@pytest.fixture
def herd(tmp_path: Path, broker: Broker) -> Iterator[Herd]:
    """Nothing runs yet. Whatever a test started ends with it."""
    found = Herd(tmp_path, broker.bootstrap, f"clicks-{uuid.uuid4().hex[:6]}")
    yield found
    found.close()
