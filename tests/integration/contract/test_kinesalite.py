"""A Kinesis that others have written keeps the same contract as the one that most tests read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dev.cluster.kinesalite import Kinesalite
from dev.cluster.tools import Tools
from tests.contract.kinesis import KinesisContract
from tests.harness.cluster import Tell
from tests.harness.kinesis import open_writer


class Served:
    """The server, as tests speak to it."""

    def __init__(self, server: Kinesalite) -> None:
        self.url = server.url

    @property
    def client(self) -> Any:
        return open_writer(self.url)


@pytest.fixture(scope="module")
def kinesalite(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Iterator[Served]:
    tell("starting kinesalite")
    server = Kinesalite(tmp_path_factory.mktemp("kinesalite"), Tools())
    try:
        server.start()
        yield Served(server)
    finally:
        server.close()


class TestKinesalite(KinesisContract):
    @pytest.fixture
    def service(self, kinesalite: Served) -> Served:
        return kinesalite
