"""A Kinesis that others have written keeps the same contract as the one that most tests read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dev.cluster.kinesalite import Kinesalite
from dev.cluster.tools import Tools
from shardherd.source.kinesis.client import Kinesis
from shardherd.source.kinesis.shard_reader import BEGINNING, NumberError, ShardReader, at
from tests.contract.kinesis import FIRST, KinesisContract, write
from tests.harness.cluster import Tell
from tests.harness.kinesis import open_writer, split


class Served:
    """The server, as tests speak to it."""

    def __init__(self, server: Kinesalite) -> None:
        self._server = server
        self._ahead = 0.0
        self.url = server.url

    @property
    def client(self) -> Any:
        return open_writer(self.url)

    def now(self) -> float:
        return time.time() + self._ahead

    def pass_time(self, seconds: float) -> None:
        self._set_ahead(self._ahead + seconds)

    def reset(self) -> None:
        """Its clock is that of the machine."""
        if self._ahead:
            self._set_ahead(0.0)

    def _set_ahead(self, seconds: float) -> None:
        self._ahead = seconds
        self._server.set_ahead(seconds)


@pytest.fixture(scope="session")
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
        kinesalite.reset()
        return kinesalite

    def test_the_last_records_of_a_closed_shard_may_come_with_an_iterator_and_its_end_without_records(
        self, orders: Any, reading: Kinesis
    ) -> None:
        write(orders, "a", "b", "c")
        split(orders, "orders", FIRST)
        reader = ShardReader(reading, FIRST, (BEGINNING,))
        answers = [reader.read(2) for _ in range(4)]
        assert [([each.data for each in answer.records], answer.over) for answer in answers] == [
            ([b"a", b"b"], False),
            ([b"c"], False),
            ([], True),
            ([], True),
        ]

    def test_a_number_of_another_shard_is_refused(self, orders: Any, reading: Kinesis) -> None:
        number, *_ = write(orders, "a")
        split(orders, "orders", FIRST)
        with pytest.raises(NumberError, match="encodes shardId-000000000000"):
            ShardReader(reading, "shardId-000000000001", (at(number),)).read()
