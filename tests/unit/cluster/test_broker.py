"""One plain broker on this machine: what it listens on, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.cluster.broker import Broker, properties
from dev.cluster.errors import ClusterError
from dev.cluster.tools import Tools


def test_it_listens_on_the_loopback_address_alone() -> None:
    settings = dict(line.split("=", 1) for line in properties(Path("/data"), 20001, 20002).splitlines())
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert settings["log.dirs"] == "/data"


def test_one_broker_is_enough_for_every_topic_of_kafkas_own() -> None:
    settings = dict(line.split("=", 1) for line in properties(Path("/data"), 20001, 20002).splitlines())
    factors = {name: value for name, value in settings.items() if name.endswith("replication.factor")}
    assert len(factors) == 3
    assert set(factors.values()) == {"1"}


def test_the_address_of_a_broker_that_was_never_started_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=f"no broker was started in {tmp_path}"):
        _ = Broker(tmp_path, Tools()).bootstrap


def test_to_remove_a_broker_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    assert not Broker(tmp_path / "kafka", Tools()).remove()
