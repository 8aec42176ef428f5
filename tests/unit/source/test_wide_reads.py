"""Large answers are read widely."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import kafka.errors as errors
import pytest

from shardherd.source.kafka import wide_reads


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Any]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield theirs, ours
    ours.close()
    theirs.close()


def received(sock: Any) -> tuple[bytes, Exception | None]:
    data, error = wide_reads.receive(sock)
    return bytes(data), error


def test_what_has_arrived_is_read_at_once(pair: tuple[socket.socket, Any]) -> None:
    peer, sock = pair
    peer.sendall(b"x" * 100_000)

    assert received(sock) == (b"x" * 100_000, None)
    assert received(sock) == (b"", None)


def test_one_read_ends_even_if_more_keeps_arriving(pair: tuple[socket.socket, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_reads, "READ_BYTES", 1000)
    peer, sock = pair
    peer.sendall(b"x" * 5000)

    assert [len(wide_reads.receive(sock)[0]) for _ in range(6)] == [1000, 1000, 1000, 1000, 1000, 0]


def test_a_closed_connection_is_an_error_after_its_last_bytes(pair: tuple[socket.socket, Any]) -> None:
    peer, sock = pair
    peer.sendall(b"last")
    peer.close()

    data, error = received(sock)

    assert (data, type(error)) == (b"last", errors.KafkaConnectionError)
