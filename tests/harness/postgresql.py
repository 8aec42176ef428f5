"""A PostgreSQL server for the tests that ask for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.cluster.postgresql import PostgreSQL
from dev.cluster.tools import Tools
from tests.harness.cluster import Tell


@pytest.fixture(scope="session")
def postgresql(tell: Tell) -> Iterator[PostgreSQL]:
    tell("starting a PostgreSQL server")
    server = PostgreSQL(Tools())
    try:
        server.start()
        yield server
    finally:
        server.close()
