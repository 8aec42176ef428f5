"""One real Kafka broker of a test run, without security and without a cluster around it: it starts in some seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.cluster.broker import Broker
from dev.cluster.tools import Tools
from tests.harness.cluster import Tell

__all__ = ["Broker", "broker"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Iterator[Broker]:
    """One broker for all tests of a run."""
    tell("starting a Kafka broker")
    tools = Tools()
    _ = tools.packages
    found = Broker(tmp_path_factory.mktemp("broker") / "here", tools, outlives=False)
    try:
        found.launch()
        found.ready()
        yield found
    finally:
        found.remove()
