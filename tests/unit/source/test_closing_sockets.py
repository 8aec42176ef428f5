"""No socket is left open where no connection comes of it, however long the garbage collector stays away."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import KafkaError
from kafka.net.selector import NetworkSelector

from shardherd.core.model.security import Security
from shardherd.source.kafka.connection_manager import ClientManager
from shardherd.source.security.credentials import of_files


@pytest.fixture
def _no_garbage_is_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sockets() -> int:
    """How many this process has open."""
    return sum(1 for link in Path("/proc/self/fd").iterdir() if _is_socket(link))


def _is_socket(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("socket:")
    except FileNotFoundError:
        return False  # closed since


@pytest.mark.usefixtures("_no_garbage_is_collected")
def test_a_connection_that_is_refused_leaves_no_socket_open() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        net = NetworkSelector()
        manager = ClientManager(net, bootstrap_servers=[address], reconnect_backoff_ms=1, reconnect_backoff_max_ms=1)
        before = sockets()
        with pytest.raises(KafkaError):
            net.run(manager.bootstrap_async, 300)
        assert manager.failures()
        assert sockets() == before
        manager.close()
        net.close()


@pytest.mark.usefixtures("_no_garbage_is_collected")
def test_a_peer_that_says_nothing_during_the_handshake_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        net = NetworkSelector()
        manager = ClientManager(
            net,
            of_files(Security(protocol="SSL")),
            bootstrap_servers=[address],
            reconnect_backoff_ms=1,
            reconnect_backoff_max_ms=1,
            socket_connection_setup_timeout_ms=50,
            socket_connection_setup_timeout_max_ms=50,
        )
        before = sockets()
        with pytest.raises(KafkaError):
            net.run(manager.bootstrap_async, 300)
        assert "no connection was made in time" in str(manager.failures()[0])
        assert sockets() == before
        manager.close()
        net.close()
